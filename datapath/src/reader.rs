//! Captured frames. In: pieces of frames from the ring `FRAMES`. Out: whole frames, each in the queue of whoever reads it.
//!
//! ```text
//!  ring ─► pieces put together ─► a bounded queue per Frames ─► Frames::next().await
//! ```
//! A thread of its own, which runs while somebody captures. Who does not keep up loses frames, which are counted; nobody
//! else does.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use podwire_core::abi::{Direction, Reason, RelayRow, SessionCounters};
use podwire_core::stage::copy::Outcome;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::error::{Context, Error};
use crate::maps::{Table, read_head};
use crate::offload::complete_checksum;
use crate::relay::{Booked, monotonic_ns, take_some, wait};
use crate::vlan::{TAG_LEN, with_tag};

/// How long a frame waits at most: the datapath wakes the reader for large amounts only.
const PERIOD: Duration = Duration::from_millis(2);
/// An idle reader is woken when it is needed; it looks by itself now and then.
const IDLE: Duration = Duration::from_secs(1);
/// Pieces that are taken before frames are counted and the datapath is told that they are read.
const BATCH: usize = 4096;
/// Bytes that may wait for one [`Frames`], and what a frame takes beside its own.
const QUEUE: usize = 32 << 20;
const FRAME_HEAD: usize = 128;
/// Frames of which some pieces are there; there is at most one per CPU that will be whole.
const PARTS: usize = 1024;

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The number of its [`Target::Reader`](crate::Target::Reader).
    pub reader: u32,
    /// When it was seen, in nanoseconds since 1970 by the node's clock.
    pub time_ns: u64,
    /// Relative to the pod.
    pub direction: Direction,
    /// Length of the frame in bytes.
    pub length: u32,
    /// Its bytes from the Ethernet header on, all or the first ones. VLAN tags are in their place; of a whole frame the
    /// checksum that the sender's offload left unfinished is complete.
    pub bytes: Vec<u8>,
}

impl Frame {
    /// Whether bytes are missing.
    pub fn is_cut(&self) -> bool {
        self.bytes.len() < self.length as usize
    }

    fn size(&self) -> usize {
        self.bytes.len() + FRAME_HEAD
    }
}

/// Frames as they are captured. Dropped: nobody reads them any more, and they are lost, and counted so.
#[derive(Debug)]
pub struct Frames {
    queue: UnboundedReceiver<Frame>,
    waiting: Arc<AtomicUsize>,
}

impl Frames {
    /// The next frame; `None` after [`Datapath::stop_reading`](crate::Datapath::stop_reading), when all are read.
    pub async fn next(&mut self) -> Option<Frame> {
        let mut frame = self.queue.recv().await?;
        self.waiting.fetch_sub(frame.size(), Ordering::Relaxed);
        if !frame.is_cut() {
            complete_checksum(&mut frame.bytes);
        }
        Some(frame)
    }
}

/// Where frames go.
#[derive(Default)]
struct Routes {
    /// Readers by session.
    sessions: HashMap<u32, u32>,
    /// By reader.
    queues: HashMap<u32, Queue>,
    /// Sessions whose capture is over: their pieces are of no use to who has the number next.
    gone: HashSet<u32>,
}

impl Routes {
    /// `bytes`: none where pieces had to make room for others before the last one came.
    fn put(&self, head: &RelayRow, bytes: Option<Vec<u8>>) -> Outcome {
        let Some(reader) = self.sessions.get(&head.session) else {
            return Outcome::Lost(Reason::ReaderMissing);
        };
        let Some(queue) = self.queues.get(reader) else {
            return Outcome::Lost(Reason::ReaderMissing);
        };
        let Some(bytes) = bytes else {
            return Outcome::Lost(Reason::ReaderSlow);
        };
        let Some(frame) = frame(*reader, head, bytes) else {
            return Outcome::Lost(Reason::Malformed);
        };
        if let Err(reason) = queue.put(frame) {
            return Outcome::Lost(reason);
        }
        Outcome::Sent { bytes: head.whole, truncated: head.whole < head.original }
    }
}

#[derive(Clone)]
struct Queue {
    frames: UnboundedSender<Frame>,
    waiting: Arc<AtomicUsize>,
}

impl Queue {
    fn put(&self, frame: Frame) -> Result<(), Reason> {
        let size = frame.size();
        let lost = if self.waiting.fetch_add(size, Ordering::Relaxed) + size > QUEUE {
            Reason::ReaderSlow
        } else if self.frames.send(frame).is_err() {
            Reason::ReaderMissing
        } else {
            return Ok(());
        };
        self.waiting.fetch_sub(size, Ordering::Relaxed);
        Err(lost)
    }
}

