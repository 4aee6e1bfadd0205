//! Random desired states. Rules and frames draw from the same few values, so that rules are hit.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use podwire_datapath::compile::{AddressSet, Rule, TcpFlags};
use podwire_datapath::core::abi::Direction;
use podwire_datapath::{Allowed, Desired, Endpoint, Engine, Guard, Mirror, SessionOptions, Target};

use super::random::Random;

/// Addresses that rules and frames draw from.
pub const V4: [u32; 6] = [0x0a0a_0105, 0x0a0a_0106, 0x0a0a_01ff, 0x0a0b_0001, 0xc633_6401, 0xffff_ffff];
/// Addresses that rules and frames draw from.
pub const V6: [u128; 5] =
    [0xfd00_0010 << 96 | 5, 0xfd00_0010 << 96 | 6, 0xfd00_0010 << 96 | 1 << 64, 0x2001_0db8 << 96 | 9, 1];
/// MAC addresses that frames draw from; the second is the pods'.
pub const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// Ports that rules and frames draw from.
pub const PORTS: [u16; 12] = [0, 53, 67, 68, 80, 81, 443, 547, 1023, 8080, 49152, 65535];
/// Protocols that rules and frames draw from.
pub const PROTOCOLS: [u8; 9] = [6, 6, 17, 17, 132, 1, 58, 47, 136];
/// TCP flags that rules and frames draw from.
pub const TCP_FLAGS: [u8; 5] = [0x02, 0x12, 0x10, 0x11, 0x04];
/// EtherTypes that rules and frames draw from.
pub const ETHER_TYPES: [u16; 5] = [0x0806, 0x88cc, 0x0800, 0x86dd, 0x1234];

/// A desired state for these interfaces and targets: a mirror per target, on some endpoints and directions.
pub fn desired(random: &mut Random, interfaces: &[String], targets: &[Target]) -> Desired {
    let names: Vec<String> = interfaces.iter().map(|interface| format!("default/{interface}")).collect();
    let endpoints =
        names.iter().zip(interfaces).map(|(name, interface)| endpoint(random, name, interface)).collect();
    let mirrors = targets
        .iter()
        .enumerate()
        .map(|(number, target)| Mirror {
            name: format!("mirror-{number}"),
            endpoints: names.iter().filter(|_| !random.one_in(3)).cloned().collect(),
            directions: Direction::ALL.into_iter().filter(|_| !random.one_in(4)).collect(),
            rules: rules(random),
            stateful: false,
            // Clones are dressed at once, by the program that the test looks at.
            options: SessionOptions { engine: Engine::Clone, ..SessionOptions::default() },
            target: target.clone(),
        })
        .collect();
    Desired { endpoints, mirrors, ..Desired::default() }
}

/// An endpoint, guarded or not, whose own addresses are some of those that frames draw from.
fn endpoint(random: &mut Random, name: &str, interface: &str) -> Endpoint {
    let mut allowed = vec![Allowed::Prefix(IpNet::from(IpAddr::from(Ipv6Addr::from(V6[1]))))];
    if random.one_in(2) {
        allowed.push(Allowed::Prefix(cidr(random)));
    }
    if random.one_in(4) {
        allowed.push(Allowed::Mac(MACS[0]));
    }
    Endpoint {
        name: name.to_owned(),
        interface: interface.to_owned(),
        mac: Some(MACS[1]),
        ips: vec![Ipv4Addr::from(V4[0]).into(), Ipv6Addr::from(V6[0]).into()],
        allowed,
        guard: random.pick(&[Guard::Off, Guard::Observe, Guard::Enforce]),
    }
}

fn rules(random: &mut Random) -> Vec<Rule> {
    let count = match random.below(10) {
        0 => 0,
        1 => 60 + random.below(600),
        _ => 1 + random.below(6),
    };
    (0..count).map(|_| rule(random)).collect()
}

fn rule(random: &mut Random) -> Rule {
    let mut rule = Rule::default();
    if random.one_in(12) {
        rule.ether_type = Some(random.pick(&ETHER_TYPES));
        return rule;
    }
    if !random.one_in(3) {
        rule.protocol = Some(random.pick(&PROTOCOLS));
    }
    match random.below(8) {
        0 => rule.either_ports = ports(random),
        1 => rule.source_ports = ports(random),
        2 => rule.destination_ports = ports(random),
        3 if rule.protocol.is_none_or(|protocol| protocol == 6) => {
            let mask = random.pick(&TCP_FLAGS);
            rule.tcp_flags = Some(TcpFlags { value: random.pick(&TCP_FLAGS) & mask, mask });
        }
        4 if rule.protocol.is_none_or(|protocol| protocol == 1) => rule.icmp = vec![8 << 8..=8 << 8 | 3],
        _ => {}
    }
    match random.below(6) {
        0 => rule.peer = Some(addresses(random)),
        1 => rule.source = Some(addresses(random)),
        2 => rule.destination = Some(addresses(random)),
        _ => {}
    }
    if rule == Rule::default() {
        rule.protocol = Some(17);
    }
    rule
}

fn ports(random: &mut Random) -> Vec<RangeInclusive<u16>> {
    (0..1 + random.below(3))
        .map(|_| {
            let (one, two) = (random.pick(&PORTS), random.pick(&PORTS));
            if random.one_in(2) { one..=one } else { one.min(two)..=one.max(two) }
        })
        .collect()
}

fn addresses(random: &mut Random) -> AddressSet {
    let cidrs = (0..1 + random.below(3)).map(|_| cidr(random)).collect();
    let except = (0..random.below(2)).map(|_| cidr(random)).collect();
    AddressSet { cidrs, except }
}

fn cidr(random: &mut Random) -> IpNet {
    if random.one_in(2) {
        let address = IpAddr::from(Ipv4Addr::from(random.pick(&V4)));
        net(address, random.pick(&[0, 8, 9, 16, 24, 25, 31, 32]))
    } else {
        let address = IpAddr::from(Ipv6Addr::from(random.pick(&V6)));
        net(address, random.pick(&[0, 8, 32, 63, 64, 65, 127, 128]))
    }
}

fn net(address: IpAddr, len: u8) -> IpNet {
    IpNet::new_assert(address, len).trunc()
}
