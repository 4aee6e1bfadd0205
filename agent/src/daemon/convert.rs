//! From objects to what the library understands. In: an [`ObjectSet`], and which node this is. Out: [`Desired`], and
//! per policy whether it is in force or why not.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::core::wire::erspan::{Direction, iii::Granularity};
use podwire_datapath::object::{AppliedTo, ObjectSet, Port, TrafficControl};
use podwire_datapath::{
    Desired, Egress, Endpoint, Forwarding, Mirror, Network, Oversize, Peer, Redirect, SessionOptions, Target,
};

use super::place::{Place, Places};

/// This node.
#[derive(Clone, Debug, Default)]
pub struct Here {
    /// Its name.
    pub node: String,
    /// Who forwards.
    pub forwarding: Forwarding,
    /// Destinations that no Egress policy applies to.
    pub except: Vec<IpNet>,
}

/// What objects come to on this node.
#[derive(Clone, Debug, Default)]
pub struct Converted {
    /// For the library.
    pub desired: Desired,
    /// By the name of a TrafficControl.
    pub policies: BTreeMap<String, PolicyState>,
    /// By the name of an Egress.
    pub egresses: BTreeMap<String, EgressState>,
}

/// What became of an Egress policy on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressState {
    /// Names of the endpoints that it selects.
    pub endpoints: Vec<String>,
    /// The addresses.
    pub ips: Vec<IpAddr>,
    /// Whether podwire puts them there.
    pub own: bool,
    /// Where they are.
    pub place: Place,
}

/// What became of a policy on this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyState {
    /// Names of the endpoints that it selects.
    pub endpoints: Vec<String>,
    /// Where packets go; `None` when it is not in force.
    pub target: Option<Target>,
    /// How, and how many.
    pub options: SessionOptions,
    /// Where redirected packets come back.
    pub return_port: Option<Target>,
    /// Why it is not in force.
    pub reason: Option<String>,
}

/// Makes desired state of objects.
pub fn convert(set: &ObjectSet, here: &Here) -> Converted {
    let mut converted = Converted::default();
    converted.desired.endpoints = endpoints(set);
    converted.desired.network = network(set, here);
    take_policies(set, &mut converted);
    take_egresses(set, here, &mut converted);
    converted
}

fn endpoints(set: &ObjectSet) -> Vec<Endpoint> {
    set.endpoints()
        .map(|endpoint| {
            let namespace = endpoint.metadata.namespace.as_deref().unwrap_or("default");
            Endpoint {
                name: format!("{namespace}/{}", endpoint.metadata.name),
                interface: endpoint.interface.clone(),
                mac: endpoint.mac,
                ips: endpoint.ips.clone(),
                allowed: endpoint.allowed.clone(),
                guard: endpoint.guard,
            }
        })
        .collect()
}

/// The Node of this name is this node; the others are its peers.
fn network(set: &ObjectSet, here: &Here) -> Network {
    let mut network =
        Network { forwarding: here.forwarding, except: here.except.clone(), ..Network::default() };
    for node in set.nodes() {
        let (name, addresses, pod_cidrs) =
            (node.metadata.name.clone(), node.addresses.clone(), node.pod_cidrs.clone());
        if name == here.node {
            (network.addresses, network.pod_cidrs) = (addresses, pod_cidrs);
        } else {
            network.peers.push(Peer { name, addresses, pod_cidrs });
        }
    }
    network
}

fn take_egresses(set: &ObjectSet, here: &Here, converted: &mut Converted) {
    let mut places = Places::new(set, &here.node);
    // In the order of their priority: the first one that matches a packet applies.
    for egress in set.egresses() {
        let (name, place) = (egress.metadata.name.clone(), places.place(egress));
        let endpoints = selected(set, &egress.applied_to);
        converted.desired.egresses.push(Egress {
            name: name.clone(),
            endpoints: endpoints.clone(),
            ips: egress.ips.clone(),
            node: place.seen_from(&here.node),
            own: egress.own,
            destinations: egress.destinations.clone(),
            except: egress.except.clone(),
            bandwidth: egress.bandwidth,
        });
        let state = EgressState { endpoints, ips: egress.ips.clone(), own: egress.own, place };
        converted.egresses.insert(name, state);
    }
}

