//! Traceflow: a packet that is followed through every stage of every node.

mod packet;
mod status;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use packet::Packet;
use status::TraceflowStatus;

/// A trace: one packet that is made, or packets of the pods' own traffic.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "podwire.io",
    version = "v1alpha1",
    kind = "Traceflow",
    plural = "traceflows",
    shortname = "tf",
    category = "podwire",
    status = "TraceflowStatus",
    doc = "A packet, what each stage of each node did with it, and what became of it.",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Source","type":"string","jsonPath":".spec.source['pod','ip']"}"#,
    printcolumn = r#"{"name":"Destination","type":"string","jsonPath":".spec.destination['pod','service','ip']"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Tag","type":"integer","jsonPath":".status.dataplaneTag","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.reason","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct TraceflowSpec {
    /// Where the packet comes from; a pod unless liveTraffic, else anywhere unless said.
    source: Option<Source>,
    /// Where it goes to; required unless liveTraffic, else anywhere unless said.
    destination: Option<Destination>,
    /// What it is made of, or what a live packet must have.
    packet: Option<Packet>,
    /// Whether packets of the pods' own are traced, rather than one that is made.
    live_traffic: Option<bool>,
    /// Of live packets only those that are dropped.
    dropped_only: Option<bool>,
    /// Seconds until it ends by itself; 20 unless said.
    #[schemars(range(min = 1, max = 300))]
    timeout: Option<i64>,
    /// Whether the destination gets the packet that was made.
    deliver: Option<bool>,
    /// Live packets that are traced; 1 unless said.
    #[schemars(range(min = 1, max = 1_000))]
    count: Option<i64>,
    /// Whether the answer is traced as well.
    replies: Option<bool>,
    /// Of so many live packets that match one is traced; 1 unless said.
    #[schemars(range(min = 1, max = 1_000_000))]
    sampling: Option<i64>,
    /// Of which connections live packets may be; any unless said.
    connection: Option<Connection>,
    /// Bytes of each packet in the result; 0 unless said.
    #[schemars(range(min = 0, max = 65535))]
    capture: Option<i64>,
}

/// A pod, or an address.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Source {
    /// The pod's namespace; default unless said.
    #[schemars(length(min = 1, max = 63))]
    namespace: Option<String>,
    /// The pod.
    #[schemars(length(min = 1, max = 253))]
    pod: Option<String>,
    /// The address; of live packets.
    ip: Option<String>,
}

/// A pod, a Service, or an address.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Destination {
    /// The pod's or the Service's namespace; default unless said.
    #[schemars(length(min = 1, max = 63))]
    namespace: Option<String>,
    /// The pod.
    #[schemars(length(min = 1, max = 253))]
    pod: Option<String>,
    /// The Service.
    #[schemars(length(min = 1, max = 63))]
    service: Option<String>,
    /// The address.
    ip: Option<String>,
}

/// Of which connections live packets may be.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Connection {
    New,
    Any,
}
