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
mod tests {
    use std::collections::BTreeMap;

    use podwire_datapath::object::{ObjectSet, parse};
    use podwire_datapath::{EgressNode, Forwarding, Guard};

    use super::{Converted, Here, PolicyState, convert};

    const TEXT: &str = "
apiVersion: podwire.io/v1alpha1
kind: Namespace
metadata: {name: shop, labels: {team: a}}
---
apiVersion: podwire.io/v1alpha1
kind: Endpoint
metadata: {namespace: shop, name: web-0, labels: {app: web}}
spec: {interface: veth0}
---
apiVersion: podwire.io/v1alpha1
kind: Endpoint
metadata: {name: web-0, labels: {app: web}}
spec: {interface: veth1}
---
apiVersion: podwire.io/v1alpha1
kind: TrafficControl
metadata: {name: served}
spec:
  appliedTo: {podSelector: {matchLabels: {app: web}}, namespaceSelector: {matchLabels: {team: a}}}
  direction: Ingress
  action: Mirror
  targetPort: {vxlan: {remoteIP: 192.0.2.9, vni: 7}}
---
apiVersion: podwire.io/v1alpha1
kind: TrafficControl
metadata: {name: through}
spec:
  appliedTo: {podSelector: {}}
  direction: Both
  action: Redirect
  priority: 7
  targetPort: {internal: {name: tool-in}}
  returnPort: {gre: {remoteIP: 192.0.2.9, key: 4294967295}}
  failurePolicy: Closed
  healthCheck: {timeout: 2s}
";

    #[test]
    fn policies_select_by_both_labels_and_redirects_keep_their_fields() {
        let set = ObjectSet::build(parse("t.yaml", TEXT).expect("valid")).expect("consistent");
        let Converted { desired, policies: states, .. } = convert(&set, &Here::default());
        assert_eq!(desired.endpoints.len(), 2);
        assert_eq!(desired.mirrors.len(), 1);
        assert_eq!(desired.mirrors[0].endpoints, ["shop/web-0"]);
        assert_eq!(desired.mirrors[0].directions.len(), 1);
        assert_eq!(states["through"].endpoints, ["default/web-0", "shop/web-0"]);
        assert_eq!(states["through"].reason, None);
        let redirect = &desired.redirects[0];
        assert_eq!(redirect.target.to_string(), "internal tool-in");
        assert_eq!(redirect.return_port.to_string(), "gre 192.0.2.9 key 4294967295");
        assert!(redirect.closed);
        assert_eq!(redirect.health_check, Some(std::time::Duration::from_secs(2)));
    }

    fn policy(name: &str, rest: &str) -> String {
        format!(
            "---\napiVersion: podwire.io/v1alpha1\nkind: TrafficControl\nmetadata: {{name: {name}}}\nspec:\n  \
             appliedTo: {{podSelector: {{}}}}\n  action: Mirror\n{rest}"
        )
    }

    fn states(text: &str) -> (podwire_datapath::Desired, BTreeMap<String, PolicyState>) {
        let converted = all(text, &Here::default());
        (converted.desired, converted.policies)
    }

    fn all(text: &str, here: &Here) -> Converted {
        convert(&ObjectSet::build(parse("t.yaml", text).expect("valid")).expect("consistent"), here)
    }