fn take_policies(set: &ObjectSet, converted: &mut Converted) {
    let Converted { desired, policies: states, .. } = converted;
    // In the order of their priority, which is the order of redirects.
    for policy in set.policies() {
        let name = policy.metadata.name.clone();
        let endpoints = selected(set, &policy.applied_to);
        if let Some(why) = set.refused(&name) {
            let state = PolicyState { endpoints, reason: Some(why.to_owned()), ..PolicyState::default() };
            states.insert(name, state);
            continue;
        }
        let return_port = policy.return_port.as_ref().map(target);
        let state = PolicyState {
            endpoints: endpoints.clone(),
            target: Some(target(&policy.target)),
            options: policy.options,
            return_port: return_port.clone(),
            reason: None,
        };
        match return_port {
            Some(return_port) => desired.redirects.push(redirect(policy, endpoints, return_port)),
            None => desired.mirrors.push(mirror(policy, endpoints)),
        }
        states.insert(name, state);
    }
    stand_back(desired, states);
}

/// Takes out what would harm the pods.
fn stand_back(desired: &mut Desired, states: &mut BTreeMap<String, PolicyState>) {
    let conflicts = desired.conflicts();
    desired.mirrors.retain(|mirror| !conflicts.contains_key(&mirror.name));
    desired.redirects.retain(|redirect| !conflicts.contains_key(&redirect.name));
    for (name, why) in conflicts {
        if let Some(state) = states.get_mut(&name) {
            (state.target, state.return_port, state.reason) = (None, None, Some(why));
        }
    }
}

fn mirror(policy: &TrafficControl, endpoints: Vec<String>) -> Mirror {
    Mirror {
        name: policy.metadata.name.clone(),
        endpoints,
        directions: policy.directions.clone(),
        rules: policy.rules.clone(),
        stateful: policy.stateful,
        target: target(&policy.target),
        options: policy.options,
    }
}

fn redirect(policy: &TrafficControl, endpoints: Vec<String>, return_port: Target) -> Redirect {
    Redirect {
        name: policy.metadata.name.clone(),
        endpoints,
        directions: policy.directions.clone(),
        rules: policy.rules.clone(),
        stateful: policy.stateful,
        target: target(&policy.target),
        return_port,
        closed: policy.closed,
        health_check: policy.health_check,
        fragment: policy.options.oversize == Oversize::Fragment,
    }
}

fn selected(set: &ObjectSet, applied_to: &AppliedTo) -> Vec<String> {
    set.endpoints()
        .filter_map(|endpoint| {
            let namespace = endpoint.metadata.namespace.as_deref().unwrap_or("default");
            applied_to
                .selects(&set.namespace_labels(namespace), &endpoint.metadata.labels)
                .then(|| format!("{namespace}/{}", endpoint.metadata.name))
        })
        .collect()
}

fn target(port: &Port) -> Target {
    let tunnel = |remote: &IpAddr, tunnel| Target::Tunnel { remote: *remote, tunnel };
    match port {
        Port::Internal { name } => Target::Internal { name: name.clone() },
        Port::Device { name } => Target::Device { name: name.clone() },
        Port::Vxlan { remote, vni, port } => tunnel(remote, Tunnel::Vxlan { vni: *vni, port: *port }),
        Port::Geneve { remote, vni, port } => tunnel(remote, Tunnel::Geneve { vni: *vni, port: *port }),
        Port::Gre { remote, key } => tunnel(remote, Tunnel::Gre { key: *key, sequence: false }),
        Port::Erspan { remote, version: 1, session, index, .. } => {
            tunnel(remote, Tunnel::ErspanII { session: *session, index: *index })
        }
        Port::Erspan { remote, session, direction, hardware_id, .. } => tunnel(
            remote,
            Tunnel::ErspanIII {
                session: *session,
                hardware_id: *hardware_id,
                sgt: 0,
                direction: direction.map(|bit| if bit == 0 { Direction::Ingress } else { Direction::Egress }),
                granularity: Granularity::HundredNanoseconds,
            },
        ),
    }
}

#[cfg(test)]
mod tests;
