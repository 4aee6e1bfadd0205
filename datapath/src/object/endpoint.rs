//! Endpoints, namespaces, nodes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::decode::{Field, Map};
use super::metadata::Metadata;

/// A pod's interface on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// Name, namespace and labels of the pod.
    pub metadata: Metadata,
    /// Host side of its interface.
    pub interface: String,
    /// Its MAC address.
    pub mac: Option<[u8; 6]>,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// Further source addresses that it may use.
    pub allowed: Vec<Allowed>,
    /// What becomes of spoofed packets.
    pub spoof_guard: SpoofGuard,
}

/// A source that an endpoint may use besides its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// A prefix, or an address as a full-length one.
    Prefix(IpNet),
    /// A MAC address.
    Mac([u8; 6]),
}

/// What becomes of spoofed packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpoofGuard {
    /// They are dropped.
    #[default]
    Enforce,
    /// They are counted.
    Observe,
    /// Nobody looks.
    Off,
}

/// A namespace; only its labels count.
#[derive(Clone, Debug, PartialEq)]
pub struct Namespace {
    /// Name and labels.
    pub metadata: Metadata,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name and labels.
    pub metadata: Metadata,
    /// Its addresses on the underlay.
    pub addresses: Vec<IpAddr>,
    /// Where its pods' addresses come from.
    pub pod_cidrs: Vec<IpNet>,
}

pub(super) fn read_endpoint(map: &Map, metadata: Option<Metadata>) -> Option<Endpoint> {
    let spec = map.required("spec")?.map()?;
    let interface = spec.required("interface");
    let mac = spec.get("mac").and_then(|field| {
        let own = |text: &str| read_mac(text).filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]);
        field.parse(own, "one station's MAC address, like 02:00:00:00:00:05")
    });
    let ips = spec.get("ips").map(|list| addresses(&list)).unwrap_or_default();
    let allowed = spec
        .get("allowedAddresses")
        .map(|list| list.list().iter().filter_map(read_allowed).collect())
        .unwrap_or_default();
    let spoof_guard = spec.get("spoofGuard").and_then(|field| {
        field.choice(&[
            ("Enforce", SpoofGuard::Enforce),
            ("Observe", SpoofGuard::Observe),
            ("Off", SpoofGuard::Off),
        ])
    });
    spec.finish();
    Some(Endpoint {
        metadata: metadata?,
        interface: interface_name(&interface?)?,
        mac,
        ips,
        allowed,
        spoof_guard: spoof_guard.unwrap_or_default(),
    })
}

pub(super) fn read_node(map: &Map, metadata: Option<Metadata>) -> Option<Node> {
    let spec = map.required("spec")?.map()?;
    let addresses = spec.required("addresses").map(|list| addresses(&list)).unwrap_or_default();
    let pod_cidrs = spec
        .get("podCIDRs")
        .map(|list| {
            list.list().iter().filter_map(|field| field.parse(|text| text.parse().ok(), "a CIDR")).collect()
        })
        .unwrap_or_default();
    spec.finish();
    Some(Node { metadata: metadata?, addresses, pod_cidrs })
}

fn addresses(list: &Field) -> Vec<IpAddr> {
    let own = |text: &str| {
        text.parse().ok().filter(|address: &IpAddr| !(address.is_unspecified() || address.is_multicast()))
    };
    list.list().iter().filter_map(|field| field.parse(own, "an address that one host has")).collect()
}

fn read_allowed(field: &Field) -> Option<Allowed> {
    let read = |text: &str| {
        let prefix = || text.parse().ok().or_else(|| Some(IpNet::from(text.parse::<IpAddr>().ok()?)));
        read_mac(text).map(Allowed::Mac).or_else(|| prefix().map(Allowed::Prefix))
    };
    field.parse(read, "an address, a prefix or a MAC address")
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
    parts.next().is_none().then_some(mac)
}

/// A device's name as the kernel allows it (`dev_valid_name`).
pub(super) fn interface_name(field: &Field) -> Option<String> {
    let valid = |text: &str| {
        let shape = (1..=15).contains(&text.len()) && text != "." && text != "..";
        (shape && !text.contains(|c: char| c.is_whitespace() || c == '/' || c == ':'))
            .then(|| text.to_owned())
    };
    field.parse(valid, "a device name: 1 to 15 bytes without '/', ':' or white space")
}
