//! What is new. In: states before and after. Out: events.

use std::collections::BTreeMap;

use podwire_datapath::{Applied, SessionState, Target};

use super::convert::{EgressState, PolicyState};
use super::events::{Events, note};
use super::view::Standing;

/// Policies that come into force, fall out of it, or go.
pub fn tell_policies(
    events: &mut Events,
    before: &BTreeMap<String, PolicyState>,
    after: &BTreeMap<String, PolicyState>,
) {
    for (name, state) in after {
        let object = format!("TrafficControl/{name}");
        let old = before.get(name);
        match &state.reason {
            Some(reason) if old.and_then(|old| old.reason.as_ref()) != Some(reason) => {
                note(events, object, true, "NotInForce", reason.clone());
            }
            None if old.is_none_or(|old| old.reason.is_some() || old != state) => {
                let count = state.endpoints.len();
                let target = state.target.as_ref().map(ToString::to_string).unwrap_or_default();
                note(events, object, false, "InForce", format!("{count} endpoints, to {target}"));
            }
            _ => {}
        }
    }
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        note(events, format!("TrafficControl/{name}"), false, "Removed", "out of force".into());
    }
}

/// What was last told of each Egress policy.
#[derive(Debug, Default)]
pub struct ToldEgresses(BTreeMap<String, (&'static str, String)>);

impl ToldEgresses {
    /// Tells what is new since.
    pub fn tell(&mut self, events: &mut Events, states: &BTreeMap<String, EgressState>, applied: &Applied) {
        let news: BTreeMap<_, _> = states
            .iter()
            .map(|(name, state)| (name.clone(), line(&Standing::of_egress(name, state, applied), state)))
            .collect();
        for (name, (reason, message)) in &news {
            if self.0.get(name).is_none_or(|told| told != &(*reason, message.clone())) {
                let warning = *reason != "InForce";
                note(events, format!("Egress/{name}"), warning, reason, message.clone());
            }
        }
        for name in self.0.keys().filter(|name| !news.contains_key(*name)) {
            note(events, format!("Egress/{name}"), false, "Removed", "out of force".into());
        }
        self.0 = news;
    }
}

/// Reason and message. Endpoints that are awaited have events of their own.
fn line(standing: &Standing, state: &EgressState) -> (&'static str, String) {
    if let ("Dropping" | "NotInForce", Some(reason)) = (standing.word, &standing.reason) {
        return (standing.word, reason.clone());
    }
    let ips: Vec<String> = state.ips.iter().map(ToString::to_string).collect();
    let node = state.place.node.as_deref().unwrap_or_default();
    ("InForce", format!("{} endpoints leave with {} at {node}", state.endpoints.len(), ips.join(", ")))
}

/// Endpoints, sessions and the network around this node.
pub fn tell_applied(events: &mut Events, node: &str, before: &Applied, after: &Applied) {
    tell_endpoints(events, before, after);
    tell_sessions(events, before, after);
    let object = format!("Node/{node}");
    for problem in after.network_problems.iter().filter(|problem| !before.network_problems.contains(problem))
    {
        note(events, object.clone(), true, "NetworkNotReady", problem.clone());
    }
    if after.network_problems.is_empty() && !before.network_problems.is_empty() {
        note(events, object, false, "NetworkReady", "overlay, routes and address translation".into());
    }
}

fn tell_endpoints(events: &mut Events, before: &Applied, after: &Applied) {
    for endpoint in &after.endpoints {
        let old = before.endpoints.iter().find(|other| other.name == endpoint.name);
        if old == Some(endpoint) {
            continue;
        }
        let object = format!("Endpoint/{}", endpoint.name);
        match &endpoint.problem {
            Some(problem) => note(events, object, true, "NotInForce", problem.clone()),
            None => {
                let hooks = match endpoint.attached {
                    [true, true] => "both hooks",
                    [true, false] => "the hook towards the pod",
                    [false, true] => "the hook from the pod",
                    [false, false] => "no hook",
                };
                note(events, object, false, "InForce", format!("{hooks} of {}", endpoint.interface));
            }
        }
    }
}

fn tell_sessions(events: &mut Events, before: &Applied, after: &Applied) {
    // Captures are nobody's policies.
    let is_policys = |session: &&SessionState| !matches!(session.target, Target::Reader { .. });
    for session in after.sessions.iter().filter(is_policys) {
        let old = before.sessions.iter().find(|other| other.target == session.target);
        if old.is_some_and(|old| old.problem == session.problem) {
            continue;
        }
        for policy in &session.policies {
            let object = format!("TrafficControl/{policy}");
            match &session.problem {
                Some(problem) => note(events, object, true, "TargetNotReady", problem.clone()),
                None => note(events, object, false, "TargetReady", session.target.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use podwire_datapath::Applied;

    use super::{ToldEgresses, tell_applied};
    use crate::daemon::convert::EgressState;
    use crate::daemon::events::Events;
    use crate::daemon::place::Place;

    fn reasons(events: &mut Events) -> Vec<(&'static str, bool)> {
        let told = std::mem::replace(events, Events::new(|_| {}));
        told.iter().map(|event| (event.reason, event.warning)).collect()
    }

    #[test]
    fn each_change_of_an_egress_policy_is_told_once() {
        let state = |node: Option<&str>| EgressState {
            endpoints: vec!["default/web-0".into()],
            ips: vec!["203.0.113.7".parse().expect("an address")],
            own: false,
            place: Place {
                node: node.map(str::to_owned),
                reason: node.is_none().then(|| "no such Node".to_owned()),
            },
        };
        let applied = |problem: Option<&str>| {
            let problem = problem.map(str::to_owned);
            let egress = podwire_datapath::EgressState { name: "e".into(), id: 1, problem };
            Applied { egresses: vec![egress], ..Applied::default() }
        };
        let (mut told, mut events) = (ToldEgresses::default(), Events::new(|_| {}));
        for (node, problem, expected) in [
            (Some("node-1"), None, &[("InForce", false)][..]),
            (Some("node-1"), None, &[]),
            (Some("node-2"), None, &[("InForce", false)]),
            (Some("node-2"), Some("no route"), &[("Dropping", true)]),
            (Some("node-2"), None, &[("InForce", false)]),
            (None, None, &[("Dropping", true)]),
            (None, None, &[]),
        ] {
            let states = BTreeMap::from([("e".to_owned(), state(node))]);
            told.tell(&mut events, &states, &applied(problem));
            assert_eq!(reasons(&mut events), expected, "{node:?} {problem:?}");
        }
        told.tell(&mut events, &BTreeMap::new(), &Applied::default());
        assert_eq!(reasons(&mut events), [("Removed", false)]);
    }

    #[test]
    fn what_is_wrong_with_the_network_is_told_when_it_comes_and_goes() {
        let mut events = Events::new(|_| {});
        let wrong = Applied { network_problems: vec!["no route to node-2".into()], ..Applied::default() };
        tell_applied(&mut events, "node-1", &Applied::default(), &wrong);
        tell_applied(&mut events, "node-1", &wrong, &wrong);
        tell_applied(&mut events, "node-1", &wrong, &Applied::default());
        assert!(events.iter().all(|event| event.object == "Node/node-1"));
        assert_eq!(reasons(&mut events), [("NetworkNotReady", true), ("NetworkReady", false)]);
    }
}
