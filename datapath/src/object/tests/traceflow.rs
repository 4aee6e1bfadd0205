//! Traceflow: what is read, what is filled in, and every refusal.

use std::time::Duration;

use proptest::prelude::*;

use super::{accepted, errors};
use crate::compile::TcpFlags;
use crate::object::{
    ANTREA_API_VERSION, ANTREA_TRACEFLOW_API_VERSION, API_VERSION, Connection, NamespacedName, Object,
    ObjectSet, TraceDestination, TraceFamily, TraceIcmp, TracePorts, TraceSource, TraceTransport, Traceflow,
    parse,
};

fn text(api: &str, spec: &str) -> String {
    format!("apiVersion: {api}\nkind: Traceflow\nmetadata: {{name: t}}\nspec: {{{spec}}}\n")
}

fn read(api: &str, spec: &str) -> Traceflow {
    let Object::Traceflow(traceflow) = accepted(&text(api, spec)) else { panic!("a Traceflow") };
    *traceflow
}

fn own(spec: &str) -> Traceflow {
    read(API_VERSION, spec)
}

/// From a pod to an address, with more of `spec`.
fn made(more: &str) -> Traceflow {
    own(&format!("source: {{pod: a}}, destination: {{ip: 192.0.2.1}}, {more}"))
}

fn live(more: &str) -> Traceflow {
    own(&format!("source: {{pod: a}}, liveTraffic: true, {more}"))
}

fn named(namespace: &str, name: &str) -> NamespacedName {
    NamespacedName { namespace: namespace.into(), name: name.into() }
}

#[test]
fn every_field_of_a_packet_that_is_made_arrives() {
    let read = own(
        "source: {namespace: x, pod: a}, destination: {namespace: y, service: web}, timeout: 300, deliver: true, replies: true, capture: 128, \
         packet: {srcIP: \"fd00::1\", dstIP: \"fd00::2\", payloadLength: 100, ipv6Header: {nextHeader: 6, hopLimit: 3}, \
         transportHeader: {tcp: {srcPort: 1000, dstPort: 443, flags: 0x12}}}",
    );
    assert_eq!(read.source, TraceSource::Pod(named("x", "a")));
    assert_eq!(read.destination, TraceDestination::Service(named("y", "web")));
    assert_eq!((read.timeout, read.capture), (Duration::from_secs(300), 128));
    assert!(read.deliver && read.replies && !read.live && !read.dropped_only);
    let packet = read.packet;
    assert_eq!((packet.family, packet.protocol, packet.ttl), (Some(TraceFamily::V6), Some(6), Some(3)));
    assert_eq!(packet.source_ip, Some("fd00::1".parse().expect("an address")));
    assert_eq!(packet.destination_ip, Some("fd00::2".parse().expect("an address")));
    assert_eq!((packet.length, packet.payload_length, packet.ip_flags), (None, Some(100), None));
    let ports = TracePorts { source: Some(1000), destination: Some(443) };
    let flags = Some(TcpFlags { value: 0x12, mask: 255 });
    assert_eq!(packet.transport, Some(TraceTransport::Tcp { ports, flags }));
}

#[test]
fn every_field_of_a_live_trace_arrives() {
    let read = own(
        "source: {ip: 192.0.2.7}, destination: {pod: b}, liveTraffic: true, droppedOnly: true, count: 1000, sampling: 10, connection: new, \
         replies: true, packet: {length: 60, ipHeader: {ttl: 64, flags: 2}, transportHeader: {icmp: {type: echo-reply, code: 0, id: 1, sequence: 2}}}",
    );
    assert_eq!(read.source, TraceSource::Ip("192.0.2.7".parse().expect("an address")));
    assert_eq!(read.destination, TraceDestination::Pod(named("default", "b")));
    assert_eq!((read.count, read.sampling, read.connection), (1000, 10, Connection::New));
    assert!(read.live && read.dropped_only && read.replies);
    let packet = read.packet;
    assert_eq!((packet.family, packet.protocol), (Some(TraceFamily::V4), Some(1)));
    assert_eq!((packet.length, packet.ttl, packet.ip_flags), (Some(60), Some(64), Some(2)));
    let icmp = TraceIcmp { kind: Some(0), code: Some(0), id: Some(1), sequence: Some(2) };
    assert_eq!(packet.transport, Some(TraceTransport::Icmp(icmp)));
}

