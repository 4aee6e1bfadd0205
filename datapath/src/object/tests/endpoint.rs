//! Endpoints and nodes: what is read, and every refusal.

use super::{accepted, errors};
use crate::desired::{Allowed, Guard};
use crate::object::{Object, ObjectSet, parse};

#[test]
fn endpoints_have_real_names_and_addresses() {
    let endpoint = |spec: &str| {
        format!("apiVersion: podwire.io/v1alpha1\nkind: Endpoint\nmetadata: {{name: p}}\nspec: {{{spec}}}\n")
    };
    let text = endpoint(
        "interface: abcdefghijklmno, allowedAddresses: [10.0.0.1, 10.1.0.0/16, \"02:00:00:00:00:06\", \"fd00::/64\"]",
    );
    let Object::Endpoint(read) = accepted(&text) else { panic!("an endpoint") };
    assert_eq!(read.metadata.namespace.as_deref(), Some("default"));
    let prefix = |text: &str| Allowed::Prefix(text.parse().expect("a prefix"));
    let allowed =
        [prefix("10.0.0.1/32"), prefix("10.1.0.0/16"), Allowed::Mac([2, 0, 0, 0, 0, 6]), prefix("fd00::/64")];
    assert_eq!(read.allowed, allowed);
    for (spec, said) in [
        ("interface: abcdefghijklmnop", "spec.interface"),
        ("interface: a/b", "spec.interface"),
        ("interface: \"a b\"", "spec.interface"),
        ("interface: a, mac: \"02:00:00:00:00\"", "spec.mac"),
        ("interface: a, mac: \"02:00:00:00:00:+5\"", "spec.mac"),
        ("interface: a, mac: \"01:00:00:00:00:05\"", "spec.mac"),
        ("interface: a, ips: [0.0.0.0]", "spec.ips[0]"),
        ("interface: a, ips: [10.0.0.5, 10.0.0.5]", "spec.ips[1]: 10.0.0.5 stands here twice"),
        (
            "interface: a, allowedAddresses: [x]",
            "spec.allowedAddresses[0]: \"x\" is not an address, a prefix or",
        ),
        ("interface: a, allowedAddresses: [\"01:00:00:00:00:05\"]", "spec.allowedAddresses[0]"),
        (
            "interface: a, allowedAddresses: [10.0.0.1/8]",
            "10.0.0.1/8 has host bits; did you mean \"10.0.0.0/8\"?",
        ),
        ("interface: a, spoofGuard: enforce", "did you mean \"Enforce\"? allowed: Enforce, Observe, Off"),
        ("interface: a, spoofGuard: Enforcee", "did you mean \"Enforce\"? allowed: Enforce, Observe, Off"),
        ("ips: [10.0.0.1]", "spec.interface: required"),
    ] {
        let errors = errors(&endpoint(spec));
        assert!(errors.len() == 1 && errors[0].contains(said), "{spec}: {errors:?}");
    }
    let namespace = "apiVersion: podwire.io/v1alpha1\nkind: Node\nmetadata: {name: n, namespace: a}\nspec: {addresses: [192.0.2.1]}\n";
    assert!(errors(namespace)[0].contains("metadata.namespace: this kind is not in a namespace"));
}

