//! What a trace shows. In: stories, captured packets. Out: `status.results` and `status.capturedPacket`, in the words
//! that users of Antrea know.

use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use etherparse::{IpNumber, LaxNetSlice, LaxSlicedPacket, TransportSlice};
use podwire_datapath::core::abi::{Action, Component};
use podwire_datapath::traceflow::{PacketStory, Story};
use podwire_datapath::{Capture, Flow, Observation};
use serde_json::{Map, Value, json};

use crate::daemon::observe::reason;

/// One node's result, `None` while it has seen nothing.
pub fn result(node: &str, role: &str, story: &Story, flow: Option<Flow>, many: bool) -> Option<Value> {
    let packets = story.packets();
    let first = packets.first()?.observations.first()?;
    let mut observations = Vec::new();
    let mut number = [0; 2];
    for packet in &packets {
        let number = &mut number[usize::from(packet.reply)];
        *number += 1;
        let about = About { node, flow, number: many.then_some(*number) };
        observations.extend(told(packet, &about));
    }
    Some(json!({
        "node": node,
        "role": role,
        "timestamp": first.time_ns / 1_000_000_000,
        "observations": observations,
    }))
}

/// How many packets end in a result.
pub fn ends(result: &Value) -> usize {
    let ended = |seen: &&Value| {
        matches!(seen["action"].as_str(), Some("Delivered" | "ForwardedOutOfNetwork" | "Dropped"))
    };
    result["observations"].as_array().into_iter().flatten().filter(ended).count()
}

struct About<'a> {
    node: &'a str,
    /// The flow as it was sent.
    flow: Option<Flow>,
    /// Number of the packet, where there may be several.
    number: Option<u32>,
}

fn told(packet: &PacketStory, about: &About) -> Vec<Value> {
    // A live packet's flow is that of its first observation.
    let first = packet.observations.first();
    let sent = match about.flow {
        Some(flow) if packet.reply => Some((flow.destination, flow.source)),
        Some(flow) => Some((flow.source, flow.destination)),
        None => first.and_then(|seen| Some((seen.source?, seen.destination?))),
    };
    let mut before: Option<u64> = None;
    let mut told = Vec::new();
    for seen in &packet.observations {
        let latency = before.map(|before| seen.time_ns.saturating_sub(before));
        before = Some(seen.time_ns);
        let mut value = observation(seen, about, sent, latency);
        if packet.reply
            && let Some(fields) = value.as_object_mut()
        {
            fields.insert("direction".into(), "reply".into());
        }
        told.push(value);
    }
    told
}

fn observation(
    seen: &Observation,
    about: &About,
    sent: Option<(IpAddr, IpAddr)>,
    latency: Option<u64>,
) -> Value {
    let egress = seen.component == Component::Egress;
    let guard = seen.component == Component::SpoofGuard;
    let output = seen.component == Component::Forwarding && seen.action != Action::Received;
    let changed =
        |now: Option<IpAddr>, then: Option<IpAddr>| now.filter(|now| then.is_some_and(|t| t != *now));
    let time = humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(seen.time_ns));
    let mac = seen.destination_mac.map(|byte| format!("{byte:02x}")).join(":");
    let fields = json!({
        "component": seen.component.as_str(),
        "componentInfo": output.then_some("Output"),
        "action": seen.action.as_str(),
        "reason": reason(seen),
        "pod": seen.endpoint,
        "srcPodIP": seen.source.filter(|_| guard),
        // Of what the kernel's own stack dropped it is not known.
        "dstMAC": (seen.destination_mac != [0; 6]).then_some(mac),
        "ttl": (seen.ttl != 0).then_some(seen.ttl),
        "policy": seen.policy.as_ref().filter(|_| !egress),
        "egress": seen.policy.as_ref().filter(|_| egress),
        "egressIP": seen.egress_ip,
        "egressNode": match &seen.egress_node {
            None if egress && seen.egress_ip.is_some() => Some(about.node.to_owned()),
            other => other.clone(),
        },
        "translatedSrcIP": changed(seen.source, sent.map(|(source, _)| source)),
        "translatedDstIP": changed(seen.destination, sent.map(|(_, destination)| destination)),
        "tunnelDstIP": seen.tunnel_destination,
        "time": time.to_string(),
        "latencyNs": latency,
        "packet": about.number,
    });
    without_nulls(fields)
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (name, without_nulls(value))).collect::<Map<_, _>>())
        }
        other => other,
    }
}

/// A packet as it was sent, or its beginning. `data`: how many of its bytes.
pub fn captured(frame: &[u8], data: u32) -> Option<Value> {
    let sliced = LaxSlicedPacket::from_ethernet(frame).ok()?;
    let net = sliced.net?;
    let sctp = net.ip_payload_ref().filter(|ip| ip.ip_number == IpNumber::SCTP).map(|ip| ip.payload);
    let mut fields = match net {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            let flags = u8::from(header.dont_fragment()) << 1 | u8::from(header.more_fragments());
            json!({
                "srcIP": header.source_addr(),
                "dstIP": header.destination_addr(),
                "length": header.total_len(),
                "ipHeader": {"protocol": header.protocol().0, "ttl": header.ttl(), "flags": flags},
            })
        }
        LaxNetSlice::Ipv6(ip) => {
            let header = ip.header();
            json!({
                "srcIP": header.source_addr(),
                "dstIP": header.destination_addr(),
                "length": header.payload_length(),
                "ipv6Header": {"nextHeader": header.next_header().0, "hopLimit": header.hop_limit()},
            })
        }
        LaxNetSlice::Arp(_) => return None,
    };
    fields["transportHeader"] = match sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => json!({"tcp": {
            "srcPort": tcp.source_port(),
            "dstPort": tcp.destination_port(),
            "flags": tcp.slice().get(13),
        }}),
        Some(TransportSlice::Udp(udp)) => {
            json!({"udp": {"srcPort": udp.source_port(), "dstPort": udp.destination_port()}})
        }
        Some(TransportSlice::Icmpv4(icmp)) => echo(icmp.slice()),
        Some(TransportSlice::Icmpv6(icmp)) => echo(icmp.slice()),
        _ => sctp.map_or(
            Value::Null,
            |bytes| json!({"sctp": {"srcPort": number(bytes, 0), "dstPort": number(bytes, 2)}}),
        ),
    };
    if data != 0 {
        let shown = &frame[..frame.len().min(data as usize)];
        fields["data"] = STANDARD.encode(shown).into();
    }
    Some(without_nulls(fields))
}

fn echo(bytes: &[u8]) -> Value {
    let (id, sequence) = (number(bytes, 4), number(bytes, 6));
    json!({"icmp": {"type": bytes.first(), "code": bytes.get(1), "id": id, "sequence": sequence}})
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// The packets that were captured, by the order of time.
pub fn all_captured(captures: &[Capture], data: u32) -> Vec<Value> {
    let mut captures: Vec<&Capture> = captures.iter().collect();
    captures.sort_by_key(|capture| capture.time_ns);
    captures.iter().filter_map(|capture| captured(&capture.bytes, data)).collect()
}

#[cfg(test)]
mod tests;
