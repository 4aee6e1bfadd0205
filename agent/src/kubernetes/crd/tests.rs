//! Schemas and decoder know the same fields, and the files are those of the types.

use std::collections::{BTreeMap, BTreeSet};

use podwire_datapath::object::{self, ObjectErrorKind};
use serde_json::{Value, json};

use super::{all, files};

#[test]
fn the_files_are_those_of_the_types() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    for (name, text) in files().expect("files") {
        let there = std::fs::read_to_string(folder.join(&name)).unwrap_or_default();
        assert!(there == text, "deploy/crds/{name} is stale: run `podwire crds deploy/crds`");
    }
}

/// Kind and schema of the object.
fn schemas() -> Vec<(String, Value)> {
    all()
        .into_iter()
        .map(|crd| {
            let kind = crd.spec.names.kind.clone();
            let schema = serde_json::to_value(&crd).expect("JSON");
            (kind, schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone())
        })
        .collect()
}

/// A field that nobody knows.
const FOREIGN: &str = "zzz";

/// A value with every field of a schema, and in each map one that nobody knows.
fn sample(schema: &Value) -> Value {
    if let Some(properties) = schema["properties"].as_object() {
        let mut fields: serde_json::Map<String, Value> =
            properties.iter().map(|(name, schema)| (name.clone(), sample(schema))).collect();
        fields.insert(FOREIGN.into(), json!(1));
        return Value::Object(fields);
    }
    if schema["additionalProperties"].is_object() {
        return json!({});
    }
    match schema["type"].as_str() {
        Some("array") => json!([sample(&schema["items"])]),
        Some("boolean") => json!(true),
        Some("integer") => json!(1),
        _ => schema["enum"].get(0).cloned().unwrap_or_else(|| json!("1")),
    }
}

/// Of each map in a schema, by its path, the names of its fields.
fn fields(schema: &Value, path: &str, found: &mut BTreeMap<String, BTreeSet<String>>) {
    let Some(properties) = schema["properties"].as_object() else {
        if schema["items"].is_object() {
            fields(&schema["items"], &format!("{path}[0]"), found);
        }
        return;
    };
    found.insert(path.to_owned(), properties.keys().cloned().collect());
    for (name, schema) in properties {
        fields(schema, &format!("{path}.{name}"), found);
    }
}

#[test]
fn schemas_and_decoder_know_the_same_fields() {
    for (kind, schema) in schemas() {
        let mut wanted = BTreeMap::new();
        fields(&schema["properties"]["spec"], "spec", &mut wanted);
        let metadata = match kind.as_str() {
            "Endpoint" => json!({"name": "a", "namespace": "b"}),
            _ => json!({"name": "a"}),
        };
        let object = json!({
            "apiVersion": object::API_VERSION,
            "kind": kind,
            "metadata": metadata,
            "spec": sample(&schema["properties"]["spec"]),
        });
        let errors = object::parse(&kind, &object.to_string()).expect_err("a field that nobody knows");
        let known: BTreeMap<String, BTreeSet<String>> = errors
            .iter()
            .filter(|error| error.kind() == ObjectErrorKind::UnknownField)
            .map(|error| {
                let path = error.field().strip_suffix(&format!(".{FOREIGN}"));
                let path = path.unwrap_or_else(|| panic!("the decoder does not know {}", error.field()));
                let allowed = error.allowed().unwrap_or_default().split(", ").map(str::to_owned).collect();
                (path.to_owned(), allowed)
            })
            .collect();
        assert_eq!(known, wanted, "{kind}");
    }
}

/// Paths of what has fields and no type.
fn untyped(schema: &Value, path: &str, found: &mut Vec<String>) {
    if schema["properties"].is_object() && !schema["type"].is_string() {
        found.push(path.to_owned());
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        untyped(schema, &format!("{path}.{name}"), found);
    }
    if schema["items"].is_object() {
        untyped(&schema["items"], &format!("{path}[]"), found);
    }
}

/// Servers take it for a map: with anything else there, no node can apply its status.
#[test]
fn what_has_fields_has_a_type() {
    let mut found = Vec::new();
    schemas().iter().for_each(|(kind, schema)| untyped(schema, kind, &mut found));
    assert!(found.is_empty(), "{found:?}");
}
