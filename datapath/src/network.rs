//! From desired state to ways. In: the network and the Egress policies that are wanted, and the devices that there
//! are. Out: targets, destinations, rules of who leaves with which address, and what is asked of the host. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_core::abi::{EgressPlace, EgressRow, NetworkRow, TargetKind, TargetRow, limits};

use crate::compile::{AddressSet, Destinations, Nature, Policy, Rule};
use crate::desired::{Desired, Egress, EgressNode, Endpoint, Forwarding, Peer};
use crate::error::{Error, ErrorKind};
use crate::host::routes;
use crate::netdev::Link;
use crate::plan::name_hash;

/// Bytes of the overlay's headers, by the family of the nodes' addresses.
const OVERLAY_V4: u32 = 50;
const OVERLAY_V6: u32 = 70;
/// MTU of an uplink that is not there.
const DEFAULT_MTU: u32 = 1500;
/// Destinations that no packet leaves a cluster for.
const INSIDE: [&str; 7] =
    ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/127", "fe80::/10", "ff00::/8"];

/// The network as the datapath will have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NetworkPlan {
    pub(crate) native: bool,
    /// The first is none.
    pub(crate) targets: Vec<TargetRow>,
    pub(crate) destinations: Destinations,
    /// Endpoint by the number of its target.
    pub(crate) pods: BTreeMap<u32, String>,
    /// Target by the name of a peer that can be reached.
    pub(crate) peers: BTreeMap<String, u32>,
    /// MTU of the overlay, `None` when none is needed.
    pub(crate) overlay_mtu: Option<u32>,
    pub(crate) problems: Vec<String>,
}

/// Refuses what contradicts itself.
pub(crate) fn check(desired: &Desired) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
    let mut names = BTreeSet::new();
    for egress in &desired.egresses {
        if !names.insert(&egress.name) {
            return invalid(format!("two Egress policies are named {}", egress.name));
        }
        for v4 in [true, false] {
            let most = EgressRow::ADDRESSES;
            if egress.ips.iter().filter(|address| address.is_ipv4() == v4).count() > most {
                return invalid(format!("Egress {} has more than {most} addresses of a family", egress.name));
            }
        }
        let known = |name: &String| desired.endpoints.iter().any(|endpoint| endpoint.name == *name);
        if let Some(unknown) = egress.endpoints.iter().find(|name| !known(name)) {
            return invalid(format!("Egress {} names an endpoint that is not there: {unknown}", egress.name));
        }
    }
    let mut peers = BTreeSet::new();
    match desired.network.peers.iter().find(|peer| !peers.insert(&peer.name)) {
        Some(peer) => invalid(format!("two nodes are named {}", peer.name)),
        None => Ok(()),
    }
}

/// Plans targets and destinations. `reachable`: whether the kernel has a route to a node's address.
pub(crate) fn plan(
    desired: &Desired,
    links: &HashMap<String, Link>,
    uplink: Option<&str>,
    reachable: impl Fn(IpAddr) -> bool,
) -> NetworkPlan {
    let native = desired.network.forwarding == Forwarding::Native;
    let mut plan = NetworkPlan { native, targets: vec![TargetRow::default()], ..NetworkPlan::default() };
    if native {
        for endpoint in &desired.endpoints {
            if let Some(link) = links.get(&endpoint.interface) {
                add_pod(&mut plan, endpoint, link);
            }
        }
    }
    add_own(&mut plan, desired);
    // Without Egress policies and where the CNI forwards, nothing goes by the overlay; who is inside is known all the same.
    let overlay = native || !desired.egresses.is_empty();
    for peer in &desired.network.peers {
        match overlay {
            true => add_peer(&mut plan, peer, &reachable),
            false => know_peer(&mut plan, peer, peer.addresses.first().copied()),
        }
    }
    if !plan.peers.is_empty() {
        let uplink = uplink.and_then(|name| links.get(name)).map_or(DEFAULT_MTU, |link| link.mtu);
        let v6 = plan.targets.iter().any(|target| target.family == 6);
        plan.overlay_mtu = Some(uplink.saturating_sub(if v6 { OVERLAY_V6 } else { OVERLAY_V4 }));
    }
    plan
}

/// What is this node's and no pod's: no packet of another node comes from there.
fn add_own(plan: &mut NetworkPlan, desired: &Desired) {
    let network = &desired.network;
    let addresses = network.addresses.iter().map(|address| IpNet::from(*address));
    let own: Vec<IpNet> = addresses.chain(network.pod_cidrs.iter().copied()).collect();
    if own.is_empty() {
        return;
    }
    let number = plan.targets.len() as u32;
    plan.targets.push(TargetRow { kind: TargetKind::None as u32, ..TargetRow::default() });
    // Before the pods: of equal prefixes the last counts.
    plan.destinations.prefixes.splice(0..0, own.into_iter().map(|net| (net, number)));
}

