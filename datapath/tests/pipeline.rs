//! The pipeline's decisions on tables in memory: who opened a connection, which redirect applies, who gets a copy.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;

use podwire_datapath::compile::tables::MemoryTables;
use podwire_datapath::compile::{EndpointRules, Nature, Policy, Rule, compile};
use podwire_datapath::core::abi::{
    Direction, Generation, PolicyRow, Reason, SessionKind, SessionRow, TripRow,
};
use podwire_datapath::core::stage::{
    self, Attempt, Beside, Decision, Returned, Tables, Tag, Verdict, admit, pod, settle, trip_key,
};

const IFINDEX: u32 = 7;
const SLOT: u32 = 3;
const POD: Ipv4Addr = Ipv4Addr::new(10, 10, 1, 5);
const PEER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;
const ACK: u8 = 0x10;
const FIN: u8 = 0x11;

/// A TCP packet of the connection between the pod's port 5000 and the peer's port 80.
fn tcp(direction: Direction, pod_port: u16, flags: u8) -> Vec<u8> {
    let (source, destination, ports) = match direction {
        Direction::Egress => (POD, PEER, [pod_port, 80]),
        Direction::Ingress => (PEER, POD, [80, pod_port]),
    };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend(ports.into_iter().flat_map(u16::to_be_bytes));
    frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    frame
}

fn policy(number: u16, nature: Nature) -> Policy {
    let rule = Rule { protocol: Some(6), ..Rule::default() };
    Policy { number, session: number, nature, rules: vec![rule] }
}

/// Tables with these policies on one endpoint.
fn tables(ingress: Vec<Policy>, egress: Vec<Policy>) -> MemoryTables {
    let image = compile(&[EndpointRules { slot: SLOT, ingress, egress, ..EndpointRules::default() }])
        .expect("it fits");
    let mut tables = MemoryTables::new();
    tables.write(image.relocate(0));
    tables.set_generation(Generation(0));
    tables.set_endpoint_slot(IFINDEX, SLOT);
    tables
}

fn decide(tables: &MemoryTables, direction: Direction, frame: &[u8]) -> Decision {
    decide_tagged(tables, direction, frame, Tag::default())
}

fn decide_tagged(tables: &MemoryTables, direction: Direction, frame: &[u8], tag: Tag) -> Decision {
    pod(direction, &Beside { ifindex: IFINDEX, mark: 0, tag }, &frame, tables)
}

/// Whether the only mirror matches.
fn matches(tables: &MemoryTables, direction: Direction, frame: &[u8]) -> bool {
    decide(tables, direction, frame).copies.slots != 0
}

fn stateful() -> Nature {
    Nature { stateful: true, ..Nature::default() }
}

#[test]
fn replies_belong_to_the_side_that_opened() {
    let tables = tables(Vec::new(), vec![policy(1, stateful())]);
    assert!(matches(&tables, Direction::Egress, &tcp(Direction::Egress, 5000, SYN)));
    assert!(matches(&tables, Direction::Ingress, &tcp(Direction::Ingress, 5000, SYN_ACK)));
    assert!(matches(&tables, Direction::Egress, &tcp(Direction::Egress, 5000, ACK)));
    // Opened by the peer: neither direction.
    assert!(!matches(&tables, Direction::Ingress, &tcp(Direction::Ingress, 6000, SYN)));
    assert!(!matches(&tables, Direction::Egress, &tcp(Direction::Egress, 6000, SYN_ACK)));
}

#[test]
fn the_answer_to_a_syn_that_was_not_seen_opens_nothing() {
    let tables = tables(Vec::new(), vec![policy(1, stateful())]);
    assert!(matches(&tables, Direction::Ingress, &tcp(Direction::Ingress, 5000, SYN_ACK)));
    assert!(!matches(&tables, Direction::Egress, &tcp(Direction::Egress, 6000, SYN_ACK)));
}

