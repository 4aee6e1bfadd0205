//! Captured frames. In: pieces of frames from the ring `FRAMES`. Out: whole frames, each in the queue of whoever reads it.
//!
//! ```text
//!  ring ─► pieces put together ─► a bounded queue per Frames ─► Frames::next().await
//! ```
//! A thread of its own, which runs while somebody captures. Who does not keep up loses frames, which are counted; nobody
//! else does.

use std::collections::{BTreeMap, HashMap};
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
use crate::relay::{Booked, monotonic_ns, wait};
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
}

impl Routes {
    fn put(&self, head: &RelayRow, bytes: Vec<u8>) -> Outcome {
        let Some(reader) = self.sessions.get(&head.session) else {
            return Outcome::Lost(Reason::ReaderMissing);
        };
        let (Some(queue), Some(frame)) = (self.queues.get(reader), frame(*reader, head, bytes)) else {
            return Outcome::Lost(Reason::ReaderMissing);
        };
        if !queue.put(frame) {
            return Outcome::Lost(Reason::ReaderSlow);
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
    fn put(&self, frame: Frame) -> bool {
        let size = frame.size();
        if self.waiting.fetch_add(size, Ordering::Relaxed) + size <= QUEUE && self.frames.send(frame).is_ok()
        {
            return true;
        }
        self.waiting.fetch_sub(size, Ordering::Relaxed);
        false
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
            parts: BTreeMap::new(),
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
        lock(&self.routes).sessions = sessions;
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
    /// Frames of which pieces are missing, by session and number.
    parts: BTreeMap<(u32, u32), Vec<u8>>,
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
        let mut left = BATCH;
        while left > 0
            && let Some(record) = self.ring.next()
        {
            left -= 1;
            let Some(head) = read_head::<RelayRow>(&record) else {
                continue;
            };
            let piece = record.get(size_of::<RelayRow>()..).unwrap_or_default();
            let Some(bytes) = put_together(&mut self.parts, &head, piece) else {
                continue;
            };
            drop(record);
            booked.take(head.session, &lock(&self.routes).put(&head, bytes));
        }
        booked.write(&mut self.counters);
        left == 0
    }
}

/// The frame's bytes, when this was its last piece. Of a frame that the ring had no room for, pieces may be left: they
/// make room for others.
fn put_together(parts: &mut BTreeMap<(u32, u32), Vec<u8>>, head: &RelayRow, piece: &[u8]) -> Option<Vec<u8>> {
    let (key, whole) = ((head.session, head.sequence), head.whole as usize);
    if head.offset == 0 && piece.len() >= whole {
        return Some(piece.get(..whole)?.to_vec());
    }
    if head.offset == 0 {
        if parts.len() >= PARTS {
            parts.pop_first();
        }
        parts.insert(key, Vec::with_capacity(whole));
    }
    let part = parts.get_mut(&key)?;
    if part.len() != head.offset as usize {
        parts.remove(&key);
        return None;
    }
    part.extend_from_slice(piece);
    if part.len() < whole {
        return None;
    }
    parts.remove(&key)
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
        let mut parts = BTreeMap::new();
        assert_eq!(put_together(&mut parts, &head(1, 0, 5), &[1, 2]), None);
        assert_eq!(put_together(&mut parts, &head(2, 0, 4), &[7, 8]), None);
        assert_eq!(put_together(&mut parts, &head(3, 0, 2), &[5, 6]), Some(vec![5, 6]));
        assert_eq!(put_together(&mut parts, &head(1, 2, 5), &[3, 4]), None);
        assert_eq!(put_together(&mut parts, &head(2, 2, 4), &[9, 10]), Some(vec![7, 8, 9, 10]));
        assert_eq!(put_together(&mut parts, &head(1, 4, 5), &[5]), Some(vec![1, 2, 3, 4, 5]));
        assert!(parts.is_empty());
    }

    #[test]
    fn a_frame_with_a_hole_is_none_and_leaves_nothing() {
        let mut parts = BTreeMap::new();
        assert_eq!(put_together(&mut parts, &head(1, 0, 6), &[1, 2]), None);
        assert_eq!(put_together(&mut parts, &head(1, 4, 6), &[5, 6]), None);
        assert_eq!(put_together(&mut parts, &head(9, 2, 4), &[3, 4]), None);
        assert!(parts.is_empty());
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
        let taken = (0..40).filter(|_| one.put(frame.clone())).count();
        assert_eq!(taken, 31, "32 MiB, less what frames take beside their own");
        let mut frames = Frames { queue, waiting };
        assert!(futures_util::FutureExt::now_or_never(frames.next()).is_some());
        assert!(one.put(frame));
    }
}