    const CLUSTER: &str = "
---
apiVersion: podwire.io/v1alpha1
kind: Node
metadata: {name: node-1}
spec: {addresses: [192.0.2.1, \"2001:db8::1\"], podCIDRs: [10.10.1.0/24, \"fd00:10:1::/64\"]}
---
apiVersion: podwire.io/v1alpha1
kind: Node
metadata: {name: node-2}
spec: {addresses: [192.0.2.2], podCIDRs: [10.10.2.0/24]}
---
apiVersion: podwire.io/v1alpha1
kind: Egress
metadata: {name: out}
spec:
  appliedTo: {namespaceSelector: {matchLabels: {team: a}}}
  egressIPs: [203.0.113.7, \"2001:db8:7::7\"]
  egressNode: node-2
  own: true
  destinations: [198.51.100.0/24]
  except: [198.51.100.9/32]
  bandwidth: {rate: 1M}
---
apiVersion: podwire.io/v1alpha1
kind: Egress
metadata: {name: first}
spec: {appliedTo: {podSelector: {}}, priority: -1, egressIP: 192.0.2.1}
---
apiVersion: podwire.io/v1alpha1
kind: Egress
metadata: {name: lost}
spec: {appliedTo: {podSelector: {}}, egressIP: 203.0.113.9, egressNode: node-3}
";

    #[test]
    fn the_network_is_this_node_and_its_peers() {
        let except = vec!["10.96.0.0/12".parse().expect("a prefix")];
        let here = Here { node: "node-1".into(), forwarding: Forwarding::Native, except: except.clone() };
        let network = all(CLUSTER, &here).desired.network;
        assert_eq!((network.forwarding, network.except), (Forwarding::Native, except));
        assert_eq!(network.addresses.len(), 2);
        assert_eq!(network.pod_cidrs[0].to_string(), "10.10.1.0/24");
        assert_eq!(network.peers.len(), 1);
        assert_eq!(network.peers[0].name, "node-2");
        assert_eq!(network.peers[0].pod_cidrs[0].to_string(), "10.10.2.0/24");
    }

    #[test]
    fn egresses_keep_their_fields_and_come_in_their_order() {
        let text = TEXT.to_owned() + CLUSTER;
        let here = Here { node: "node-1".into(), ..Here::default() };
        let Converted { desired, egresses: states, .. } = all(&text, &here);
        let names: Vec<_> = desired.egresses.iter().map(|egress| egress.name.as_str()).collect();
        assert_eq!(names, ["first", "lost", "out"]);
        let places: Vec<_> = desired.egresses.iter().map(|egress| egress.node.clone()).collect();
        assert_eq!(places, [EgressNode::Here, EgressNode::Nowhere, EgressNode::Peer("node-2".into())]);
        let out = &desired.egresses[2];
        assert_eq!(out.endpoints, ["shop/web-0"]);
        assert!(out.own && out.ips.len() == 2 && out.destinations.len() == 1 && out.except.len() == 1);
        assert_eq!(out.bandwidth.map(|bandwidth| bandwidth.rate), Some(1_000_000));
        let why = states["lost"].place.reason.as_deref();
        assert_eq!(why, Some("egressNode node-3: there is no Node of this name"));
        assert_eq!(states["out"].place.reason, None);
        assert_eq!(states["first"].endpoints.len(), 2);
        let there = all(&text, &Here { node: "node-2".into(), ..Here::default() });
        assert_eq!(there.desired.egresses[2].node, EgressNode::Here);
        assert_eq!(there.desired.egresses[0].node, EgressNode::Peer("node-1".into()));
    }

    #[test]
    fn endpoints_keep_what_their_guard_needs() {
        let text = "apiVersion: podwire.io/v1alpha1\nkind: Endpoint\nmetadata: {name: p}\nspec: {interface: veth0, \
                    mac: \"02:00:00:00:00:05\", ips: [10.10.1.5, \"fd00:10:1::5\"], allowedAddresses: [10.10.1.200]}\n";
        let (desired, _) = states(text);
        let endpoint = &desired.endpoints[0];
        assert_eq!(endpoint.guard, Guard::Enforce);
        assert_eq!(
            (endpoint.mac, endpoint.ips.len(), endpoint.allowed.len()),
            (Some([2, 0, 0, 0, 0, 5]), 2, 1)
        );
        assert_eq!(states(TEXT).0.endpoints[0].guard, Guard::Off);
    }

    #[test]
    fn directions_are_those_of_the_pod() {
        use podwire_datapath::core::abi::Direction::{Egress, Ingress};
        let device = "targetPort: {device: {name: tap0}}\n";
        for (word, directions) in
            [("Ingress", vec![Ingress]), ("Egress", vec![Egress]), ("Both", vec![Ingress, Egress])]
        {
            let (desired, _) = states(&policy("p", &format!("  direction: {word}\n  {device}")));
            let mut found = desired.mirrors[0].directions.clone();
            found.sort_by_key(|direction| *direction as u32);
            let mut wanted = directions;
            wanted.sort_by_key(|direction| *direction as u32);
            assert_eq!(found, wanted, "{word}");
        }
    }

    #[test]
    fn redirects_come_in_the_order_of_priority() {
        let through = |name: &str, priority: i32| {
            policy(name, &format!("  direction: Both\n  priority: {priority}\n  targetPort: {{device: {{name: a}}}}\n  returnPort: {{device: {{name: b}}}}\n"))
                .replace("Mirror", "Redirect")
        };
        let (desired, _) = states(&(through("a", 3) + &through("c", -1) + &through("b", 3)));
        let names: Vec<_> = desired.redirects.iter().map(|redirect| redirect.name.as_str()).collect();
        assert_eq!(names, ["c", "a", "b"]);
    }

    #[test]
    fn one_policy_refused_leaves_the_others_in_force() {
        let text = policy("tap", "  direction: Both\n  targetPort: {device: {name: tap0}}\n")
            + &policy("twice", "  direction: Both\n  priority: 1\n  targetPort: {internal: {name: tap0}}\n");
        let (desired, states) = states(&text);
        let names: Vec<_> = desired.mirrors.iter().map(|mirror| mirror.name.as_str()).collect();
        assert_eq!(names, ["tap"]);
        let why = states["twice"].reason.as_deref().unwrap_or_default();
        assert!(why.contains("TrafficControl/tap") && why.contains("TrafficControl/twice"), "{why}");
    }

    #[test]
    fn a_pods_own_interface_is_no_target_for_it() {
        let text = TEXT.to_owned()
            + &policy("own", "  direction: Both\n  targetPort: {device: {name: veth0}}\n")
            + &policy("back", "  direction: Both\n  targetPort: {device: {name: a}}\n  returnPort: {device: {name: veth1}}\n")
                .replace("Mirror", "Redirect");
        let (desired, states) = states(&text);
        assert!(desired.mirrors.iter().all(|mirror| mirror.name != "own"));
        assert!(desired.redirects.iter().all(|redirect| redirect.name != "back"));
        let why = |name: &str| states[name].reason.clone().unwrap_or_default();
        assert!(why("own").contains("veth0 is the interface of endpoint shop/web-0"), "{}", why("own"));
        assert!(why("back").contains("veth1 is the interface of endpoint default/web-0"), "{}", why("back"));
    }

    #[test]
    fn erspans_numbers_arrive_whole() {
        let target = "  direction: Both\n  targetPort: {erspan: {remoteIP: \"2001:db8::9\", version: 2, sessionID: 1023, hardwareID: 63, dir: 1}}\n";
        let (desired, _) = states(&policy("span", target));
        let text = desired.mirrors[0].target.to_string();
        assert_eq!(text, "erspan 2001:db8::9 version 2 session 1023 hardware id 63 direction 1");
    }

    #[test]
    fn one_name_in_two_files_is_refused_with_both_places() {
        let text = policy("twice", "  direction: Both\n  targetPort: {device: {name: tap0}}\n");
        let mut all = parse("a.yaml", &text).expect("valid");
        all.extend(parse("b.yaml", &text).expect("valid"));
        let error = ObjectSet::build(all).expect_err("twice").to_string();
        assert!(error.contains("a.yaml") && error.contains("b.yaml") && !error.contains('\n'), "{error}");
    }
}
