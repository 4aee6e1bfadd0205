//! Endpoints, namespaces, nodes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::address;
use super::decode::{Field, Map};
use super::metadata::Metadata;
use crate::desired::{Allowed, Guard};

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
    /// What becomes of packets with a source that is not its own.
    pub guard: Guard,
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
    let mac = spec.get("mac").and_then(|field| address::mac(&field));
    let ips = spec.get("ips").map(|list| address::unicast_list(&list.list())).unwrap_or_default();
    let allowed =
        spec.get("allowedAddresses").map(|list| list.list().iter().filter_map(read_allowed).collect());
    let guard = read_guard(&spec);
    spec.finish();
    Some(Endpoint {
        metadata: metadata?,
        interface: interface_name(&interface?)?,
        mac,
        ips,
        allowed: allowed.unwrap_or_default(),
        guard: guard?,
    })
}

/// Enforced where it can be, unless said. What is given and wrong counts as given: it has been reported.
fn read_guard(spec: &Map) -> Option<Guard> {
    let lacks: Vec<&str> =
        ["mac", "ips"].into_iter().filter(|name| !spec.has(name) || spec.is_empty_list(name)).collect();
    let guard = match spec.get("spoofGuard") {
        Some(field) => field.choice(&GUARDS)?,
        None if lacks.is_empty() => Guard::Enforce,
        None => Guard::Off,
    };
    if guard != Guard::Off && !lacks.is_empty() {
        let (guard, lacks) = (guard.as_str(), lacks.join(" and "));
        spec.contradiction(&format!("spoofGuard {guard} needs mac and ips; {lacks} not given"));
        return None;
    }
    Some(guard)
}

const GUARDS: [(&str, Guard); 3] = [
    (Guard::Enforce.as_str(), Guard::Enforce),
    (Guard::Observe.as_str(), Guard::Observe),
    (Guard::Off.as_str(), Guard::Off),
];

pub(super) fn read_node(map: &Map, metadata: Option<Metadata>) -> Option<Node> {
    let spec = map.required("spec")?.map()?;
    let addresses = spec.required("addresses").map(|list| {
        if spec.is_empty_list("addresses") {
            list.refuse("a node has one address at least", None);
        }
        address::unicast_list(&list.list())
    });
    let pod_cidrs = spec.get("podCIDRs").map(|list| address::cidr_list(&list.list()));
    spec.finish();
    Some(Node { metadata: metadata?, addresses: addresses?, pod_cidrs: pod_cidrs.unwrap_or_default() })
}

fn read_allowed(field: &Field) -> Option<Allowed> {
    address::source(field, Allowed::Mac, Allowed::Prefix)
}

/// What a device may be called.
pub const DEVICE_NAME: &str = "a device name: 1 to 15 bytes without '/', ':' or white space";

/// Whether a device may be called so (the kernel's `dev_valid_name`).
pub fn is_device_name(text: &str) -> bool {
    let shape = (1..=15).contains(&text.len()) && text != "." && text != "..";
    shape && !text.contains(|c: char| c.is_whitespace() || c == '/' || c == ':')
}

/// A device's name.
pub(super) fn interface_name(field: &Field) -> Option<String> {
    field.parse(|text: &str| is_device_name(text).then(|| text.to_owned()), DEVICE_NAME)
}
