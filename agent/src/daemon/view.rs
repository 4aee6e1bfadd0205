//! What the command line sees: objects in the form that users wrote, with a status.

use podwire_datapath::core::abi::{
    Direction, EndpointCounters, GuardCounters, PolicyCounters, Reason, SessionCounters,
};
use podwire_datapath::object::{Located, Object, ObjectSet};
use podwire_datapath::{Applied, Counters, EndpointState, Forwarding};
use serde_json::{Map, Value, json};

use std::collections::BTreeMap;

use super::convert::{EgressState, PolicyState};
use super::events::{Event, Events};

mod egress;
mod node;

pub use egress::Standing;

/// Everything that views are made of.
pub struct Known<'a> {
    /// Name of this node.
    pub node: &'a str,
    /// Who forwards on it.
    pub forwarding: Forwarding,
    /// The objects.
    pub set: &'a ObjectSet,
    /// What became of the policies.
    pub policies: &'a BTreeMap<String, PolicyState>,
    /// What became of the Egress policies.
    pub egresses: &'a BTreeMap<String, EgressState>,
    /// What is in force.
    pub applied: &'a Applied,
    /// What was counted.
    pub counters: &'a Counters,
    /// How many observations there were, and what became of them.
    pub observations: Value,
    /// Connections by Egress policy whose addresses are here, where somebody asked.
    pub connections: &'a BTreeMap<String, u64>,
    /// What changed of late.
    pub events: &'a Events,
    /// Where objects stand, and how that place is reached.
    pub store: Value,
}

impl Known<'_> {
    /// Policies.
    pub fn traffic_controls(&self) -> Value {
        self.list(|located| match &located.object {
            Object::TrafficControl(policy) => Some(self.policy(&policy.metadata.name)),
            _ => None,
        })
    }

    /// Endpoints.
    pub fn endpoints(&self) -> Value {
        self.list(|located| match &located.object {
            Object::Endpoint(endpoint) => {
                let namespace = endpoint.metadata.namespace.as_deref().unwrap_or("default");
                let name = format!("{namespace}/{}", endpoint.metadata.name);
                let mut status = self.endpoint(&name);
                status["guard"] = self.guard(&name, endpoint.guard.as_str());
                Some(status)
            }
            _ => None,
        })
    }

    /// Sessions.
    pub fn sessions(&self) -> Value {
        let items: Vec<Value> = self
            .applied
            .sessions
            .iter()
            .map(|session| {
                let counters = self.session_counters(session.session);
                json!({
                    "apiVersion": podwire_datapath::object::API_VERSION,
                    "kind": "Session",
                    "metadata": {"name": session.session.to_string()},
                    "status": {
                        "target": session.target.to_string(),
                        "policies": session.policies,
                        "engine": session.engine.as_str(),
                        "state": if session.problem.is_none() { "Ready" } else { "Losing" },
                        "problem": session.problem,
                        "copies": copies(&counters),
                    },
                })
            })
            .collect();
        json!({"items": items})
    }

    /// Egress policies.
    pub fn egresses(&self) -> Value {
        self.list(|located| match &located.object {
            Object::Egress(egress) => Some(self.egress(&egress.metadata.name)),
            _ => None,
        })
    }

    fn list(&self, status: impl Fn(&Located) -> Option<Value>) -> Value {
        let items: Vec<Value> = self
            .set
            .iter()
            .filter_map(|located| {
                let status = status(located)?;
                let mut item = located.manifest.clone();
                let fields = item.as_object_mut()?;
                if let (Some(namespace), Some(metadata)) = (
                    &located.object.metadata().namespace,
                    fields.get_mut("metadata").and_then(Value::as_object_mut),
                ) {
                    metadata.insert("namespace".into(), json!(namespace));
                }
                fields.insert("status".into(), status);
                Some(item)
            })
            .collect();
        json!({"items": items})
    }

    /// The status of a TrafficControl.
    pub fn policy(&self, name: &str) -> Value {
        let Some(state) = self.policies.get(name) else {
            return Value::Null;
        };
        let session =
            self.applied.sessions.iter().find(|session| session.policies.iter().any(|other| other == name));
        let copies_of = session.map(|session| self.session_counters(session.session)).unwrap_or_default();
        let counters = self.policy_counters(name);
        let shared: Vec<&String> =
            session.iter().flat_map(|session| &session.policies).filter(|other| *other != name).collect();
        let waiting: Vec<&EndpointState> = self
            .applied
            .endpoints
            .iter()
            .filter(|endpoint| state.endpoints.contains(&endpoint.name) && endpoint.problem.is_some())
            .collect();
        let problems: Vec<String> = waiting
            .iter()
            .filter_map(|endpoint| Some(format!("{}: {}", endpoint.name, endpoint.problem.as_ref()?)))
            .collect();
        let return_problem =
            state.return_port.as_ref().and_then(|port| self.applied.return_problems.get(&port.to_string()));
        let target_problem = session.and_then(|session| session.problem.clone());
        let word = match () {
            () if state.reason.is_some() => "NotInForce",
            () if target_problem.is_some() || return_problem.is_some() => "TargetNotReady",
            () if !problems.is_empty() => "Waiting",
            () => "Ready",
        };
        let mut status = json!({
            "inForce": state.reason.is_none(),
            "state": word,
            "reason": state.reason,
            "endpoints": state.endpoints,
            "endpointCount": state.endpoints.len(),
            "problems": problems,
            "target": state.target.as_ref().map(ToString::to_string),
            "session": session.map(|session| session.session),
            "engine": session.map(|session| session.engine.as_str()),
            "targetProblem": target_problem,
            "matched": {"packets": counters.matched_packets, "bytes": counters.matched_bytes},
            "events": self.events_of(&format!("TrafficControl/{name}")),
        });
        let more = match &state.return_port {
            Some(port) => json!({
                "returnPort": port.to_string(),
                "returnProblem": return_problem,
                "redirect": redirected(&counters),
            }),
            // Policies with one target share its session, and its copies.
            None => json!({"copies": copies(&copies_of), "sharedWith": shared}),
        };
        if let (Some(fields), Value::Object(more)) = (status.as_object_mut(), more) {
            fields.extend(more);
        }
        status
    }

    fn endpoint(&self, name: &str) -> Value {
        let state = self.applied.endpoints.iter().find(|endpoint| endpoint.name == name);
        let by = |direction| {
            let found =
                self.counters.endpoints.iter().find(|(other, way, _)| other == name && *way == direction);
            found.map(|(_, _, counters)| *counters).unwrap_or_default()
        };
        let (ingress, egress) = (by(Direction::Ingress), by(Direction::Egress));
        let word = match state {
            Some(EndpointState { ifindex: None, .. }) => "InterfaceMissing",
            Some(EndpointState { problem: Some(_), .. }) => "Failed",
            Some(state) if state.attached.contains(&true) => "InForce",
            _ => "Idle",
        };
        json!({
            "state": word,
            "problem": state.and_then(|state| state.problem.clone()),
            "ifindex": state.and_then(|state| state.ifindex),
            "packets": {
                "received": ingress.received_packets + egress.received_packets,
                "passed": ingress.passed_packets + egress.passed_packets,
                "redirected": ingress.redirected_packets + egress.redirected_packets,
                "dropped": ingress.dropped_packets + egress.dropped_packets,
                "mirrored": ingress.mirrored_packets + egress.mirrored_packets,
            },
            "ingress": packets(&ingress),
            "egress": packets(&egress),
        })
    }

    fn guard(&self, name: &str, mode: &str) -> Value {
        let found = self.counters.guards.iter().find(|(other, _)| other == name);
        let counters = found.map(|(_, counters)| *counters).unwrap_or_default();
        let by_reason =
            |counts: &[u64]| by_reason(GuardCounters::reasons().iter().zip(counts.iter().copied()));
        let all = counters.dropped_packets.iter().chain(&counters.observed_packets);
        json!({
            "mode": mode,
            "spoofed": all.sum::<u64>(),
            "dropped": by_reason(&counters.dropped_packets),
            "observed": by_reason(&counters.observed_packets),
        })
    }

    fn policy_counters(&self, name: &str) -> PolicyCounters {
        let found = self.counters.policies.iter().find(|(other, _)| other == name);
        found.map(|(_, counters)| *counters).unwrap_or_default()
    }

    fn events_of(&self, object: &str) -> Vec<Value> {
        self.events.iter().filter(|event| event.object == object).map(Event::to_json).collect()
    }

    /// What changed of late, oldest first.
    pub fn all_events(&self) -> Value {
        json!({"items": self.events.iter().map(Event::to_json).collect::<Vec<_>>()})
    }

    fn session_counters(&self, session: u32) -> SessionCounters {
        let found = self.counters.sessions.iter().find(|(number, ..)| *number == session);
        found.map(|(_, _, counters)| *counters).unwrap_or_default()
    }
}