#[test]
fn what_is_not_written_has_a_default_when_the_packet_is_made() {
    let read = made("timeout: 1");
    assert_eq!((read.count, read.sampling, read.connection, read.capture), (1, 1, Connection::Any, 0));
    assert_eq!(own("source: {pod: a}, destination: {pod: b}").timeout, Duration::from_secs(20));
    let packet = read.packet;
    assert_eq!((packet.family, packet.protocol, packet.ttl), (Some(TraceFamily::V4), Some(1), Some(64)));
    assert_eq!(packet.transport, Some(TraceTransport::Icmp(TraceIcmp::default())));
    let syn = Some(TcpFlags { value: 2, mask: 255 });
    let tcp =
        |destination| TraceTransport::Tcp { ports: TracePorts { source: None, destination }, flags: syn };
    let packet = made("packet: {transportHeader: {tcp: {srcPort: 0, dstPort: 80}}}").packet;
    assert_eq!((packet.protocol, packet.transport), (Some(6), Some(tcp(Some(80)))), "0 is not written");
    let packet = made("packet: {ipHeader: {protocol: 6}}").packet;
    assert_eq!(packet.transport, Some(tcp(None)));
    for (spec, family, protocol) in [
        ("destination: {pod: b}, packet: {ipv6Header: {}}", TraceFamily::V6, 58),
        ("destination: {ip: \"2001:db8::1\"}", TraceFamily::V6, 58),
        ("destination: {pod: b}, packet: {ipv6Header: {}, transportHeader: {icmp: {}}}", TraceFamily::V6, 58),
        ("destination: {pod: b}, packet: {transportHeader: {udp: {dstPort: 53}}}", TraceFamily::V4, 17),
        ("destination: {pod: b}, packet: {transportHeader: {sctp: {dstPort: 53}}}", TraceFamily::V4, 132),
        ("destination: {pod: b}, packet: {ipHeader: {}, transportHeader: {}}", TraceFamily::V4, 1),
    ] {
        let packet = own(&format!("source: {{pod: a}}, {spec}")).packet;
        assert_eq!((packet.family, packet.protocol), (Some(family), Some(protocol)), "{spec}");
    }
    let names_follow_the_family = "source: {pod: a}, destination: {ip: \"2001:db8::1\"}, packet: {transportHeader: {icmp: {type: echo-request}}}";
    let icmp = TraceIcmp { kind: Some(128), ..TraceIcmp::default() };
    assert_eq!(own(names_follow_the_family).packet.transport, Some(TraceTransport::Icmp(icmp)));
}

#[test]
fn what_is_not_written_matches_anything_in_live_traffic() {
    let packet = live("timeout: 5").packet;
    assert_eq!(packet, Default::default());
    let packet = live("packet: {transportHeader: {tcp: {flags: +syn-ack}}}").packet;
    let flags = Some(TcpFlags { value: 2, mask: 0x12 });
    assert_eq!((packet.family, packet.protocol, packet.ttl), (None, Some(6), None));
    assert_eq!(packet.transport, Some(TraceTransport::Tcp { ports: TracePorts::default(), flags }));
    let packet = live("packet: {ipHeader: {protocol: 47}}").packet;
    assert_eq!((packet.family, packet.protocol, packet.transport), (Some(TraceFamily::V4), Some(47), None));
    assert_eq!(
        own("destination: {pod: b}, liveTraffic: true, droppedOnly: true").source,
        TraceSource::Any,
        "one end is enough"
    );
}

#[test]
fn antreas_manifests_are_read_as_they_are() {
    let manifest = "apiVersion: crd.antrea.io/v1beta1\nkind: Traceflow\nmetadata:\n  name: tf-test\nspec:\n  source:\n    namespace: default\n    \
                    pod: tcp-sts-0\n  destination:\n    namespace: default\n    pod: tcp-sts-2\n  packet:\n    ipHeader:\n      protocol: 6\n    \
                    transportHeader:\n      tcp:\n        srcPort: 10000\n        dstPort: 80\n        flags: 2\n  liveTraffic: false\n  \
                    droppedOnly: false\n  timeout: 20\nstatus: {phase: Succeeded}\n";
    let Object::Traceflow(read) = accepted(manifest) else { panic!("a Traceflow") };
    assert_eq!(read.packet.protocol, Some(6));
    let live = read_antrea_live();
    assert!(live.live && live.dropped_only);
}

