//! What does not fit is refused by name and number; what is large compiles in time.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;

use super::endpoint;
use crate::compile::{AddressSet, CompileError, EndpointRules, Policy, Rule, Table, compile, synthetic};

fn refused(endpoints: &[EndpointRules]) -> CompileError {
    compile(endpoints).expect_err("more than fits")
}

fn mirrors(sessions: impl Iterator<Item = u16>) -> Vec<EndpointRules> {
    let mirrors = sessions.map(|session| Policy::mirror(session, Vec::new())).collect();
    vec![EndpointRules { slot: 9, egress: mirrors, ..EndpointRules::default() }]
}

fn to(address: u128) -> Rule {
    let cidr = IpNet::from(IpAddr::V6(Ipv6Addr::from(address)));
    Rule { peer: Some(AddressSet { cidrs: vec![cidr], except: Vec::new() }), ..Rule::default() }
}

#[test]
fn sessions_are_bounded() {
    assert!(compile(&mirrors(0..64)).is_ok());
    let error = refused(&mirrors(0..65));
    assert_eq!(
        error,
        CompileError { table: Table::EndpointPolicies, needed: 65, allowed: 64, endpoint: Some(9) }
    );
    assert_eq!(error.to_string(), "policies per endpoint: at least 65 needed, 64 allowed (endpoint slot 9)");
    assert!(compile(&mirrors(255..=255)).is_ok());
    let error = refused(&mirrors(256..=256));
    assert_eq!((error.table, error.needed, error.allowed), (Table::Sessions, 257, 256));
}

#[test]
fn slots_are_bounded_and_unique() {
    assert!(compile(&[endpoint(1023, Vec::new())]).is_ok());
    let error = refused(&[endpoint(1024, Vec::new())]);
    assert_eq!((error.table, error.needed, error.allowed), (Table::Endpoints, 1025, 1024));
    let error = refused(&[endpoint(3, Vec::new()), endpoint(2, Vec::new()), endpoint(3, Vec::new())]);
    assert_eq!(
        error,
        CompileError { table: Table::EndpointEntries, needed: 2, allowed: 1, endpoint: Some(3) }
    );
}

#[test]
fn rules_are_bounded() {
    let rules = |count: u16| {
        (0..count).map(|port| Rule { source_ports: vec![port..=port], ..Rule::default() }).collect()
    };
    let error = refused(&[endpoint(1, rules(10_241))]);
    assert_eq!(
        error,
        CompileError { table: Table::RulesetBits, needed: 10_304, allowed: 10_240, endpoint: Some(1) }
    );
    assert!(compile(&[endpoint(1, rules(10_240))]).is_ok());
}

#[test]
fn nodes_are_bounded() {
    // Two neighbours at the end of an address need a node for each byte that they share. Only the last of
    // these nodes are equal between pairs.
    let pairs = |count: u128| {
        let address = |index: u128| 0xfd00 << 112 | index << 8;
        let endpoints = (0..count)
            .map(|index| endpoint(index as u32, vec![to(address(index) | 1), to(address(index) | 4)]));
        compile(&endpoints.collect::<Vec<_>>())
    };
    assert!(pairs(500).is_ok());
    let error = pairs(700).expect_err("14 nodes each");
    assert_eq!((error.table, error.needed, error.allowed), (Table::Nodes, 8193, 8192));
    assert!(error.endpoint.is_some());
}

#[test]
fn prefixes_are_bounded() {
    let endpoints: Vec<_> = (0..20)
        .map(|slot| endpoint(slot, (0..2000).map(|index| to(u128::from(slot) << 16 | index << 72)).collect()))
        .collect();
    assert!(matches!(refused(&endpoints), CompileError { table: Table::Prefixes, needed: 32_769, .. }));
}

#[test]
fn chunks_are_bounded() {
    // Every prefix of every other address is a row of half the bits.
    let rules = (0..2000_u16).map(|index| Rule {
        source_ports: vec![0..=index * 2],
        destination_ports: vec![index * 3..=65535],
        ..Rule::default()
    });
    let endpoints: Vec<_> =
        (0..40).map(|slot| endpoint(slot, rules.clone().skip(slot as usize * 20).collect())).collect();
    let error = refused(&endpoints);
    assert_eq!((error.table, error.allowed), (Table::Chunks, 65_516));
    assert!(error.needed > error.allowed);
}

/// The thread's own time, whoever else is busy; the benches have the figures.
#[test]
fn ten_thousand_rules_compile_in_seconds() {
    let start = thread_time();
    let image = compile(&[endpoint(0, synthetic(10_000, 1))]).unwrap();
    let took = thread_time() - start;
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(image.usage().iter().all(|usage| usage.used <= usage.allowed));
}

fn thread_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}
