//! Match rules. In: an entry of `match`. Out: a [`Rule`] for the compiler.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use podwire_core::wire::protocol;

use super::address::{cidr, lies_in};
use super::decode::{Field, Map, nearest, read_number};
use crate::compile::{AddressSet, Rule, TcpFlags};

/// Rules of one policy at most.
const MAX_RULES: usize = 10_000;

const PROTOCOLS: &[(&str, u8)] = &[
    ("TCP", protocol::TCP),
    ("UDP", protocol::UDP),
    ("SCTP", protocol::SCTP),
    ("ICMP", protocol::ICMP),
    ("ICMPv6", protocol::ICMPV6),
    ("IGMP", protocol::IGMP),
    ("GRE", protocol::GRE),
    ("ESP", protocol::ESP),
    ("AH", protocol::AUTHENTICATION),
    ("DCCP", protocol::DCCP),
    ("UDPLite", protocol::UDP_LITE),
];

const ETHER_TYPES: &[(&str, u16)] = &[
    ("ipv4", 0x0800),
    ("arp", 0x0806),
    ("ipv6", 0x86dd),
    ("mpls", 0x8847),
    ("pppoe", 0x8864),
    ("lldp", 0x88cc),
];

/// ICMP types by name (IANA), for ICMP and ICMPv6.
const ICMP_TYPES: &[(&str, u8, u8)] = &[
    ("echo-reply", 0, 129),
    ("destination-unreachable", 3, 1),
    ("redirect", 5, 137),
    ("echo-request", 8, 128),
    ("time-exceeded", 11, 3),
    ("parameter-problem", 12, 4),
];
const ICMPV6_TYPES: &[(&str, u8)] = &[
    ("packet-too-big", 2),
    ("router-solicitation", 133),
    ("router-advertisement", 134),
    ("neighbour-solicitation", 135),
    ("neighbor-solicitation", 135),
    ("neighbour-advertisement", 136),
    ("neighbor-advertisement", 136),
];

/// TCP flags by their names (RFC 9293), lowest bit first.
pub const TCP_FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

/// Reads `match`.
pub(super) fn read_match(field: &Field) -> Vec<Rule> {
    let items = field.list();
    if items.len() > MAX_RULES {
        field.refuse(&format!("{} rules", items.len()), Some(&format!("at most {MAX_RULES}")));
        return Vec::new();
    }
    items.iter().filter_map(read_rule).collect()
}

fn read_rule(field: &Field) -> Option<Rule> {
    let map = field.map()?;
    let ports = |name| map.get(name).map(|list| list.filled_list().iter().filter_map(read_ports).collect());
    let addresses = |name| map.get(name).map(|field| read_addresses(&field));
    let rule = Rule {
        protocol: map.get("protocol").and_then(|field| read_protocol(&field)),
        either_ports: ports("ports").unwrap_or_default(),
        source_ports: ports("srcPorts").unwrap_or_default(),
        destination_ports: ports("dstPorts").unwrap_or_default(),
        peer: addresses("peer").flatten(),
        source: addresses("src").flatten(),
        destination: addresses("dst").flatten(),
        icmp: Vec::new(),
        tcp_flags: map.get("tcpFlags").and_then(|field| read_flags(&field)),
        ether_type: map.get("etherType").and_then(|field| read_ether_type(&field)),
    };
    let icmp = read_icmp(&map, rule.protocol);
    map.finish();
    // A protocol that was not understood has been reported; what else it contradicts is not known.
    if map.has("protocol") == rule.protocol.is_some() {
        check(&map, &rule)?;
    }
    Some(Rule { icmp: icmp.into_iter().collect(), ..rule })
}

