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
    use podwire_datapath::object::{ObjectSet, parse};

    use super::convert;

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
}
