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
use dress::{Dressed, dress};

use crate::error::{Context, Error};
use crate::maps::{Table, read_head};

/// How long a record waits at most: the datapath wakes the reader for large amounts only.
const PERIOD: Duration = Duration::from_millis(2);
/// How often an idle encapsulator looks whether it is needed.
const IDLE: Duration = Duration::from_millis(50);
/// Packets that are sent at once at most.
const BATCH: usize = 64;
type Rows = Arc<Mutex<HashMap<u32, SessionRow>>>;

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
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = sessions;
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
            if rows.is_empty() {
                // Nobody needs it; what is left in the ring is of sessions that are gone.
                self.drain(&rows);
                std::thread::sleep(IDLE);
                continue;
            }
            if let Err(error) = self.clock.set(1, monotonic_ns()) {
                tracing::warn!(%error, "the datapath cannot be told that its ring is read");
            }
            wait(&self.ring, PERIOD);
            self.drain(&rows);
        }
    }

    /// Sends all records that wait, in batches.
    fn drain(&mut self, rows: &HashMap<u32, SessionRow>) {
        let (mut booked, mut batch) = (Booked::default(), Vec::with_capacity(BATCH));
        while let Some(record) = self.ring.next() {
            let Some(head) = read_head::<RelayRow>(&record) else {
                continue;
            };
            let frame = record.get(size_of::<RelayRow>()..).unwrap_or_default();
            match rows.get(&head.session).map(|row| dress(head.session, row, &head, frame)) {
                Some(Some(dressed)) => batch.push(dressed),
                Some(None) => booked.take(head.session, &Outcome::Lost(Reason::EncapsulationRefused)),
                None => booked.take(head.session, &Outcome::Lost(Reason::SessionMissing)),
            }
            drop(record);
            if batch.len() == BATCH {
                send(&mut self.carrier, &mut batch, &mut booked);
            }
        }
        send(&mut self.carrier, &mut batch, &mut booked);
        booked.write(&mut self.counters);
    }
}

fn send(carrier: &mut impl Carrier, batch: &mut Vec<Dressed>, booked: &mut Booked) {
    for (packet, outcome) in batch.iter().zip(carrier.give(batch)) {
        booked.take(packet.session, &outcome);
    }
    batch.clear();
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
