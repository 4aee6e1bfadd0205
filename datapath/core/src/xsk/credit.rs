//! Whether a worker can take a packet. In: the row that program and worker share. Out: an [`Admission`].
//!
//! The worker counts the buffers that it ever gave to the kernel (`credit`); the program counts those that its
//! packets use up (`used`). A packet is handed over only while `used` stays below `credit`, so the kernel never
//! lacks a buffer for it and never drops it unseen; what there is no buffer for takes the stated action instead.
//! Neither side waits for the other.

/// The row, as the program sees it. Every operation is atomic; where one CPU at a time runs the program, that of
/// adding may be a read and a write.
pub trait Shared {
    /// When the worker last went round, in nanoseconds of the monotonic clock.
    fn beat(&self) -> u64;
    /// Buffers that the worker ever gave.
    fn credit(&self) -> u64;
    /// Adds to the used buffers; returns what they were.
    fn add_used(&self, buffers: u64) -> u64;
}

/// Whether a packet may be handed to the worker.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may; its buffers are booked.
    Handed,
    /// The worker was not heard of in time. Nothing is booked.
    Dead,
    /// There are too few buffers. Nothing is booked.
    Behind,
}

/// Asks for a packet of so many buffers at time `now`.
#[inline(always)]
pub fn admit<S: Shared>(shared: &S, now: u64, patience: u64, buffers: u64) -> Admission {
    // The program's clock goes by ticks: a beat may be ahead of it.
    if now > shared.beat() && now - shared.beat() > patience {
        return Admission::Dead;
    }
    let credit = shared.credit();
    let before = shared.add_used(buffers);
    if before.wrapping_add(buffers) > credit {
        let _ = shared.add_used(buffers.wrapping_neg());
        return Admission::Behind;
    }
    Admission::Handed
}

/// Buffers that a packet of `len` bytes takes where one holds `room`.
#[inline(always)]
pub const fn buffers(len: u32, room: u32) -> u32 {
    if len <= room || room == 0 { 1 } else { (len - 1) / room + 1 }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    struct Row {
        beat: u64,
        credit: u64,
        used: Cell<u64>,
    }

    impl Shared for Row {
        fn beat(&self) -> u64 {
            self.beat
        }
        fn credit(&self) -> u64 {
            self.credit
        }
        fn add_used(&self, buffers: u64) -> u64 {
            let before = self.used.get();
            self.used.set(before.wrapping_add(buffers));
            before
        }
    }

    #[test]
    fn a_packet_is_handed_over_while_there_are_buffers() {
        let row = Row { beat: 100, credit: 5, used: Cell::new(0) };
        assert_eq!(admit(&row, 110, 20, 3), Admission::Handed);
        assert_eq!(admit(&row, 110, 20, 3), Admission::Behind);
        assert_eq!(row.used.get(), 3);
        assert_eq!(admit(&row, 110, 20, 2), Admission::Handed);
        assert_eq!(admit(&row, 110, 20, 1), Admission::Behind);
    }

    #[test]
    fn a_worker_that_is_not_heard_of_is_dead() {
        let row = Row { beat: 100, credit: 5, used: Cell::new(0) };
        assert_eq!(admit(&row, 120, 20, 1), Admission::Handed);
        assert_eq!(admit(&row, 121, 20, 1), Admission::Dead);
        // A clock that runs a little ahead on the worker's CPU.
        assert_eq!(admit(&row, 99, 20, 1), Admission::Handed);
        assert_eq!(row.used.get(), 2);
    }

    #[test]
    fn buffers_are_counted_by_the_byte() {
        let cases = [(0, 1), (1, 1), (100, 1), (101, 2), (200, 2), (201, 3)];
        for (len, count) in cases {
            assert_eq!(buffers(len, 100), count, "{len} bytes");
        }
    }
}