fn read_antrea_live() -> Traceflow {
    read(
        ANTREA_TRACEFLOW_API_VERSION,
        "liveTraffic: true, droppedOnly: true, source: {ip: 192.0.2.1}, destination: {namespace: d, pod: p}, packet: {transportHeader: {udp: {dstPort: 53}}}",
    )
}

const SPEC: &str = "allowed: liveTraffic, source, destination, packet, droppedOnly, timeout";

#[test]
fn mistakes_are_one_line_with_what_is_right() {
    let own_spec = format!("{SPEC}, deliver, count, replies, sampling, connection, capture");
    let ends = "source: {pod: a}, destination: {pod: b}";
    let four = "source: {pod: a}, destination: {ip: 192.0.2.1}";
    for (spec, expected) in [
        (
            "destination: {pod: b}".to_owned(),
            "spec: source.pod is required: without liveTraffic the packet starts at a pod".to_owned(),
        ),
        (
            "source: {ip: 192.0.2.1}, destination: {pod: b}".into(),
            "spec: source.ip 192.0.2.1 is for live traffic; a packet that is made starts at source.pod and may have packet.srcIP".into(),
        ),
        (
            "source: {pod: a}".into(),
            "spec: destination.pod, destination.service or destination.ip is required: without liveTraffic a packet is sent there".into(),
        ),
        (
            "liveTraffic: true".into(),
            "spec: source.pod or destination.pod is required: packets are seen at pods".into(),
        ),
        (
            "liveTraffic: true, source: {ip: 192.0.2.1}, destination: {service: s}".into(),
            "spec: source.pod or destination.pod is required: packets are seen at pods".into(),
        ),
        (
            format!("{four}, packet: {{ipv6Header: {{}}}}"),
            "spec: address families differ: packet.ipv6Header is IPv6, destination.ip 192.0.2.1 is IPv4".into(),
        ),
        (
            "source: {pod: a}, destination: {ip: \"2001:db8::1\"}, packet: {srcIP: 192.0.2.1}".into(),
            "spec: address families differ: packet.srcIP 192.0.2.1 is IPv4, destination.ip 2001:db8::1 is IPv6".into(),
        ),
        (
            format!("{four}, packet: {{dstIP: 192.0.2.2}}"),
            "spec: destination.ip and packet.dstIP are different addresses".into(),
        ),
        (
            "source: {pod: a, ip: 192.0.2.1}, destination: {pod: b}".into(),
            "spec.source: pod and ip are given; an end is one of them".into(),
        ),
        (
            "source: {pod: a}, destination: {pod: b, service: s, ip: 192.0.2.1}".into(),
            "spec.destination: pod and service and ip are given; an end is one of them".into(),
        ),
        (
            "source: {pod: a}, destination: {namespace: n, ip: 192.0.2.1}".into(),
            "spec.destination: namespace is that of pod or service, which is not given".into(),
        ),
        (
            format!("{ends}, packet: {{ipHeader: {{protocol: 17}}, transportHeader: {{tcp: {{dstPort: 80}}}}}}"),
            "spec: packet: protocol 17 has no transportHeader.tcp, whose protocol is 6".into(),
        ),
        (
            format!("{ends}, packet: {{ipv6Header: {{nextHeader: 1}}}}"),
            "spec: packet: protocol 1 is IPv4's ICMP, and the packet is IPv6; allowed: 58".into(),
        ),
        (
            format!("{ends}, packet: {{ipHeader: {{protocol: 58}}}}"),
            "spec: packet: protocol 58 is IPv6's ICMP, and the packet is IPv4; allowed: 1".into(),
        ),
        (
            format!("{ends}, packet: {{ipHeader: {{protocol: 47}}}}"),
            "spec: packet: protocol 47 is for live traffic; a packet that is made is TCP (6), UDP (17), ICMP (1), ICMPv6 (58) or SCTP (132)".into(),
        ),
        (
            format!("{ends}, packet: {{ipHeader: {{}}, ipv6Header: {{}}}}"),
            "spec.packet: ipHeader and ipv6Header are given; a packet has one of them".into(),
        ),
        (
            format!("{ends}, packet: {{transportHeader: {{tcp: {{}}, udp: {{}}}}}}"),
            "spec.packet.transportHeader: tcp and udp are given; a packet has one of them".into(),
        ),
        (
            format!("{ends}, packet: {{length: 60, payloadLength: 1}}"),
            "spec.packet: length and payloadLength are two ways to say one thing; one of both is enough".into(),
        ),
        (
            format!("{ends}, packet: {{transportHeader: {{icmp: {{code: 1}}}}}}"),
            "spec.packet.transportHeader.icmp: code needs type".into(),
        ),
        (
            format!("{ends}, liveTraffic: true, packet: {{payloadLength: 1}}"),
            "spec.packet: payloadLength is for a packet that is made; length matches live traffic".into(),
        ),
        (
            format!("{ends}, liveTraffic: true, deliver: true"),
            "spec: deliver is for a packet that is made; live traffic is delivered in any case".into(),
        ),
        (format!("{ends}, droppedOnly: true"), "spec: droppedOnly is for live traffic (liveTraffic: true)".into()),
        (format!("{ends}, count: 2"), "spec: count is for live traffic (liveTraffic: true)".into()),
        (format!("{ends}, sampling: 2"), "spec: sampling is for live traffic (liveTraffic: true)".into()),
        (format!("{ends}, connection: new"), "spec: connection is for live traffic (liveTraffic: true)".into()),
        (
            format!("{ends}, replies: true"),
            "spec: replies needs deliver: what nobody receives is not answered".into(),
        ),
        (format!("{ends}, timeout: 0"), "spec.timeout: 0 is out of range; allowed: 1 to 300".into()),
        (format!("{ends}, timeout: 301"), "spec.timeout: 301 is out of range; allowed: 1 to 300".into()),
        (format!("{ends}, count: 1001"), "spec.count: 1001 is out of range; allowed: 1 to 1000".into()),
        (format!("{ends}, capture: 65536"), "spec.capture: 65536 is out of range; allowed: 0 to 65535".into()),
        (
            format!("{ends}, conection: new"),
            format!("spec.conection: unknown field; did you mean \"connection\"? {own_spec}"),
        ),
        (
            format!("{ends}, connection: old"),
            "spec.connection: unknown value \"old\"; allowed: new, any".into(),
        ),
        (
            format!("{ends}, packet: {{ipHeader: {{ttl: 256}}}}"),
            "spec.packet.ipHeader.ttl: 256 is out of range; allowed: 1 to 255".into(),
        ),
        (
            format!("{ends}, packet: {{ipHeader: {{hopLimit: 2}}}}"),
            "spec.packet.ipHeader.hopLimit: unknown field; allowed: protocol, ttl, flags".into(),
        ),
        (
            format!("{ends}, packet: {{transportHeader: {{tcp: {{dstPort: 65536}}}}}}"),
            "spec.packet.transportHeader.tcp.dstPort: 65536 is out of range; allowed: 0 to 65535".into(),
        ),
        (
            format!("{ends}, packet: {{transportHeader: {{tcp: {{flags: syn}}}}}}"),
            "spec.packet.transportHeader.tcp.flags: \"syn\" does not name TCP flags; allowed: +NAME and -NAME of fin, syn, rst, psh, ack, urg, ece, cwr, each once, like \"+syn-ack\"".into(),
        ),
        (
            format!("{ends}, packet: {{transportHeader: {{tcpp: {{}}}}}}"),
            "spec.packet.transportHeader.tcpp: unknown field; did you mean \"tcp\"? allowed: tcp, udp, icmp, sctp".into(),
        ),
        (
            "source: {pod: A}, destination: {pod: b}".into(),
            "spec.source.pod: \"A\" is not a name; allowed: 1 to 253 lower-case letters, digits, '-', '.', alphanumeric at the ends of each part".into(),
        ),
        (
            "source: {pod: a}, destination: {ip: 192.0.2.256}".into(),
            "spec.destination.ip: \"192.0.2.256\" is not an address that one host has, IPv4 or IPv6".into(),
        ),
    ] {
        let said = errors(&text(API_VERSION, &spec));
        assert!(said.len() == 1 && said[0].ends_with(&format!(": Traceflow/t: {expected}")), "{spec}: {said:?}");
    }
}

