//! The user-space encapsulator. In: records of the ring (snapshots, and frames that need fragments). Out: each,
//! dressed by the same template as the datapath's, sent by a raw socket, so that the kernel routes it, resolves
//! the neighbour and cuts it into fragments where it must; past the stack, where the uplink allows.
//!
//! A thread of its own, which runs while a session needs it. The datapath sees by a clock whether it runs, and
//! makes clones instead when it does not.

mod carrier;
mod dress;
#[cfg(feature = "xsk")]
mod lane;

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use podwire_core::abi::{Reason, RelayRow, SessionCounters, SessionRow, limits};
use podwire_core::stage::copy::Outcome;

use carrier::Carrier;
#[cfg(not(feature = "xsk"))]
use carrier::Sockets;
use dress::dress;

use crate::error::{Context, Error};
use crate::maps::{Table, read_head};

/// How long a record waits at most: the datapath wakes the reader for large amounts only.
const PERIOD: Duration = Duration::from_millis(2);
/// How often an idle encapsulator looks whether it is needed.
const IDLE: Duration = Duration::from_millis(50);
/// Packets that are sent at once at most. After each batch they are counted and the datapath is told that the ring is
/// read: a ring that is never empty must not keep either waiting.
const BATCH: usize = 64;
type Rows = Arc<Mutex<Arc<HashMap<u32, SessionRow>>>>;

/// The thread and what it is told.
pub(crate) struct Relay {
    rows: Rows,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts the thread in the caller's network namespace.
    pub(crate) fn start(
        ring: RingBuf<MapData>,
        counters: Table<SessionCounters>,
        clock: Table<u64>,
        copy_mark: u32,
        uplink: Option<String>,
    ) -> Result<Self, Error> {
        let rows = Rows::default();
        let end = Arc::new(AtomicBool::new(false));
        let mut worker = Worker {
            ring,
            counters,
            clock,
            rows: rows.clone(),
            end: end.clone(),
            carrier: carrier(uplink, copy_mark),
        };
        let thread = std::thread::Builder::new()
            .name("relay".into())
            .spawn(move || worker.run())
            .context(|| "starting the encapsulator's thread".into())?;
        Ok(Self { rows, end, thread: Some(thread) })
    }

    /// Says which sessions there are that need it.
    pub(crate) fn set_sessions(&self, sessions: HashMap<u32, SessionRow>) {
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(sessions);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(feature = "xsk")]
fn carrier(uplink: Option<String>, mark: u32) -> impl Carrier {
    lane::Uplink::new(uplink, mark)
}

#[cfg(not(feature = "xsk"))]
fn carrier(_: Option<String>, mark: u32) -> impl Carrier {
    Sockets::new(mark)
}

struct Worker<C> {
    ring: RingBuf<MapData>,
    counters: Table<SessionCounters>,
    clock: Table<u64>,
    rows: Rows,
    end: Arc<AtomicBool>,
    carrier: C,
}

impl<C: Carrier> Worker<C> {
    fn run(&mut self) {
        while !self.end.load(Ordering::Relaxed) {
            let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let needed = !rows.is_empty();
            if needed && let Err(error) = self.clock.set(1, monotonic_ns()) {
                tracing::warn!(%error, "the datapath cannot be told that its ring is read");
            }
            // What is left in the ring when nobody needs it is of sessions that are gone.
            let more = self.drain(&rows);
            match needed {
                _ if more => {}
                true => wait(&self.ring, PERIOD),
                false => std::thread::sleep(IDLE),
            }
        }
    }

    /// Sends a batch of the records that wait; says whether there may be more.
    fn drain(&mut self, rows: &HashMap<u32, SessionRow>) -> bool {
        let (mut booked, mut batch) = (Booked::default(), Vec::new());
        let more = take_some(&mut self.ring, BATCH, |record| {
            let Some(head) = read_head::<RelayRow>(record) else {
                return;
            };
            let frame = record.get(size_of::<RelayRow>()..).unwrap_or_default();
            match rows.get(&head.session).map(|row| dress(head.session, row, &head, frame)) {
                Some(Some(dressed)) => batch.push(dressed),
                Some(None) => booked.take(head.session, &Outcome::Lost(Reason::EncapsulationRefused)),
                None => booked.take(head.session, &Outcome::Lost(Reason::SessionMissing)),
            }
        });
        for (packet, outcome) in batch.iter().zip(self.carrier.give(&batch)) {
            booked.take(packet.session, &outcome);
        }
        booked.write(&mut self.counters);
        more
    }
}

/// Records that come one after another.
pub(crate) trait Records {
    /// Shows the next one, if one waits.
    fn show(&mut self, see: &mut impl FnMut(&[u8])) -> bool;
}

impl Records for RingBuf<MapData> {
    fn show(&mut self, see: &mut impl FnMut(&[u8])) -> bool {
        self.next().is_some_and(|record| {
            see(&record);
            true
        })
    }
}

/// Shows at most so many of those that wait; says whether there may be more.
pub(crate) fn take_some(records: &mut impl Records, most: usize, mut see: impl FnMut(&[u8])) -> bool {
    (0..most).all(|_| records.show(&mut see))
}

/// What became of the frames of a drain, by session.
#[derive(Default)]
pub(crate) struct Booked(HashMap<u32, SessionCounters>);

impl Booked {
    /// A frame was taken out of a ring, and this became of it.
    pub(crate) fn take(&mut self, session: u32, outcome: &Outcome) {
        let counters = self.0.entry(session).or_default();
        counters.taken_packets += 1;
        counters.record(outcome);
    }

    /// Adds it to the map `RELAY_COUNTERS`; each session is one thread's.
    pub(crate) fn write(self, table: &mut Table<SessionCounters>) {
        for (session, more) in self.0 {
            if session >= limits::SESSIONS {
                continue;
            }
            let total = table.get(session).map(|row| crate::status::sum_session(row, &more));
            if let Err(error) = total.and_then(|total| table.set(session, total)) {
                tracing::warn!(%error, session, "what was sent could not be counted");
            }
        }
    }
}

/// Waits until a ring's writer says that there is much, or the time is over.
pub(crate) fn wait(ring: &RingBuf<MapData>, at_most: Duration) {
    let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::ZERO);
    if let Some(fd) = borrow(ring) {
        let _ = poll(&mut [fd], timeout);
    }
}

fn borrow(ring: &RingBuf<MapData>) -> Option<PollFd<'_>> {
    let fd = ring.as_raw_fd();
    // The ring outlives the borrow; it is only waited for.
    if fd < 0 {
        return None;
    }
    Some(PollFd::new(ring.as_fd(), PollFlags::POLLIN))
}

/// The kernel's monotonic clock in nanoseconds, as programs see it.
pub(crate) fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

/// The node's clock less the monotonic one, in nanoseconds.
pub(crate) fn clock_offset() -> u64 {
    nanoseconds(ClockId::CLOCK_REALTIME).wrapping_sub(monotonic_ns())
}

fn nanoseconds(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring that is written as fast as it is read.
    struct Flood(usize);

    impl Records for Flood {
        fn show(&mut self, see: &mut impl FnMut(&[u8])) -> bool {
            self.0 -= 1;
            see(&[]);
            self.0 > 0
        }
    }

    #[test]
    fn a_ring_that_is_never_empty_is_read_in_portions() {
        let (mut flood, mut seen) = (Flood(1000), 0);
        assert!(take_some(&mut flood, BATCH, |_| seen += 1), "there is more");
        assert_eq!(seen, BATCH);
        assert!(!take_some(&mut flood, 2000, |_| seen += 1), "that was all");
        assert_eq!(seen, 1000);
    }
}
