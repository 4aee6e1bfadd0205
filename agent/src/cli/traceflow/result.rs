//! What is known of a trace. In: the object as the agent answers it, or a document that was saved. Out: typed
//! results, and the routes that packets took through them.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// A trace and its results, in the order in which `antctl` prints them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Trace {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// `Running`, `Succeeded` or `Failed`.
    #[serde(default)]
    pub phase: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Where the packet comes from; empty for anywhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Where it goes to; empty for anywhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub destination: String,
    /// What each node saw, in the order of the path.
    #[serde(default)]
    pub results: Vec<NodeResult>,
    /// The packet.
    #[serde(default, rename = "capturedPacket", skip_serializing_if = "Option::is_none")]
    pub captured_packet: Option<CapturedPacket>,
    /// The packets, when several were traced.
    #[serde(default, rename = "capturedPackets", skip_serializing_if = "Vec::is_empty")]
    pub captured_packets: Vec<CapturedPacket>,
}

/// What one node saw.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct NodeResult {
    /// Its name.
    #[serde(default)]
    pub node: String,
    /// What it is on the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// When, as the agent wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Value>,
    /// What its stages did.
    #[serde(default)]
    pub observations: Vec<Observation>,
}

/// What a stage did with a packet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Observation {
    /// Which stage.
    pub component: String,
    /// Which part of it.
    pub component_info: Option<String>,
    /// What it did.
    pub action: String,
    /// Why it dropped.
    pub reason: Option<String>,
    /// Number of the packet, when several are traced.
    pub packet: Option<u64>,
    /// `reply` for an answer.
    pub direction: Option<String>,
    /// Nanoseconds since the observation before.
    #[serde(rename = "latencyNs")]
    pub latency_ns: Option<i64>,
    /// Everything else, as it was written.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A packet as it was seen first; every field as it was written.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct CapturedPacket {
    /// Source address.
    #[serde(rename = "srcIP", skip_serializing_if = "Option::is_none")]
    pub src_ip: Option<String>,
    /// Destination address.
    #[serde(rename = "dstIP", skip_serializing_if = "Option::is_none")]
    pub dst_ip: Option<String>,
    /// Bytes of the IPv4 packet, or of what follows the IPv6 header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u32>,
    /// The IPv4 header.
    #[serde(rename = "ipHeader", skip_serializing_if = "Option::is_none")]
    pub ip_header: Option<Value>,
    /// The IPv6 header.
    #[serde(rename = "ipv6Header", skip_serializing_if = "Option::is_none")]
    pub ipv6_header: Option<Value>,
    /// The transport header.
    #[serde(rename = "transportHeader", skip_serializing_if = "Option::is_none")]
    pub transport_header: Option<Value>,
    /// Its bytes from the Ethernet header on, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Keys in the order in which they are printed; others follow.
const KEYS: [&str; 23] = [
    "component",
    "componentInfo",
    "action",
    "reason",
    "packet",
    "direction",
    "pod",
    "dstMAC",
    "policy",
    "networkPolicy",
    "networkPolicyRule",
    "egress",
    "egressIP",
    "egressNode",
    "ttl",
    "translatedSrcIP",
    "translatedDstIP",
    "tunnelDstIP",
    "srcPodIP",
    "time",
    "latencyNs",
    "length",
    "interface",
];

impl Serialize for Observation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own: [(&str, Option<Value>); 7] = [
            ("component", Some(self.component.clone().into())),
            ("componentInfo", self.component_info.clone().map(Into::into)),
            ("action", Some(self.action.clone().into())),
            ("reason", self.reason.clone().map(Into::into)),
            ("packet", self.packet.map(Into::into)),
            ("direction", self.direction.clone().map(Into::into)),
            ("latencyNs", self.latency_ns.map(Into::into)),
        ];
        let own = own.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let more = self.more.iter().map(|(key, value)| (key.as_str(), value.clone()));
        let mut all: Vec<(&str, Value)> = own.chain(more).collect();
        all.sort_by_key(|(key, _)| KEYS.iter().position(|known| known == key).unwrap_or(KEYS.len()));
        serializer.collect_map(all)
    }
}

impl Observation {
    /// Text of one of the other keys.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.more.get(key).and_then(Value::as_str)
    }

    /// Whether it is about an answer.
    pub fn is_reply(&self) -> bool {
        self.direction.as_deref() == Some("reply")
    }
}

impl Trace {
    /// Of an object `{metadata, spec, status}`, or of a document as `-o yaml` prints it.
    pub fn read(value: &Value) -> Result<Self, serde_json::Error> {
        let Some(status) = value.get("status").filter(|_| value.get("metadata").is_some()) else {
            if value.get("metadata").is_some() {
                return Ok(Self::named(value));
            }
            return Self::deserialize(value);
        };
        let mut trace = Self::deserialize(status)?;
        let named = Self::named(value);
        (trace.name, trace.source, trace.destination) = (named.name, named.source, named.destination);
        Ok(trace)
    }

    fn named(object: &Value) -> Self {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        Self {
            name: text("/metadata/name").to_owned(),
            source: end(&object["spec"]["source"]),
            destination: end(&object["spec"]["destination"]),
            ..Self::default()
        }
    }

    /// The packets that were captured, in their order.
    pub fn packets(&self) -> impl Iterator<Item = &CapturedPacket> {
        let single = self.captured_packet.iter().filter(|_| self.captured_packets.is_empty());
        single.chain(&self.captured_packets)
    }
}

/// `namespace/name`, or an address; empty for anything.
fn end(end: &Value) -> String {
    let text = |name: &str| end[name].as_str();
    match (text("pod").or_else(|| text("service")), text("ip")) {
        (Some(name), _) => format!("{}/{name}", text("namespace").unwrap_or("default")),
        (None, Some(ip)) => ip.to_owned(),
        (None, None) => String::new(),
    }
}
