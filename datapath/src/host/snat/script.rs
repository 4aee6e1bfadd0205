//! nft's words. In: a wish. Out: a script for `nft -f -`, one transaction; and back from nft's JSON.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::{Table, Wish, objects};
use crate::plan::name_hash;

pub(super) const TABLE: &str = "podwire";
pub(super) const HELD: &str = "held";
pub(super) const UNKNOWN: &str = "unknown";
pub(super) const STRAY: &str = "stray";
pub(super) const REMOVE: &str = "add table inet podwire\ndelete table inet podwire\n";

/// The last rule's comment: names all that the table was made from but the maps' elements. nft's JSON leaves a
/// table's own comment out in some versions.
pub(super) fn frame(wish: &Wish) -> String {
    let nets = format!("{:?} {:?}", wish.hold, wish.inside);
    format!("podwire 2 {:#x} {:#x} {:016x}", wish.mask, wish.judged, name_hash(&nets))
}

/// The whole table, in place of the one that is there.
pub(super) fn whole(wish: &Wish, frame: &str) -> String {
    let Wish { mask, judged, .. } = wish;
    let map = |name: &str, kind: &str, v4: bool| {
        let pairs = pairs(wish.addresses.iter().filter(|(_, address)| address.is_ipv4() == v4));
        format!("  map {name} {{ type mark : {kind}; {} }}\n", elements(&pairs))
    };
    let set = |name: &str, kind: &str, nets: &[IpNet], v4: bool| {
        let nets = words(nets.iter().filter(|net| net.addr().is_ipv4() == v4));
        format!("  set {name} {{ type {kind}; flags interval; auto-merge; {} }}\n", elements(&nets))
    };
    let sets = [
        map("snat4", "ipv4_addr", true),
        map("snat6", "ipv6_addr", false),
        set("hold4", "ipv4_addr", &wish.hold, true),
        set("hold6", "ipv6_addr", &wish.hold, false),
        set("inside4", "ipv4_addr", &wish.inside, true),
        set("inside6", "ipv6_addr", &wish.inside, false),
    ]
    .concat();
    format!(
        r#"{REMOVE}table inet {TABLE} {{
  counter {HELD} {{ }}
  counter {UNKNOWN} {{ }}
  counter {STRAY} {{ }}
{sets}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    meta mark & {mask:#x} != {{ 0, {judged:#x} }} ct state invalid,untracked counter name {STRAY} drop
    meta mark & {mask:#x} != 0 return
    ip saddr @hold4 ip daddr != @inside4 counter name {HELD} drop
    ip6 saddr @hold6 ip6 daddr != @inside6 counter name {HELD} drop
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat - 5; policy accept;
    meta mark & {mask:#x} == {{ 0, {judged:#x} }} return
    meta nfproto ipv4 snat ip to meta mark & {mask:#x} map @snat4
    meta nfproto ipv6 snat ip6 to meta mark & {mask:#x} map @snat6
    counter name {UNKNOWN} drop comment "{frame}"
  }}
}}
"#
    )
}

/// Only the elements that differ.
pub(super) fn difference(old: &BTreeMap<u32, IpAddr>, new: &BTreeMap<u32, IpAddr>) -> String {
    let mut script = String::new();
    for (map, v4) in [("snat4", true), ("snat6", false)] {
        let only = |one: &BTreeMap<u32, IpAddr>, other: &BTreeMap<u32, IpAddr>| {
            let differs = |(mark, address): &(&u32, &IpAddr)| {
                address.is_ipv4() == v4 && other.get(mark) != Some(address)
            };
            pairs(one.iter().filter(differs))
        };
        for (verb, pairs) in [("delete", only(old, new)), ("add", only(new, old))] {
            if !pairs.is_empty() {
                // Writing to a text cannot fail.
                let _ = writeln!(script, "{verb} element inet {TABLE} {map} {{ {pairs} }}");
            }
        }
    }
    script
}

/// What the kernel has, from `nft -j list table`.
pub(super) fn read(handle: u64, answer: &Value) -> Table {
    let comment = objects(answer, "rule").find_map(|rule| rule["comment"].as_str());
    let mut addresses = BTreeMap::new();
    for map in objects(answer, "map") {
        for element in map["elem"].as_array().into_iter().flatten() {
            let address = element[1].as_str().and_then(|text| text.parse().ok());
            if let (Some(mark), Some(address)) = (mark(&element[0]), address) {
                addresses.insert(mark, address);
            }
        }
    }
    Table { handle, frame: comment.unwrap_or_default().to_owned(), addresses }
}

/// nft writes a mark as a number, or as text in base 16.
fn mark(value: &Value) -> Option<u32> {
    match value.as_str() {
        Some(text) => u32::from_str_radix(text.trim_start_matches("0x"), 16).ok(),
        None => value.as_u64()?.try_into().ok(),
    }
}

fn pairs<'a>(addresses: impl Iterator<Item = (&'a u32, &'a IpAddr)>) -> String {
    words(addresses.map(|(mark, address)| format!("{mark:#x} : {address}")))
}

fn words(items: impl Iterator<Item = impl Display>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// nft refuses an empty list.
fn elements(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!("elements = {{ {words} }};") }
}
