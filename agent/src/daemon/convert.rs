//! From objects to what the library understands. In: an [`ObjectSet`]. Out: [`Desired`], and per policy whether
//! it is in force or why not.

use std::collections::BTreeMap;

use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::object::{ObjectSet, Port, TrafficControl};
use podwire_datapath::{Desired, Endpoint, Mirror, Target};

/// What became of a policy on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyState {
    /// Names of the endpoints that it selects.
    pub endpoints: Vec<String>,
    /// Where it sends copies; `None` when it is not in force.
    pub target: Option<Target>,
    /// Why it is not in force.
    pub reason: Option<String>,
}

/// Makes desired state of objects.
pub fn convert(set: &ObjectSet) -> (Desired, BTreeMap<String, PolicyState>) {
    let mut desired = Desired::default();
    for endpoint in set.endpoints() {
        let namespace = endpoint.metadata.namespace.as_deref().unwrap_or("default");
        let name = format!("{namespace}/{}", endpoint.metadata.name);
        desired.endpoints.push(Endpoint { name, interface: endpoint.interface.clone() });
    }
    let mut states = BTreeMap::new();
    for policy in set.policies() {
        let name = policy.metadata.name.clone();
        let endpoints = selected(set, policy);
        let unserved = policy.unserved();
        let reason = match set.refused(&name) {
            Some(why) => Some(why.to_owned()),
            None if !unserved.is_empty() => {
                let parts: Vec<_> =
                    unserved.iter().map(|part| format!("{}: {}", part.field, part.why)).collect();
                Some(parts.join("; "))
            }
            None => None,
        };
        let target = if reason.is_none() { target(&policy.target) } else { None };
        if let Some(target) = &target {
            desired.mirrors.push(Mirror {
                name: name.clone(),
                endpoints: endpoints.clone(),
                directions: policy.directions.clone(),
                rules: policy.rules.clone(),
                target: target.clone(),
            });
        }
        states.insert(name, PolicyState { endpoints, target, reason });
    }
    (desired, states)
}

fn selected(set: &ObjectSet, policy: &TrafficControl) -> Vec<String> {
    set.endpoints()
        .filter_map(|endpoint| {
            let namespace = endpoint.metadata.namespace.as_deref().unwrap_or("default");
            policy
                .applied_to
                .selects(&set.namespace_labels(namespace), &endpoint.metadata.labels)
                .then(|| format!("{namespace}/{}", endpoint.metadata.name))
        })
        .collect()
}

/// What this version can send to; the others are named by `TrafficControl::unserved`.
fn target(port: &Port) -> Option<Target> {
    match port {
        Port::Device { name } => Some(Target::Device { name: name.clone() }),
        Port::Vxlan { remote, vni, port } => {
            Some(Target::Tunnel { remote: *remote, tunnel: Tunnel::Vxlan { vni: *vni, port: *port } })
        }
        Port::Internal { .. } | Port::Geneve { .. } | Port::Gre { .. } | Port::Erspan { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use podwire_datapath::object::{ObjectSet, parse};

    use super::{PolicyState, convert};

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
metadata: {name: unserved}
spec:
  appliedTo: {podSelector: {}}
  direction: Both
  action: Mirror
  targetPort: {gre: {remoteIP: 192.0.2.9}}
";

    #[test]
    fn policies_select_by_both_labels_and_say_why_they_are_not_in_force() {
        let set = ObjectSet::build(parse("t.yaml", TEXT).expect("valid")).expect("consistent");
        let (desired, states) = convert(&set);
        assert_eq!(desired.endpoints.len(), 2);
        assert_eq!(desired.mirrors.len(), 1);
        assert_eq!(desired.mirrors[0].endpoints, ["shop/web-0"]);
        assert_eq!(desired.mirrors[0].directions.len(), 1);
        assert_eq!(states["unserved"].endpoints, ["default/web-0", "shop/web-0"]);
        assert_eq!(
            states["unserved"].reason.as_deref(),
            Some("spec.targetPort: only device and vxlan are served yet")
        );
    }

    fn policy(name: &str, rest: &str) -> String {
        format!(
            "---\napiVersion: podwire.io/v1alpha1\nkind: TrafficControl\nmetadata: {{name: {name}}}\nspec:\n  \
             appliedTo: {{podSelector: {{}}}}\n  action: Mirror\n{rest}"
        )
    }

    fn states(text: &str) -> (podwire_datapath::Desired, BTreeMap<String, PolicyState>) {
        convert(&ObjectSet::build(parse("t.yaml", text).expect("valid")).expect("consistent"))
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
    fn one_policy_not_served_leaves_the_others_in_force() {
        let text = policy("tap", "  direction: Both\n  targetPort: {device: {name: tap0}}\n")
            + &policy("own", "  direction: Both\n  targetPort: {internal: {name: p0}}\n")
            + &policy(
                "cut",
                "  direction: Both\n  truncate: 128\n  targetPort: {vxlan: {remoteIP: 192.0.2.9, vni: 7}}\n",
            );
        let (desired, states) = states(&text);
        let names: Vec<_> = desired.mirrors.iter().map(|mirror| mirror.name.as_str()).collect();
        assert_eq!(names, ["tap"]);
        for (name, field) in [("own", "spec.targetPort"), ("cut", "spec.truncate")] {
            assert_eq!(states[name].target, None, "{name}");
            assert!(
                states[name].reason.as_deref().is_some_and(|why| why.starts_with(field)),
                "{:?}",
                states[name]
            );
        }
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
