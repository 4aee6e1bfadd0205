//! Flows: what they mean, every mistake, and that what is printed reads as the same.

use podwire_datapath::compile::TcpFlags;
use proptest::prelude::*;
use serde_json::json;

use super::{Flow, Protocol};

fn flow(text: &str) -> Flow {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn antctls_flows_are_read() {
    for (text, packet) in [
        ("", json!({})),
        ("tcp,tcp_dst=80", json!({"transportHeader": {"tcp": {"dstPort": 80}}})),
        (
            "tcp, tcp_src = 1000 , tcp_dst=80, tcp_flags=2",
            json!({"transportHeader": {"tcp": {"srcPort": 1000, "dstPort": 80, "flags": 2}}}),
        ),
        (
            "udp,udp_src=1234,udp_dst=53",
            json!({"transportHeader": {"udp": {"srcPort": 1234, "dstPort": 53}}}),
        ),
        (
            "ipv6,tcp,tcp_dst=0x50",
            json!({"ipv6Header": {"nextHeader": 6}, "transportHeader": {"tcp": {"dstPort": 80}}}),
        ),
        ("icmp", json!({"ipHeader": {"protocol": 1}, "transportHeader": {"icmp": {}}})),
        ("icmpv6", json!({"ipv6Header": {"nextHeader": 58}, "transportHeader": {"icmp": {}}})),
        ("ipv6", json!({"ipv6Header": {}})),
        ("sctp_dst=3868", json!({"transportHeader": {"sctp": {"dstPort": 3868}}})),
        (
            "ip tcp tcp_flags=+syn-ack nw_ttl=3",
            json!({"ipHeader": {"protocol": 6, "ttl": 3}, "transportHeader": {"tcp": {"flags": {"value": 2, "mask": 18}}}}),
        ),
        (
            "icmp,icmp_type=echo-reply,icmp_code=0,icmp_id=7,icmp_seq=9",
            json!({"ipHeader": {"protocol": 1}, "transportHeader": {"icmp": {"type": 0, "code": 0, "id": 7, "sequence": 9}}}),
        ),
        (
            "ipv6,icmp_type=echo-request",
            json!({"ipv6Header": {"nextHeader": 58}, "transportHeader": {"icmp": {"type": 128}}}),
        ),
        (
            "icmpv6_type=packet-too-big",
            json!({"ipv6Header": {"nextHeader": 58}, "transportHeader": {"icmp": {"type": 2}}}),
        ),
        ("udp6", json!({"ipv6Header": {"nextHeader": 17}, "transportHeader": {"udp": {}}})),
    ] {
        assert_eq!(flow(text).packet(), packet, "{text}");
    }
}

#[test]
fn flags_have_several_forms() {
    for (text, value, mask) in [
        ("18", 0x12, 255),
        ("0x12", 0x12, 255),
        ("syn|ack", 0x12, 255),
        ("SYN", 2, 255),
        ("0x02/0x12", 2, 0x12),
        ("+syn-ack", 2, 0x12),
        ("0", 0, 255),
    ] {
        let read = flow(&format!("tcp_flags={text}"));
        assert_eq!(read.tcp_flags, Some(TcpFlags { value, mask }), "{text}");
        assert_eq!(read.protocol, Some(Protocol::Tcp));
    }
}

#[test]
fn every_mistake_has_its_column_and_what_is_allowed() {
    const ALL: &str = "allowed: ip, ipv6, icmp, icmpv6, tcp, udp, sctp, tcp_src=, tcp_dst=, tcp_flags=, udp_src=, udp_dst=, sctp_src=, \
                       sctp_dst=, icmp_type=, icmp_code=, icmp_id=, icmp_seq=, icmpv6_type=, icmpv6_code=, icmpv6_id=, icmpv6_seq=, nw_ttl=";
    const FLAGS: &str = "allowed: 0 to 255, VALUE/MASK, or fin, syn, rst, psh, ack, urg, ece, cwr as syn|ack or +syn-ack, each once";
    for (text, said) in [
        ("tcpp", format!("column 1: unknown word \"tcpp\"; did you mean \"tcp\"? {ALL}")),
        ("tcp,tcp_dts=80", format!("column 5: unknown word \"tcp_dts\"; did you mean \"tcp_dst\"? {ALL}")),
        ("tcp, 🦀", format!("column 6: unknown word \"🦀\"; {ALL}")),
        ("tcp,udp", "column 5: udp beside tcp; a packet has one protocol".into()),
        ("tcp,tcp", "column 5: tcp stands here twice".into()),
        ("tcp_dst=1,tcp_dst=2", "column 11: tcp_dst stands here twice".into()),
        ("udp,tcp_dst=80", "column 5: tcp_dst belongs to tcp, and the flow is udp".into()),
        ("tcp_dst=80,udp_dst=53", "column 12: udp_dst belongs to udp, and the flow is tcp".into()),
        ("ip,ipv6", "column 4: ipv6 is IPv6's, and the flow is IPv4".into()),
        ("ipv6,icmp", "column 6: icmp is IPv4's, and the flow is IPv6; did you mean \"icmpv6\"?".into()),
        ("ip,icmpv6", "column 4: icmpv6 is IPv6's, and the flow is IPv4; did you mean \"icmp\"?".into()),
        ("ip,icmpv6_type=1", "column 4: icmpv6_type is IPv6's, and the flow is IPv4".into()),
        ("tcp_dst=65536", "column 9: tcp_dst: 65536 is out of range; allowed: 1 to 65535".into()),
        ("tcp_dst=99999999999", "column 9: tcp_dst: 99999999999 is out of range; allowed: 1 to 65535".into()),
        ("tcp_dst=0", "column 9: tcp_dst: 0 is out of range; allowed: 1 to 65535".into()),
        ("tcp_dst = http", "column 11: tcp_dst: \"http\" is not a number; allowed: 1 to 65535".into()),
        ("tcp_dst=+80", "column 9: tcp_dst: \"+80\" is not a number; allowed: 1 to 65535".into()),
        ("tcp_dst=", "column 9: a value is expected after \"tcp_dst=\"".into()),
        ("tcp_dst,tcp", "column 1: tcp_dst needs a value: tcp_dst=VALUE".into()),
        ("tcp=6", "column 5: tcp has no value".into()),
        ("tcp,,tcp_dst=80", "column 5: a word is expected before the comma".into()),
        ("tcp,", "column 5: a word is expected after the comma".into()),
        (",", "column 1: a word is expected before the comma".into()),
        ("=80", "column 1: a word is expected before \"=\"".into()),
        ("nw_ttl=0", "column 8: nw_ttl: 0 is out of range; allowed: 1 to 255".into()),
        ("icmp_code=0", "column 1: icmp_code needs icmp_type".into()),
        ("tcp_flags=syn+ack", format!("column 11: tcp_flags: \"syn+ack\" does not name TCP flags; {FLAGS}")),
        ("tcp_flags=256", format!("column 11: tcp_flags: \"256\" does not name TCP flags; {FLAGS}")),
        ("tcp_flags=2/1", format!("column 11: tcp_flags: \"2/1\" does not name TCP flags; {FLAGS}")),
        ("tcp_flags=syn|syn", format!("column 11: tcp_flags: \"syn|syn\" does not name TCP flags; {FLAGS}")),
        (
            "icmp_type=echo",
            "column 11: icmp_type: unknown type \"echo\"; did you mean \"echo-reply\"? allowed: 0 to 255, echo-reply, destination-unreachable, \
             redirect, echo-request, time-exceeded, parameter-problem"
                .into(),
        ),
    ] {
        let error = text.parse::<Flow>().expect_err(text);
        assert_eq!(error.to_string(), said, "{text}");
    }
}

fn flows() -> impl Strategy<Value = Flow> {
    let option = proptest::option::of::<BoxedStrategy<u16>>;
    let ports = (option((1..=u16::MAX).boxed()), option((1..=u16::MAX).boxed()));
    let flags = proptest::option::of((any::<u8>(), 1..=255u8));
    let icmp = proptest::option::of((any::<u8>(), proptest::option::of(any::<u8>())));
    let echo = (option(any::<u16>().boxed()), option(any::<u16>().boxed()));
    let kind = (proptest::option::of(any::<bool>()), 0..6usize, proptest::option::of(1..=255u8));
    (kind, ports, flags, icmp, echo).prop_map(|((v6, kind, ttl), ports, flags, icmp, echo)| {
        let protocol = Protocol::ALL.get(kind).copied();
        let mut flow = Flow { v6, protocol, ttl, ..Flow::default() };
        match protocol {
            Some(Protocol::Icmp | Protocol::Icmpv6) => {
                flow.v6 = Some(protocol == Some(Protocol::Icmpv6));
                flow.icmp_type = icmp.map(|(kind, _)| kind);
                flow.icmp_code = icmp.and_then(|(_, code)| code);
                (flow.icmp_id, flow.icmp_seq) = echo;
            }
            Some(_) => (flow.source_port, flow.destination_port) = ports,
            None => {}
        }
        if protocol == Some(Protocol::Tcp) {
            flow.tcp_flags = flags.map(|(value, mask)| TcpFlags { value: value & mask, mask });
        }
        flow
    })
}

proptest! {
    #[test]
    fn what_is_printed_reads_as_the_same(flow in flows()) {
        prop_assert_eq!(flow.to_string().parse::<Flow>(), Ok(flow));
    }

    #[test]
    fn nothing_panics(text in "[ -~é]{0,40}") {
        let _ = text.parse::<Flow>();
    }

    #[test]
    fn nothing_panics_on_nearly_right_text(words in proptest::collection::vec("(tcp|ipv6|icmp|tcp_dst|=|,|0x|80| |icmp_type|\\+syn)", 0..12)) {
        let text = words.concat();
        if let Ok(flow) = text.parse::<Flow>() {
            prop_assert_eq!(flow.to_string().parse::<Flow>(), Ok(flow));
        }
    }
}
