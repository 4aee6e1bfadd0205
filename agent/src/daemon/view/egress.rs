//! Egress policies as the command line sees them.

use podwire_datapath::{Applied, EgressNode};
use serde_json::{Value, json};

use super::Known;
use crate::daemon::convert::EgressState;

/// How a policy stands on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// One word.
    pub word: &'static str,
    /// Why it is not `Ready`.
    pub reason: Option<String>,
}

impl Standing {
    /// What is known before the datapath has it: `Dropping`, in force, but packets have nowhere to go.
    pub fn placed(state: &EgressState) -> Option<Self> {
        let reason = state.place.reason.as_ref()?;
        Some(Self { word: "Dropping", reason: Some(format!("packets are dropped: {reason}")) })
    }

    /// Of a policy that the datapath was given.
    pub fn of_egress(name: &str, state: &EgressState, applied: &Applied) -> Self {
        if let Some(dropping) = Self::placed(state) {
            return dropping;
        }
        let Some(done) = applied.egresses.iter().find(|egress| egress.name == name) else {
            return Self { word: "NotInForce", reason: Some("the datapath does not have it".into()) };
        };
        if let Some(problem) = &done.problem {
            return Self { word: "NotInForce", reason: Some(problem.clone()) };
        }
        let awaited = applied.endpoints.iter().find_map(|endpoint| {
            let problem = endpoint.problem.as_ref().filter(|_| state.endpoints.contains(&endpoint.name))?;
            Some(format!("{}: {problem}", endpoint.name))
        });
        Self { word: if awaited.is_some() { "Waiting" } else { "Ready" }, reason: awaited }
    }
}

impl Known<'_> {
    pub(super) fn egress(&self, name: &str) -> Value {
        let Some(state) = self.egresses.get(name) else {
            return Value::Null;
        };
        let standing = Standing::of_egress(name, state, self.applied);
        json!({
            "inForce": standing.word != "NotInForce",
            "state": standing.word,
            "reason": standing.reason,
            "egressNode": state.place.node,
            "egressIPs": state.ips,
            "here": state.place.seen_from(self.node) == EgressNode::Here,
            "id": self.applied.egresses.iter().find(|egress| egress.name == name).map(|egress| egress.id),
            "endpoints": state.endpoints,
            "endpointCount": state.endpoints.len(),
            "events": self.events_of(&format!("Egress/{name}")),
        })
    }
}