/// Refuses what can never match.
fn check(map: &Map, rule: &Rule) -> Option<()> {
    let ports =
        !(rule.either_ports.is_empty() && rule.source_ports.is_empty() && rule.destination_ports.is_empty());
    let with_ports = [protocol::TCP, protocol::UDP, protocol::SCTP, protocol::DCCP, protocol::UDP_LITE];
    let icmp = [protocol::ICMP, protocol::ICMPV6];
    let other_fields =
        ["protocol", "ports", "srcPorts", "dstPorts", "peer", "src", "dst", "icmpType", "tcpFlags"];
    let families = [&rule.peer, &rule.source, &rule.destination].map(|set| {
        set.as_ref().map(|set| (set.cidrs.iter().any(is_v4), set.cidrs.iter().any(|cidr| !is_v4(cidr))))
    });
    let v4 = families.iter().flatten().all(|(v4, _)| *v4) && rule.protocol != Some(protocol::ICMPV6);
    let v6 = families.iter().flatten().all(|(_, v6)| *v6) && rule.protocol != Some(protocol::ICMP);
    let problem = if map.has("etherType") && other_fields.iter().any(|name| map.has(name)) {
        "etherType is for what is not IP and stands alone in its rule"
    } else if ports && rule.protocol.is_some_and(|number| !with_ports.contains(&number)) {
        "ports need protocol TCP, UDP, SCTP, DCCP or UDPLite, or none"
    } else if map.has("tcpFlags") && rule.protocol != Some(protocol::TCP) {
        "tcpFlags need protocol TCP"
    } else if map.has("icmpType") && !rule.protocol.is_some_and(|number| icmp.contains(&number)) {
        "icmpType needs protocol ICMP or ICMPv6"
    } else if map.has("icmpCode") && !map.has("icmpType") {
        "icmpCode needs icmpType"
    } else if !v4 && !v6 {
        "no packet has addresses of both families, and ICMP and ICMPv6 belong to one each"
    } else {
        return Some(());
    };
    map.contradiction(problem);
    None
}

fn is_v4(cidr: &IpNet) -> bool {
    matches!(cidr, IpNet::V4(_))
}

fn read_protocol(field: &Field) -> Option<u8> {
    let text = field.text()?;
    if let Some((_, number)) = PROTOCOLS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        return Some(*number);
    }
    if read_number(text).is_some() {
        return field.number(0..=255).map(|number| number as u8);
    }
    let names: Vec<&str> = PROTOCOLS.iter().map(|(name, _)| *name).collect();
    field.refuse(
        &format!("unknown protocol \"{text}\"{}", nearest(text, &names)),
        Some(&format!("{}, or 0 to 255", names.join(", "))),
    );
    None
}

fn read_ports(field: &Field) -> Option<RangeInclusive<u16>> {
    let text = field.text()?;
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let read = |text: &str| read_number(text.trim()).and_then(|number| u16::try_from(number).ok());
    match (read(first), read(last)) {
        (Some(first), Some(last)) if first <= last => Some(first..=last),
        _ => {
            field
                .refuse(&format!("\"{text}\" is no port"), Some("0 to 65535, or a range like \"8000-8100\""));
            None
        }
    }
}

/// `None` when something in it is wrong, which is reported.
fn read_addresses(field: &Field) -> Option<AddressSet> {
    let map = field.map()?;
    let cidrs = map.required("cidrs").map(|list| list.filled_list()).unwrap_or_default();
    let except = map.get("except").map(|list| list.filled_list()).unwrap_or_default();
    map.finish();
    let cidrs: Vec<IpNet> = cidrs.iter().filter_map(cidr).collect();
    let within: BTreeSet<IpNet> = cidrs.iter().copied().collect();
    let mut outside = false;
    let except: Vec<IpNet> = except
        .iter()
        .filter_map(|field| {
            let prefix = cidr(field)?;
            if !lies_in(prefix, &within) {
                field.refuse(&format!("{prefix} lies in none of cidrs"), None);
                outside = true;
            }
            Some(prefix)
        })
        .collect();
    let without: BTreeSet<IpNet> = except.iter().copied().collect();
    if !outside && !cidrs.is_empty() && cidrs.iter().all(|cidr| lies_in(*cidr, &without)) {
        map.contradiction("except leaves nothing of cidrs");
        return None;
    }
    (!outside && !cidrs.is_empty()).then_some(AddressSet { cidrs, except })
}

