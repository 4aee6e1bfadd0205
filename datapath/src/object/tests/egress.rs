//! Egress: what is read, and every refusal.

use proptest::prelude::*;

use super::{accepted, errors};
use crate::desired::Bandwidth;
use crate::object::{
    ANTREA_API_VERSION, ANTREA_EGRESS_API_VERSION, API_VERSION, Egress, Object, ObjectSet, parse,
};

fn text(api: &str, spec: &str) -> String {
    format!(
        "apiVersion: {api}\nkind: Egress\nmetadata: {{name: e}}\nspec: {{appliedTo: {{podSelector: {{}}}}, {spec}}}\n"
    )
}

fn read(api: &str, spec: &str) -> Egress {
    let Object::Egress(egress) = accepted(&text(api, spec)) else { panic!("an Egress") };
    *egress
}

fn own(spec: &str) -> Egress {
    read(API_VERSION, spec)
}

fn printed<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

#[test]
fn every_field_arrives() {
    let egress = own(
        "egressIPs: [203.0.113.7, \"2001:db8::7\"], egressNode: node-2, own: true, priority: -3, destinations: [198.51.100.0/24], \
         except: [198.51.100.9], bandwidth: {rate: 800M, burst: 2G}",
    );
    assert_eq!(printed(&egress.ips), ["203.0.113.7", "2001:db8::7"]);
    assert_eq!(egress.node.as_deref(), Some("node-2"));
    assert!(egress.own);
    assert_eq!(egress.priority, -3);
    assert_eq!(printed(&egress.destinations), ["198.51.100.0/24"]);
    assert_eq!(printed(&egress.except), ["198.51.100.9/32"]);
    assert_eq!(egress.bandwidth, Some(Bandwidth { rate: 800_000_000, burst: 250_000_000 }));
    let plain = own("egressIP: 203.0.113.7");
    assert_eq!((plain.priority, plain.own, plain.node, plain.bandwidth), (0, false, None, None));
    assert!(plain.applied_to.selects(&Default::default(), &Default::default()));
}

#[test]
fn an_unsaid_burst_is_the_rate_and_a_super_packet_at_least() {
    let bandwidth = |rate: &str| {
        own(&format!("egressIP: 203.0.113.7, bandwidth: {{rate: {rate}}}")).bandwidth.expect("a bandwidth")
    };
    assert_eq!(bandwidth("1G"), Bandwidth { rate: 1_000_000_000, burst: 125_000_000 });
    assert_eq!(bandwidth("10k"), Bandwidth { rate: 10_000, burst: 65_536 });
}

#[test]
fn antreas_manifests_are_read_as_they_are() {
    let manifest = "apiVersion: crd.antrea.io/v1beta1\nkind: Egress\nmetadata:\n  name: egress-prod-web\nspec:\n  appliedTo:\n    \
                    namespaceSelector:\n      matchLabels:\n        env: prod\n    podSelector:\n      matchLabels:\n        role: web\n  \
                    egressIP: 10.10.0.8\n  externalIPPool: prod\n  bandwidth:\n    rate: 800M\n    burst: 2G\nstatus:\n  egressNode: node01\n";
    let Object::Egress(egress) = accepted(manifest) else { panic!("an Egress") };
    assert!(egress.own, "an address of a pool is put on a node");
    assert_eq!(egress.bandwidth.map(|bandwidth| bandwidth.rate), Some(800_000_000));
    assert!(!read(ANTREA_EGRESS_API_VERSION, "egressIP: 10.10.0.8").own);
    let both = read(
        ANTREA_EGRESS_API_VERSION,
        "egressIPs: [10.10.0.8, \"2001:db8::8\"], externalIPPools: [four, six]",
    );
    assert!(both.own && both.ips.len() == 2);
}

#[test]
fn sixteen_addresses_of_each_family_are_taken() {
    let list = |four: usize, six: usize| {
        let four = (1..=four).map(|number| format!("203.0.113.{number}"));
        let six = (1..=six).map(|number| format!("\"2001:db8::{number:x}\""));
        format!("egressIPs: [{}]", four.chain(six).collect::<Vec<_>>().join(", "))
    };
    assert_eq!(own(&list(16, 16)).ips.len(), 32);
    for (spec, family) in [(list(17, 0), "IPv4"), (list(1, 17), "IPv6")] {
        let expected = format!("spec.egressIPs: 17 {family} addresses; allowed: at most 16 of each family");
        let said = errors(&text(API_VERSION, &spec));
        assert!(said.len() == 1 && said[0].ends_with(&expected), "{said:?}");
    }
}

