//! The objects that users write. In: YAML or JSON text. Out: validated objects, or every mistake of the file,
//! one line each, with file, line, object, field and what is allowed.
//!
//! ```text
//!  text ─► tree (values with places) ─► decode (fields with paths) ─► Object ─► ObjectSet (no contradictions)
//! ```
//!
//! An object that exists is valid.

#![forbid(unsafe_code)]

mod address;
mod decode;
mod egress;
mod endpoint;
mod error;
mod metadata;
mod quantity;
mod rule;
mod selector;
mod set;
mod target;
#[cfg(test)]
mod tests;
mod traceflow;
mod traffic_control;
mod tree;

pub use decode::nearest;
pub use egress::Egress;
pub use endpoint::{DEVICE_NAME, Endpoint, Namespace, Node, is_device_name};
pub use error::{Errors, ObjectError, ObjectErrorKind};
pub use metadata::Metadata;
pub use rule::{TCP_FLAGS, icmp_types, parse_flags};
pub use selector::{AppliedTo, LabelSelector};
pub use set::{Conflict, ObjectSet};
pub use target::{Port, TargetPort};
pub use traceflow::{
    Connection, NamespacedName, TraceDestination, TraceFamily, TraceIcmp, TracePacket, TracePorts,
    TraceSource, TraceTransport, Traceflow,
};
pub use traffic_control::{Action, TrafficControl};

use decode::{Context, Map};
use tree::Tree;

/// API group and version of podwire's own objects.
pub const API_VERSION: &str = "podwire.io/v1alpha1";
/// Antrea's, whose TrafficControl is accepted as it is.
pub const ANTREA_API_VERSION: &str = "crd.antrea.io/v1alpha2";
/// Antrea's, whose Egress is accepted as it is.
pub const ANTREA_EGRESS_API_VERSION: &str = "crd.antrea.io/v1beta1";
/// Antrea's, whose Traceflow is accepted as it is.
pub const ANTREA_TRACEFLOW_API_VERSION: &str = "crd.antrea.io/v1beta1";

/// Largest text that is read, in bytes.
pub const MAX_TEXT: usize = 1 << 20;

/// An object of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A pod's interface on this node.
    Endpoint(Endpoint),
    /// A namespace and its labels.
    Namespace(Namespace),
    /// A node of the cluster.
    Node(Node),
    /// A policy.
    TrafficControl(Box<TrafficControl>),
    /// A policy on how traffic leaves the cluster.
    Egress(Box<Egress>),
    /// A trace.
    Traceflow(Box<Traceflow>),
}

impl Object {
    /// Its kind.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Endpoint(_) => "Endpoint",
            Self::Namespace(_) => "Namespace",
            Self::Node(_) => "Node",
            Self::TrafficControl(_) => "TrafficControl",
            Self::Egress(_) => "Egress",
            Self::Traceflow(_) => "Traceflow",
        }
    }

    /// Its metadata.
    pub const fn metadata(&self) -> &Metadata {
        match self {
            Self::Endpoint(object) => &object.metadata,
            Self::Namespace(object) => &object.metadata,
            Self::Node(object) => &object.metadata,
            Self::TrafficControl(object) => &object.metadata,
            Self::Egress(object) => &object.metadata,
            Self::Traceflow(object) => &object.metadata,
        }
    }
}

/// An object, where it was read, and as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Located {
    /// The object.
    pub object: Object,
    /// `FILE:LINE`.
    pub place: String,
    /// What the user wrote, without `status`.
    pub manifest: serde_json::Value,
}

impl Located {
    /// `Kind/name`, with the namespace where the kind has one.
    pub fn identity(&self) -> String {
        let metadata = self.object.metadata();
        match &metadata.namespace {
            Some(namespace) => format!("{}/{namespace}/{}", self.object.kind(), metadata.name),
            None => format!("{}/{}", self.object.kind(), metadata.name),
        }
    }
}

