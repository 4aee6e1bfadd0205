//! What an Egress policy does to packets is in its books: marked, forwarded or dropped, each packet once.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use podwire_datapath::compile::tables::MemoryTables;
use podwire_datapath::compile::{Destinations, EndpointRules, Nature, Policy, Rule, compile_with};
use podwire_datapath::core::abi::{
    EgressCounters, EgressPlace, EgressRow, Generation, NetworkRow, Reason, TargetKind, TargetRow,
};
use podwire_datapath::core::stage::leave::{self, Led, Remote, Way};
use podwire_datapath::core::stage::{Facts, Tables, Verdict, parse};

const BANK: Generation = Generation(0);
const IFINDEX: u32 = 7;
const SLOT: u32 = 3;
const POLICY: u32 = 5;
const ID: u32 = 77;
const LEN: u32 = 100;
const NODE: u32 = 1;
const ITS_PODS: u32 = 2;
const OVERLAY: u32 = 9;
/// Of the node that sends by the overlay, and of its pods.
const SENDER: [u8; 4] = [192, 0, 2, 2];
const FAR: [u8; 4] = [10, 10, 2, 5];
const NEAR: [u8; 4] = [10, 10, 1, 5];
const SERVER: [u8; 4] = [198, 51, 100, 5];

fn udp(source: [u8; 4], destination: [u8; 4]) -> Facts {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(source);
    frame.extend(destination);
    frame.extend([0x13, 0x88, 0, 80, 0, 8, 0, 0]);
    parse(&frame.as_slice())
}

/// One endpoint under one policy, and another node.
fn tables(row: EgressRow) -> MemoryTables {
    let policy =
        Policy { number: POLICY as u16, session: 0, nature: Nature::default(), rules: vec![Rule::default()] };
    let rules = EndpointRules { slot: SLOT, leaving: Some(vec![policy]), ..EndpointRules::default() };
    let prefixes = [("192.0.2.2/32", NODE), ("10.10.2.0/24", ITS_PODS)]
        .map(|(text, target)| (text.parse().expect("a prefix"), target));
    let image = compile_with(&[rules], &Destinations { prefixes: prefixes.into() }).expect("it fits");
    let mut tables = MemoryTables::new();
    let bank = image.relocate(0);
    let [routes_v4, routes_v6] = bank.routes;
    tables.write(bank);
    tables.set_endpoint_slot(IFINDEX, SLOT);
    let network = NetworkRow { overlay_ifindex: OVERLAY, egress_mark: 0xff00, ..NetworkRow::default() };
    tables.set_network(0, NetworkRow { routes_v4, routes_v6, ..network });
    let node = TargetRow { kind: TargetKind::Node as u32, ifindex: NODE, family: 4, ..TargetRow::default() };
    tables.set_target(NODE, node);
    tables.set_target(ITS_PODS, TargetRow { flags: TargetRow::FLAG_PODS, ..node });
    let mut numbers = [[0; EgressRow::ADDRESSES]; 2];
    numbers[0][0] = 4;
    tables.set_egress(0, POLICY, EgressRow { id: ID, counts: [1, 0], numbers, ..row });
    tables
}

fn at(place: EgressPlace) -> EgressRow {
    EgressRow { place: place as u32, target: NODE, ..EgressRow::default() }
}

fn leaves(tables: &MemoryTables) -> Led {
    let row = tables.endpoint(BANK, SLOT).expect("the endpoint");
    leave::leave(IFINDEX, row, &udp(NEAR, SERVER), LEN, BANK, tables)
}

fn arrives(tables: &MemoryTables, id: u32) -> Way {
    arrives_for(tables, id, SERVER)
}

fn arrives_for(tables: &MemoryTables, id: u32, destination: [u8; 4]) -> Way {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&SENDER);
    let remote = Remote { address, v4: true };
    leave::arrive(&udp(FAR, destination), LEN, id | EgressRow::ID_FLAG, &remote, BANK, tables).way
}

fn counted(tables: &MemoryTables) -> EgressCounters {
    tables.egress_counters(POLICY).expect("the policy")
}

