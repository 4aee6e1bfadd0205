//! A sink on a thread of its own. In: frames, on the receiving thread. Out: batches of them to a writer, which may be
//! slow; what does not fit the queue is counted, and never waited for.
//!
//! A frame costs the receiving thread one copy into a batch; batches are used again. A full queue costs whole batches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use hashbrown::HashSet;
use podwire_core::wire::erspan::Direction;

use super::account::Account;
use super::frame::Frame;
use super::session::Session;
use super::sink::Sink;
use super::source::Losses;
use crate::error::{Context, Error, ErrorKind};

/// Bytes of frames in a batch, and batches in the queue: 16 MiB.
const BATCH: usize = 256 << 10;
const QUEUE: usize = 64;
/// Sessions that end while the writer hangs and that are told of later nevertheless.
const NEWS: usize = 4096;

/// A frame in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Number of its session.
    pub session: u64,
    /// When it came, in nanoseconds since 1970.
    pub time: u64,
    /// Where its bytes end in [`Batch::bytes`]; they begin where the last one's end.
    pub end: usize,
    /// Its direction at the mirrored port, where that is known.
    pub direction: Option<Direction>,
}

/// Frames on their way to a writer, and news of their sessions.
#[derive(Debug, Default)]
pub struct Batch {
    /// Sessions whose first frames are in this batch or a later one.
    pub sessions: Vec<Session>,
    /// Frames, in order.
    pub records: Vec<Record>,
    /// Their bytes, one behind the other.
    pub bytes: Vec<u8>,
    /// The last known counters, by session number.
    pub accounts: Vec<(u64, Account)>,
    /// Sessions that have ended.
    pub ended: Vec<u64>,
    /// Frames that were lost before this batch because the queue was full.
    pub overflown: u64,
}

impl Batch {
    /// The frames with their bytes.
    pub fn frames(&self) -> impl Iterator<Item = (&Record, &[u8])> {
        let mut begin = 0;
        self.records.iter().map(move |record| {
            let data = self.bytes.get(begin..record.end).unwrap_or_default();
            begin = record.end;
            (record, data)
        })
    }

    fn forget_frames(&mut self) {
        self.records.clear();
        self.bytes.clear();
    }

    /// There was no room for it: what is told again anyway is forgotten. The last account of a session that has ended is
    /// not, as long as there are few of them; beyond that, those that also began meanwhile are as if they never were.
    fn keep_news(&mut self) {
        self.forget_frames();
        let ended: HashSet<u64> = self.ended.iter().copied().collect();
        let begun: HashSet<u64> = self.sessions.iter().map(|session| session.number).collect();
        let is_short = |session: &u64| ended.contains(session) && begun.contains(session);
        let too_many = self.ended.len() > NEWS;
        self.accounts.retain(|(session, _)| ended.contains(session) && !(too_many && is_short(session)));
        if too_many {
            self.sessions.retain(|session| !is_short(&session.number));
            self.ended.retain(|session| !is_short(session));
        }
    }

    fn clear(&mut self) {
        self.forget_frames();
        self.sessions.clear();
        self.accounts.clear();
        self.ended.clear();
        self.overflown = 0;
    }
}

/// Takes batches, on a thread of its own.
pub trait Writer: Send + 'static {
    /// Takes a batch; returns how many of its frames were lost for `Err`'s reason.
    ///
    /// # Errors
    /// What went wrong, and how many frames it cost. It is called again with the next batch.
    fn write(&mut self, batch: &Batch) -> Result<(), (u64, Error)>;

    /// The end.
    ///
    /// # Errors
    /// When what was kept back cannot be written.
    fn finish(&mut self) -> Result<(), Error>;
}

/// What both threads know.
#[derive(Default)]
struct Shared {
    refused: AtomicU64,
    failure: Mutex<Option<Error>>,
}

impl Shared {
    fn fail(&self, error: Error) {
        tracing::debug!(%error, "the writer failed");
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
    }
}