fn add_pod(plan: &mut NetworkPlan, endpoint: &Endpoint, link: &Link) {
    let Some(mac) = endpoint.mac.filter(|_| !endpoint.ips.is_empty()) else {
        plan.problems.push(format!("endpoint {} is not forwarded to: no MAC or IP address", endpoint.name));
        return;
    };
    let number = plan.targets.len() as u32;
    plan.targets.push(TargetRow {
        kind: TargetKind::Pod as u32,
        ifindex: link.index,
        mtu: link.mtu,
        flags: if link.peer { TargetRow::FLAG_PEER } else { 0 },
        mac,
        gateway: link.mac,
        ..TargetRow::default()
    });
    plan.pods.insert(number, endpoint.name.clone());
    plan.destinations.prefixes.extend(endpoint.ips.iter().map(|address| (IpNet::from(*address), number)));
}

fn add_peer(plan: &mut NetworkPlan, peer: &Peer, reachable: &impl Fn(IpAddr) -> bool) {
    let Some(remote) = peer.addresses.iter().find(|address| reachable(**address)) else {
        plan.problems.push(format!("no route to any address of node {}", peer.name));
        return;
    };
    plan.peers.insert(peer.name.clone(), plan.targets.len() as u32);
    know_peer(plan, peer, Some(*remote));
}

/// The node's addresses and pods lead to it.
fn know_peer(plan: &mut NetworkPlan, peer: &Peer, remote: Option<IpAddr>) {
    let number = plan.targets.len() as u32;
    let (remote, family) = remote.map_or(([0; 16], 0), bytes);
    let row =
        TargetRow { kind: TargetKind::Node as u32, ifindex: number, remote, family, ..TargetRow::default() };
    plan.targets.extend([row, TargetRow { flags: TargetRow::FLAG_PODS, ..row }]);
    let addresses = peer.addresses.iter().map(|address| (IpNet::from(*address), number));
    let pods = peer.pod_cidrs.iter().map(|net| (*net, number + 1));
    plan.destinations.prefixes.extend(pods.chain(addresses));
}

/// An address as rows have it.
pub(crate) fn bytes(address: IpAddr) -> ([u8; 16], u32) {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            (bytes, 4)
        }
        IpAddr::V6(address) => (address.octets(), 6),
    }
}

/// What belongs to the cluster, and what no policy applies to.
pub(crate) fn inside(desired: &Desired) -> Vec<IpNet> {
    let network = &desired.network;
    let own = network.addresses.iter().map(|address| IpNet::from(*address));
    let peers = network.peers.iter().flat_map(|peer| {
        let addresses = peer.addresses.iter().map(|address| IpNet::from(*address));
        addresses.chain(peer.pod_cidrs.iter().copied())
    });
    let fixed = INSIDE.iter().filter_map(|text| text.parse().ok());
    own.chain(network.pod_cidrs.iter().copied())
        .chain(peers)
        .chain(network.except.iter().copied())
        .chain(fixed)
        .collect()
}

/// The Egress policies of an endpoint, in their order.
pub(crate) fn leaving(
    desired: &Desired,
    endpoint: &str,
    number_of: impl Fn(&str) -> Option<u32>,
) -> Vec<Policy> {
    let inside = inside(desired);
    desired
        .egresses
        .iter()
        .enumerate()
        .filter(|(_, egress)| egress.endpoints.iter().any(|name| name == endpoint))
        .filter_map(|(rank, egress)| {
            let nature = Nature { redirect: Some(rank as u16), ..Nature::default() };
            let rules: Vec<Rule> =
                [true, false].into_iter().filter_map(|v4| rule(egress, &inside, v4)).collect();
            let number = number_of(&egress.name)? as u16;
            (!rules.is_empty()).then_some(Policy { number, session: 0, nature, rules })
        })
        .collect()
}

/// Whether what an endpoint sends out of the cluster may leave by another node.
pub(crate) fn leaves_elsewhere(desired: &Desired, endpoint: &str) -> bool {
    desired.egresses.iter().any(|egress| {
        matches!(egress.node, EgressNode::Peer(_)) && egress.endpoints.iter().any(|name| name == endpoint)
    })
}

/// The rule of one family; none when the policy does not govern it.
fn rule(egress: &Egress, inside: &[IpNet], v4: bool) -> Option<Rule> {
    let of_family = |net: &&IpNet| matches!(net, IpNet::V4(_)) == v4;
    if !egress.ips.iter().any(|address| address.is_ipv4() == v4) {
        return None;
    }
    let mut cidrs: Vec<IpNet> = egress.destinations.iter().filter(of_family).copied().collect();
    if egress.destinations.is_empty() {
        let everything = if v4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        cidrs.extend(IpNet::new(everything, 0));
    }
    let except = egress.except.iter().chain(inside).filter(of_family).copied().collect();
    (!cidrs.is_empty()).then(|| Rule { destination: Some(AddressSet { cidrs, except }), ..Rule::default() })
}

/// What other nodes know a policy by: below [`EgressRow::ID_FLAG`], never 0.
pub(crate) fn id(name: &str) -> u32 {
    let hash = name_hash(name);
    (((hash >> 32) as u32 ^ hash as u32) & (EgressRow::ID_FLAG - 1)).max(1)
}