/// `away`: packets that the tool has, or that it dropped.
fn redirected(counters: &PolicyCounters) -> Value {
    json!({
        "redirected": {"packets": counters.redirected_packets, "bytes": counters.redirected_bytes},
        "returned": {"packets": counters.returned_packets, "bytes": counters.returned_bytes},
        "away": counters.redirected_packets.saturating_sub(counters.returned_packets),
        "bypassed": counters.bypassed_packets,
        "refused": counters.refused_packets,
        "passedBefore": counters.passed_tool_packets,
        "probes": counters.probes,
        "probesReturned": counters.probes_returned,
    })
}

fn copies(counters: &SessionCounters) -> Value {
    let lost = by_reason(Reason::ALL.iter().map(|reason| (reason, counters.lost_packets[reason.index()])));
    json!({
        "matched": counters.matched_packets,
        "matchedBytes": counters.matched_bytes,
        "sent": counters.sent_packets,
        "sentBytes": counters.sent_bytes,
        "truncated": counters.truncated_packets,
        "queued": counters.queued_packets,
        "sampledOut": counters.sampled_out_packets,
        "handed": counters.handed_packets,
        "taken": counters.taken_packets,
        "lostTotal": counters.lost_packets.iter().sum::<u64>(),
        "lost": lost,
    })
}

/// What there is of each reason, by its word.
fn by_reason<'a>(counts: impl Iterator<Item = (&'a Reason, u64)>) -> Map<String, Value> {
    let counts = counts.filter(|(_, count)| *count > 0);
    counts.map(|(reason, count)| (reason.as_str().to_owned(), json!(count))).collect()
}

fn packets(counters: &EndpointCounters) -> Value {
    json!({
        "received": {"packets": counters.received_packets, "bytes": counters.received_bytes},
        "passed": {"packets": counters.passed_packets, "bytes": counters.passed_bytes},
        "redirected": {"packets": counters.redirected_packets, "bytes": counters.redirected_bytes},
        "dropped": {"packets": counters.dropped_packets, "bytes": counters.dropped_bytes},
        "mirrored": {"packets": counters.mirrored_packets, "bytes": counters.mirrored_bytes},
    })
}