#[test]
fn a_syn_after_the_end_opens_another_connection() {
    let tables = tables(Vec::new(), vec![policy(1, stateful())]);
    assert!(!matches(&tables, Direction::Ingress, &tcp(Direction::Ingress, 5000, SYN)));
    assert!(!matches(&tables, Direction::Egress, &tcp(Direction::Egress, 5000, SYN)), "it is still theirs");
    assert!(!matches(&tables, Direction::Egress, &tcp(Direction::Egress, 5000, FIN)));
    assert!(matches(&tables, Direction::Egress, &tcp(Direction::Egress, 5000, SYN)));
}

#[test]
fn without_room_a_connection_counts_as_opened_by_either_side() {
    let mut tables = tables(Vec::new(), vec![policy(1, stateful())]);
    tables.set_flow_room(1);
    assert!(!matches(&tables, Direction::Ingress, &tcp(Direction::Ingress, 5000, SYN)));
    assert!(
        matches(&tables, Direction::Ingress, &tcp(Direction::Ingress, 6000, SYN)),
        "too much, not too little"
    );
    assert!(matches(&tables, Direction::Egress, &tcp(Direction::Egress, 6000, ACK)));
    assert_eq!(tables.reason_counter(Reason::FlowTableFull), 2);
    assert!(
        !matches(&tables, Direction::Egress, &tcp(Direction::Egress, 5000, ACK)),
        "the one that is known"
    );
}

fn through(rank: u16) -> Nature {
    Nature { redirect: Some(rank), ..Nature::default() }
}

#[test]
fn the_redirect_of_the_lowest_rank_applies() {
    let tables =
        tables(Vec::new(), vec![policy(9, through(0)), policy(2, through(1)), policy(1, through(2))]);
    let redirect = decide(&tables, Direction::Egress, &tcp(Direction::Egress, 5000, ACK)).redirect;
    assert_eq!((redirect.policy, redirect.session), (9, 9));
}

#[test]
fn a_packet_is_not_redirected_to_a_tool_that_it_has_passed() {
    let tables = tables(Vec::new(), vec![policy(9, through(0))]);
    let frame = tcp(Direction::Egress, 5000, ACK);
    let passed = |session| decide_tagged(&tables, Direction::Egress, &frame, Tag::back(session).passed());
    assert_eq!(passed(9).redirect.slot, 0);
    assert_ne!(passed(8).redirect.slot, 0, "another tool");
    assert_eq!(
        decide_tagged(&tables, Direction::Egress, &frame, Tag::back(8)).redirect.slot,
        0,
        "on its way back"
    );
    assert_eq!(tables.policy_counters(9).expect("a policy").passed_tool_packets, 1);
}

#[test]
fn what_the_pod_receives_is_mirrored_after_the_tool() {
    let both = vec![policy(1, Nature::default()), policy(9, through(0))];
    let tables = tables(both.clone(), both);
    for (direction, mirrored) in [(Direction::Egress, false), (Direction::Ingress, true)] {
        let frame = tcp(direction, 5000, ACK);
        let back = decide_tagged(&tables, direction, &frame, Tag::back(9));
        assert_eq!(back.copies.slots != 0, mirrored, "{direction:?}");
    }
}

/// Open goes on, closed drops; each is counted once, at the endpoint and at the policy.
#[test]
fn the_failure_policy_decides_about_what_is_not_taken() {
    for (closed, expected) in [(false, Verdict::Pass), (true, Verdict::Drop(Reason::DeviceDown))] {
        let mut tables = tables(Vec::new(), vec![policy(9, through(0))]);
        let flags = if closed { PolicyRow::FLAG_CLOSED } else { 0 };
        tables.set_policy(0, 9, PolicyRow { name_hash: 1, returns: 5, flags });
        let frame = tcp(Direction::Egress, 5000, ACK);
        let decision = decide(&tables, Direction::Egress, &frame);
        assert_eq!((decision.redirect.returns, decision.redirect.closed), (5, closed));
        let failed = Attempt::Failed(Reason::DeviceDown);
        assert_eq!(settle(Direction::Egress, 54, &decision, failed, &tables), expected);
        assert_eq!(settle(Direction::Egress, 54, &decision, Attempt::Taken, &tables), Verdict::Taken);
        let counters = tables.policy_counters(9).expect("a policy");
        assert_eq!((counters.matched_packets, counters.redirected_packets), (2, 1));
        assert_eq!(
            (counters.bypassed_packets, counters.refused_packets),
            (u64::from(!closed), u64::from(closed))
        );
        let endpoint = tables.endpoint_counters(SLOT, Direction::Egress).expect("an endpoint");
        assert_eq!(endpoint.received_packets, 2);
        assert_eq!(endpoint.passed_packets + endpoint.redirected_packets + endpoint.dropped_packets, 2);
    }
}

