//! The collector under any frames. In: bytes that say bounds, times and frames. Out: nothing, or a panic.
//!
//! ```text
//! | window | sessions | then for each frame: milliseconds since the last one | length (16 bits) | frame |
//! ```

use std::cell::Cell;

use podwire_datapath::collect::{Callback, Collector, Options, Received, Report, reassembly, window};

/// Bytes that frames waiting in windows may have before they are let go, and one frame's beyond.
const WAITING: usize = 4096;

/// Runs it, and checks after each frame that nothing has left the books, and at the end that nothing waits.
pub fn collect(data: &[u8]) {
    let Some((&[frames, sessions], mut rest)) = data.split_first_chunk::<2>() else { return };
    let options = Options {
        order: window::Bounds { frames: u32::from(frames), time: 20_000_000 },
        order_bytes: WAITING,
        reassembly: reassembly::Bounds { bytes: 8192, datagrams: 8, time: 100_000_000 },
        sessions: usize::from(sessions % 8) + 1,
        ..Options::default()
    };
    let limit = options.sessions;
    let delivered = Cell::new(0u64);
    let sink = Callback(|_: &_, frame: &podwire_datapath::collect::Frame<'_>| {
        assert!(frame.data().len() >= 14, "a frame without its Ethernet header");
        assert_eq!(frame.to_bytes().as_ref(), frame.data());
        delivered.set(delivered.get() + 1);
    });
    let mut collector = Collector::new(options, sink);
    let mut now = 0;
    while let Some((&[gap, high, low], more)) = rest.split_first_chunk::<3>() {
        let len = usize::from(u16::from_be_bytes([high, low])).min(more.len());
        let (frame, behind) = more.split_at(len);
        rest = behind;
        now += u64::from(gap) * 1_000_000;
        collector.receive(&Received { data: frame, time: now });
        collector.tick(now);
        let report = collector.report(4);
        balanced(&report, delivered.get());
        assert!(report.sessions.len() <= limit, "{} sessions", report.sessions.len());
    }
    assert!(collector.finish().is_ok());
    let report = collector.report(4);
    balanced(&report, delivered.get());
    assert_eq!(report.sum().numbers.waiting, 0, "a frame was kept back");
}

fn balanced(report: &Report, delivered: u64) {
    let (totals, parts, sum) = (&report.totals, &report.fragments, report.sum());
    let booked = totals.frames + totals.not_tunnels + totals.unwanted + totals.undecodable + totals.fragments;
    assert_eq!(totals.packets, booked, "{totals:?}");
    assert_eq!(totals.fragments, parts.received - parts.packets, "{parts:?}");
    let of_parts = parts.used
        + parts.duplicates
        + parts.overlaps
        + parts.malformed
        + parts.expired
        + parts.evicted
        + parts.waiting;
    assert_eq!(parts.received, of_parts, "{parts:?}");
    let numbers = &sum.numbers;
    let of_numbers = numbers.released + numbers.duplicates + numbers.late + numbers.waiting;
    assert_eq!(numbers.received, of_numbers, "{numbers:?}");
    assert_eq!((sum.frames, sum.delivered, totals.delivered), (totals.frames, delivered, delivered));
    assert_eq!(sum.delivered, sum.frames - numbers.received + numbers.released, "{sum:?}");
    let undecodable: u64 = report.undecodable.values().sum();
    assert_eq!(undecodable, totals.undecodable);
}