/// Type and code as one range of `type << 8 | code`.
fn read_icmp(map: &Map, number: Option<u8>) -> Option<RangeInclusive<u16>> {
    let (kind, code) = (map.get("icmpType"), map.get("icmpCode"));
    let v6 = number == Some(protocol::ICMPV6);
    let kind = u16::from(read_icmp_type(&kind?, v6)?) << 8;
    match code {
        None => Some(kind..=kind | 255),
        Some(code) => {
            let code = code.number(0..=255)? as u16;
            Some(kind | code..=kind | code)
        }
    }
}

/// Names of ICMP types, or with `v6` of ICMPv6 types, with their numbers.
pub fn icmp_types(v6: bool) -> Vec<(&'static str, u8)> {
    let both = ICMP_TYPES.iter().map(|(name, v4, in_v6)| (*name, if v6 { *in_v6 } else { *v4 }));
    let own = ICMPV6_TYPES.iter().filter(|_| v6).map(|(name, number)| (*name, *number));
    both.chain(own).collect()
}

pub(super) fn read_icmp_type(field: &Field, v6: bool) -> Option<u8> {
    let text = field.text()?;
    if read_number(text).is_some() {
        return field.number(0..=255).map(|number| number as u8);
    }
    let known = icmp_types(v6);
    if let Some((_, number)) = known.iter().find(|(name, _)| *name == text) {
        return Some(*number);
    }
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    field.refuse(
        &format!("unknown type \"{text}\"{}", nearest(text, &names)),
        Some(&format!("0 to 255, {}", names.join(", "))),
    );
    None
}

/// `+syn-ack` (these set, those clear), or a map of value and mask.
pub(super) fn read_flags(field: &Field) -> Option<TcpFlags> {
    if let super::tree::Value::Map(_) = field.tree().value() {
        let map = field.map()?;
        let (value, mask) = (map.required("value"), map.get("mask"));
        map.finish();
        let value = value?.number(0..=255)? as u8;
        let mask = match mask {
            Some(mask) => mask.number(0..=255)? as u8,
            None => value,
        };
        if value & !mask != 0 {
            map.contradiction("value has bits that mask leaves out");
            return None;
        }
        if mask == 0 {
            map.contradiction("mask 0 looks at no flag");
            return None;
        }
        return Some(TcpFlags { value, mask });
    }
    let text = field.text()?;
    let flags = parse_flags(text);
    if flags.is_none() {
        let allowed = format!("+NAME and -NAME of {}, each once, like \"+syn-ack\"", TCP_FLAGS.join(", "));
        field.refuse(&format!("\"{text}\" does not name TCP flags"), Some(&allowed));
    }
    flags
}

/// `+syn-ack`: these set, those clear; each is named once.
pub fn parse_flags(text: &str) -> Option<TcpFlags> {
    let (mut value, mut mask, mut rest) = (0u8, 0u8, text);
    while !rest.is_empty() {
        let set = match rest.split_at_checked(1)? {
            ("+", _) => true,
            ("-", _) => false,
            _ => return None,
        };
        let end = rest.get(1..)?.find(['+', '-']).map_or(rest.len(), |at| at + 1);
        let name = rest.get(1..end)?.to_ascii_lowercase();
        let bit = 1 << TCP_FLAGS.iter().position(|flag| *flag == name)?;
        if mask & bit != 0 {
            return None;
        }
        mask |= bit;
        value |= if set { bit } else { 0 };
        rest = rest.get(end..)?;
    }
    (mask != 0).then_some(TcpFlags { value, mask })
}

fn read_ether_type(field: &Field) -> Option<u16> {
    let text = field.text()?;
    if let Some((_, number)) = ETHER_TYPES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        return Some(*number);
    }
    if read_number(text).is_some() {
        return field.number(0x600..=0xffff).map(|number| number as u16);
    }
    let names: Vec<&str> = ETHER_TYPES.iter().map(|(name, _)| *name).collect();
    field.refuse(
        &format!("unknown EtherType \"{text}\"{}", nearest(text, &names)),
        Some(&format!("0x600 to 0xffff, {}", names.join(", "))),
    );
    None
}
