//! Which pods an object applies to.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which pods: by their labels, by their namespace's labels, or by both. By neither, none.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppliedTo {
    /// Labels of pods; an empty selector selects all.
    pod_selector: Option<LabelSelector>,
    /// Labels of namespaces; an empty selector selects all.
    namespace_selector: Option<LabelSelector>,
}

/// All conditions must hold.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels with exactly these values.
    match_labels: Option<BTreeMap<String, String>>,
    /// Conditions.
    match_expressions: Option<Vec<Expression>>,
}

/// A condition on a label.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Expression {
    /// The label's key.
    key: String,
    /// What of it.
    operator: Operator,
    /// Values, for In and NotIn.
    values: Option<Vec<String>>,
}

/// What of a label.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}
