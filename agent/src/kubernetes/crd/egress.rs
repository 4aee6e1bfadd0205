//! Egress: with which address pods' traffic leaves the cluster.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::selector::AppliedTo;
use super::status::{Condition, NodeStatus};
use super::value::Word;

/// Traffic of which pods leaves the cluster with which address, at which node.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "podwire.io",
    version = "v1alpha1",
    kind = "Egress",
    plural = "egresses",
    shortname = "eg",
    category = "podwire",
    status = "EgressStatus",
    doc = "With which address the traffic of which pods leaves the cluster, and at which node.",
    printcolumn = r#"{"name":"EgressIP","type":"string","jsonPath":".status.egressIP"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.egressNode"}"#,
    printcolumn = r#"{"name":"Assigned","type":"string","jsonPath":".status.conditions[?(@.type=='IPAssigned')].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct EgressSpec {
    /// Which pods.
    applied_to: AppliedTo,
    /// The address; or egressIPs.
    #[serde(rename = "egressIP")]
    egress_ip: Option<String>,
    /// Several addresses, at most 16 of each family.
    #[serde(rename = "egressIPs")]
    #[schemars(length(max = 32))]
    egress_ips: Option<Vec<String>>,
    /// How much may leave.
    bandwidth: Option<Bandwidth>,
    /// Lower comes first; 0 unless said.
    priority: Option<i32>,
    /// The node that has the addresses, where that cannot be found out.
    egress_node: Option<String>,
    /// Whether podwire puts the addresses on the node.
    own: Option<bool>,
    /// Destinations that it applies to; all outside of the cluster unless said.
    #[schemars(length(min = 1))]
    destinations: Option<Vec<String>>,
    /// Destinations that it does not apply to.
    except: Option<Vec<String>>,
}

/// How much may leave, in bits.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Bandwidth {
    /// Per second: 1k to 1T.
    rate: Word,
    /// At once: 12k to 1T; a second's worth unless said.
    burst: Option<Word>,
}

/// What became of it.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EgressStatus {
    /// Where the addresses are.
    egress_node: Option<String>,
    /// The first address.
    #[serde(rename = "egressIP")]
    egress_ip: Option<String>,
    /// IPAssigned: whether packets leave with it.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    conditions: Option<Vec<Condition>>,
    /// What each node says.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node"]))]
    nodes: Option<Vec<NodeStatus>>,
}