fn dropped(reason: Reason, count: u64) -> EgressCounters {
    let mut counters = EgressCounters::default();
    (0..count).for_each(|_| counters.dropped(reason));
    counters
}

#[test]
fn marked_packets_are_counted_with_their_bytes() {
    let tables = tables(at(EgressPlace::Here));
    assert_eq!(leaves(&tables).way, Way::Host { mark: 0x400 });
    assert_eq!(arrives(&tables, ID), Way::Host { mark: 0x400 });
    let expected = EgressCounters { marked_packets: 2, marked_bytes: 200, ..EgressCounters::default() };
    assert_eq!(counted(&tables), expected);
}

#[test]
fn what_goes_to_the_policys_node_is_counted_when_it_is_known_what_became_of_it() {
    let tables = tables(at(EgressPlace::Peer));
    let led = leaves(&tables);
    assert_eq!(led.way, Way::Node { target: NODE, vni: ID | EgressRow::ID_FLAG });
    assert_eq!(counted(&tables), EgressCounters::default());
    leave::book(&led, LEN, Verdict::Taken, &tables);
    leave::book(&led, LEN, Verdict::Pass, &tables);
    leave::book(&led, LEN, Verdict::Drop(Reason::TooBig), &tables);
    // What goes to a pod of another node goes under no policy.
    leave::book(&led.way.into(), LEN, Verdict::Taken, &tables);
    let sent = EgressCounters { forwarded_packets: 1, forwarded_bytes: 100, ..EgressCounters::default() };
    let expected = EgressCounters { dropped_packets: dropped(Reason::TooBig, 1).dropped_packets, ..sent };
    assert_eq!(counted(&tables), expected);
}

#[test]
fn without_a_node_or_an_overlay_a_policy_drops_and_counts() {
    let tables_nowhere = tables(at(EgressPlace::Nowhere));
    assert_eq!(leaves(&tables_nowhere).way, Way::Drop(Reason::NoEgressNode));
    assert_eq!(counted(&tables_nowhere), dropped(Reason::NoEgressNode, 1));
    let mut tables = tables(at(EgressPlace::Peer));
    let network = tables.network(BANK).copied().expect("the network");
    tables.set_network(0, NetworkRow { overlay_ifindex: 0, ..network });
    assert_eq!(leaves(&tables).way, Way::Drop(Reason::NoEgressNode));
    assert_eq!(counted(&tables), dropped(Reason::NoEgressNode, 1));
}

#[test]
fn more_than_the_rate_allows_is_dropped_and_counted() {
    // A packet's time is a second; one may come early.
    let second = 1_000_000_000;
    let pace = (second << EgressRow::PACE_SHIFT) / u64::from(LEN);
    let tables = tables(EgressRow { pace, burst: second, ..at(EgressPlace::Here) });
    tables.set_now(second);
    let ways = [(); 4].map(|()| arrives(&tables, ID));
    assert_eq!(ways.iter().filter(|way| **way == Way::Drop(Reason::RateExceeded)).count(), 2, "{ways:?}");
    assert_eq!(counted(&tables).marked_packets, 2);
    assert_eq!(counted(&tables).dropped_packets, dropped(Reason::RateExceeded, 2).dropped_packets);
}

/// A policy that is here no more has its drops on its own account; one that nobody knows has none.
#[test]
fn what_comes_for_a_policy_that_is_not_here() {
    for place in [EgressPlace::Nowhere, EgressPlace::Peer] {
        let tables = tables(at(place));
        assert_eq!(arrives(&tables, ID), Way::Drop(Reason::EgressUnknown));
        assert_eq!(counted(&tables), dropped(Reason::EgressUnknown, 1));
        assert_eq!(arrives(&tables, ID + 1), Way::Drop(Reason::EgressUnknown));
        assert_eq!(counted(&tables), dropped(Reason::EgressUnknown, 1));
    }
}

/// No policy leads into the cluster.
#[test]
fn what_comes_under_a_policy_for_the_cluster_is_dropped_and_counted() {
    let tables = tables(at(EgressPlace::Here));
    assert_eq!(arrives_for(&tables, ID, SENDER), Way::Drop(Reason::NoRoute));
    assert_eq!(counted(&tables), dropped(Reason::NoRoute, 1));
}
