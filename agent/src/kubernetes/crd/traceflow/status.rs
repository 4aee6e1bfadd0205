//! What became of a trace. A server drops what stands in no schema, so that everything that agents write stands here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What became of it.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TraceflowStatus {
    /// How far it is; one whose packet was dropped has succeeded.
    phase: Option<Phase>,
    /// Why it failed.
    reason: Option<String>,
    /// When it began, RFC 3339.
    start_time: Option<String>,
    /// The DSCP value by which nodes know its packets.
    #[schemars(range(min = 0, max = 63))]
    dataplane_tag: Option<i64>,
    /// The packet as it was sent, in short.
    flow: Option<Flow>,
    /// What each node saw. A node that looks has an entry before it has seen anything.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node"]))]
    results: Option<Vec<NodeResult>>,
    /// The first packet as it was sent.
    captured_packet: Option<CapturedPacket>,
    /// All of them, where there are several.
    captured_packets: Option<Vec<CapturedPacket>>,
}

/// How far a trace is.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub enum Phase {
    Running,
    Succeeded,
    Failed,
}

/// A flow.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// Source address.
    #[serde(rename = "srcIP")]
    src_ip: Option<String>,
    /// Destination address.
    #[serde(rename = "dstIP")]
    dst_ip: Option<String>,
    /// IP protocol number.
    protocol: Option<i64>,
    /// Source port.
    src_port: Option<i64>,
    /// Destination port.
    dst_port: Option<i64>,
    /// IPv4 or IPv6.
    family: Option<String>,
}

/// What one node saw.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct NodeResult {
    /// Name of the node.
    node: String,
    /// What it is for the packet: sender, receiver, egress.
    role: Option<String>,
    /// When it first saw the packet, in seconds since 1970; 0 before.
    timestamp: Option<i64>,
    /// In the order of time.
    observations: Option<Vec<Observation>>,
}

/// What a stage did with a packet.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// The stage: SpoofGuard, TrafficControl, Egress, Forwarding.
    component: Option<String>,
    /// Which part of it.
    component_info: Option<String>,
    /// What it did.
    action: Option<String>,
    /// Why it was dropped.
    reason: Option<String>,
    /// The pod that it is about.
    pod: Option<String>,
    /// The address that the pod sent from.
    #[serde(rename = "srcPodIP")]
    src_pod_ip: Option<String>,
    /// Destination MAC address, as the stage left it.
    #[serde(rename = "dstMAC")]
    dst_mac: Option<String>,
    /// Time to live or hop limit, as the stage left it.
    ttl: Option<i64>,
    /// The TrafficControl policy.
    policy: Option<String>,
    /// The Egress policy.
    egress: Option<String>,
    /// The address that the packet leaves with.
    #[serde(rename = "egressIP")]
    egress_ip: Option<String>,
    /// The node that it leaves at.
    egress_node: Option<String>,
    /// Source address, where it is not the one it was sent with.
    #[serde(rename = "translatedSrcIP")]
    translated_src_ip: Option<String>,
    /// Destination address, where it is not the one it was sent to.
    #[serde(rename = "translatedDstIP")]
    translated_dst_ip: Option<String>,
    /// Where the tunnel ends.
    #[serde(rename = "tunnelDstIP")]
    tunnel_dst_ip: Option<String>,
    /// When, by the node's clock, RFC 3339.
    time: Option<String>,
    /// Nanoseconds since the observation before on the same node.
    latency_ns: Option<i64>,
    /// The packet's number, where there may be several.
    packet: Option<i64>,
    /// `reply` for an answer.
    direction: Option<String>,
}

/// A packet as it was sent.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapturedPacket {
    /// Source address.
    #[serde(rename = "srcIP")]
    src_ip: Option<String>,
    /// Destination address.
    #[serde(rename = "dstIP")]
    dst_ip: Option<String>,
    /// Bytes of the IPv4 packet, or behind the IPv6 header.
    length: Option<i64>,
    /// The IPv4 header.
    ip_header: Option<Ipv4>,
    /// The IPv6 header.
    #[serde(rename = "ipv6Header")]
    ipv6_header: Option<Ipv6>,
    /// The transport header.
    transport_header: Option<Transport>,
    /// The frame's first bytes, as many as `capture` asks for, in base64.
    data: Option<String>,
}

/// An IPv4 header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Ipv4 {
    /// Protocol number.
    protocol: Option<i64>,
    /// Time to live.
    ttl: Option<i64>,
    /// The three bits beside the fragment offset.
    flags: Option<i64>,
}

/// An IPv6 header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv6 {
    /// Protocol number.
    next_header: Option<i64>,
    /// Hop limit.
    hop_limit: Option<i64>,
}

/// A transport header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Transport {
    /// TCP.
    tcp: Option<Tcp>,
    /// UDP.
    udp: Option<Ports>,
    /// ICMP or ICMPv6.
    icmp: Option<Icmp>,
}

/// A TCP header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tcp {
    /// Source port.
    src_port: Option<i64>,
    /// Destination port.
    dst_port: Option<i64>,
    /// All flags as they are.
    flags: Option<i64>,
}

/// A UDP header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    /// Source port.
    src_port: Option<i64>,
    /// Destination port.
    dst_port: Option<i64>,
}

/// An ICMP or ICMPv6 header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Icmp {
    /// Its type.
    #[serde(rename = "type")]
    kind: Option<i64>,
    /// Its code.
    code: Option<i64>,
    /// Identifier of an echo.
    id: Option<i64>,
    /// Sequence number of an echo.
    sequence: Option<i64>,
}
