//! Name, namespace and labels.

use std::collections::BTreeMap;

use super::decode::{Field, Map};

/// What podwire reads of an object's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The name.
    pub name: String,
    /// The namespace, for kinds that have one.
    pub namespace: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// `creationTimestamp` as the API server wrote it (RFC 3339, so that text order is time order).
    pub created: Option<String>,
}

/// Fields that an API server writes and podwire passes over.
const TOLERATED: [&str; 11] = [
    "annotations",
    "uid",
    "resourceVersion",
    "generation",
    "managedFields",
    "ownerReferences",
    "finalizers",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
];

/// Reads `metadata`.
pub(super) fn read(map: &Map, namespaced: bool) -> Option<Metadata> {
    let field = map.required("metadata")?;
    let fields = field.map()?;
    let name = fields.required("name");
    let namespace = fields.get("namespace");
    let labels = fields.get("labels").map(|labels| read_labels(&labels)).unwrap_or_default();
    let created = fields.get("creationTimestamp").and_then(|field| field.text().map(str::to_owned));
    for name in TOLERATED {
        let _ = fields.get(name);
    }
    fields.finish();
    if let (Some(namespace), false) = (&namespace, namespaced) {
        namespace.refuse("this kind is not in a namespace", None);
    }
    let namespace = match (namespaced, namespace) {
        (false, _) => None,
        (true, Some(field)) => Some(dns_name(&field, 63)?),
        (true, None) => Some("default".into()),
    };
    Some(Metadata { name: dns_name(&name?, 253)?, namespace, labels, created })
}

/// Reads a map of labels.
pub(super) fn read_labels(field: &Field) -> BTreeMap<String, String> {
    let Some(map) = field.map() else {
        return BTreeMap::new();
    };
    map.entries()
        .filter_map(|(key, value)| {
            if !is_label_key(key) {
                value.refuse(&format!("\"{key}\" is not a label key"), Some(LABEL_KEY));
            }
            Some((key.to_owned(), label_value(&value)?))
        })
        .collect()
}

const LABEL_KEY: &str =
    "[prefix/]name, name of at most 63 letters, digits, '-', '_', '.', alphanumeric at its ends";

/// A label's value.
pub(super) fn label_value(field: &Field) -> Option<String> {
    // Kubernetes reads a null value as an empty one.
    let text = if field.tree().is_null() { "" } else { field.text()? };
    if text.is_empty() || is_label_name(text) {
        return Some(text.to_owned());
    }
    field.refuse(
        &format!("\"{text}\" is not a label value"),
        Some("at most 63 letters, digits, '-', '_', '.', alphanumeric at its ends"),
    );
    None
}

/// Whether a text can be a label's key.
pub(super) fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_name(prefix, 253) && is_label_name(name),
        None => is_label_name(key),
    }
}

fn is_label_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// A name of lower-case parts (RFC 1123).
pub(super) fn dns_name(field: &Field, max: usize) -> Option<String> {
    let text = field.text()?;
    if is_dns_name(text, max) {
        return Some(text.to_owned());
    }
    field.refuse(
        &format!("\"{text}\" is not a name"),
        Some(&format!(
            "1 to {max} lower-case letters, digits, '-', '.', alphanumeric at the ends of each part"
        )),
    );
    None
}

fn is_dns_name(text: &str, max: usize) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=max).contains(&text.len())
        && text.split('.').all(|part| {
            !part.is_empty()
                && part.chars().all(|c| alphanumeric(c) || c == '-')
                && part.starts_with(alphanumeric)
                && part.ends_with(alphanumeric)
        })
}