/// The thread and what it is told.
pub(crate) struct Reader {
    routes: Arc<Mutex<Routes>>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    pub(crate) fn start(
        ring: RingBuf<MapData>,
        counters: Table<SessionCounters>,
        clock: Table<u64>,
    ) -> Result<Self, Error> {
        let (routes, end) = (Arc::<Mutex<Routes>>::default(), Arc::new(AtomicBool::new(false)));
        let mut worker = Worker {
            ring,
            counters,
            clock,
            parts: Parts::default(),
            routes: routes.clone(),
            end: end.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("reader".into())
            .spawn(move || worker.run())
            .context(|| "starting the thread that reads captured frames".into())?;
        Ok(Self { routes, end, thread: Some(thread) })
    }

    /// A queue for the frames of these readers.
    pub(crate) fn open(&self, readers: &[u32]) -> Frames {
        let (frames, queue) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        let one = Queue { frames, waiting: waiting.clone() };
        lock(&self.routes).queues.extend(readers.iter().map(|reader| (*reader, one.clone())));
        self.wake();
        Frames { queue, waiting }
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    pub(crate) fn close(&self, readers: &[u32]) {
        lock(&self.routes).queues.retain(|reader, _| !readers.contains(reader));
    }

    /// Says which sessions there are, with the numbers of their readers.
    pub(crate) fn set_sessions(&self, sessions: HashMap<u32, u32>) {
        let routes = &mut *lock(&self.routes);
        let old = std::mem::replace(&mut routes.sessions, sessions);
        let over = old.into_iter().filter(|(session, reader)| routes.sessions.get(session) != Some(reader));
        routes.gone.extend(over.map(|(session, _)| session));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(routes: &Mutex<Routes>) -> MutexGuard<'_, Routes> {
    routes.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker {
    ring: RingBuf<MapData>,
    counters: Table<SessionCounters>,
    clock: Table<u64>,
    parts: Parts,
    routes: Arc<Mutex<Routes>>,
    end: Arc<AtomicBool>,
}

impl Worker {
    fn run(&mut self) {
        while !self.end.load(Ordering::Relaxed) {
            let needed = !lock(&self.routes).queues.is_empty();
            if needed && let Err(error) = self.clock.set(2, monotonic_ns()) {
                tracing::warn!(%error, "the datapath cannot be told that captured frames are read");
            }
            let more = self.drain();
            match needed {
                true if more => {}
                true => wait(&self.ring, PERIOD),
                false => std::thread::park_timeout(IDLE),
            }
        }
    }

    /// Takes pieces; says whether there may be more.
    fn drain(&mut self) -> bool {
        let mut booked = Booked::default();
        self.parts.forget(&std::mem::take(&mut lock(&self.routes).gone));
        let more = take_some(&mut self.ring, BATCH, |record| {
            let Some(head) = read_head::<RelayRow>(record) else {
                return;
            };
            let piece = record.get(size_of::<RelayRow>()..).unwrap_or_default();
            if let Some(bytes) = self.parts.put(&head, piece) {
                booked.take(head.session, &lock(&self.routes).put(&head, bytes));
            }
        });
        booked.write(&mut self.counters);
        more
    }
}

/// Frames of which pieces are missing. Of a frame that the ring had no room for, pieces may be left: the oldest make room
/// for others. The datapath has counted such a frame as lost; of one that it handed over, the last piece comes.
#[derive(Default)]
struct Parts {
    /// By session and number: the bytes, and how many had begun before.
    frames: HashMap<(u32, u32), (u64, Vec<u8>)>,
    by_age: BTreeMap<u64, (u32, u32)>,
    begun: u64,
}

impl Parts {
    /// Takes a piece. With the last one: the frame's bytes, or none when earlier pieces are gone.
    fn put(&mut self, head: &RelayRow, piece: &[u8]) -> Option<Option<Vec<u8>>> {
        let (key, whole) = ((head.session, head.sequence), head.whole as usize);
        let is_last = head.offset as usize + piece.len() >= whole;
        if head.offset == 0 && is_last {
            return Some(piece.get(..whole).map(<[u8]>::to_vec));
        }
        let mut bytes = match head.offset {
            0 => Some(Vec::with_capacity(whole)),
            offset => self.remove(key).filter(|bytes| bytes.len() == offset as usize),
        };
        if let Some(bytes) = &mut bytes {
            bytes.extend_from_slice(piece);
        }
        if is_last {
            return Some(bytes);
        }
        if let Some(bytes) = bytes {
            self.keep(key, bytes);
        }
        None
    }

    fn keep(&mut self, key: (u32, u32), bytes: Vec<u8>) {
        self.remove(key);
        if self.frames.len() >= PARTS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.frames.remove(&oldest);
        }
        self.begun += 1;
        self.by_age.insert(self.begun, key);
        self.frames.insert(key, (self.begun, bytes));
    }

    fn remove(&mut self, key: (u32, u32)) -> Option<Vec<u8>> {
        let (age, bytes) = self.frames.remove(&key)?;
        self.by_age.remove(&age);
        Some(bytes)
    }

    /// Forgets the pieces of these sessions.
    fn forget(&mut self, sessions: &HashSet<u32>) {
        if !sessions.is_empty() {
            self.by_age.retain(|_, (session, _)| !sessions.contains(session));
            self.frames.retain(|(session, _), _| !sessions.contains(session));
        }
    }
}

fn frame(reader: u32, head: &RelayRow, bytes: Vec<u8>) -> Option<Frame> {
    Some(Frame {
        reader,
        time_ns: head.timestamp_ns,
        direction: Direction::from_index(head.direction),
        length: head.original + if head.vlan == 0 { 0 } else { TAG_LEN },
        bytes: if head.vlan == 0 { bytes } else { with_tag(head.vlan, &bytes)? },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(sequence: u32, offset: u32, whole: u32) -> RelayRow {
        RelayRow { session: 1, sequence, offset, whole, original: whole, ..RelayRow::default() }
    }

    #[test]
    fn pieces_of_frames_that_interleave_come_together() {
        let mut parts = Parts::default();
        assert_eq!(parts.put(&head(1, 0, 5), &[1, 2]), None);
        assert_eq!(parts.put(&head(2, 0, 4), &[7, 8]), None);
        assert_eq!(parts.put(&head(3, 0, 2), &[5, 6]), Some(Some(vec![5, 6])));
        assert_eq!(parts.put(&head(1, 2, 5), &[3, 4]), None);
        assert_eq!(parts.put(&head(2, 2, 4), &[9, 10]), Some(Some(vec![7, 8, 9, 10])));
        assert_eq!(parts.put(&head(1, 4, 5), &[5]), Some(Some(vec![1, 2, 3, 4, 5])));
        assert!(parts.frames.is_empty() && parts.by_age.is_empty());
    }

    #[test]
    fn a_frame_with_a_hole_is_lost_once_and_leaves_nothing() {
        let mut parts = Parts::default();
        assert_eq!(parts.put(&head(1, 0, 6), &[1, 2]), None);
        assert_eq!(parts.put(&head(1, 4, 6), &[5, 6]), Some(None));
        assert_eq!(parts.put(&head(9, 2, 6), &[3, 4]), None);
        assert!(parts.frames.is_empty() && parts.by_age.is_empty());
    }

    #[test]
    fn the_oldest_pieces_make_room_whatever_their_session() {
        let mut parts = Parts::default();
        let of = |session, sequence, offset| RelayRow { session, ..head(sequence, offset, 4) };
        for sequence in 0..PARTS as u32 {
            assert_eq!(parts.put(&of(9, sequence, 0), &[1, 2]), None);
        }
        for sequence in 0..2 {
            assert_eq!(parts.put(&of(1, sequence, 0), &[1, 2]), None);
        }
        assert_eq!(parts.put(&of(1, 0, 2), &[3, 4]), Some(Some(vec![1, 2, 3, 4])), "it is young");
        assert_eq!(parts.put(&of(9, 0, 2), &[3, 4]), Some(None), "handed over, and to be counted");
        parts.forget(&HashSet::from([9]));
        assert_eq!((parts.frames.len(), parts.by_age.len()), (1, 1));
    }

    #[test]
    fn each_loss_has_its_word() {
        let (frames, queue) = mpsc::unbounded_channel();
        let mut routes = Routes::default();
        routes.sessions.insert(1, 7);
        routes.queues.insert(7, Queue { frames, waiting: Arc::default() });
        let tagged = RelayRow { vlan: 0x8100_0001, ..head(1, 0, 4) };
        assert_eq!(routes.put(&tagged, Some(vec![0; 4])), Outcome::Lost(Reason::Malformed));
        assert_eq!(routes.put(&head(1, 0, 4), None), Outcome::Lost(Reason::ReaderSlow));
        drop(queue);
        assert_eq!(routes.put(&head(1, 0, 4), Some(vec![0; 4])), Outcome::Lost(Reason::ReaderMissing));
    }

    #[test]
    fn who_does_not_read_loses_frames_beyond_the_queue() {
        let (frames, queue) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        let one = Queue { frames, waiting: waiting.clone() };
        let frame = Frame {
            reader: 1,
            time_ns: 0,
            direction: Direction::Ingress,
            length: 1 << 20,
            bytes: vec![0; 1 << 20],
        };
        let taken = (0..40).filter(|_| one.put(frame.clone()).is_ok()).count();
        assert_eq!(taken, 31, "32 MiB, less what frames take beside their own");
        let mut frames = Frames { queue, waiting };
        assert!(futures_util::FutureExt::now_or_never(frames.next()).is_some());
        assert_eq!(one.put(frame), Ok(()));
    }
}
