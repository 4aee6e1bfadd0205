//! TrafficControl: which packets of which pods are mirrored or redirected, and where to.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::selector::AppliedTo;
use super::status::NodeStatus;
use super::value::{Sampling, TcpFlags, Word};

/// Which packets of which pods are mirrored or redirected, and where to.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "podwire.io",
    version = "v1alpha1",
    kind = "TrafficControl",
    shortname = "tc",
    category = "podwire",
    status = "TrafficControlStatus",
    doc = "Which packets of which pods are mirrored or redirected, and where to.",
    printcolumn = r#"{"name":"Action","type":"string","jsonPath":".spec.action"}"#,
    printcolumn = r#"{"name":"Direction","type":"string","jsonPath":".spec.direction"}"#,
    printcolumn = r#"{"name":"Priority","type":"integer","jsonPath":".spec.priority"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct TrafficControlSpec {
    /// Which pods.
    applied_to: AppliedTo,
    /// Relative to the pod.
    direction: Direction,
    /// What is done.
    action: Action,
    /// Where to.
    target_port: TargetPort,
    /// Where redirected packets come back; a Redirect needs it, a Mirror has none.
    return_port: Option<ReturnPort>,
    /// Lower comes first; 0 unless said.
    priority: Option<i32>,
    /// Which packets: those that any of these rules matches; all unless said.
    #[serde(rename = "match")]
    #[schemars(length(max = 10_000))]
    rules: Option<Vec<Rule>>,
    /// Whether the direction is that of the connection, and answers are taken too.
    stateful: Option<bool>,
    /// Bytes of each copy; a Mirror's.
    #[schemars(range(min = 14, max = 65535))]
    truncate: Option<i64>,
    /// One packet in so many, or `{oneIn, by: packet | flow}`; a Mirror's.
    sampling: Option<Sampling>,
    /// Copies per second; a Mirror's.
    #[schemars(range(min = 1, max = 4_294_967_295u64))]
    rate_limit: Option<i64>,
    /// What becomes of packets too large for their way.
    oversize: Option<Oversize>,
    /// How copies are made; a Mirror's.
    engine: Option<Engine>,
    /// What becomes of packets that no tool takes; a Redirect's.
    failure_policy: Option<FailurePolicy>,
    /// A tool from which nothing comes back is dead; a Redirect's.
    health_check: Option<HealthCheck>,
}

/// Relative to the pod.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub enum Direction {
    Ingress,
    Egress,
    Both,
}

/// What is done with a packet.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub enum Action {
    Mirror,
    Redirect,
}

/// What becomes of packets too large for their way.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Oversize {
    Truncate,
    Fragment,
    Drop,
}

/// How copies are made.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    Auto,
    Clone,
    Segment,
    Snap,
}

/// What becomes of packets that no tool takes: they go on, or are dropped.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub enum FailurePolicy {
    Open,
    Closed,
}

/// When a tool counts as dead.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct HealthCheck {
    /// Nothing came back for so long: 200ms to 1h, as 500ms, 2s, 1m.
    timeout: Word,
}

/// Exactly one of these.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(extend("oneOf" = [
    {"required": ["internal"]}, {"required": ["device"]}, {"required": ["vxlan"]}, {"required": ["geneve"]},
    {"required": ["gre"]}, {"required": ["erspan"]},
]))]
pub struct TargetPort {
    /// A port that podwire makes.
    internal: Option<Device>,
    /// A device that is there.
    device: Option<Device>,
    /// A VXLAN tunnel.
    vxlan: Option<Udp>,
    /// A GENEVE tunnel.
    geneve: Option<Udp>,
    /// A GRE tunnel.
    gre: Option<Gre>,
    /// An ERSPAN tunnel.
    erspan: Option<Erspan>,
}

/// Exactly one of these.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(extend("oneOf" = [
    {"required": ["internal"]}, {"required": ["device"]}, {"required": ["vxlan"]}, {"required": ["geneve"]},
    {"required": ["gre"]},
]))]
pub struct ReturnPort {
    /// A port that podwire makes.
    internal: Option<Device>,
    /// A device that is there.
    device: Option<Device>,
    /// A VXLAN tunnel.
    vxlan: Option<Udp>,
    /// A GENEVE tunnel.
    geneve: Option<Udp>,
    /// A GRE tunnel.
    gre: Option<Gre>,
}

/// A device.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Device {
    /// Its name.
    #[schemars(length(min = 1, max = 15))]
    name: String,
}

/// A tunnel over UDP.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Udp {
    /// The other end.
    #[serde(rename = "remoteIP")]
    remote_ip: String,
    /// 24 bits; 0 unless said.
    #[schemars(range(min = 0, max = 16_777_215))]
    vni: Option<i64>,
    /// The protocol's own unless said.
    #[schemars(range(min = 1, max = 65535))]
    destination_port: Option<i64>,
}

/// A GRE tunnel.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Gre {
    /// The other end.
    #[serde(rename = "remoteIP")]
    remote_ip: String,
    /// 32 bits; none unless said.
    #[schemars(range(min = 0, max = 4_294_967_295u64))]
    key: Option<i64>,
}

/// An ERSPAN tunnel.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Erspan {
    /// The other end.
    #[serde(rename = "remoteIP")]
    remote_ip: String,
    /// 1 is type II, 2 is type III.
    #[schemars(range(min = 1, max = 2))]
    version: i64,
    /// 10 bits; 0 unless said.
    #[serde(rename = "sessionID")]
    #[schemars(range(min = 0, max = 1023))]
    session_id: Option<i64>,
    /// 20 bits, version 1; 0 unless said.
    #[schemars(range(min = 0, max = 1_048_575))]
    index: Option<i64>,
    /// Version 2; each packet's own unless said.
    #[schemars(range(min = 0, max = 1))]
    dir: Option<i64>,
    /// 6 bits, version 2; 0 unless said.
    #[serde(rename = "hardwareID")]
    #[schemars(range(min = 0, max = 63))]
    hardware_id: Option<i64>,
}

/// Which packets; all conditions must hold.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Name or number: TCP, UDP, SCTP, ICMP, ICMPv6, …, 0 to 255.
    protocol: Option<Word>,
    /// Ports or ranges, on either side.
    ports: Option<Vec<Word>>,
    /// Source ports or ranges.
    src_ports: Option<Vec<Word>>,
    /// Destination ports or ranges.
    dst_ports: Option<Vec<Word>>,
    /// The other side, as seen from the pod.
    peer: Option<Addresses>,
    /// Sources.
    src: Option<Addresses>,
    /// Destinations.
    dst: Option<Addresses>,
    /// Name or number, of ICMP or ICMPv6.
    icmp_type: Option<Word>,
    /// Code of that type.
    #[schemars(range(min = 0, max = 255))]
    icmp_code: Option<i64>,
    /// `+syn-ack`, or `{value, mask}`.
    tcp_flags: Option<TcpFlags>,
    /// What is not IP: name or number.
    ether_type: Option<Word>,
}

/// Prefixes.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Addresses {
    /// Those that match.
    #[schemars(length(min = 1))]
    cidrs: Vec<String>,
    /// Those within that do not.
    except: Option<Vec<String>>,
}

/// What became of it.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct TrafficControlStatus {
    /// What each node says.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node"]))]
    nodes: Option<Vec<NodeStatus>>,
}
