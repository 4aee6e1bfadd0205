//! The collector as a whole, with a function behind it.
#![allow(clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;

use super::{Collector, Options};
use crate::collect::samples::{inner, outer, tunnels};
use crate::collect::{Callback, Frame, Kind, Pair, Received, Report, Session, Sink, Wanted, window};

type Seen = Rc<RefCell<Vec<(String, Option<u32>, Vec<u8>)>>>;

fn collector(options: Options) -> (Collector<Box<dyn Sink>>, Seen) {
    let seen = Seen::default();
    let keep = seen.clone();
    let callback = Callback(move |session: &Session, frame: &Frame<'_>| {
        keep.borrow_mut().push((session.name(), frame.sequence, frame.data().to_vec()));
    });
    (Collector::new(options, Box::new(callback)), seen)
}

fn balanced(report: &Report) {
    let t = report.totals;
    let made = report.fragments.packets;
    assert_eq!(t.packets, t.frames + t.not_tunnels + t.unwanted + t.undecodable + t.fragments, "{t:?}");
    assert_eq!(t.fragments, report.fragments.received - made, "{report:?}");
    let sum = report.sum();
    assert_eq!((sum.frames, sum.delivered), (t.frames, t.delivered), "{report:?}");
    let n = sum.numbers;
    assert_eq!(n.received, n.released + n.duplicates + n.late + n.waiting, "{n:?}");
    assert_eq!(sum.delivered, sum.frames - n.received + n.released, "{report:?}");
    assert_eq!(t.sessions, t.evicted + report.sessions.len() as u64);
}

#[test]
fn each_kind_is_a_session_of_its_own() {
    let (mut collector, seen) = collector(Options::default());
    let frame = inner(5, 30);
    for number in 0..3 {
        for v6 in [false, true] {
            for tunnel in tunnels() {
                let outer = outer(v6, tunnel, number, 1_000_000, &frame);
                collector.receive(&Received { data: &outer, time: 1_000_500 });
            }
        }
    }
    let report = collector.report(5);
    balanced(&report);
    assert_eq!(report.sessions.len(), 14);
    for one in &report.sessions {
        let account = one.account;
        assert_eq!((account.frames, account.bytes), (3, 3 * frame.len() as u64));
        let numbered = matches!(one.session.key.kind, Kind::ErspanII | Kind::ErspanIII)
            || one.session.name() == "gre-10";
        assert_eq!((account.numbered, account.numbers.lost), (numbered, 0), "{}", one.session.key);
        let latency = account.latency.map(|way| (way.measured, way.least, way.most));
        let expected = (one.session.key.kind == Kind::ErspanIII).then_some((3, 500, 500));
        assert_eq!(latency, expected);
        let pair = Pair::Ip([10, 0, 0, 5].into(), [10, 0, 1, 5].into());
        assert_eq!((one.talkers[0].pair, one.talkers[0].frames, one.talkers[0].error), (pair, 3, 0));
    }
    assert_eq!(seen.borrow().len(), 42);
    assert!(seen.borrow().iter().all(|(_, _, data)| *data == frame));
    assert_eq!(report.sessions[0].session.key.to_string(), "VXLAN vni 7 from 192.0.2.1 to 192.0.2.9");
}

#[test]
fn only_wanted_streams_are_taken() {
    let wanted = Wanted { vnis: vec![7], keys: vec![10], sessions: vec![11], ..Wanted::default() };
    let (mut collector, seen) = collector(Options { wanted, ..Options::default() });
    for tunnel in tunnels() {
        collector.receive(&Received { data: &outer(false, tunnel, 0, 0, &inner(1, 1)), time: 0 });
    }
    let names: Vec<_> = seen.borrow().iter().map(|(name, ..)| name.clone()).collect();
    assert_eq!(names, ["vxlan-7", "gre-10", "erspan-ii-11"]);
    let report = collector.report(0);
    balanced(&report);
    assert_eq!(report.totals.unwanted, 4);
}

