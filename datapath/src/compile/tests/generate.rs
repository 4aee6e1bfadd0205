//! Random rules that overlap, and random packets at the bounds of those rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podwire_core::abi::Mode;
use podwire_core::stage::{Facts, Fragment, Key, Transport};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::compile::{AddressSet, Policy, Rule, TcpFlags};

const PORTS: [u16; 12] = [0, 1, 79, 80, 81, 255, 256, 443, 1023, 8000, 65534, 65535];
const PROTOCOLS: [u8; 10] = [0, 1, 6, 17, 33, 47, 58, 132, 136, 255];
const ETHER_TYPES: [u16; 6] = [0, 0x0800, 0x86dd, 0x0806, 0x88cc, 0x0801];

fn cidr_v4() -> impl Strategy<Value = IpNet> {
    let address = prop_oneof![
        4 => select(vec![0x0a00_0000, 0x0a00_0001, 0x0a00_01ff, 0x0a80_0000, 0xc000_0207]),
        1 => any::<u32>(),
    ];
    (address, select(vec![0, 1, 7, 8, 9, 16, 23, 24, 25, 31, 32, 32])).prop_map(|(address, len)| {
        Ipv4Net::new(Ipv4Addr::from(address), len).expect("a length up to 32").into()
    })
}

fn cidr_v6() -> impl Strategy<Value = IpNet> {
    let address = prop_oneof![
        4 => select(vec![0xfd00_u128 << 112, 0xfd00 << 112 | 1, 0xfd00 << 112 | 0x1_00ff, 0x2001_0db8 << 96]),
        1 => any::<u128>(),
    ];
    (address, select(vec![0, 1, 8, 9, 48, 63, 64, 65, 120, 127, 128, 128])).prop_map(|(address, len)| {
        Ipv6Net::new(Ipv6Addr::from(address), len).expect("a length up to 128").into()
    })
}

fn addresses() -> impl Strategy<Value = AddressSet> {
    let cidr = || prop_oneof![3 => cidr_v4(), 2 => cidr_v6()];
    (vec(cidr(), 0..4), vec(cidr(), 0..3)).prop_map(|(cidrs, except)| AddressSet { cidrs, except })
}

fn ports() -> impl Strategy<Value = Vec<RangeInclusive<u16>>> {
    let port = || prop_oneof![4 => select(&PORTS[..]), 1 => any::<u16>()];
    let range = prop_oneof![
        port().prop_map(|port| port..=port),
        (port(), port()).prop_map(|(one, two)| one.min(two)..=one.max(two)),
        Just(RangeInclusive::new(9, 3)),
    ];
    prop_oneof![4 => Just(Vec::new()), 1 => vec(range, 1..4)]
}

fn tcp_flags() -> impl Strategy<Value = TcpFlags> {
    let pairs = vec![(0x02, 0x12), (0x10, 0x10), (0x04, 0x04), (0, 0), (0, 0x02), (1, 2), (0xff, 0xff)];
    select(pairs).prop_map(|(value, mask)| TcpFlags { value, mask })
}

fn rule() -> impl Strategy<Value = Rule> {
    let protocol = weighted(0.4, select(&PROTOCOLS[..]));
    let sides = (weighted(0.2, addresses()), weighted(0.15, addresses()), weighted(0.15, addresses()));
    let icmp = prop_oneof![6 => Just(Vec::new()), 1 => ports()];
    let ether_type = weighted(0.1, select(&ETHER_TYPES[..]));
    (protocol, (ports(), ports(), ports()), sides, icmp, weighted(0.1, tcp_flags()), ether_type).prop_map(
        |(protocol, ports, (peer, source, destination), icmp, tcp_flags, ether_type)| Rule {
            protocol,
            either_ports: ports.0,
            source_ports: ports.1,
            destination_ports: ports.2,
            peer,
            source,
            destination,
            icmp,
            tcp_flags,
            ether_type,
        },
    )
}

/// Mirrors of one direction. Rules that match everything are thinned out: nothing else would show.
pub fn mirrors() -> impl Strategy<Value = Vec<Policy>> {
    let rule = || {
        rule().prop_map(|rule| match rule {
            rule if rule == Rule::default() => Rule { protocol: Some(6), ..rule },
            rule => rule,
        })
    };
    let rules = prop_oneof![
        1 => Just(Vec::new()),
        1 => Just(vec![Rule::default()]),
        20 => vec(rule(), 1..6),
        2 => vec(rule(), 60..140),
    ];
    vec((select(vec![0, 1, 2, 7, 254, 255]), rules), 0..6).prop_map(|mirrors| {
        mirrors.into_iter().map(|(session, rules)| Policy::mirror(session, rules)).collect()
    })
}

