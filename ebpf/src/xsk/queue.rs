//! A receive queue and its worker. In: a frame for it. Out: the XDP verdict.

use aya_ebpf::{bindings::xdp_action, helpers::generated as helper, programs::XdpContext};
use podwire_core::xsk::{
    Action, Admission, ConfigRow, FragmentKey, QueueRow, Shared, admit,
    credit::{self},
};

use crate::{atomic, frame::Frame, maps};

/// A counter of a row that all CPUs write.
macro_rules! field {
    ($row:expr, $field:ident) => {{
        // SAFETY: the row lives as long as the map; only the place is computed.
        unsafe { &raw mut (*$row).$field }
    }};
}

pub struct Queue {
    index: u32,
    row: *mut QueueRow,
    /// No other CPU runs the program for this queue.
    alone: bool,
}

impl Queue {
    #[inline(always)]
    pub fn of(ctx: &XdpContext, config: &ConfigRow) -> Option<Self> {
        let index = ctx.rx_queue_index();
        let row = maps::QUEUES.get_ptr_mut(index)?;
        Some(Self { index, row, alone: config.alone != 0 })
    }

    /// Hands a frame to the worker, or does what shall be done without one.
    #[inline(always)]
    pub fn give(&self, config: &ConfigRow, frame: &Frame) -> u32 {
        let single = config.buffers == 1;
        let buffers = if single { 1 } else { credit::buffers(frame.len(), config.room) };
        if buffers > config.buffers {
            return self.without(config.action, |row| field!(row, long_packets));
        }
        let now = now();
        match admit(self, now, config.patience, buffers as u64) {
            Admission::Dead => self.without(config.action, |row| field!(row, dead_packets)),
            Admission::Behind => self.without(config.behind, |row| field!(row, behind_packets)),
            Admission::Handed => match maps::SOCKETS.redirect(self.index, xdp_action::XDP_ABORTED as u64) {
                Ok(verdict) => {
                    // Each addition is some nanoseconds of a packet's time.
                    if !single {
                        self.count(|row| field!(row, handed_packets));
                    }
                    verdict
                }
                Err(_) => {
                    let _ = self.add_used((buffers as u64).wrapping_neg());
                    self.without(config.action, |row| field!(row, unbound_packets))
                }
            },
        }
    }

    /// A later fragment that goes on to the stack.
    #[inline(always)]
    pub fn count_orphan(&self) {
        self.count(|row| field!(row, orphan_packets));
    }

    #[inline(always)]
    fn without(&self, action: u32, counter: impl FnOnce(*mut QueueRow) -> *mut u64) -> u32 {
        self.count(counter);
        let verdict = act(action);
        if verdict == xdp_action::XDP_DROP {
            self.count(|row| field!(row, dropped_packets));
        }
        verdict
    }

    #[inline(always)]
    fn count(&self, counter: impl FnOnce(*mut QueueRow) -> *mut u64) {
        // SAFETY: the row lives as long as the map.
        unsafe { atomic::fetch_add(counter(self.row), 1) };
    }
}

/// The clock of the last tick: a worker's death is seen so much later, and the exact clock would be a good part of
/// what a packet costs here.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: the helper takes nothing.
    unsafe { helper::bpf_ktime_get_coarse_ns() }
}

/// When the first fragment of a datagram came, if it was the worker's.
#[inline(always)]
pub fn first_came(key: FragmentKey) -> Option<u64> {
    // SAFETY: an aligned word of a row that the kernel keeps while the program runs.
    maps::FRAGMENTS.get_ptr(key).map(|since| unsafe { *since })
}

/// What shall be done with a frame that no worker takes.
#[inline(always)]
pub fn act(action: u32) -> u32 {
    if action == Action::Bypass as u32 {
        return maps::BYPASS.redirect(0, xdp_action::XDP_DROP as u64).unwrap_or(xdp_action::XDP_DROP);
    }
    if action == Action::Drop as u32 {
        return xdp_action::XDP_DROP;
    }
    xdp_action::XDP_PASS
}

impl Shared for Queue {
    #[inline(always)]
    fn beat(&self) -> u64 {
        // SAFETY: the row lives as long as the map; an aligned word is read whole.
        unsafe { (&raw const (*self.row).beat).read_volatile() }
    }

    #[inline(always)]
    fn credit(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (&raw const (*self.row).credit).read_volatile() }
    }

    #[inline(always)]
    fn add_used(&self, buffers: u64) -> u64 {
        let used = field!(self.row, used);
        if !self.alone {
            // SAFETY: the row lives as long as the map.
            return unsafe { atomic::fetch_add(used, buffers) };
        }
        // SAFETY: as above; an aligned word is read and written whole, and nobody else writes it.
        unsafe {
            let before = used.read_volatile();
            used.write_volatile(before.wrapping_add(buffers));
            before
        }
    }
}
