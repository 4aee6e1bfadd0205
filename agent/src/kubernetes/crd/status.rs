//! What each node says of an object. A list by the node's name, so that every node writes its own entry and no
//! other's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What became of a policy on one node.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Name of the node.
    node: String,
    /// Whether it is in force there.
    in_force: bool,
    /// In a word: Ready, Waiting, TargetNotReady, Dropping, NotInForce, Refused.
    state: String,
    /// Why it is not Ready.
    reason: Option<String>,
    /// The generation of the object that this is about.
    observed_generation: Option<i64>,
    /// Pods of the node that it selects.
    endpoints: Option<u32>,
    /// Where packets go.
    target: Option<String>,
    /// Packets that it applied to, as of the last time that anything here changed.
    packets: Option<u64>,
    /// Their bytes.
    bytes: Option<u64>,
    /// Copies that were lost.
    lost: Option<u64>,
}

/// A condition, as Kubernetes has them.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about.
    #[serde(rename = "type")]
    kind: String,
    /// True, False or Unknown.
    status: String,
    /// Since when, RFC 3339.
    last_transition_time: Option<String>,
    /// Why, in a word.
    reason: Option<String>,
    /// Why, for people.
    message: Option<String>,
}
