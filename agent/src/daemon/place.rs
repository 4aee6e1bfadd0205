//! At which node an Egress policy's addresses are. In: the nodes, and the policies in their order. Out: a place for
//! each, found alike at every node that knows the same objects.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use podwire_datapath::EgressNode;
use podwire_datapath::object::{Egress, Node, ObjectSet};

/// Where a policy's addresses are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node's name; `None` when no node is known to have them.
    pub node: Option<String>,
    /// Why not; packets are dropped then.
    pub reason: Option<String>,
}

impl Place {
    fn at(node: &str) -> Self {
        Self { node: Some(node.to_owned()), reason: None }
    }

    fn nowhere(reason: String) -> Self {
        Self { node: None, reason: Some(reason) }
    }

    /// As this node sees it.
    pub fn seen_from(&self, here: &str) -> EgressNode {
        match &self.node {
            Some(node) if node == here => EgressNode::Here,
            Some(node) => EgressNode::Peer(node.clone()),
            None => EgressNode::Nowhere,
        }
    }
}

/// The nodes, and which policy was the first to have an address.
pub struct Places<'a> {
    here: &'a str,
    nodes: BTreeMap<&'a str, &'a Node>,
    owners: HashMap<IpAddr, &'a str>,
    held: HashMap<IpAddr, (String, &'a Egress)>,
}

impl<'a> Places<'a> {
    /// Nothing is placed yet.
    pub fn new(set: &'a ObjectSet, here: &'a str) -> Self {
        let nodes: BTreeMap<&str, &Node> =
            set.nodes().map(|node| (node.metadata.name.as_str(), node)).collect();
        let owners = nodes
            .iter()
            .flat_map(|(name, node)| node.addresses.iter().map(|address| (*address, *name)))
            .collect();
        Self { here, nodes, owners, held: HashMap::new() }
    }

    /// Places the next policy.
    pub fn place(&mut self, egress: &'a Egress) -> Place {
        let place = match &egress.node {
            Some(name) => self.said(name),
            None => self.found(egress),
        };
        let Some(node) = &place.node else { return place };
        if let Some(why) = self.taken(egress, node) {
            return Place::nowhere(why);
        }
        for ip in &egress.ips {
            self.held.entry(*ip).or_insert_with(|| (node.clone(), egress));
        }
        place
    }

    fn said(&self, name: &str) -> Place {
        if name == self.here || self.nodes.contains_key(name) {
            return Place::at(name);
        }
        Place::nowhere(format!("egressNode {name}: there is no Node of this name"))
    }

    fn found(&self, egress: &Egress) -> Place {
        let mut owners = egress.ips.iter().filter_map(|ip| Some((ip, *self.owners.get(ip)?)));
        if let Some((ip, node)) = owners.next() {
            return match owners.find(|(_, other)| *other != node) {
                None => Place::at(node),
                Some((second, other)) => Place::nowhere(format!(
                    "{ip} is an address of {node}, {second} of {other}; a policy's addresses are at one node"
                )),
            };
        }
        // Without any Node there is one node only.
        if self.nodes.is_empty() {
            return Place::at(self.here);
        }
        // Policies may share an address, which is at one node.
        if let Some((node, _)) = egress.ips.iter().find_map(|ip| self.held.get(ip)) {
            return Place::at(node);
        }
        let chosen = self.nodes.keys().max_by_key(|node| (weight(node, &egress.metadata.name), **node));
        match (chosen, egress.ips.first()) {
            (Some(node), _) if egress.own => Place::at(node),
            (_, Some(ip)) => Place::nowhere(format!(
                "{ip} is an address of no Node; egressNode says where it is, or own: true puts it on one"
            )),
            (_, None) => Place::nowhere("the policy has no address".into()),
        }
    }

    /// Why podwire cannot put the addresses on a node: they would be on two.
    fn taken(&self, egress: &Egress, node: &str) -> Option<String> {
        egress.ips.iter().find_map(|ip| {
            let of_node = self.owners.get(ip).filter(|owner| egress.own && **owner != node);
            let held = self.held.get(ip).filter(|(other, first)| other != node && (egress.own || first.own));
            match (of_node, held) {
                (Some(owner), _) => {
                    Some(format!("{ip} is an address of {owner} and cannot be put on {node}"))
                }
                (None, Some((other, first))) => {
                    let name = &first.metadata.name;
                    Some(format!(
                        "Egress/{name}, which comes first, has {ip} at {other}; it cannot be at {node} too"
                    ))
                }
                (None, None) => None,
            }
        })
    }
}

