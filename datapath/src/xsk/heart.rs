//! The row that a worker shares with the XDP program. In: signs of life and credit. Out: what the program counted.
//!
//! The map is mapped into memory: a beat is a store, no system call.

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use podwire_core::xsk::{QUEUES, QueueRow};

use super::port::QueueLosses;
use crate::error::{Context, Error, ErrorKind};
use crate::sys::wait_for_packets;

const ROWS: usize = size_of::<QueueRow>() * QUEUES as usize;
const LEN: NonZeroUsize = NonZeroUsize::new(ROWS).unwrap();

/// All rows.
pub(super) struct Rows {
    start: NonNull<QueueRow>,
}

// SAFETY: the rows are read and written by atomic operations only.
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

impl Rows {
    /// Maps the rows of a map into memory.
    pub(super) fn map(map: impl AsFd) -> Result<Arc<Self>, Error> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap(None, LEN, access, MapFlags::MAP_SHARED, map, 0) }
            .context(|| "mapping the queues' rows".into())?;
        Ok(Arc::new(Self { start: start.cast() }))
    }

    /// The row of a queue.
    pub(super) fn heart(self: &Arc<Self>, queue: u32) -> Result<Heart, Error> {
        if queue >= QUEUES {
            let what = format!("queue {queue}: only the first {QUEUES} can have a worker");
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(Heart { rows: self.clone(), queue: queue as usize })
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and as long as it was made; nobody holds a row any more.
        let _ = unsafe { munmap(self.start.cast(), ROWS) };
    }
}

/// The row of one queue.
pub(super) struct Heart {
    rows: Arc<Rows>,
    queue: usize,
}

macro_rules! field {
    ($heart:expr, $field:ident) => {{
        // SAFETY: the row lies inside the mapping, which lives as long as `rows`; its fields are aligned words.
        unsafe {
            AtomicU64::from_ptr(&raw mut (*$heart.rows.start.as_ptr().add($heart.queue)).$field)
        }
    }};
}

impl Heart {
    /// The worker is alive at this time of the monotonic clock, in ns.
    pub(super) fn beat(&self, now: u64) {
        field!(self, beat).store(now, Ordering::Release);
    }

    /// The worker is gone: what comes takes the stated action at once.
    pub(super) fn stop(&self) {
        field!(self, beat).store(0, Ordering::Release);
    }

    /// More buffers for the program's packets.
    pub(super) fn add_credit(&self, buffers: u64) {
        field!(self, credit).fetch_add(buffers, Ordering::Release);
    }

    pub(super) fn set_credit(&self, credit: u64) {
        field!(self, credit).store(credit, Ordering::Release);
    }

    pub(super) fn used(&self) -> u64 {
        field!(self, used).load(Ordering::Acquire)
    }

    pub(super) fn add_taken(&self, packets: u64) {
        let taken = field!(self, taken_packets);
        // One worker writes.
        taken.store(taken.load(Ordering::Relaxed) + packets, Ordering::Release);
    }

    pub(super) fn credit(&self) -> u64 {
        field!(self, credit).load(Ordering::Acquire)
    }

    pub(super) fn add_vanished(&self, buffers: u64) {
        let vanished = field!(self, vanished_buffers);
        vanished.store(vanished.load(Ordering::Relaxed) + buffers, Ordering::Release);
    }

    /// What the kernel counts of the worker's socket, for readers elsewhere.
    pub(super) fn tell(&self, losses: &QueueLosses) {
        field!(self, kernel_dropped).store(losses.dropped, Ordering::Relaxed);
        field!(self, kernel_full).store(losses.ring_full, Ordering::Relaxed);
        field!(self, kernel_empty).store(losses.fill_empty, Ordering::Relaxed);
        field!(self, kernel_invalid).store(losses.invalid, Ordering::Relaxed);
    }

    /// Books what an earlier worker had in hand as lost, and begins anew. The program hands nothing over meanwhile.
    /// `single`: no packet takes more than one buffer.
    pub(super) fn begin(&self, single: bool) {
        self.stop();
        // A packet that still saw the earlier worker alive is through afterwards.
        wait_for_packets();
        let row = self.read();
        let lost = row.handed().saturating_sub(row.taken_packets);
        field!(self, lost_packets).store(row.lost_packets + lost, Ordering::Release);
        field!(self, taken_packets).store(row.handed(), Ordering::Release);
        field!(self, handed_packets).store(row.handed(), Ordering::Release);
        let since = if single { row.used } else { u64::MAX };
        field!(self, single_since).store(since, Ordering::Release);
        field!(self, credit).store(row.used, Ordering::Release);
        self.tell(&QueueLosses::default());
    }

    /// What both counted.
    pub(super) fn read(&self) -> QueueRow {
        let load = |field: &AtomicU64| field.load(Ordering::Acquire);
        QueueRow {
            beat: load(field!(self, beat)),
            credit: load(field!(self, credit)),
            taken_packets: load(field!(self, taken_packets)),
            lost_packets: load(field!(self, lost_packets)),
            vanished_buffers: load(field!(self, vanished_buffers)),
            kernel_dropped: load(field!(self, kernel_dropped)),
            kernel_full: load(field!(self, kernel_full)),
            kernel_empty: load(field!(self, kernel_empty)),
            kernel_invalid: load(field!(self, kernel_invalid)),
            single_since: load(field!(self, single_since)),
            pad: [0; 6],
            used: load(field!(self, used)),
            handed_packets: load(field!(self, handed_packets)),
            dead_packets: load(field!(self, dead_packets)),
            behind_packets: load(field!(self, behind_packets)),
            unbound_packets: load(field!(self, unbound_packets)),
            long_packets: load(field!(self, long_packets)),
            orphan_packets: load(field!(self, orphan_packets)),
            dropped_packets: load(field!(self, dropped_packets)),
        }
    }
}
