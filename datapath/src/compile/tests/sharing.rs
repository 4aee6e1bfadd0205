//! Equal things stand once.

use podwire_core::abi::{Direction, Entry, EntryKind, Generation, Mode, ModeRow};
use podwire_core::stage::Tables;

use super::{endpoint, tables};
use crate::compile::{AddressSet, EndpointRules, Policy, Rule, Table, compile, synthetic};

fn used(endpoints: &[EndpointRules], table: Table) -> u32 {
    let usage = compile(endpoints).unwrap().usage();
    usage.iter().find(|usage| usage.table == table).expect("usage names the table").used
}

fn peer(cidr: &str) -> Option<AddressSet> {
    Some(AddressSet { cidrs: vec![cidr.parse().unwrap()], except: Vec::new() })
}

fn destination_port(port: u16) -> Rule {
    Rule { protocol: Some(6), destination_ports: vec![port..=port], ..Rule::default() }
}

/// The compiled modes of an endpoint with these rules.
fn modes(rules: Vec<Rule>) -> [ModeRow; 3] {
    let image = compile(&[endpoint(0, rules)]).unwrap();
    let tables = tables(&image, Generation(0));
    let index = super::ruleset_of(&tables, 0, Direction::Egress).unwrap();
    tables.ruleset(index).unwrap().modes
}

#[test]
fn endpoints_with_equal_rules_share_one_rule_set() {
    let endpoints: Vec<_> = (0..100).map(|slot| endpoint(slot, synthetic(50, 1))).collect();
    // `peer` means the other side in both directions.
    assert_eq!(used(&endpoints, Table::Rulesets), 1);
    for table in [Table::Nodes, Table::Prefixes, Table::Chunks, Table::Spans] {
        assert_eq!(used(&endpoints, table), used(&endpoints[..1], table));
    }
    let mut different = endpoints;
    different[7].egress[0].rules.pop();
    assert_eq!(used(&different, Table::Rulesets), 2);
}

#[test]
fn equal_rules_of_a_session_are_one_bit() {
    let rules = vec![destination_port(80); 5000];
    assert_eq!(
        used(&[endpoint(0, rules.clone())], Table::Chunks),
        used(&[endpoint(0, vec![destination_port(80)])], Table::Chunks)
    );
    let everything = [rules, vec![Rule::default()]].concat();
    assert_eq!(compile(&[endpoint(0, everything)]), compile(&[endpoint(0, Vec::new())]));
}

#[test]
fn rules_that_nothing_can_match_leave_nothing() {
    let impossible = [
        Rule { protocol: Some(47), destination_ports: vec![80..=80], ..Rule::default() },
        Rule { protocol: Some(6), ether_type: Some(0x0800), ..Rule::default() },
        Rule { peer: Some(AddressSet::default()), ..Rule::default() },
        Rule {
            peer: peer("10.0.0.0/8"),
            source: peer("fd00::/8"),
            destination: peer("fd00::/8"),
            ..Rule::default()
        },
    ];
    let image = compile(&[endpoint(4, impossible.to_vec())]).unwrap();
    assert!(!image.has_rules(4, Direction::Ingress) && !image.has_rules(4, Direction::Egress));
    assert_eq!(used(&[endpoint(4, impossible.to_vec())], Table::Rulesets), 0);
    let image = compile(&[endpoint(4, vec![Rule::default()])]).unwrap();
    assert!(image.has_rules(4, Direction::Ingress) && !image.has_rules(3, Direction::Ingress));
}

#[test]
fn a_single_prefix_needs_no_node() {
    let rule = Rule { peer: peer("fd00:10:1::5/128"), ..destination_port(443) };
    let endpoints = [endpoint(0, vec![rule])];
    assert_eq!((used(&endpoints, Table::Nodes), used(&endpoints, Table::Prefixes)), (0, 2));
}

#[test]
fn fields_that_no_rule_looks_at_are_any() {
    let modes = modes(vec![Rule { peer: peer("10.0.0.0/8"), ..Rule::default() }, destination_port(80)]);
    let kinds = |mode: Mode| {
        let row = modes[mode as usize];
        [row.remote, row.local, row.source, row.destination, row.portless, row.tcp_flags]
            .map(|entry| Entry(entry).kind())
    };
    let [any, row, prefix] = [EntryKind::Any, EntryKind::Row, EntryKind::Prefix];
    assert_eq!(kinds(Mode::V4), [prefix, any, any, prefix, row, any]);
    // Only the rule on the port can match IPv6.
    assert_eq!(kinds(Mode::V6), [any, any, any, prefix, row, any]);
    assert_eq!(modes[Mode::Other as usize], ModeRow::NONE);
}

#[test]
fn sessions_have_words_of_their_own() {
    let mirrors: Vec<_> =
        (0..3).map(|session| Policy::mirror(10 - session, synthetic(70, u64::from(session)))).collect();
    let image = compile(&[EndpointRules { slot: 0, ingress: mirrors, ..EndpointRules::default() }]).unwrap();
    let tables = tables(&image, Generation(1));
    let index = super::ruleset_of(&tables, 0, Direction::Ingress).unwrap();
    let ruleset = tables.ruleset(index).unwrap();
    assert_eq!(ruleset.sessions[..4], [8, 9, 10, 0]);
    assert_eq!(ruleset.chunks, 1);
    assert_eq!(tables.span(ruleset.spans), Some(&[0, 0, 1, 1, 2, 2, 0, 0]));
}
