//! Values that objects have in more than one form.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A number or a text: `80`, `"8000-8100"`, `TCP`, `800M`.
///
/// The schema names no type: with `x-kubernetes-int-or-string` in a kind, Kubernetes 1.20 takes all its lists as one
/// value, and each node's status would replace the others'.
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

/// A number, or a map of two fields. A structural schema has one type for a value, so it names none.
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
            "properties": {
                "oneIn": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
                "by": {"type": "string", "enum": ["packet", "flow"]},
            },
        })
    }
}

/// `+syn-ack`, or a map of value and mask.
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
            "properties": {
                "value": {"type": "integer", "minimum": 0, "maximum": 255},
                "mask": {"type": "integer", "minimum": 0, "maximum": 255},
            },
        })
    }
}

/// A number for all flags as they are; or as [`TcpFlags`].
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub struct PacketFlags(serde_json::Value);

impl JsonSchema for PacketFlags {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PacketFlags".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = TcpFlags::json_schema(generator);
        schema.insert("minimum".into(), 0.into());
        schema.insert("maximum".into(), 255.into());
        schema
    }
}