/// Rendezvous hashing: the node with the largest weight has the policy, so that a node that comes or goes moves only
/// the policies that it takes or had. FNV-1a, then a mix: names that differ at their end alone must not weigh alike.
fn weight(node: &str, policy: &str) -> u64 {
    let bytes = node.bytes().chain([b'/']).chain(policy.bytes());
    let mut hash = bytes
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use podwire_datapath::EgressNode;
    use podwire_datapath::object::{ObjectSet, parse};

    use super::{Place, Places};

    fn node(name: &str, address: &str) -> String {
        format!(
            "---\napiVersion: podwire.io/v1alpha1\nkind: Node\nmetadata: {{name: {name}}}\nspec: {{addresses: [{address}]}}\n"
        )
    }

    fn egress(name: &str, spec: &str) -> String {
        format!(
            "---\napiVersion: podwire.io/v1alpha1\nkind: Egress\nmetadata: {{name: {name}}}\nspec: {{appliedTo: {{podSelector: {{}}}}, {spec}}}\n"
        )
    }

    fn places(here: &str, text: &str) -> BTreeMap<String, Place> {
        let set = ObjectSet::build(parse("t.yaml", text).expect("valid")).expect("consistent");
        let mut places = Places::new(&set, here);
        set.egresses()
            .into_iter()
            .map(|egress| (egress.metadata.name.clone(), places.place(egress)))
            .collect()
    }

    fn nodes(count: usize) -> String {
        (1..=count).map(|number| node(&format!("node-{number}"), &format!("192.0.2.{number}"))).collect()
    }

    #[test]
    fn a_place_is_said_or_found_or_nowhere_with_the_reason() {
        for (spec, place) in [
            ("egressIP: 203.0.113.7, egressNode: node-2", Ok("node-2")),
            ("egressIP: 203.0.113.7, egressNode: node-0", Ok("node-0")),
            (
                "egressIP: 203.0.113.7, egressNode: node-9",
                Err("egressNode node-9: there is no Node of this name"),
            ),
            ("egressIP: 192.0.2.2", Ok("node-2")),
            ("egressIPs: [203.0.113.7, 192.0.2.2]", Ok("node-2")),
            (
                "egressIPs: [192.0.2.1, 192.0.2.2]",
                Err(
                    "192.0.2.1 is an address of node-1, 192.0.2.2 of node-2; a policy's addresses are at one node",
                ),
            ),
            (
                "egressIP: 203.0.113.7",
                Err(
                    "203.0.113.7 is an address of no Node; egressNode says where it is, or own: true puts it on one",
                ),
            ),
            ("egressIP: 192.0.2.2, own: true", Ok("node-2")),
            (
                "egressIP: 192.0.2.2, own: true, egressNode: node-1",
                Err("192.0.2.2 is an address of node-2 and cannot be put on node-1"),
            ),
        ] {
            let found = &places("node-0", &(nodes(3) + &egress("e", spec)))["e"];
            assert_eq!((found.node.as_deref(), found.reason.as_deref()), (place.ok(), place.err()), "{spec}");
        }
    }

    #[test]
    fn without_nodes_there_is_one_node() {
        for spec in ["egressIP: 203.0.113.7", "egressIP: 203.0.113.7, own: true"] {
            let place = &places("node-1", &egress("e", spec))["e"];
            assert_eq!(place.seen_from("node-1"), EgressNode::Here, "{spec}");
        }
        let place = &places("node-1", &egress("e", "egressIP: 203.0.113.7, egressNode: node-2"))["e"];
        assert_eq!(place.seen_from("node-1"), EgressNode::Nowhere);
    }

    #[test]
    fn own_addresses_spread_and_move_only_with_their_node() {
        let policies: String = (0..60)
            .map(|number| {
                egress(&format!("e-{number}"), &format!("egressIP: 203.0.113.{}, own: true", number + 1))
            })
            .collect();
        let before = places("node-1", &(nodes(3) + &policies));
        assert_eq!(before, places("node-3", &(nodes(3) + &policies)), "every node finds the same");
        let mut counts = BTreeMap::new();
        for place in before.values() {
            *counts.entry(place.node.clone()).or_insert(0) += 1;
        }
        assert!(counts.len() == 3 && counts.values().all(|count| (10..=30).contains(count)), "{counts:?}");
        for (name, place) in places("node-1", &(nodes(2) + &policies)) {
            let old = before[&name].node.as_deref();
            assert!(old == Some("node-3") || old == place.node.as_deref(), "{name}");
        }
    }

    #[test]
    fn the_weights_are_the_same_in_every_version() {
        // Nodes of two versions must not both put one address on themselves.
        let chosen: Vec<_> = ["a", "b", "c", "foobar", "egress-prod-web"]
            .map(|name| {
                places("x", &(nodes(3) + &egress(name, "egressIP: 203.0.113.7, own: true")))[name]
                    .node
                    .clone()
            })
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(chosen, ["node-3", "node-3", "node-1", "node-3", "node-1"]);
    }

    #[test]
    fn an_address_that_policies_share_is_at_one_node() {
        let shared = "egressIP: 203.0.113.7, own: true";
        let text: String = (0..8).map(|number| egress(&format!("e-{number}"), shared)).collect();
        let found = places("node-1", &(nodes(3) + &text));
        assert!(found.values().all(|place| place == &found["e-0"] && place.node.is_some()), "{found:?}");
        let text = egress("a", "egressIP: 203.0.113.7, own: true, egressNode: node-1")
            + &egress("b", "egressIP: 203.0.113.7, egressNode: node-2")
            + &egress("c", "egressIP: 203.0.113.7");
        let found = places("node-1", &(nodes(3) + &text));
        let why = "Egress/a, which comes first, has 203.0.113.7 at node-1; it cannot be at node-2 too";
        assert_eq!(found["b"].reason.as_deref(), Some(why));
        assert_eq!(found["c"].node.as_deref(), Some("node-1"));
    }
}
