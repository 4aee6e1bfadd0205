//! What became of an object on this node, for its status.

use kube::ResourceExt;
use kube::api::DynamicObject;
use podwire_datapath::object::{API_VERSION, Located};
use serde_json::{Value, json};

use super::resource::Resource;

/// The object that is reported on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// Which sort of object.
    pub resource: Resource,
    /// Its name.
    pub name: String,
    /// Tells it from another one of its name.
    pub uid: String,
    /// What of it is known.
    pub generation: i64,
}

impl Subject {
    /// Of an object as the API server has it.
    pub fn of(resource: Resource, object: &DynamicObject) -> Self {
        Self {
            resource,
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
        }
    }

    /// Of an object that was read; `None` for what has no status.
    pub fn of_located(located: &Located) -> Option<Self> {
        let own = located.manifest["apiVersion"] == API_VERSION;
        let resource = match (located.object.kind(), own) {
            ("TrafficControl", true) => Resource::TrafficControls,
            ("TrafficControl", false) => Resource::AntreaTrafficControls,
            ("Egress", true) => Resource::Egresses,
            ("Egress", false) => Resource::AntreaEgresses,
            _ => return None,
        };
        let metadata = &located.manifest["metadata"];
        Some(Self {
            resource,
            name: located.object.metadata().name.clone(),
            uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
            generation: metadata["generation"].as_i64().unwrap_or_default(),
        })
    }
}

/// What became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Of which object.
    pub subject: Subject,
    /// This node's entry: `inForce`, `state`, `reason` and the like.
    pub entry: Value,
    /// What was counted; by itself no reason to write.
    pub counts: Value,
    /// What the policy's egress node says for all.
    pub egress: Option<EgressReport>,
}

/// Where an Egress policy's addresses are, said by the node that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressReport {
    /// The first address.
    pub ip: String,
    /// Why packets do not leave with it.
    pub problem: Option<String>,
}

impl Report {
    /// Of an object that is not taken at all.
    pub fn refused(subject: Subject, why: &str) -> Self {
        let entry = json!({"inForce": false, "state": "Refused", "reason": why});
        Self { subject, entry, counts: Value::Null, egress: None }
    }
}