#[test]
fn a_packet_comes_back_to_where_it_left() {
    let mut tables = tables(Vec::new(), vec![policy(9, through(0))]);
    let frame = tcp(Direction::Egress, 5000, ACK);
    assert_eq!(stage::returned(5, &frame.as_slice(), &tables), Returned::Drop(Reason::ReturnUnknown));
    let trip = TripRow { ifindex: IFINDEX, direction: 1, mark: 0x1234, priority: 7, policy: 9, session: 9 };
    tables.set_trip(trip_key(&frame.as_slice(), &stage::parse(&frame.as_slice()), 5), trip);
    let back = Returned::Back {
        ifindex: IFINDEX,
        direction: Direction::Egress,
        mark: 0x1234,
        priority: 7,
        tag: Tag::back(9),
        policy: 9,
    };
    assert_eq!(stage::returned(5, &frame.as_slice(), &tables), back);
    assert_eq!(
        stage::returned(6, &frame.as_slice(), &tables),
        Returned::Drop(Reason::ReturnUnknown),
        "another port"
    );
    assert_eq!(tables.policy_counters(9).expect("a policy").returned_packets, 1);
}

fn session(row: SessionRow) -> SessionRow {
    SessionRow { kind: SessionKind::Device as u32, ..row }
}

#[test]
fn policies_of_one_session_get_one_copy() {
    let shared = |number| Policy { session: 4, ..policy(number, Nature::default()) };
    let tables = tables(Vec::new(), vec![shared(1), shared(2), policy(3, Nature::default())]);
    let decision = decide(&tables, Direction::Egress, &tcp(Direction::Egress, 5000, ACK));
    assert_eq!(decision.copies.slots.count_ones(), 3);
    let admitted = admit(&decision.copies, 54, &tables);
    assert_eq!((admitted.clones.count_ones(), admitted.snaps), (2, 0));
    for number in 1..=3 {
        assert_eq!(tables.policy_counters(number).expect("a policy").matched_packets, 1);
    }
    let rules = tables.ruleset(decision.copies.ruleset).expect("a rule set");
    assert_eq!(rules.sessions[..3], [4, 4, 3]);
}

#[test]
fn samples_and_rates_are_kept_before_anything_is_cloned() {
    let limited = Nature { limited: true, ..Nature::default() };
    let mut tables = tables(Vec::new(), vec![policy(1, limited), policy(2, limited)]);
    tables.set_session(0, 1, Some(session(SessionRow { sampling: 4, ..SessionRow::FREE })));
    tables.set_session(0, 2, Some(session(SessionRow { interval: 1000, burst: 0, ..SessionRow::FREE })));
    let decision = decide(&tables, Direction::Egress, &tcp(Direction::Egress, 5000, ACK));
    let mut admitted = 0;
    for step in 0..100 {
        tables.set_now(1_000_000 + step * 100);
        admitted += admit(&decision.copies, 54, &tables).clones.count_ones();
    }
    // Nothing was booked as sent, so the sampler sees the same count until it lets one pass; the pace is one in ten.
    let (sampled, paced) =
        (tables.session_counters(1).expect("one"), tables.session_counters(2).expect("two"));
    assert_eq!(sampled.sampled_out_packets, sampled.matched_packets);
    assert_eq!(paced.lost_packets[Reason::RateLimited.index()], 90);
    assert_eq!(u64::from(admitted), 100 - sampled.sampled_out_packets + 10);
}
