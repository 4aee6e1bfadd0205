//! Objects in, desired state out.

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
    assert_eq!((endpoint.mac, endpoint.ips.len(), endpoint.allowed.len()), (Some([2, 0, 0, 0, 0, 5]), 2, 1));
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
        + &policy(
            "back",
            "  direction: Both\n  targetPort: {device: {name: a}}\n  returnPort: {device: {name: veth1}}\n",
        )
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
