//! Nodes as the command line sees them: what is known of each, and what is wrong with this one.

use podwire_datapath::Forwarding;
use podwire_datapath::core::abi::OverlayCounters;
use podwire_datapath::object::{API_VERSION, Object};
use serde_json::{Map, Value, json};

use super::{Known, by_reason};

impl Known<'_> {
    /// All Nodes, and this one whether or not there is a Node of its name.
    pub fn nodes(&self) -> Value {
        let mut list = self.list(|located| match &located.object {
            Object::Node(node) => Some(self.node_status(&node.metadata.name)),
            _ => None,
        });
        let known = self.set.nodes().any(|node| node.metadata.name == self.node);
        if let (false, Some(items)) = (known, list["items"].as_array_mut()) {
            items.push(json!({
                "apiVersion": API_VERSION,
                "kind": "Node",
                "metadata": {"name": self.node},
                "status": self.node_status(self.node),
            }));
        }
        list
    }

    fn node_status(&self, name: &str) -> Value {
        let egresses: Vec<&String> = self
            .egresses
            .iter()
            .filter(|(_, state)| state.place.node.as_deref() == Some(name))
            .map(|(egress, _)| egress)
            .collect();
        if name != self.node {
            return json!({"role": "Peer", "egresses": egresses});
        }
        let problems = self.network_problems();
        let state = if problems.is_empty() { "Ready" } else { "NotReady" };
        let [received, sent] = &self.counters.overlay;
        json!({
            "role": "This",
            "state": state,
            "forwarding": self.forwarding(),
            "egresses": egresses,
            "networkProblems": problems,
            "observations": self.observations,
            "overlay": {"received": through(received), "sent": through(sent)},
            "held": self.counters.held_packets,
            "unmapped": self.counters.unmapped_packets,
            "reasons": by_reason(self.counters.reasons.iter().map(|(reason, count)| (reason, *count))),
            "events": self.events_of(&format!("Node/{name}")),
        })
    }

    /// This node as a whole.
    pub fn status(&self, configuration: &[String]) -> Value {
        let reasons: Map<String, Value> = self
            .counters
            .reasons
            .iter()
            .map(|(reason, count)| (reason.as_str().to_owned(), json!(count)))
            .collect();
        let tables: Vec<Value> = self
            .applied
            .usage
            .iter()
            .map(|usage| json!({"table": usage.table.as_str(), "used": usage.used, "allowed": usage.allowed}))
            .collect();
        json!({
            "node": self.node,
            "store": self.store,
            "forwarding": self.forwarding(),
            "networkProblems": self.network_problems(),
            "generation": self.applied.generation,
            "reasons": reasons,
            "segmentQueueDrops": self.counters.segment_queue_drops,
            "tables": tables,
            "configurationErrors": configuration,
        })
    }

    /// What the datapath says, and that others are known but not this node: its own pods' prefixes are missing then.
    fn network_problems(&self) -> Vec<String> {
        let mut problems = self.applied.network_problems.clone();
        let mut nodes = self.set.nodes().peekable();
        let others = nodes.peek().is_some() || self.forwarding == Forwarding::Native;
        if others && !nodes.any(|node| node.metadata.name == self.node) {
            problems.push(format!("there is no Node {}: this node's pod CIDRs are not known", self.node));
        }
        problems
    }

    fn forwarding(&self) -> &'static str {
        match self.forwarding {
            Forwarding::Host => "host",
            Forwarding::Native => "native",
        }
    }
}

/// What went through the overlay in one direction, and packets that did not.
fn through(counters: &OverlayCounters) -> Value {
    json!({
        "packets": counters.passed_packets + counters.redirected_packets,
        "bytes": counters.passed_bytes + counters.redirected_bytes,
        "dropped": counters.dropped_packets,
    })
}