#[test]
fn mistakes_are_one_line_with_what_is_right() {
    for (spec, expected) in [
        ("priority: 1", "spec: egressIP or egressIPs is required"),
        ("egressIPs: []", "spec: egressIP or egressIPs is required"),
        (
            "egressIP: 203.0.113.7, egressIPs: [203.0.113.7]",
            "spec: egressIP and egressIPs are two ways to say one thing; one of both is enough",
        ),
        (
            "egressIP: 224.0.0.1",
            "spec.egressIP: \"224.0.0.1\" is not an address that one host has, IPv4 or IPv6",
        ),
        ("egressIP: 0.0.0.0", "spec.egressIP: \"0.0.0.0\" is not an address that one host has, IPv4 or IPv6"),
        (
            "egressIP: 255.255.255.255",
            "spec.egressIP: \"255.255.255.255\" is not an address that one host has, IPv4 or IPv6",
        ),
        (
            "egressIP: \"::ffff:203.0.113.7\"",
            "spec.egressIP: \"::ffff:203.0.113.7\" is not an address that one host has, IPv4 or IPv6",
        ),
        (
            "egressIP: 203.0.113.0/24",
            "spec.egressIP: \"203.0.113.0/24\" is not an address that one host has, IPv4 or IPv6",
        ),
        ("egressIPs: 203.0.113.7", "spec.egressIPs: a list is expected"),
        (
            "egressIPs: [203.0.113.7, 127.0.0.1]",
            "spec.egressIPs[1]: \"127.0.0.1\" is not an address that one host has, IPv4 or IPv6",
        ),
        (
            "egressIPs: [\"2001:db8::7\", \"2001:db8:0::7\"]",
            "spec.egressIPs[1]: 2001:db8::7 stands here twice",
        ),
        (
            "egressIP: 203.0.113.7, egressNod: node-1",
            "spec.egressNod: unknown field; did you mean \"egressNode\"? allowed: appliedTo, egressIP, egressIPs, bandwidth, priority, egressNode, own, destinations, except",
        ),
        (
            "egressIP: 203.0.113.7, externalIPPool: p",
            "spec.externalIPPool: unknown field; allowed: appliedTo, egressIP, egressIPs, bandwidth, priority, egressNode, own, destinations, except",
        ),
        (
            "egressIP: 203.0.113.7, egressNode: Node_1",
            "spec.egressNode: \"Node_1\" is not a name; allowed: 1 to 253 lower-case letters, digits, '-', '.', alphanumeric at the ends of each part",
        ),
        ("egressIP: 203.0.113.7, own: yes", "spec.own: unknown value \"yes\"; allowed: true, false"),
        (
            "egressIP: 203.0.113.7, own: True",
            "spec.own: unknown value \"True\"; did you mean \"true\"? allowed: true, false",
        ),
        (
            "egressIP: 203.0.113.7, priority: 2147483648",
            "spec.priority: 2147483648 is out of range; allowed: -2147483648 to 2147483647",
        ),
        (
            "egressIP: 203.0.113.7, except: [10.0.0.1/8]",
            "spec.except[0]: 10.0.0.1/8 has host bits; did you mean \"10.0.0.0/8\"?",
        ),
        (
            "egressIP: 203.0.113.7, except: [10.0.0.0/33]",
            "spec.except[0]: \"10.0.0.0/33\" is not a CIDR, like 10.0.0.0/8 or fd00::/64",
        ),
        (
            "egressIP: 203.0.113.7, destinations: []",
            "spec.destinations: an empty list matches nothing; leave the field out to match everything",
        ),
        (
            "egressIP: 203.0.113.7, destinations: [10.1.0.0/16], except: [10.0.0.0/8]",
            "spec: except leaves nothing of destinations",
        ),
        (
            "egressIP: 203.0.113.7, destinations: [\"fd00::/8\"]",
            "spec: destinations and egress addresses are of different families",
        ),
        ("egressIP: 203.0.113.7, bandwidth: {burst: 1M}", "spec.bandwidth.rate: required, but missing"),
        (
            "egressIP: 203.0.113.7, bandwidth: {rate: 999}",
            "spec.bandwidth.rate: 999 is out of range; allowed: 1k to 1T bits per second, as 300k, 100M, 2G",
        ),
        (
            "egressIP: 203.0.113.7, bandwidth: {rate: 1.001T}",
            "spec.bandwidth.rate: 1.001T is out of range; allowed: 1k to 1T bits per second, as 300k, 100M, 2G",
        ),
        (
            "egressIP: 203.0.113.7, bandwidth: {rate: 100Mbit}",
            "spec.bandwidth.rate: \"100Mbit\" is not a quantity; did you mean \"100M\"? allowed: 1k to 1T bits per second, as 300k, 100M, 2G",
        ),
        (
            "egressIP: 203.0.113.7, bandwidth: {rate: 1M, burst: 11999}",
            "spec.bandwidth.burst: 11999 is out of range; allowed: 12k to 1T bits, as 300k, 100M, 2G",
        ),
        (
            "egressIP: 203.0.113.7, bandwidth: {rate: 1M, brust: 1M}",
            "spec.bandwidth.brust: unknown field; did you mean \"burst\"? allowed: rate, burst",
        ),
    ] {
        let said = errors(&text(API_VERSION, spec));
        assert!(said.len() == 1 && said[0].ends_with(&format!(": Egress/e: {expected}")), "{spec}: {said:?}");
    }
}