/// The page has them word by word, with other fields and addresses in some.
#[test]
fn the_page_has_the_refusals() {
    let page = include_str!("../../../../docs/traceflow.md");
    let (_, table) = page.split_once("### Refusals").expect("a part on refusals");
    for spec in [
        "destination: {pod: b}",
        "source: {pod: a}",
        "liveTraffic: true",
        "source: {pod: a, ip: 192.0.2.1}, destination: {pod: b}",
        "source: {pod: a}, destination: {namespace: n, ip: 192.0.2.1}",
        "source: {pod: a}, destination: {ip: 192.0.2.1}, packet: {dstIP: 192.0.2.2}",
        "source: {pod: a}, destination: {pod: b}, packet: {ipHeader: {}, ipv6Header: {}}",
        "source: {pod: a}, destination: {pod: b}, packet: {transportHeader: {tcp: {}, udp: {}}}",
        "source: {pod: a}, destination: {pod: b}, packet: {ipHeader: {protocol: 17}, transportHeader: {tcp: {}}}",
        "source: {pod: a}, destination: {pod: b}, packet: {ipv6Header: {nextHeader: 1}}",
        "source: {pod: a}, destination: {pod: b}, packet: {ipHeader: {protocol: 47}}",
        "source: {pod: a}, destination: {pod: b}, packet: {length: 60, payloadLength: 1}",
        "source: {pod: a}, liveTraffic: true, packet: {payloadLength: 1}",
        "source: {pod: a}, destination: {pod: b}, packet: {transportHeader: {icmp: {code: 1}}}",
        "source: {pod: a}, liveTraffic: true, deliver: true",
        "source: {pod: a}, destination: {pod: b}, replies: true",
    ] {
        let said = errors(&text(API_VERSION, spec)).concat();
        let (_, line) = said.split_once("Traceflow/t: ").expect("an object");
        let (field, words) = line.split_once(": ").expect("a field");
        assert!(field.starts_with("spec") && table.contains(&format!("`{words}`")), "{spec}: {line}");
    }
}