/// Reads all objects of a text: YAML documents, JSON, `kind: List`.
///
/// # Errors
/// Every mistake that was found, the first 1,000 of them. Nothing of a text with a mistake is returned.
pub fn parse(file: &str, text: &str) -> Result<Vec<Located>, Errors> {
    let context = Context::new(file);
    let mut objects = Vec::new();
    match tree::read(text) {
        Ok(documents) => {
            documents.iter().for_each(|document| read_document(&context, document, &mut objects));
        }
        Err(error) => context.report(error.place, "", error.kind, error.problem, None),
    }
    context.finish(objects)
}

fn read_document(context: &Context, tree: &Tree, objects: &mut Vec<Located>) {
    if tree.is_null() {
        return;
    }
    context.begin("");
    let Some(map) = Map::root(context, tree) else {
        return;
    };
    let kind = map.peek_text("kind").unwrap_or_default().to_owned();
    if kind == "List" {
        for name in ["apiVersion", "kind", "metadata"] {
            let _ = map.get(name);
        }
        let items = map.required("items").map(|items| items.list()).unwrap_or_default();
        map.finish();
        items.iter().for_each(|item| read_document(context, item.tree(), objects));
        return;
    }
    let name = map.peek_name().unwrap_or_default();
    let named = [kind.as_str(), name.as_str()].into_iter().filter(|part| !part.is_empty());
    context.begin(&named.collect::<Vec<_>>().join("/"));
    let before = context.count();
    if let Some(object) = read_object(&map, &kind)
        && context.count() == before
    {
        let mut manifest = tree.to_json();
        if let Some(fields) = manifest.as_object_mut() {
            fields.remove("status");
        }
        let place = format!("{}:{}", context.file(), tree.place().line);
        objects.push(Located { object, place, manifest });
    }
}

/// The kinds, and of those that Antrea has as well its API version.
const KINDS: [(&str, Option<&str>); 6] = [
    ("Endpoint", None),
    ("Namespace", None),
    ("Node", None),
    ("TrafficControl", Some(ANTREA_API_VERSION)),
    ("Egress", Some(ANTREA_EGRESS_API_VERSION)),
    ("Traceflow", Some(ANTREA_TRACEFLOW_API_VERSION)),
];

fn read_object(map: &Map, kind: &str) -> Option<Object> {
    let api = map.required("apiVersion")?;
    let version = api.text()?;
    let kind_field = map.required("kind")?;
    let Some((_, foreign)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        let known = KINDS.map(|(name, _)| name);
        let problem = format!("unknown kind {kind}{}", nearest(kind, &known));
        kind_field.refuse(&problem, Some(&known.join(", ")));
        return None;
    };
    let antrea = Some(version) == *foreign;
    if !antrea && version != API_VERSION {
        let known: Vec<&str> = std::iter::once(API_VERSION).chain(*foreign).collect();
        let problem = format!("{version} is not an API version of {kind}{}", nearest(version, &known));
        api.refuse(&problem, Some(&known.join(", ")));
        return None;
    }
    let namespaced = kind == "Endpoint";
    let metadata = metadata::read(map, namespaced);
    let _ = map.get("status");
    let object = match kind {
        "Endpoint" => endpoint::read_endpoint(map, metadata).map(Object::Endpoint),
        "Namespace" => {
            // What the API server writes there (finalizers) says nothing about packets.
            let _ = map.get("spec");
            metadata.map(|metadata| Object::Namespace(Namespace { metadata }))
        }
        "Node" => endpoint::read_node(map, metadata).map(Object::Node),
        "Egress" => egress::read(map, metadata, antrea).map(|read| Object::Egress(Box::new(read))),
        "Traceflow" => traceflow::read(map, metadata, antrea).map(|read| Object::Traceflow(Box::new(read))),
        _ => traffic_control::read(map, metadata, antrea).map(|read| Object::TrafficControl(Box::new(read))),
    };
    map.finish();
    object
}