/// Choices out of what is interesting for some rules.
#[derive(Clone, Debug)]
pub struct Probe {
    mode: Mode,
    addresses: [Index; 2],
    ports: [Index; 2],
    protocol: Index,
    portless: bool,
    tcp_flags: u8,
    ether_type: u16,
}

pub fn probe() -> impl Strategy<Value = Probe> {
    let mode = prop_oneof![6 => Just(Mode::V4), 5 => Just(Mode::V6), 1 => Just(Mode::Other)];
    let flags = select(vec![0, 0x02, 0x12, 0x10, 0x14, 0x18, 0xff]);
    let portless = proptest::bool::weighted(0.15);
    (mode, any::<[Index; 4]>(), any::<Index>(), portless, flags, select(&ETHER_TYPES[..])).prop_map(
        |(mode, index, protocol, portless, tcp_flags, ether_type)| Probe {
            mode,
            addresses: [index[0], index[1]],
            ports: [index[2], index[3]],
            protocol,
            portless,
            tcp_flags,
            ether_type,
        },
    )
}

/// The bounds of some rules, and their neighbours.
#[derive(Debug, Default)]
pub struct Bounds {
    v4: Vec<u32>,
    v6: Vec<u128>,
    ports: Vec<u16>,
    protocols: Vec<u8>,
}

impl Bounds {
    pub fn of(mirrors: &[Policy]) -> Self {
        let mut bounds = Self {
            v4: vec![0, u32::MAX, 0x0a00_0001],
            v6: vec![0, u128::MAX, 0xfd00 << 112 | 1],
            ports: vec![0, 80, 443, u16::MAX],
            protocols: PROTOCOLS.to_vec(),
        };
        for rule in mirrors.iter().flat_map(|mirror| &mirror.rules) {
            for set in [&rule.peer, &rule.source, &rule.destination].into_iter().flatten() {
                set.cidrs.iter().chain(&set.except).for_each(|cidr| bounds.cidr(cidr));
            }
            let lists = [&rule.either_ports, &rule.source_ports, &rule.destination_ports, &rule.icmp];
            for range in lists.into_iter().flatten() {
                let (start, end) = (*range.start(), *range.end());
                bounds.ports.extend([start, end, start.wrapping_sub(1), end.wrapping_add(1)]);
            }
            // The protocols that rules name, more often than the others.
            bounds.protocols.extend(rule.protocol.iter().chain(&rule.protocol));
            bounds.protocols.extend(rule.tcp_flags.map(|_| 6));
        }
        bounds
    }

    fn cidr(&mut self, cidr: &IpNet) {
        match (cidr.network(), cidr.broadcast()) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                let (first, last) = (u32::from(first), u32::from(last));
                self.v4.extend([first, last, first.wrapping_sub(1), last.wrapping_add(1)]);
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                let (first, last) = (u128::from(first), u128::from(last));
                self.v6.extend([first, last, first.wrapping_sub(1), last.wrapping_add(1)]);
            }
            _ => unreachable!("both ends are of one family"),
        }
    }

    fn address(&self, mode: Mode, index: Index) -> Key {
        match mode {
            Mode::V4 => Key::from_v4(index.get(&self.v4).to_be_bytes()),
            Mode::V6 => Key::from_v6(index.get(&self.v6).to_be_bytes()),
            Mode::Other => Key::ZERO,
        }
    }

    /// The packet that a probe chooses; such as `parse` can yield.
    pub fn facts(&self, probe: &Probe) -> Facts {
        let mut facts = Facts {
            mode: probe.mode,
            transport: Transport::Portless,
            source: self.address(probe.mode, probe.addresses[0]),
            destination: self.address(probe.mode, probe.addresses[1]),
            ether_type: probe.ether_type,
            source_port: 0,
            destination_port: 0,
            protocol: *probe.protocol.get(&self.protocols),
            tcp_flags: 0,
            network_offset: 14,
            payload_offset: 14,
            transport_offset: 0,
            fragment: Fragment::NO,
            malformed: false,
        };
        match probe.mode {
            Mode::V4 => facts.ether_type = 0x0800,
            Mode::V6 => facts.ether_type = 0x86dd,
            Mode::Other => facts.protocol = 0,
        }
        let [source, destination] = probe.ports.map(|index| *index.get(&self.ports));
        match facts.protocol {
            _ if probe.portless => {}
            6 | 17 | 33 | 132 | 136 => {
                facts.transport = Transport::Ports;
                (facts.source_port, facts.destination_port) = (source, destination);
                facts.tcp_flags = if facts.protocol == 6 { probe.tcp_flags } else { 0 };
            }
            1 | 58 => {
                facts.transport = Transport::Icmp;
                facts.source_port = source;
            }
            _ => {}
        }
        facts
    }
}