#[test]
fn what_is_podwires_own_is_no_field_of_antreas() {
    const HINT: &str = "unknown field of crd.antrea.io; fields beyond it are podwire.io/v1alpha1's";
    for (more, field) in [
        ("deliver: true", "spec.deliver"),
        ("count: 2", "spec.count"),
        ("replies: true", "spec.replies"),
        ("sampling: 2", "spec.sampling"),
        ("connection: any", "spec.connection"),
        ("capture: 1", "spec.capture"),
        ("packet: {payloadLength: 1}", "spec.packet.payloadLength"),
        ("packet: {transportHeader: {sctp: {}}}", "spec.packet.transportHeader.sctp"),
        ("packet: {transportHeader: {icmp: {type: 8}}}", "spec.packet.transportHeader.icmp.type"),
        ("packet: {transportHeader: {icmp: {code: 0}}}", "spec.packet.transportHeader.icmp.code"),
    ] {
        let spec = format!("source: {{pod: a}}, destination: {{pod: b}}, {more}");
        let said = errors(&text(ANTREA_TRACEFLOW_API_VERSION, &spec));
        assert!(said[0].contains(&format!("{field}: {HINT}")), "{more}: {said:?}");
    }
    let said = errors(&text(ANTREA_API_VERSION, "source: {pod: a}, destination: {pod: b}"));
    assert!(said[0].contains("crd.antrea.io/v1alpha2 is not an API version of Traceflow"), "{said:?}");
}

#[test]
fn a_set_has_its_traces() {
    let file = [text(API_VERSION, "source: {pod: a}, destination: {pod: b}")];
    let set = ObjectSet::build(parse("f.yaml", &file.join("---\n")).expect("valid")).expect("no duplicates");
    let names: Vec<&str> = set.traceflows().map(|trace| trace.metadata.name.as_str()).collect();
    assert_eq!(names, ["t"]);
}

proptest! {
    /// A valid object with a piece replaced.
    #[test]
    fn nothing_panics_on_nearly_right_text(at in 0usize..330, piece in "[ -~\n]{0,12}") {
        let mut text = text(
            API_VERSION,
            "source: {namespace: x, pod: a}, destination: {ip: 192.0.2.1}, liveTraffic: true, count: 3, packet: {ipHeader: {ttl: 3}, transportHeader: {tcp: {dstPort: 443, flags: +syn}}}",
        );
        let at = at.min(text.len());
        let end = (at + piece.len()).min(text.len());
        text.replace_range(at..end, &piece);
        let _ = parse("f.yaml", &text);
    }
}
