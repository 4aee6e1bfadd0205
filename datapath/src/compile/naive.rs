//! The meaning of rules, rule by rule and field by field: the oracle that the compiled form is tested against.
//!
//! Written from the table in [`super::rule`] alone and with nothing of the compiler's; slow, and meant to be
//! obviously right.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use podwire_core::abi::{Direction, Mode};
use podwire_core::stage::{Facts, Key, Transport};

use super::rule::{AddressSet, Policy, Rule};

/// IP protocol number of TCP.
const TCP: u8 = 6;

/// Whether `rule` matches a packet with these `facts` that goes in this `direction`.
pub fn matches(rule: &Rule, direction: Direction, facts: &Facts) -> bool {
    if let Some(ether_type) = rule.ether_type {
        return facts.ether_type == ether_type && !rule.looks_at_ip();
    }
    if !rule.looks_at_ip() {
        return true;
    }
    if facts.mode == Mode::Other {
        return false;
    }
    protocol(rule, facts) && ports(rule, facts) && addresses(rule, direction, facts)
}

/// Sessions that want a copy of a packet with these `facts`.
pub fn sessions(mirrors: &[Policy], direction: Direction, facts: &Facts) -> BTreeSet<u16> {
    let wanted = |mirror: &&Policy| {
        mirror.rules.is_empty() || mirror.rules.iter().any(|rule| matches(rule, direction, facts))
    };
    mirrors.iter().filter(wanted).map(|mirror| mirror.session).collect()
}

fn protocol(rule: &Rule, facts: &Facts) -> bool {
    let number = rule.protocol.is_none_or(|protocol| protocol == facts.protocol);
    let icmp =
        rule.icmp.is_empty() || facts.transport == Transport::Icmp && contains(&rule.icmp, facts.source_port);
    let flags = rule.tcp_flags.is_none_or(|flags| {
        facts.protocol == TCP
            && facts.transport == Transport::Ports
            && facts.tcp_flags & flags.mask == flags.value
    });
    number && icmp && flags
}

fn ports(rule: &Rule, facts: &Facts) -> bool {
    let known = facts.transport == Transport::Ports;
    let source = |ranges: &[RangeInclusive<u16>]| known && contains(ranges, facts.source_port);
    let destination = |ranges: &[RangeInclusive<u16>]| known && contains(ranges, facts.destination_port);
    (rule.either_ports.is_empty() || source(&rule.either_ports) || destination(&rule.either_ports))
        && (rule.source_ports.is_empty() || source(&rule.source_ports))
        && (rule.destination_ports.is_empty() || destination(&rule.destination_ports))
}

fn addresses(rule: &Rule, direction: Direction, facts: &Facts) -> bool {
    let source = address(facts.mode, facts.source);
    let destination = address(facts.mode, facts.destination);
    let peer = match direction {
        Direction::Ingress => source,
        Direction::Egress => destination,
    };
    holds(rule.peer.as_ref(), peer)
        && holds(rule.source.as_ref(), source)
        && holds(rule.destination.as_ref(), destination)
}

fn contains(ranges: &[RangeInclusive<u16>], value: u16) -> bool {
    ranges.iter().any(|range| range.contains(&value))
}

fn holds(set: Option<&AddressSet>, address: IpAddr) -> bool {
    set.is_none_or(|set| {
        set.cidrs.iter().any(|cidr| cidr.contains(&address))
            && !set.except.iter().any(|cidr| cidr.contains(&address))
    })
}

fn address(mode: Mode, key: Key) -> IpAddr {
    match mode {
        Mode::V6 => IpAddr::V6(Ipv6Addr::from((key.high as u128) << 64 | key.low as u128)),
        Mode::V4 | Mode::Other => IpAddr::V4(Ipv4Addr::from((key.high >> 32) as u32)),
    }
}
