//! Random rules over the same small pools of addresses and ports as the frames, so that they hit.

use podwire_datapath::compile::{AddressSet, Rule, TcpFlags};
use podwire_datapath::core::abi::Direction;

use crate::frames::{ETHER_TYPES, PORTS, PROTOCOLS, Random, V4, V6};

pub fn directions(random: &mut Random) -> Vec<Direction> {
    match random.below(4) {
        0 => vec![Direction::Ingress],
        1 => vec![Direction::Egress],
        _ => Direction::ALL.to_vec(),
    }
}

/// None (everything) now and then, else up to a dozen.
pub fn rules(random: &mut Random) -> Vec<Rule> {
    let count = if random.chance(10) { 0 } else { 1 + random.below(12) };
    (0..count).map(|_| rule(random)).collect()
}

fn rule(random: &mut Random) -> Rule {
    if random.chance(8) {
        return Rule { ether_type: Some(ETHER_TYPES[random.below(ETHER_TYPES.len())]), ..Rule::default() };
    }
    let mut rule = Rule::default();
    if random.chance(50) {
        rule.protocol = Some(PROTOCOLS[random.below(PROTOCOLS.len())]);
    }
    match random.below(8) {
        0 => rule.either_ports = vec![port(random)],
        1 => rule.source_ports = vec![port(random), port(random)],
        2 | 3 => rule.destination_ports = vec![port(random)],
        4 => rule.icmp = vec![random.below(0x900) as u16..=0xffff],
        5 => {
            rule.protocol = Some(6);
            let mask = 1 << random.below(8);
            rule.tcp_flags = Some(TcpFlags { value: if random.chance(50) { mask } else { 0 }, mask });
        }
        _ => {}
    }
    match random.below(7) {
        0 | 1 => rule.peer = Some(set(random)),
        2 => rule.source = Some(set(random)),
        3 => rule.destination = Some(set(random)),
        _ => {}
    }
    rule
}

fn port(random: &mut Random) -> std::ops::RangeInclusive<u16> {
    let first = PORTS[random.below(PORTS.len())];
    first..=first.saturating_add(random.below(3000) as u16)
}

fn set(random: &mut Random) -> AddressSet {
    let prefix = |random: &mut Random| {
        if random.chance(50) {
            let len = [0, 8, 16, 20, 24, 31, 32][random.below(7)];
            format!("{}/{len}", std::net::Ipv4Addr::from(V4[random.below(V4.len())]))
        } else {
            let len = [0, 16, 33, 64, 100, 127, 128][random.below(7)];
            format!("{}/{len}", std::net::Ipv6Addr::from(V6[random.below(V6.len())]))
        }
    };
    let read = |text: String| text.parse::<ipnet::IpNet>().expect("a prefix").trunc();
    let cidrs: Vec<_> = (0..1 + random.below(3)).map(|_| read(prefix(random))).collect();
    let except = (0..random.below(2)).map(|_| read(prefix(random))).collect();
    AddressSet { cidrs, except }
}
