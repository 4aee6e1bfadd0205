//! Kubernetes' own objects in podwire's words. In: Pods, Nodes, Namespaces as the API server has them. Out: pods with
//! addresses of their own, and the text of Node and Namespace objects.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::api::DynamicObject;
use podwire_datapath::object::API_VERSION;
use serde_json::{Value, json};

use super::snapshot::Pod;

const INTERFACE: &str = "podwire.io/interface";
const MAC: &str = "podwire.io/mac";

/// A pod that has an interface on its node: one that runs, not on the node's own network, with an address.
pub fn pod(object: &DynamicObject) -> Option<Pod> {
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    if spec["hostNetwork"] == json!(true) {
        return None;
    }
    // The addresses of a pod that has ended may be another one's by now.
    if matches!(status["phase"].as_str(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let several = status["podIPs"].as_array().into_iter().flatten().filter_map(|entry| entry["ip"].as_str());
    let mut ips: Vec<&str> = several.collect();
    if ips.is_empty() {
        ips.extend(status["podIP"].as_str());
    }
    let ips: Vec<_> = ips.iter().filter_map(|ip| ip.parse().ok()).collect();
    let said = |key: &str| object.annotations().get(key).cloned();
    (!ips.is_empty()).then(|| Pod {
        namespace: object.namespace().unwrap_or_else(|| "default".into()),
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        labels: object.labels().clone(),
        ips,
        interface: said(INTERFACE),
        mac: said(MAC),
    })
}

/// A pod's Endpoint, on a known interface.
pub fn endpoint(pod: &Pod, interface: &str, mac: Option<&str>) -> Value {
    let ips: Vec<String> = pod.ips.iter().map(ToString::to_string).collect();
    json!({
        "apiVersion": API_VERSION,
        "kind": "Endpoint",
        "metadata": {"namespace": pod.namespace, "name": pod.name, "labels": pod.labels},
        "spec": {"interface": interface, "mac": mac, "ips": ips},
    })
}

/// A node; `None` without an address.
pub fn node(object: &DynamicObject) -> Option<Value> {
    let addresses: Vec<&Value> = object.data["status"]["addresses"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|entry| entry["type"] == "InternalIP")
        .map(|entry| &entry["address"])
        .collect();
    let spec = &object.data["spec"];
    let cidrs = match (&spec["podCIDRs"], &spec["podCIDR"]) {
        (Value::Array(cidrs), _) => cidrs.clone(),
        (_, Value::String(cidr)) => vec![json!(cidr)],
        _ => Vec::new(),
    };
    (!addresses.is_empty()).then(|| {
        json!({
            "apiVersion": API_VERSION,
            "kind": "Node",
            "metadata": named(object),
            "spec": {"addresses": addresses, "podCIDRs": cidrs},
        })
    })
}

/// A namespace.
pub fn namespace(object: &DynamicObject) -> Value {
    json!({"apiVersion": API_VERSION, "kind": "Namespace", "metadata": named(object)})
}

fn named(object: &DynamicObject) -> Value {
    let labels: &BTreeMap<String, String> = object.labels();
    json!({"name": object.name_any(), "labels": labels})
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;
    use podwire_datapath::object::parse;
    use serde_json::{Value, json};

    use super::{endpoint, namespace, node, pod};

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).expect("an object")
    }

    fn web(spec: Value, status: Value) -> DynamicObject {
        object(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": "shop", "name": "web-0", "uid": "1", "labels": {"app": "web"},
                "annotations": {"podwire.io/interface": "veth0"},
            },
            "spec": spec, "status": status,
        }))
    }

    #[test]
    fn a_pod_with_addresses_of_its_own_is_an_endpoint() {
        let ips = json!({"phase": "Running", "podIP": "10.0.0.5", "podIPs": [{"ip": "10.0.0.5"}, {"ip": "fd00::5"}]});
        let found = pod(&web(json!({}), ips.clone())).expect("an endpoint");
        assert_eq!((found.ips.len(), found.interface.as_deref()), (2, Some("veth0")));
        let text = endpoint(&found, "veth0", Some("02:00:00:00:00:05")).to_string();
        assert!(parse("pod", &text).is_ok(), "{text}");
        assert_eq!(pod(&web(json!({"hostNetwork": true}), ips)), None);
        assert_eq!(pod(&web(json!({}), json!({"phase": "Succeeded", "podIP": "10.0.0.5"}))), None);
        assert_eq!(pod(&web(json!({}), json!({"phase": "Pending"}))), None);
    }

    #[test]
    fn nodes_and_namespaces_are_podwires() {
        let addresses = json!([
            {"type": "Hostname", "address": "node-1"},
            {"type": "InternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "2001:db8::1"},
        ]);
        let own = object(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"},
            "spec": {"podCIDR": "10.10.1.0/24", "podCIDRs": ["10.10.1.0/24", "fd00:10:1::/64"]},
            "status": {"addresses": addresses},
        }));
        let text = node(&own).expect("a node").to_string();
        assert!(text.contains("fd00:10:1::/64") && !text.contains("Hostname"), "{text}");
        assert!(parse("node", &text).is_ok(), "{text}");
        assert_eq!(
            node(&object(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}))),
            None
        );
        let shop = object(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "uid": "2"}}),
        );
        assert!(parse("namespace", &namespace(&shop).to_string()).is_ok());
    }
}