/// The policies that an earlier one with the same [`id`] keeps from being told apart, and that one.
pub(crate) fn clashes(desired: &Desired) -> BTreeMap<String, String> {
    let mut owners: BTreeMap<u32, &str> = BTreeMap::new();
    let mut clashes = BTreeMap::new();
    // By name: all nodes see it alike.
    let mut names: Vec<&str> = desired.egresses.iter().map(|egress| egress.name.as_str()).collect();
    names.sort_unstable();
    for name in names {
        if let Some(owner) = owners.get(&id(name)) {
            clashes.insert(name.to_owned(), (*owner).to_owned());
        } else {
            owners.insert(id(name), name);
        }
    }
    clashes
}

/// A policy's row, without the numbers of its addresses.
pub(crate) fn egress_row(egress: &Egress, plan: &NetworkPlan) -> (EgressRow, Option<String>) {
    let mut row =
        EgressRow { name_hash: name_hash(&egress.name), id: id(&egress.name), ..EgressRow::default() };
    if let Some(bandwidth) = egress.bandwidth {
        const SECOND: u64 = 1_000_000_000;
        let rate = bandwidth.rate.max(1);
        row.pace = pace(rate);
        row.burst = (u128::from(bandwidth.burst) * 8 * u128::from(SECOND) / u128::from(rate)) as u64;
    }
    let problem = match &egress.node {
        EgressNode::Here => {
            row.place = EgressPlace::Here as u32;
            None
        }
        EgressNode::Peer(name) => match plan.peers.get(name) {
            Some(target) => {
                row.place = EgressPlace::Peer as u32;
                row.target = *target;
                None
            }
            None => Some(format!("node {name} is not known or has no route")),
        },
        EgressNode::Nowhere => Some("its node is not known".to_owned()),
    };
    (row, problem)
}

/// [`EgressRow::pace`] of a rate in bits per second.
fn pace(rate: u64) -> u64 {
    let second_of_bits = (8 * 1_000_000_000_u128) << EgressRow::PACE_SHIFT;
    // The largest frame's time must fit the row's number.
    let most = u64::MAX / u64::from(limits::FRAME);
    (second_of_bits / u128::from(rate)).clamp(1, u128::from(most)) as u64
}

/// The routes and neighbours of the host's own stack.
pub(crate) fn host_ways(
    desired: &Desired,
    links: &HashMap<String, Link>,
    plan: &NetworkPlan,
    overlay: Option<u32>,
) -> (BTreeSet<routes::Route>, BTreeSet<routes::Neighbour>) {
    let (mut ways, mut neighbours) = (BTreeSet::new(), BTreeSet::new());
    if !plan.native {
        return (ways, neighbours);
    }
    let network = &desired.network;
    let source = |v4: bool| network.addresses.iter().find(|address| address.is_ipv4() == v4).copied();
    for endpoint in &desired.endpoints {
        let (Some(link), Some(mac)) = (links.get(&endpoint.interface), endpoint.mac) else {
            continue;
        };
        for address in &endpoint.ips {
            let destination = IpNet::from(*address);
            ways.insert(routes::Route {
                destination,
                ifindex: link.index,
                source: source(address.is_ipv4()),
            });
            neighbours.insert(routes::Neighbour { ifindex: link.index, address: *address, mac });
        }
    }
    for (peer, ifindex) in network
        .peers
        .iter()
        .filter(|peer| plan.peers.contains_key(&peer.name))
        .zip(overlay.into_iter().cycle())
    {
        for destination in &peer.pod_cidrs {
            let source = source(destination.addr().is_ipv4());
            ways.insert(routes::Route { destination: *destination, ifindex, source });
        }
    }
    (ways, neighbours)
}

/// The network's row, without the roots of its tries.
pub(crate) fn row(plan: &NetworkPlan, judged: bool, overlay: u32, vni: u32, mark: u32) -> NetworkRow {
    NetworkRow {
        flags: if plan.native { NetworkRow::FLAG_NATIVE } else { 0 }
            | if judged { NetworkRow::FLAG_JUDGED } else { 0 },
        overlay_ifindex: overlay,
        overlay_mtu: plan.overlay_mtu.unwrap_or(0),
        overlay_vni: vni,
        egress_mark: mark,
        ..NetworkRow::default()
    }
}

#[cfg(test)]
mod tests {
    use podwire_core::abi::{EgressRow, limits};

    use super::pace;

    #[test]
    fn a_frames_time_is_that_of_its_rate() {
        for rate in [1_000, 20_000_000, 7_654_321_000, 499_000_000_000, 1_000_000_000_000] {
            let bits = (8.0 * 1e9) * f64::from(1 << EgressRow::PACE_SHIFT);
            let off = pace(rate) as f64 * rate as f64 / bits - 1.0;
            assert!(off.abs() < 0.002, "{rate}: {off}");
        }
        assert!(pace(1).checked_mul(limits::FRAME.into()).is_some());
    }
}