/// See the module.
pub struct Background {
    name: &'static str,
    batch: Batch,
    queue: Option<Sender<Batch>>,
    empty: Receiver<Batch>,
    known: HashSet<u64>,
    recent: Option<u64>,
    overflown: u64,
    /// Overflown since the last batch that the writer got.
    untold: u64,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the writer's thread. `name` tells it from others in losses and in the list of threads.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(name: &'static str, mut writer: impl Writer) -> Result<Self, Error> {
        let (queue, work) = bounded::<Batch>(QUEUE);
        let (give_back, empty) = bounded(QUEUE);
        let shared = Arc::new(Shared::default());
        let on_thread = shared.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            // A failure is told when it begins, not for each batch that it costs.
            let mut failing = false;
            for mut batch in work {
                match writer.write(&batch) {
                    Ok(()) => failing &= batch.records.is_empty(),
                    Err((frames, error)) => {
                        on_thread.refused.fetch_add(frames, Ordering::Relaxed);
                        if !failing {
                            on_thread.fail(error);
                        }
                        failing = true;
                    }
                }
                batch.clear();
                let _ = give_back.try_send(batch);
            }
            if let (Err(error), false) = (writer.finish(), failing) {
                on_thread.fail(error);
            }
        });
        let thread = thread.context(|| format!("starting thread {name}"))?;
        Ok(Self {
            name,
            batch: Batch::default(),
            queue: Some(queue),
            empty,
            known: HashSet::new(),
            recent: None,
            overflown: 0,
            untold: 0,
            shared,
            thread: Some(thread),
        })
    }

    /// What went wrong first, if anything did. Told once.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn hand_on(&mut self) {
        let Some(queue) = &self.queue else { return };
        self.batch.overflown = self.untold;
        let next = self.empty.try_recv().unwrap_or_default();
        match queue.try_send(std::mem::replace(&mut self.batch, next)) {
            Ok(()) => self.untold = 0,
            Err(TrySendError::Full(mut batch) | TrySendError::Disconnected(mut batch)) => {
                let lost = batch.records.len() as u64;
                self.overflown += lost;
                self.untold += lost;
                batch.keep_news();
                self.batch = batch;
            }
        }
    }
}

impl Sink for Background {
    #[inline]
    fn frame(&mut self, session: &Session, frame: &Frame<'_>) {
        if self.recent != Some(session.number) {
            if self.known.insert(session.number) {
                self.batch.sessions.push(session.clone());
            }
            self.recent = Some(session.number);
        }
        self.batch.bytes.extend_from_slice(frame.data());
        let end = self.batch.bytes.len();
        let record = Record { session: session.number, time: frame.time, end, direction: frame.direction };
        self.batch.records.push(record);
        if end >= BATCH {
            self.hand_on();
        }
    }

    fn account(&mut self, session: &Session, account: &Account) {
        if self.known.contains(&session.number) {
            self.batch.accounts.push((session.number, *account));
        }
    }

    fn end(&mut self, session: &Session) {
        if self.known.remove(&session.number) {
            self.batch.ended.push(session.number);
        }
        self.recent = None;
    }

    fn flush(&mut self) {
        if !self.batch.records.is_empty() || !self.batch.accounts.is_empty() {
            self.hand_on();
        }
    }

    fn losses(&self) -> Losses {
        let refused = self.shared.refused.load(Ordering::Relaxed);
        let (full, failed) = match self.name {
            "tap" => ("tap queue full", "tap refused"),
            _ => ("file queue full", "file not written"),
        };
        Losses(vec![(full, self.overflown), (failed, refused)])
    }

    fn finish(&mut self) -> Result<(), Error> {
        if let Some(queue) = self.queue.take() {
            self.batch.overflown = self.untold;
            // The last batch waits for its turn: nothing is received any more.
            if let Err(error) = queue.send(std::mem::take(&mut self.batch)) {
                self.overflown += error.0.records.len() as u64;
            }
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            return Err(Error::new(ErrorKind::Kernel, format!("thread {} died", self.name)));
        }
        self.failure().map_or(Ok(()), Err)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.queue.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::collect::{Key, Kind};

    fn session(number: u64) -> Session {
        let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let key = Key { source: nobody, destination: nobody, kind: Kind::Vxlan, id: Some(1) };
        Session { number, key, since: 0 }
    }

    #[test]
    fn the_last_account_of_a_session_waits_for_the_writer() {
        let mut batch =
            Batch { accounts: vec![(1, Account::default()), (2, Account::default())], ..Batch::default() };
        batch.ended.push(2);
        batch.keep_news();
        assert_eq!(batch.accounts.iter().map(|(session, _)| *session).collect::<Vec<_>>(), [2]);
        assert_eq!(batch.ended, [2]);
    }

    #[test]
    fn sessions_that_come_and_go_while_a_writer_hangs_are_bounded() {
        let mut batch = Batch { ended: vec![u64::MAX], ..Batch::default() };
        for number in 0..3 * NEWS as u64 {
            batch.sessions.push(session(number));
            batch.accounts.push((number, Account::default()));
            batch.ended.push(number);
            if number % 512 != 0 {
                continue;
            }
            batch.keep_news();
            assert!(batch.sessions.len().max(batch.accounts.len()) <= NEWS && batch.ended.len() <= NEWS);
        }
        assert_eq!(batch.ended.first(), Some(&u64::MAX), "the writer knows it");
    }
}
