//! Addresses and prefixes. In: a field. Out: what one host has, or a prefix without host bits.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::decode::Field;

/// An address that one host has and that packets cross a network with.
pub(super) fn unicast(field: &Field) -> Option<IpAddr> {
    let usable = |address: &IpAddr| {
        let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
        !(mapped
            || address.is_unspecified()
            || address.is_loopback()
            || address.is_multicast()
            || *address == IpAddr::V4(Ipv4Addr::BROADCAST))
    };
    field.parse(|text| text.parse().ok().filter(usable), "an address that one host has, IPv4 or IPv6")
}

/// Such addresses, each once.
pub(super) fn unicast_list(items: &[Field]) -> Vec<IpAddr> {
    let mut known = HashSet::new();
    items
        .iter()
        .filter_map(|field| {
            let address = unicast(field)?;
            if !known.insert(address) {
                field.refuse(&format!("{address} stands here twice"), None);
            }
            Some(address)
        })
        .collect()
}

/// A prefix, or an address as one of full length.
pub(super) fn cidr(field: &Field) -> Option<IpNet> {
    whole(field, field.parse(read_prefix, "a CIDR, like 10.0.0.0/8 or fd00::/64")?)
}

/// Prefixes.
pub(super) fn cidr_list(items: &[Field]) -> Vec<IpNet> {
    items.iter().filter_map(cidr).collect()
}

/// Whether one of these holds all of a prefix: a look at each of its lengths, however many they are.
pub(super) fn lies_in(prefix: IpNet, cidrs: &BTreeSet<IpNet>) -> bool {
    std::iter::successors(Some(prefix), IpNet::supernet).any(|cidr| cidrs.contains(&cidr))
}

/// One station's MAC address.
pub(super) fn mac(field: &Field) -> Option<[u8; 6]> {
    field.parse(read_mac, "one station's MAC address, like 02:00:00:00:00:05")
}

/// A source: a MAC address, a prefix, or an address.
pub(super) fn source<T>(field: &Field, mac: impl Fn([u8; 6]) -> T, prefix: impl Fn(IpNet) -> T) -> Option<T> {
    if let Some(station) = field.text().and_then(read_mac) {
        return Some(mac(station));
    }
    let read = field.parse(read_prefix, "an address, a prefix or one station's MAC address")?;
    whole(field, read).map(prefix)
}

fn read_prefix(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| Some(IpNet::from(text.parse::<IpAddr>().ok()?)))
}

/// Host bits are a slip of the length or of the address: which of them, only the user knows.
fn whole(field: &Field, prefix: IpNet) -> Option<IpNet> {
    let right = prefix.trunc();
    if prefix == right {
        return Some(prefix);
    }
    field.refuse(&format!("{prefix} has host bits; did you mean \"{right}\"?"), None);
    None
}

fn read_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next()?;
        // from_str_radix takes a sign as well.
        let digits = part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit());
        *byte = digits.then(|| u8::from_str_radix(part, 16).ok())??;
    }
    let station = mac[0] & 1 == 0 && mac != [0; 6];
    (parts.next().is_none() && station).then_some(mac)
}
