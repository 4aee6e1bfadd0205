//! Every interleaving of the worker and the CPUs that hand packets to it: no packet is handed over for which the
//! worker has not given a buffer, and none is refused while nobody else takes one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use podwire_core::xsk::{Admission, Shared, admit};

/// The row, with the order that the two sides have: the program's addition is one that returns a value, which is a
/// full barrier (Documentation/bpf/standardization/instruction-set.rst, memory-barriers.txt); its reads are plain.
#[derive(Default)]
struct Row {
    credit: AtomicU64,
    used: AtomicU64,
    /// Buffers in the kernel's queue, as far as they were ever put there.
    filled: AtomicU64,
    /// Buffers that packets took.
    handed: AtomicU64,
    /// One CPU at a time runs the program, on a machine whose reads stay in order.
    alone: bool,
}

impl Shared for Row {
    fn beat(&self) -> u64 {
        0
    }

    fn credit(&self) -> u64 {
        self.credit.load(Ordering::Relaxed)
    }

    fn add_used(&self, buffers: u64) -> u64 {
        if self.alone {
            let before = self.used.load(Ordering::Relaxed);
            self.used.store(before.wrapping_add(buffers), Ordering::Relaxed);
            // Of such a machine's reads, a later one is not before the credit's.
            fence(Ordering::Acquire);
            return before;
        }
        fence(Ordering::SeqCst);
        let before = self.used.fetch_add(buffers, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        before
    }
}

impl Row {
    /// The worker: first the buffer, then the credit.
    fn give(&self, buffers: u64) {
        self.filled.fetch_add(buffers, Ordering::Relaxed);
        self.credit.fetch_add(buffers, Ordering::Release);
    }

    /// The program, and the kernel behind it; returns whether the packet was taken.
    fn packet(&self, buffers: u64) -> bool {
        match admit(self, 0, 0, buffers) {
            Admission::Handed => {
                // One CPU at a time takes buffers: by the queue's own poll, or under the pool's lock.
                let taken = self.handed.fetch_add(buffers, Ordering::AcqRel) + buffers;
                assert!(self.filled.load(Ordering::Relaxed) >= taken, "a packet without a buffer");
                true
            }
            _ => false,
        }
    }
}

#[test]
fn no_packet_is_handed_over_without_a_buffer() {
    loom::model(|| {
        let row = Arc::new(Row::default());
        row.give(1);
        let cpus: Vec<_> = [1, 2]
            .map(|buffers| {
                let row = row.clone();
                thread::spawn(move || row.packet(buffers))
            })
            .into();
        row.give(2);
        let taken: Vec<bool> = cpus.into_iter().map(|cpu| cpu.join().unwrap()).collect();
        let used = u64::from(taken[0]) + 2 * u64::from(taken[1]);
        assert_eq!(row.used.load(Ordering::Relaxed), used, "what was not handed over is given back");
        // Whatever happened, what is left can be taken.
        assert!(row.packet(3 - used) || used == 3);
    });
}

#[test]
fn a_lone_cpu_gets_every_buffer_that_was_given_before() {
    lone_cpu(false);
    lone_cpu(true);
}

fn lone_cpu(alone: bool) {
    loom::model(move || {
        let row = Arc::new(Row { alone, ..Row::default() });
        row.give(2);
        let worker = {
            let row = row.clone();
            thread::spawn(move || row.give(1))
        };
        assert!(row.packet(1) && row.packet(1), "two buffers were there");
        let third = row.packet(1);
        worker.join().unwrap();
        assert!(third || row.packet(1), "the third came meanwhile");
    });
}