#[test]
fn frames_are_put_in_order_and_the_last_ones_are_not_kept() -> Result<(), crate::Error> {
    let order = window::Bounds { frames: 8, time: 1_000 };
    let (mut collector, seen) = collector(Options { order, ..Options::default() });
    let tunnel = tunnels()[5];
    for number in [2, 1, 0, 3, 5, 4, 7] {
        collector.receive(&Received { data: &outer(true, tunnel, number, 0, &inner(1, 1)), time: 7 });
    }
    collector.finish()?;
    let order: Vec<_> = seen.borrow().iter().filter_map(|(_, number, _)| *number).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 7]);
    let report = collector.report(0);
    balanced(&report);
    assert_eq!(report.sum().numbers.lost, 1);
    Ok(())
}

#[test]
fn idle_sessions_make_room() {
    let (mut collector, _) = collector(Options { sessions: 3, ..Options::default() });
    for (time, tunnel) in tunnels().into_iter().enumerate() {
        let first = outer(false, tunnels()[0], 0, 0, &inner(1, 1));
        collector.receive(&Received { data: &first, time: time as u64 });
        let other = outer(false, tunnel, 0, 0, &inner(1, 1));
        collector.receive(&Received { data: &other, time: time as u64 });
    }
    let report = collector.report(0);
    balanced(&report);
    assert_eq!((report.totals.sessions, report.totals.evicted), (7, 4));
    // The busy one stays.
    assert!(report.sessions.iter().any(|one| one.session.number == 0 && one.account.frames == 8));
}

#[test]
fn a_limit_is_kept() {
    let (mut collector, seen) = collector(Options { limit: Some(3), ..Options::default() });
    let frame = outer(false, tunnels()[0], 0, 0, &inner(1, 1));
    for _ in 0..10 {
        collector.receive(&Received { data: &frame, time: 0 });
    }
    assert_eq!((seen.borrow().len(), collector.is_full()), (3, true));
}

#[test]
fn a_limit_is_kept_by_what_waited_too() {
    let order = window::Bounds { frames: 16, time: 500_000 };
    let (mut collector, seen) = collector(Options { order, limit: Some(3), ..Options::default() });
    for number in [0, 2, 3, 4, 5, 6] {
        collector.receive(&Received { data: &outer(false, tunnels()[6], number, 0, &inner(1, 1)), time: 0 });
    }
    assert!(collector.finish().is_ok());
    assert_eq!((seen.borrow().len(), collector.report(0).totals.delivered), (3, 3));
}

proptest! {
    /// Damaged, cut, doubled, shuffled: every packet is in the books, and memory is bounded.
    #[test]
    fn everything_is_accounted_for(
        packets in proptest::collection::vec((
            0usize..7, any::<bool>(), prop_oneof![0u32..40, any::<u32>()], 0u64..1_000_000,
            proptest::option::of((0usize..90, any::<u8>())), proptest::option::of(0usize..100),
        ), 0..200),
        frames in 0u32..20,
        sessions in 1usize..8,
    ) {
        let order = window::Bounds { frames, time: 500_000 };
        let (mut collector, seen) = collector(Options { order, sessions, order_bytes: 2_000, ..Options::default() });
        let mut now = 0;
        for (kind, v6, number, gap, change, cut) in packets {
            now += gap;
            let mut frame = outer(v6, tunnels()[kind], number, now, &inner(number as u8, 10));
            if let Some((at, byte)) = change && let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
            if let Some(len) = cut {
                frame.truncate(len);
            }
            collector.receive(&Received { data: &frame, time: now });
            collector.tick(now);
            balanced(&collector.report(0));
            prop_assert!(collector.entries.len() <= sessions && collector.by_key.len() == collector.entries.len());
        }
        prop_assert!(collector.finish().is_ok());
        let report = collector.report(3);
        balanced(&report);
        prop_assert_eq!(report.totals.delivered, seen.borrow().len() as u64);
        prop_assert_eq!(report.sum().numbers.waiting, 0);
        prop_assert_eq!(collector.waiting.load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}
