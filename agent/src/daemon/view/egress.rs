//! Egress policies as the command line sees them.

use podwire_datapath::core::abi::EgressCounters;
use podwire_datapath::{Applied, EgressNode};
use serde_json::{Value, json};

use super::{Known, by_reason};
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
        let Some(done) = applied.egresses.iter().find(|egress| egress.name == name) else {
            return Self { word: "NotInForce", reason: Some("the datapath does not have it".into()) };
        };
        if let Some(dropping) = Self::placed(state) {
            return dropping;
        }
        if let Some(problem) = &done.problem {
            return Self { word: "Dropping", reason: Some(format!("packets are dropped: {problem}")) };
        }
        let awaited = applied.endpoints.iter().find_map(|endpoint| {
            let problem = endpoint.problem.as_ref().filter(|_| state.endpoints.contains(&endpoint.name))?;
            Some(format!("{}: {problem}", endpoint.name))
        });
        Self { word: if awaited.is_some() { "Waiting" } else { "Ready" }, reason: awaited }
    }
}

impl Known<'_> {
    /// The status of an Egress.
    pub fn egress(&self, name: &str) -> Value {
        let Some(state) = self.egresses.get(name) else {
            return Value::Null;
        };
        let standing = Standing::of_egress(name, state, self.applied);
        let counters = self.egress_counters(name);
        json!({
            "inForce": standing.word != "NotInForce",
            "state": standing.word,
            "reason": standing.reason,
            "egressNode": state.place.node,
            "egressIPs": state.ips,
            "own": state.own,
            "here": state.place.seen_from(self.node) == EgressNode::Here,
            "id": self.applied.egresses.iter().find(|egress| egress.name == name).map(|egress| egress.id),
            "endpoints": state.endpoints,
            "endpointCount": state.endpoints.len(),
            "packets": counters.marked_packets + counters.forwarded_packets,
            "bytes": counters.marked_bytes + counters.forwarded_bytes,
            "marked": {"packets": counters.marked_packets, "bytes": counters.marked_bytes},
            "forwarded": {"packets": counters.forwarded_packets, "bytes": counters.forwarded_bytes},
            "connections": self.connections.get(name),
            "droppedTotal": counters.dropped_packets.iter().sum::<u64>(),
            "dropped": by_reason(EgressCounters::REASONS.iter().zip(counters.dropped_packets)),
            "events": self.events_of(&format!("Egress/{name}")),
        })
    }

    fn egress_counters(&self, name: &str) -> EgressCounters {
        let found = self.counters.egresses.iter().find(|(other, _)| other == name);
        found.map(|(_, counters)| *counters).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use podwire_datapath::{Applied, EndpointState};

    use super::Standing;
    use crate::daemon::convert::EgressState;
    use crate::daemon::place::Place;

    #[test]
    fn what_is_worst_is_said() {
        let state = |reason: Option<&str>| EgressState {
            endpoints: vec!["default/web-0".into()],
            ips: Vec::new(),
            own: false,
            place: Place { node: None, reason: reason.map(str::to_owned) },
        };
        let applied = |problem: Option<&str>, awaited: Option<&str>| {
            let endpoint = EndpointState {
                name: "default/web-0".into(),
                interface: "veth0".into(),
                ifindex: None,
                attached: [false; 2],
                problem: awaited.map(str::to_owned),
            };
            let problem = problem.map(str::to_owned);
            let egress = podwire_datapath::EgressState { name: "e".into(), id: 1, problem };
            Applied { endpoints: vec![endpoint], egresses: vec![egress], ..Applied::default() }
        };
        let nowhere = Some("no such Node");
        for (state, applied, word, reason) in [
            (state(None), applied(None, None), "Ready", None),
            (state(None), applied(None, Some("gone")), "Waiting", Some("default/web-0: gone")),
            (
                state(None),
                applied(Some("no route"), Some("gone")),
                "Dropping",
                Some("packets are dropped: no route"),
            ),
            (
                state(nowhere),
                applied(None, Some("gone")),
                "Dropping",
                Some("packets are dropped: no such Node"),
            ),
            (state(nowhere), Applied::default(), "NotInForce", Some("the datapath does not have it")),
        ] {
            let standing = Standing::of_egress("e", &state, &applied);
            assert_eq!((standing.word, standing.reason.as_deref()), (word, reason));
        }
    }
}
