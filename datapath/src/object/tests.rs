//! Every range of the reference, every kind of mistake, and its exact words.

use proptest::prelude::*;

use std::time::Duration;

use super::{Object, ObjectSet, parse};
use crate::desired::{Engine, Oversize, Sampling, SessionOptions};

mod egress;
mod endpoint;
mod traceflow;

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

fn redirect(more: &str) -> String {
    own("{device: {name: eth0}}", more).replace("Mirror", "Redirect")
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
            "f.yaml:8:45: TrafficControl/m: spec.targetPort.vxlan.vnni: unknown field; did you mean \"vni\"? allowed: remoteIP, vni, destinationPort",
        ),
        (
            own("{device: {name: eth0}}", "  directoin: Both\n"),
            "f.yaml:9:3: TrafficControl/m: spec.directoin: unknown field; did you mean \"direction\"? allowed: appliedTo, direction, action, targetPort, returnPort, priority, failurePolicy, match, stateful, truncate, sampling, rateLimit, oversize, engine, healthCheck",
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
            "apiVersion: podwire.io/v1alpha1\nkind: Egres\n".into(),
            "f.yaml:2:7: Egres: kind: unknown kind Egres; did you mean \"Egress\"? allowed: Endpoint, Namespace, Node, TrafficControl, Egress, Traceflow",
        ),
        (
            own("{device: {name: eth0}}", "  match: [{peer: {cidrs: [10.0.0.1/8]}}]\n"),
            "f.yaml:9:27: TrafficControl/m: spec.match[0].peer.cidrs[0]: 10.0.0.1/8 has host bits; did you mean \"10.0.0.0/8\"?",
        ),
        (
            own(
                "{device: {name: eth0}}",
                "  match: [{src: {cidrs: [\"fd00::/8\"], except: [\"fd00::1/64\"]}}]\n",
            ),
            "f.yaml:9:48: TrafficControl/m: spec.match[0].src.except[0]: fd00::1/64 has host bits; did you mean \"fd00::/64\"?",
        ),
        (
            own("{device: {name: eth0}}", "").replace("Both", "Egres"),
            "f.yaml:6:14: TrafficControl/m: spec.direction: unknown value \"Egres\"; did you mean \"Egress\"? allowed: Ingress, Egress, Both",
        ),
        (
            own("{device: {name: eth0}}", "  match: [{protocol: ICPM}]\n"),
            "f.yaml:9:22: TrafficControl/m: spec.match[0].protocol: unknown protocol \"ICPM\"; did you mean \"ICMP\"? allowed: TCP, UDP, SCTP, ICMP, ICMPv6, IGMP, GRE, ESP, AH, DCCP, UDPLite, or 0 to 255",
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
    assert!(policy.closed);
    assert!(policy.return_port.is_some());
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

#[test]
fn a_message_is_one_line_of_bounded_length() {
    let long = "x".repeat(100_000);
    for text in [
        own("{vxlan: {remoteIP: 192.0.2.9, vni: \"1\\n2\\u2028\"}}", ""),
        own("{device: {name: eth0}}", "  \"a\\nb\": 1\n"),
        own("{device: {name: eth0}}", "").replace("name: m", "name: \"m\\r\\n\""),
        own("{device: {name: eth0}}", &format!("  {long}: 1\n")),
        own(&format!("{{device: {{name: {long}}}}}"), ""),
        own("{device: {name: eth0}}", "").replace("name: m", &format!("name: {long}")),
    ] {
        let said = errors(&text);
        assert!(said.iter().all(|line| line.lines().count() == 1 && line.len() < 1500), "{said:?}");
        assert!(!said.concat().contains('\u{2028}'));
    }
    let said = errors(&own("{vxlan: {remoteIP: 192.0.2.9, vni: \"1\\n2\"}}", ""));
    assert_eq!(
        said,
        [
            "f.yaml:8:50: TrafficControl/m: spec.targetPort.vxlan.vni: \"1\\n2\" is not a number; allowed: 0 to 16777215"
        ]
    );
}

#[test]
fn all_mistakes_of_a_file_come_in_its_order() {
    let more = "  priority: high\n  returnPort: {device: {name: eth0}}\n";
    let one = own("{vxlan: {remoteIP: 192.0.2.300, vnni: 1}}", more);
    let said = errors(&format!("{one}---\napiVersion: podwire.io/v1alpha1\nkind: Pod\n"));
    let starts = [
        "f.yaml:5:3: TrafficControl/m: spec: action Mirror",
        "f.yaml:8:34: ",
        "f.yaml:8:47: ",
        "f.yaml:9:13: ",
        "f.yaml:13:7: Pod: kind: unknown kind Pod",
    ];
    assert_eq!(said.len(), starts.len(), "{said:?}");
    assert!(said.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{said:?}");
}

/// As many fields and prefixes as a text holds: each is looked up once.
#[test]
fn many_values_are_read_in_little_time() {
    let labels: String = (0..90_000).map(|number| format!("l{number}: v, ")).collect();
    let text = format!(
        "apiVersion: podwire.io/v1alpha1\nkind: Namespace\nmetadata: {{name: a, labels: {{{labels}}}}}\n"
    );
    // The thread's own time, whoever else is busy.
    let thread_time = || -> Duration {
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock").into()
    };
    let begin = thread_time();
    let Object::Namespace(namespace) = accepted(&text) else { panic!("a namespace") };
    assert_eq!(namespace.metadata.labels.len(), 90_000);
    let cidrs = |length: u8| -> String {
        (0..30_000).map(|number| format!("10.{}.{}.0/{length}, ", number / 256, number % 256)).collect()
    };
    let more = format!("  match: [{{peer: {{cidrs: [{}], except: [{}]}}}}]\n", cidrs(25), cidrs(26));
    accepted(&own("{device: {name: eth0}}", &more));
    let took = thread_time() - begin;
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_file_full_of_mistakes_tells_the_first_thousand() {
    assert_eq!(errors(&"--- 1\n".repeat(2000)).len(), 1000);
}

#[test]
fn contradictory_rules_are_refused_with_the_reason() {
    for (rule, reason) in [
        ("{tcpFlags: +syn}", "spec.match[0]: tcpFlags need protocol TCP"),
        ("{protocol: UDP, tcpFlags: +syn}", "spec.match[0]: tcpFlags need protocol TCP"),
        ("{protocol: TCP, icmpType: 8}", "spec.match[0]: icmpType needs protocol ICMP or ICMPv6"),
        ("{protocol: ICMP, icmpCode: 0}", "spec.match[0]: icmpCode needs icmpType"),
        ("{protocol: ICMP, icmpType: 256}", "spec.match[0].icmpType: 256 is out of range"),
        ("{protocol: 256}", "spec.match[0].protocol: 256 is out of range"),
        ("{protocol: TPC}", "spec.match[0].protocol: unknown protocol \"TPC\""),
        ("{etherType: arp, protocol: TCP}", "spec.match[0]: etherType is for what is not IP"),
        ("{etherType: 1535}", "spec.match[0].etherType: 1535 is out of range; allowed: 1536 to 65535"),
        ("{etherType: \"0x10000\"}", "spec.match[0].etherType: 65536 is out of range"),
        ("{ports: []}", "spec.match[0].ports: an empty list"),
        ("{ports: [90-80]}", "spec.match[0].ports[0]: \"90-80\" is no port"),
        ("{ports: [65536]}", "spec.match[0].ports[0]: \"65536\" is no port"),
        ("{peer: {cidrs: []}}", "spec.match[0].peer.cidrs: an empty list"),
        ("{peer: {cidrs: [10.0.0.0/33]}}", "spec.match[0].peer.cidrs[0]: \"10.0.0.0/33\" is not a CIDR"),
        (
            "{src: {cidrs: [10.1.0.0/16], except: [10.0.0.0/8]}}",
            "spec.match[0].src.except[0]: 10.0.0.0/8 lies",
        ),
        (
            "{dst: {cidrs: [10.1.0.0/16], except: [10.1.0.0/16]}}",
            "spec.match[0].dst: except leaves nothing of cidrs",
        ),
        (
            "{src: {cidrs: [10.0.0.0/8]}, dst: {cidrs: [\"fd00::/8\"]}}",
            "spec.match[0]: no packet has addresses",
        ),
        ("{protocol: TCP, tcpFlags: {value: 2, mask: 1}}", "tcpFlags: value has bits that mask leaves out"),
        ("{protocol: TCP, tcpFlags: {value: 0}}", "tcpFlags: mask 0 looks at no flag"),
        ("{protocol: TCP, tcpFlags: +syn-syn}", "tcpFlags: \"+syn-syn\" does not name TCP flags"),
    ] {
        let said = errors(&own("{device: {name: eth0}}", &format!("  match: [{rule}]\n")));
        assert!(said.len() == 1 && said[0].contains(reason), "{rule}: {said:?}");
    }
}

#[test]
fn what_is_printed_again_is_what_was_written() {
    let text = "apiVersion: podwire.io/v1alpha1\nkind: Namespace\nmetadata: {name: a, labels: {v: 007, w: 8, e: null}}\nstatus: {x: 1}\n";
    let objects = parse("f.yaml", text).expect("valid");
    assert_eq!(objects[0].manifest["metadata"]["labels"]["v"], "007");
    assert_eq!(objects[0].object.metadata().labels["e"], "");
    assert_eq!(objects[0].manifest.get("status"), None);
    let again = serde_json::to_string(&objects[0].manifest).expect("JSON");
    assert_eq!(parse("f.json", &again).expect("valid")[0].object, objects[0].object);
}

#[test]
fn one_name_is_one_kind_of_port() {
    let redirect = |name: &str, target: &str, back: &str, priority: i32| {
        own(target, &format!("  returnPort: {back}\n  priority: {priority}\n"))
            .replace("Mirror", "Redirect")
            .replace("name: m}", &format!("name: {name}}}"))
    };
    let device = "{device: {name: eth0}}";
    let first = redirect("b", device, "{internal: {name: p}}", 1);
    let second = redirect("a", device, "{device: {name: p}}", 2);
    let set = ObjectSet::build(parse("f.yaml", &format!("{second}---\n{first}")).expect("valid"))
        .expect("no duplicates");
    assert_eq!(set.refused("b"), None);
    assert_eq!(
        set.refused("a"),
        Some("the kinds of port p of TrafficControl/b and TrafficControl/a differ; b comes first")
    );
    let same = errors(&redirect("c", device, "{internal: {name: eth0}}", 0));
    assert!(same[0].contains("targetPort and returnPort are the same"), "{same:?}");
}

#[test]
fn the_older_policy_comes_first_then_the_name() {
    let made = |name: &str, created: &str, target: &str| {
        own(target, "").replace("{name: m}", &format!("{{name: {name}, creationTimestamp: \"{created}\"}}"))
    };
    let text = [
        made("c", "2026-01-02T00:00:00Z", "{device: {name: e}}"),
        made("b", "2026-01-03T00:00:00Z", "{device: {name: e}}"),
        made("a", "2026-01-03T00:00:00Z", "{device: {name: e}}"),
    ]
    .join("---\n");
    let set = ObjectSet::build(parse("f.yaml", &text).expect("valid")).expect("no duplicates");
    let names: Vec<&str> = set.policies().iter().map(|policy| policy.metadata.name.as_str()).collect();
    assert_eq!(names, ["c", "a", "b"]);
}

#[test]
fn sessions_options_are_read() {
    let options = |target: &str, more: &str| {
        let Object::TrafficControl(policy) = accepted(&own(target, more)) else { panic!("a policy") };
        policy.options
    };
    let device = "{device: {name: eth0}}";
    let tunnel = "{vxlan: {remoteIP: 192.0.2.9}}";
    assert_eq!(options(device, ""), SessionOptions::default());
    assert_eq!(options(device, "  truncate: 128\n").truncate, Some(128));
    let by_packet = Sampling { one_in: 10, by_flow: false };
    assert_eq!(options(device, "  sampling: 10\n").sampling, Some(by_packet));
    let by_flow = options(device, "  sampling: {oneIn: 10, by: flow}\n").sampling;
    assert_eq!(by_flow, Some(Sampling { by_flow: true, ..by_packet }));
    assert_eq!(options(device, "  rateLimit: 10\n").rate_limit, Some(10));
    assert_eq!(options(device, "  oversize: drop\n").oversize, Oversize::Drop);
    assert_eq!(options(tunnel, "  engine: segment\n").engine, Engine::Segment);
    assert_eq!(options(tunnel, "  truncate: 64\n  engine: snap\n").engine, Engine::Snap);
}

#[test]
fn what_a_policy_cannot_have_is_refused_by_name() {
    for (target, more, why) in [
        ("{device: {name: e}}", "  engine: segment\n", "engine segment is for tunnels"),
        ("{vxlan: {remoteIP: 192.0.2.9}}", "  engine: snap\n", "needs truncate, 256 bytes at most"),
        ("{device: {name: e}}", "  failurePolicy: Open\n", "failurePolicy belongs to action Redirect"),
        ("{device: {name: e}}", "  healthCheck: {timeout: 2s}\n", "healthCheck belongs to action Redirect"),
        ("{device: {name: e}}", "  sampling: {by: flow}\n", "sampling.oneIn: required, but missing"),
        (
            "{device: {name: e}}",
            "  stateful: true\n  match: [{protocol: TCP, tcpFlags: +syn}]\n",
            "whole connections",
        ),
    ] {
        let said = errors(&own(target, more)).concat();
        assert!(said.contains(why), "{more}: {said}");
    }
    let said = errors(&redirect("  returnPort: {device: {name: eth1}}\n  truncate: 64\n")).concat();
    assert!(said.contains("truncate belongs to action Mirror"), "{said}");
}

#[test]
fn a_health_check_has_a_time() {
    let checked = |text: &str| {
        redirect(&format!("  returnPort: {{device: {{name: eth1}}}}\n  healthCheck: {{timeout: {text}}}\n"))
    };
    for (text, milliseconds) in [("500ms", 500), ("2s", 2000), ("3", 3000), ("1m", 60_000)] {
        let Object::TrafficControl(policy) = accepted(&checked(text)) else { panic!("a policy") };
        assert_eq!(policy.health_check, Some(Duration::from_millis(milliseconds)), "{text}");
    }
    for (text, why) in
        [("10ms", "out of range"), ("2h", "not a time"), ("-1s", "not a time"), ("2d", "not a time")]
    {
        let said = errors(&checked(text)).concat();
        assert!(said.contains(why) && said.contains("200ms to 3600s"), "{text}: {said}");
    }
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
