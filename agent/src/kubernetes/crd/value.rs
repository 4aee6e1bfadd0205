//! Values that objects have in more than one form.
//!
//! Their schemas name neither type nor fields. With `x-kubernetes-int-or-string` in a kind, Kubernetes 1.20 takes all
//! its lists as one value, and each node's status would replace the others'. Where fields are named, servers take
//! the value for a map, and refuse every server-side apply to an object that has a number or a text there.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A number or a text: `80`, `"8000-8100"`, `TCP`, `800M`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Word(serde_json::Value);

impl JsonSchema for Word {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Word".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-preserve-unknown-fields": true})
    }
}

/// A number, or a map of `oneIn` and `by`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Sampling(serde_json::Value);

impl JsonSchema for Sampling {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Sampling".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-preserve-unknown-fields": true,
            "minimum": 1,
            "maximum": 1_000_000,
        })
    }
}

/// `+syn-ack`, or a map of `value` and `mask`; in the packet of a trace also a number for all flags as they are.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub struct TcpFlags(serde_json::Value);

impl JsonSchema for TcpFlags {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TcpFlags".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-preserve-unknown-fields": true,
            "minimum": 0,
            "maximum": 255,
        })
    }
}