#[test]
fn what_is_podwires_own_is_no_field_of_antreas() {
    for (spec, expected) in [
        (
            "externalIPPool: p",
            "podwire takes no addresses from pools; egressIP says which one of the pool it is",
        ),
        (
            "egressIP: 10.0.0.8, egressNode: n",
            "spec.egressNode: unknown field of crd.antrea.io; fields beyond it are podwire.io/v1alpha1's; did you mean \"egressIP\"? allowed: appliedTo, egressIP, egressIPs, bandwidth, externalIPPool, externalIPPools",
        ),
    ] {
        let said = errors(&text(ANTREA_EGRESS_API_VERSION, spec));
        assert!(said.len() == 1 && said[0].ends_with(expected), "{spec}: {said:?}");
    }
    let said = errors(&text(ANTREA_API_VERSION, "egressIP: 10.0.0.8"));
    let expected = "apiVersion: crd.antrea.io/v1alpha2 is not an API version of Egress; did you mean \"crd.antrea.io/v1beta1\"? allowed: podwire.io/v1alpha1, crd.antrea.io/v1beta1";
    assert!(said.len() == 1 && said[0].ends_with(expected), "{said:?}");
}

#[test]
fn priority_then_age_then_name_is_their_order() {
    let made = |name: &str, more: &str, priority: i32| {
        text(API_VERSION, &format!("egressIP: 203.0.113.7, priority: {priority}"))
            .replace("{name: e}", &format!("{{name: {name}{more}}}"))
    };
    let file = [
        made("a", ", creationTimestamp: \"2026-01-03T00:00:00Z\"", 1),
        made("b", ", creationTimestamp: \"2026-01-02T00:00:00Z\"", 1),
        made("d", "", 0),
        made("c", "", 0),
    ]
    .join("---\n");
    let set = ObjectSet::build(parse("f.yaml", &file).expect("valid")).expect("no duplicates");
    let names: Vec<&str> = set.egresses().iter().map(|egress| egress.metadata.name.as_str()).collect();
    assert_eq!(names, ["c", "d", "b", "a"]);
    let twice = [made("a", "", 0), made("a", "", 1)].join("---\n");
    let conflict = ObjectSet::build(parse("f.yaml", &twice).expect("valid")).expect_err("a duplicate");
    assert_eq!(conflict.to_string(), "f.yaml:6: Egress/a: stands at f.yaml:1 already");
}

/// As many prefixes as a text holds: each is looked up once.
#[test]
fn many_prefixes_are_read_in_little_time() {
    let cidrs = |length: u8| -> String {
        (0..30_000).map(|number| format!("10.{}.{}.0/{length}, ", number / 256, number % 256)).collect()
    };
    let begin = std::time::Instant::now();
    let spec = format!("egressIP: 203.0.113.7, destinations: [{}], except: [{}]", cidrs(24), cidrs(25));
    assert_eq!(own(&spec).except.len(), 30_000);
    assert!(begin.elapsed() < std::time::Duration::from_secs(30), "{:?}", begin.elapsed());
}

proptest! {
    /// A valid object with a piece replaced.
    #[test]
    fn nothing_panics_on_nearly_right_text(at in 0usize..330, piece in "[ -~\n]{0,12}") {
        let mut text = text(
            API_VERSION,
            "egressIPs: [203.0.113.7, \"2001:db8::7\"], egressNode: n, own: true, except: [10.0.0.0/8], bandwidth: {rate: 1.5G, burst: 2e9}",
        );
        let at = at.min(text.len());
        let end = (at + piece.len()).min(text.len());
        text.replace_range(at..end, &piece);
        let _ = parse("f.yaml", &text).map(ObjectSet::build);
    }
}
