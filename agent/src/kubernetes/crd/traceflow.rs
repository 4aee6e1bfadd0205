//! Traceflow: what each stage on each node did with a packet.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::{TcpFlags, Word};

/// One packet that is made, or packets of the pods' own traffic, and what each stage on each node did with them.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "podwire.io",
    version = "v1alpha1",
    kind = "Traceflow",
    shortname = "tf",
    category = "podwire",
    status = "TraceflowStatus",
    doc = "What each stage on each node does with a packet.",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Source-Pod","type":"string","jsonPath":".spec.source.pod"}"#,
    printcolumn = r#"{"name":"Destination-Pod","type":"string","jsonPath":".spec.destination.pod"}"#,
    printcolumn = r#"{"name":"Destination-IP","type":"string","jsonPath":".spec.destination.ip"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct TraceflowSpec {
    /// Where the packet comes from; a pod when it is made.
    source: Option<Source>,
    /// Where it goes to.
    destination: Option<Destination>,
    /// What it is made of, or what a live packet must have.
    packet: Option<Packet>,
    /// Packets of the pods' own are traced, rather than one that is made.
    live_traffic: Option<bool>,
    /// Of live packets only those that are dropped.
    dropped_only: Option<bool>,
    /// Seconds until the trace ends by itself; 20 unless said.
    #[schemars(range(min = 1, max = 300))]
    timeout: Option<i64>,
    /// The packet that was made is handed to the destination in the end.
    deliver: Option<bool>,
    /// Live packets that are traced; 1 unless said.
    #[schemars(range(min = 1, max = 1000))]
    count: Option<i64>,
    /// The answer is traced as well.
    replies: Option<bool>,
    /// Of so many live packets that match one is traced.
    #[schemars(range(min = 1, max = 1_000_000))]
    sampling: Option<i64>,
    /// Of which connections live packets may be.
    connection: Option<Connection>,
    /// Bytes of the packet that the result has besides its headers.
    #[schemars(range(min = 0, max = 65535))]
    capture: Option<i64>,
}

/// Of which connections live packets may be.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Connection {
    New,
    Any,
}

/// Where a packet comes from.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Source {
    /// The pod's namespace.
    namespace: Option<String>,
    /// The pod.
    pod: Option<String>,
    /// An address; live only.
    ip: Option<String>,
}

/// Where a packet goes to.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Destination {
    /// The pod's or Service's namespace.
    namespace: Option<String>,
    /// The pod.
    pod: Option<String>,
    /// The Service.
    service: Option<String>,
    /// The address.
    ip: Option<String>,
}

/// A packet; one header of each layer.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Packet {
    #[serde(rename = "srcIP")]
    src_ip: Option<String>,
    #[serde(rename = "dstIP")]
    dst_ip: Option<String>,
    /// Bytes of the IP packet.
    #[schemars(range(min = 0, max = 65535))]
    length: Option<i64>,
    /// Bytes behind the headers of a packet that is made.
    #[schemars(range(min = 0, max = 65535))]
    payload_length: Option<i64>,
    ip_header: Option<IpHeader>,
    /// Its presence makes it an IPv6 packet.
    ipv6_header: Option<Ipv6Header>,
    transport_header: Option<TransportHeader>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct IpHeader {
    #[schemars(range(min = 0, max = 255))]
    protocol: Option<i64>,
    #[schemars(range(min = 1, max = 255))]
    ttl: Option<i64>,
    #[schemars(range(min = 0, max = 7))]
    flags: Option<i64>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv6Header {
    #[schemars(range(min = 0, max = 255))]
    next_header: Option<i64>,
    #[schemars(range(min = 1, max = 255))]
    hop_limit: Option<i64>,
}

/// One of these.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct TransportHeader {
    tcp: Option<Tcp>,
    udp: Option<Ports>,
    icmp: Option<Icmp>,
    sctp: Option<Ports>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tcp {
    #[schemars(range(min = 0, max = 65535))]
    src_port: Option<i64>,
    #[schemars(range(min = 0, max = 65535))]
    dst_port: Option<i64>,
    /// A number, `+syn-ack`, or `{value, mask}`.
    flags: Option<TcpFlags>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    #[schemars(range(min = 0, max = 65535))]
    src_port: Option<i64>,
    #[schemars(range(min = 0, max = 65535))]
    dst_port: Option<i64>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Icmp {
    #[schemars(range(min = 0, max = 65535))]
    id: Option<i64>,
    #[schemars(range(min = 0, max = 65535))]
    sequence: Option<i64>,
    /// Name or number.
    #[serde(rename = "type")]
    kind: Option<Word>,
    #[schemars(range(min = 0, max = 255))]
    code: Option<i64>,
}

/// What was found out.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TraceflowStatus {
    phase: Option<Phase>,
    /// Why it failed.
    reason: Option<String>,
    /// RFC 3339.
    start_time: Option<String>,
    /// What marks the packet on its way.
    #[schemars(range(min = 0, max = 63))]
    dataplane_tag: Option<i64>,
    /// What each node saw.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node"]))]
    results: Option<Vec<NodeResult>>,
    /// Headers of the packet that was traced.
    captured_packet: Option<Loose>,
    /// The same of all packets, where there are several.
    captured_packets: Option<Vec<Loose>>,
}

/// How far it is.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub enum Phase {
    Running,
    Succeeded,
    Failed,
}

/// What one node saw.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct NodeResult {
    /// Name of the node.
    node: String,
    /// What it was to the packet.
    role: Option<String>,
    /// Of the first observation, in seconds since 1970; 0 while there is none.
    timestamp: Option<i64>,
    /// In the order of the packet's way.
    observations: Option<Vec<Loose>>,
}

/// A map whose fields are its writer's.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Loose {}
