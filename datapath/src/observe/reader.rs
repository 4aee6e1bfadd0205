//! The reader of one ring. In: records. Out: rows in a bounded queue; what does not fit is counted.
//!
//! A thread of its own. It waits for the kernel's word with a timeout as well: a wake-up that was lost delays a
//! record, and no more. It ends when another watch begins.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use podwire_core::abi::{Class, ObservationRow};

use super::account::Account;
use super::turn::Turn;
use crate::error::{Context, Error};
use crate::maps::{self, read_head};
use crate::pins::Pins;

/// The longest wait.
const PERIOD: Duration = Duration::from_millis(20);

/// What became of the records that left the ring.
#[derive(Default)]
pub(super) struct Tally {
    queued: AtomicU64,
    queue_full: AtomicU64,
    unreadable: AtomicU64,
    delivered: AtomicU64,
    /// Of those queued: not understood.
    misread: AtomicU64,
}

impl Tally {
    pub(super) fn deliver(&self) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn misread(&self) {
        self.misread.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn account(&self) -> Account {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (delivered, misread) = (of(&self.delivered), of(&self.misread));
        Account {
            delivered,
            waiting: of(&self.queued).saturating_sub(delivered + misread),
            queue_full: of(&self.queue_full),
            unreadable: of(&self.unreadable) + misread,
            ..Account::default()
        }
    }
}

/// The thread.
pub(super) struct Reader {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Starts to read. `begun_at`: by CPU, the number of the first record that counts.
    pub(super) fn start(
        pins: &Pins,
        class: Class,
        begun_at: Vec<u64>,
        tally: Arc<Tally>,
        turn: &Turn,
        room: usize,
    ) -> Result<(Self, Receiver<ObservationRow>), Error> {
        let name = match class {
            Class::Traces => "OBSERVATIONS",
            Class::Drops => "DROPS",
        };
        let ring = maps::reopen_ring(pins, name)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context(|| "epoll_create1".into())?;
        epoll
            .add(ring.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))
            .context(|| format!("waiting for map {name}"))?;
        let (queue, rows) = sync_channel(room.max(1));
        let end = Arc::new(AtomicBool::new(false));
        let mut worker = Worker { ring, epoll, begun_at, tally, queue, turn: turn.clone(), end: end.clone() };
        let thread = std::thread::Builder::new()
            .name(name.to_lowercase())
            .spawn(move || worker.run())
            .context(|| format!("starting the reader of map {name}"))?;
        Ok((Self { end, thread: Some(thread) }, rows))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    ring: RingBuf<MapData>,
    epoll: Epoll,
    begun_at: Vec<u64>,
    tally: Arc<Tally>,
    queue: SyncSender<ObservationRow>,
    turn: Turn,
    end: Arc<AtomicBool>,
}

impl Worker {
    fn run(&mut self) {
        let timeout = EpollTimeout::try_from(PERIOD).unwrap_or(EpollTimeout::ZERO);
        while !self.end.load(Ordering::Relaxed) {
            let mut events = [EpollEvent::empty()];
            // Interrupted or not: the ring is looked at.
            let _ = self.epoll.wait(&mut events, timeout);
            let turn = self.turn.clone();
            if turn.take(|| self.drain()).is_none() {
                return;
            }
        }
    }

    fn drain(&mut self) {
        let Self { ring, begun_at, tally, queue, .. } = self;
        while let Some(record) = ring.next() {
            let count = match read_head::<ObservationRow>(&record) {
                Some(row) if is_left_over(begun_at, &row) => continue,
                Some(row) => match queue.try_send(row) {
                    Ok(()) => &tally.queued,
                    Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => &tally.queue_full,
                },
                None => &tally.unreadable,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether a record is from before the beginning.
fn is_left_over(begun_at: &[u64], row: &ObservationRow) -> bool {
    begun_at.get(row.cpu as usize).is_some_and(|first| row.sequence < *first)
}
