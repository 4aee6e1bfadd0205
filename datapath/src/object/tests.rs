//! Every range of the reference, every kind of mistake, and its exact words.

use proptest::prelude::*;

use super::{Object, ObjectSet, parse};

/// A policy with this `spec.targetPort` and more of `spec`.
fn policy(api: &str, target: &str, more: &str) -> String {
    format!(
        "apiVersion: {api}\nkind: TrafficControl\nmetadata: {{name: m}}\nspec:\n  appliedTo: {{podSelector: {{}}}}\n  \
         direction: Both\n  action: Mirror\n  targetPort: {target}\n{more}"
    )
}

fn own(target: &str, more: &str) -> String {
    policy(super::API_VERSION, target, more)
}

fn errors(text: &str) -> Vec<String> {
    match parse("f.yaml", text) {
        Ok(objects) => panic!("{objects:?}"),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

fn accepted(text: &str) -> Object {
    match parse("f.yaml", text) {
        Ok(mut objects) => objects.remove(0).object,
        Err(errors) => panic!("{errors}\n{text}"),
    }
}

#[test]
fn ranges_end_where_the_reference_says() {
    for (port, field, first, last) in [
        ("vxlan", "vni", 0, 16_777_215u64),
        ("vxlan", "destinationPort", 1, 65535),
        ("geneve", "vni", 0, 16_777_215),
        ("geneve", "destinationPort", 1, 65535),
        ("gre", "key", 0, 4_294_967_295),
        ("erspan", "sessionID", 0, 1023),
        ("erspan", "index", 0, 1_048_575),
    ] {
        let version = if port == "erspan" { ", version: 1" } else { "" };
        let text =
            |value: i128| own(&format!("{{{port}: {{remoteIP: 192.0.2.9, {field}: {value}{version}}}}}"), "");
        accepted(&text(first.into()));
        accepted(&text(last.into()));
        for wrong in [i128::from(first) - 1, i128::from(last) + 1] {
            let said = errors(&text(wrong));
            let expected = format!(
                "TrafficControl/m: spec.targetPort.{port}.{field}: {wrong} is out of range; allowed: {first} to {last}"
            );
            assert!(said.len() == 1 && said[0].contains(&expected), "{said:?}");
        }
    }
    for (field, last) in [("dir", 1), ("hardwareID", 63)] {
        let text = |value: i32| {
            own(&format!("{{erspan: {{remoteIP: 2001:db8::9, version: 2, {field}: {value}}}}}"), "")
        };
        accepted(&text(last));
        assert_eq!(errors(&text(last + 1)).len(), 1);
    }
}

#[test]
fn mistakes_are_one_line_with_the_nearest_name() {
    for (text, expected) in [
        (
            own("{vxlan: {remoteIP: 192.0.2.9, vnni: 1}}", ""),
            "f.yaml:8:45: TrafficControl/m: spec.targetPort.vxlan.vnni: unknown field; did you mean \"vni\"?; allowed: remoteIP, vni, destinationPort",
        ),
        (
            own("{device: {name: eth0}}", "  directoin: Both\n"),
            "f.yaml:9:3: TrafficControl/m: spec.directoin: unknown field; did you mean \"direction\"?; allowed: appliedTo, direction, action, targetPort, returnPort, priority, match, stateful, truncate, sampling, rateLimit, oversize, failurePolicy",
        ),
        (
            own("{device: {name: eth0}, gre: {remoteIP: 192.0.2.9}}", ""),
            "f.yaml:8:15: TrafficControl/m: spec.targetPort: 2 ports are given; allowed: exactly one of internal, device, vxlan, geneve, gre, erspan",
        ),
        (
            own("{device: {name: eth0}}", "  returnPort: {device: {name: eth1}}\n"),
            "f.yaml:5:3: TrafficControl/m: spec: action Mirror has no returnPort: copies do not come back",
        ),
        (
            own("{device: {name: eth0}}", "  match: [{protocol: ICMP, ports: [80]}]\n"),
            "f.yaml:9:11: TrafficControl/m: spec.match[0]: ports need protocol TCP, UDP, SCTP, DCCP or UDPLite, or none",
        ),
        (
            own("{device: {name: eth0}}", "  match: [{protocol: TCP, ports: [99999]}]\n"),
            "f.yaml:9:35: TrafficControl/m: spec.match[0].ports[0]: \"99999\" is no port; allowed: 0 to 65535, or a range like \"8000-8100\"",
        ),
        (
            own("{device: {name: eth0}}", "  match: [{peer: {cidrs: [10.0.0.0/8], except: [11.0.0.0/8]}}]\n"),
            "f.yaml:9:49: TrafficControl/m: spec.match[0].peer.except[0]: 11.0.0.0/8 lies in none of cidrs",
        ),
        (
            policy(super::ANTREA_API_VERSION, "{device: {name: eth0}}", "  priority: 1\n"),
            "f.yaml:9:3: TrafficControl/m: spec.priority: unknown field of crd.antrea.io; fields beyond it are podwire.io/v1alpha1's; allowed: appliedTo, direction, action, targetPort, returnPort",
        ),
        (
            "apiVersion: podwire.io/v1alpha1\nkind: Egress\nmetadata: {name: e}\n".into(),
            "f.yaml:2:7: Egress/e: kind: kind Egress is not served by this version; allowed: Endpoint, Namespace, Node, TrafficControl",
        ),
        (
            own("{device: {name: eth0}}", "  direction: Both\n"),
            "f.yaml:9:3: field direction stands here twice",
        ),
        ("{a: &x 1, b: *x}".into(), "f.yaml:1:14: aliases (*name) are not read; write the value out"),
    ] {
        assert_eq!(errors(&text), [expected], "{text}");
    }
}

#[test]
fn a_redirect_needs_a_return_port_and_takes_no_erspan() {
    let redirect = |more: &str| own("{device: {name: eth0}}", more).replace("Mirror", "Redirect");
    assert!(errors(&redirect("")).concat().contains("action Redirect needs returnPort"));
    assert!(
        errors(&redirect("  returnPort: {erspan: {remoteIP: 192.0.2.1, version: 1}}\n"))
            .concat()
            .contains("erspan: unknown field")
    );
    let Object::TrafficControl(policy) =
        accepted(&redirect("  returnPort: {device: {name: eth1}}\n  failurePolicy: Closed\n"))
    else {
        panic!("a policy");
    };
    assert_eq!(policy.unserved()[0].field, "spec.action");
}

#[test]
fn antreas_manifests_are_read_as_they_are() {
    let text = "apiVersion: crd.antrea.io/v1alpha2\nkind: TrafficControl\nmetadata:\n  name: mirror-web-app\n  uid: x\n  \
                managedFields: [{manager: kubectl}]\nspec:\n  appliedTo:\n    podSelector:\n      matchLabels:\n        app: web\n    \
                namespaceSelector:\n      matchExpressions:\n      - {key: team, operator: NotIn, values: [b]}\n  direction: Both\n  \
                action: Mirror\n  targetPort:\n    ovsInternal:\n      name: tap0\nstatus: {anything: [1]}\n";
    let Object::TrafficControl(policy) = accepted(text) else { panic!("a policy") };
    let labels = |text: &str| {
        text.split_terminator(',')
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (k.into(), v.into()))
            .collect()
    };
    assert!(policy.applied_to.selects(&labels("team=a"), &labels("app=web")));
    assert!(
        policy.applied_to.selects(&labels(""), &labels("app=web,x=y")),
        "NotIn holds for what lacks the key"
    );
    assert!(!policy.applied_to.selects(&labels("team=b"), &labels("app=web")));
    assert!(!policy.applied_to.selects(&labels("team=a"), &labels("app=db")));
}

#[test]
fn neither_selector_selects_nothing_and_an_empty_one_all() {
    let text = own("{device: {name: eth0}}", "");
    let Object::TrafficControl(all) = accepted(&text) else { panic!("a policy") };
    let Object::TrafficControl(none) = accepted(&text.replace("{podSelector: {}}", "{}")) else {
        panic!("a policy")
    };
    assert!(all.applied_to.selects(&Default::default(), &Default::default()));
    assert!(!none.applied_to.selects(&Default::default(), &Default::default()));
}

#[test]
fn rules_say_what_was_written() {
    let more = "  match:\n  - {protocol: tcp, ports: [80, \"8000-8100\"], peer: {cidrs: [10.0.0.0/8], except: [10.9.0.0/16]}}\n  \
                - {protocol: ICMPv6, icmpType: echo-request, icmpCode: 0}\n  - {protocol: TCP, tcpFlags: +syn-ack}\n  - {etherType: arp}\n";
    let Object::TrafficControl(policy) = accepted(&own("{vxlan: {remoteIP: 192.0.2.9}}", more)) else {
        panic!("a policy")
    };
    assert_eq!(policy.rules[0].either_ports, [80..=80, 8000..=8100]);
    assert_eq!(policy.rules[0].peer.as_ref().map(|peer| peer.except.len()), Some(1));
    assert_eq!(policy.rules[1].icmp, [128 << 8..=128 << 8]);
    let flags = policy.rules[2].tcp_flags.expect("flags");
    assert_eq!((flags.value, flags.mask), (0x02, 0x12));
    assert_eq!(policy.rules[3].ether_type, Some(0x0806));
    assert!(policy.unserved().is_empty());
}

#[test]
fn one_target_with_two_definitions_goes_to_the_first() {
    let one = own("{vxlan: {remoteIP: 192.0.2.9}}", "  truncate: 128\n  priority: 5\n");
    let two = own("{vxlan: {remoteIP: 192.0.2.9}}", "  priority: 1\n").replace("name: m", "name: n");
    let set = ObjectSet::build(parse("f.yaml", &format!("{one}---\n{two}")).expect("valid"))
        .expect("no duplicates");
    assert_eq!(set.refused("n"), None);
    assert_eq!(
        set.refused("m"),
        Some("one target, but truncate of TrafficControl/n and TrafficControl/m differ; n comes first")
    );
    let again = format!("{one}---\n{one}");
    let conflict = ObjectSet::build(parse("f.yaml", &again).expect("valid")).expect_err("a duplicate");
    assert_eq!(conflict.to_string(), "f.yaml:12: TrafficControl/m: stands at f.yaml:1 already");
}

#[test]
fn json_and_lists_are_read_too() {
    let text = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "podwire.io/v1alpha1", "kind": "Namespace", "metadata": {"name": "a", "labels": {"team": "x"}}},
        {"apiVersion": "podwire.io/v1alpha1", "kind": "Endpoint", "metadata": {"namespace": "a", "name": "p"},
         "spec": {"interface": "veth0", "mac": "02:00:00:00:00:05", "ips": ["10.0.0.5", "fd00::5"], "allowedAddresses": ["10.1.0.0/16"]}}]}"#;
    let objects = parse("f.json", text).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(objects.len(), 2);
    assert_eq!(objects[1].identity(), "Endpoint/a/p");
    assert_eq!(objects[1].manifest["spec"]["interface"], "veth0");
}

#[test]
fn depth_and_size_are_limited() {
    assert!(errors(&format!("{}1{}", "[".repeat(17), "]".repeat(17)))[0].contains("deeper than 16"));
    assert!(errors(&" ".repeat(super::MAX_TEXT + 1))[0].contains("at most 1048576"));
}

proptest! {
    #[test]
    fn nothing_panics(text in ".{0,200}") {
        let _ = parse("f.yaml", &text);
    }

    /// A valid object with a piece replaced.
    #[test]
    fn nothing_panics_on_nearly_right_text(at in 0usize..300, piece in "[ -~\n]{0,12}") {
        let mut text = own("{vxlan: {remoteIP: 192.0.2.9, vni: 1}}", "  match: [{protocol: TCP, ports: [1], tcpFlags: +syn, peer: {cidrs: [::/0]}}]\n");
        let at = at.min(text.len());
        let end = (at + piece.len()).min(text.len());
        if text.is_char_boundary(at) && text.is_char_boundary(end) {
            text.replace_range(at..end, &piece);
        }
        let _ = parse("f.yaml", &text);
    }
}