#[test]
fn an_endpoint_is_guarded_when_its_addresses_are_known() {
    let endpoint = |spec: &str| {
        format!(
            "apiVersion: podwire.io/v1alpha1\nkind: Endpoint\nmetadata: {{name: p}}\nspec: {{interface: a, {spec}}}\n"
        )
    };
    let both = "mac: \"02:00:00:00:00:05\", ips: [10.0.0.5]";
    for (spec, guard) in [
        (both.to_owned(), Guard::Enforce),
        (format!("{both}, spoofGuard: Observe"), Guard::Observe),
        (format!("{both}, spoofGuard: Off"), Guard::Off),
        ("mac: \"02:00:00:00:00:05\"".into(), Guard::Off),
        ("ips: [10.0.0.5]".into(), Guard::Off),
        ("mac: \"02:00:00:00:00:05\", ips: []".into(), Guard::Off),
        ("spoofGuard: Off".into(), Guard::Off),
    ] {
        let Object::Endpoint(read) = accepted(&endpoint(&spec)) else { panic!("an endpoint") };
        assert_eq!(read.guard, guard, "{spec}");
    }
    for (spec, expected) in [
        ("spoofGuard: Enforce", "spec: spoofGuard Enforce needs mac and ips; mac and ips not given"),
        ("spoofGuard: Observe, ips: [10.0.0.5]", "spec: spoofGuard Observe needs mac and ips; mac not given"),
        (
            "spoofGuard: Enforce, mac: \"02:00:00:00:00:05\"",
            "spec: spoofGuard Enforce needs mac and ips; ips not given",
        ),
        (
            "spoofGuard: Enforce, mac: x, ips: [10.0.0.5]",
            "spec.mac: \"x\" is not one station's MAC address, like 02:00:00:00:00:05",
        ),
    ] {
        let said = errors(&endpoint(spec));
        assert!(said.len() == 1 && said[0].ends_with(expected), "{spec}: {said:?}");
    }
}

#[test]
fn nodes_have_addresses_and_whole_prefixes() {
    let node = |spec: &str| {
        format!("apiVersion: podwire.io/v1alpha1\nkind: Node\nmetadata: {{name: n}}\nspec: {{{spec}}}\n")
    };
    let Object::Node(read) =
        accepted(&node("addresses: [192.0.2.1, \"2001:db8::1\"], podCIDRs: [10.10.1.0/24]"))
    else {
        panic!("a node")
    };
    assert_eq!((read.addresses.len(), read.pod_cidrs.len()), (2, 1));
    for (spec, expected) in [
        ("podCIDRs: [10.10.1.0/24]", "spec.addresses: required, but missing"),
        ("addresses: []", "spec.addresses: a node has one address at least"),
        (
            "addresses: [224.0.0.1]",
            "spec.addresses[0]: \"224.0.0.1\" is not an address that one host has, IPv4 or IPv6",
        ),
        (
            "addresses: [192.0.2.1], podCIDRs: [10.10.1.5/24]",
            "spec.podCIDRs[0]: 10.10.1.5/24 has host bits; did you mean \"10.10.1.0/24\"?",
        ),
    ] {
        let said = errors(&node(spec));
        assert!(said.len() == 1 && said[0].ends_with(expected), "{spec}: {said:?}");
    }
}

#[test]
fn an_address_leads_to_one_node() {
    let node = |name: &str, spec: &str| {
        format!(
            "---\napiVersion: podwire.io/v1alpha1\nkind: Node\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
        )
    };
    let build = |first: &str, second: &str| {
        let text = node("a", first) + &node("b", second);
        ObjectSet::build(parse("f.yaml", &text).expect("valid")).map_err(|conflict| conflict.to_string())
    };
    let first = "addresses: [192.0.2.1], podCIDRs: [10.10.0.0/16, 10.10.1.0/24, \"fd00:10::/32\"]";
    build(first, "addresses: [192.0.2.2], podCIDRs: [10.11.0.0/16, 10.0.0.0/24, \"fd00:11::/32\"]")
        .expect("two nodes");
    for (second, expected) in [
        (
            "addresses: [192.0.2.1]",
            "f.yaml:7: Node/b: spec.addresses: 192.0.2.1 belongs to Node/a (f.yaml:2) already",
        ),
        (
            "addresses: [192.0.2.2], podCIDRs: [10.10.2.0/24]",
            "f.yaml:7: Node/b: spec.podCIDRs: 10.10.2.0/24 belongs to Node/a (f.yaml:2) already",
        ),
        (
            "addresses: [192.0.2.2], podCIDRs: [\"fd00:10::/32\"]",
            "f.yaml:7: Node/b: spec.podCIDRs: fd00:10::/32 belongs to Node/a (f.yaml:2) already",
        ),
        (
            "addresses: [192.0.2.2], podCIDRs: [10.0.0.0/8]",
            "f.yaml:2: Node/a: spec.podCIDRs: 10.10.0.0/16 belongs to Node/b (f.yaml:7) already",
        ),
    ] {
        assert_eq!(build(first, second).expect_err(second), expected);
    }
}
