//! The kernel as the forwarder between nodes, as flannel sets it up: a VXLAN device without learning, and a route, a
//! neighbour and a forwarding entry for each other node.

use anyhow::Result;

use super::underlay::family;
use super::{Cluster, ClusterNode};

const DEVICE: &str = "overlay";
const PORT: &str = "8472";

impl Cluster {
    /// Lets the kernel forward between all nodes of today, or of today as well.
    ///
    /// # Errors
    /// When it cannot.
    pub fn forward(&self) -> Result<()> {
        for node in &self.nodes {
            if !node.netns.run(&["ip", "link", "show", DEVICE])?.status.success() {
                self.lay_overlay(node)?;
            }
            for peer in self.nodes.iter().filter(|peer| peer.number != node.number) {
                self.lead_to(node, peer)?;
            }
        }
        Ok(())
    }

    /// Bytes of the headers that the overlay adds to a pod's packet.
    pub fn overlay_headers(&self) -> u32 {
        if self.speaks("0.0.0.0") { 50 } else { 70 }
    }

    fn end_of<'a>(&self, addresses: &'a [String; 2]) -> &'a str {
        let [v4, v6] = addresses;
        if self.speaks(v4) { v4 } else { v6 }
    }

    fn lay_overlay(&self, node: &ClusterNode) -> Result<()> {
        let addresses = node.addresses();
        let mtu = (self.options().underlay_mtu - self.overlay_headers()).to_string();
        let (mac, local) = (mac(node.number), self.end_of(&addresses));
        let device = ["link", "add", DEVICE, "mtu", &mtu, "address", &mac, "type", "vxlan", "id", "1"];
        let ends = ["dstport", PORT, "local", local, "dev", "eth0", "nolearning"];
        node.netns.ip(&[&device[..], &ends[..]].concat())?;
        // The address that the node itself has towards other nodes' pods.
        node.netns.ip(&["addr", "add", &format!("10.10.{}.0/32", node.number), "dev", DEVICE])?;
        node.netns.ip(&["addr", "add", &format!("fd00:10:{}::/128", node.number), "dev", DEVICE, "nodad"])?;
        node.netns.ip(&["link", "set", DEVICE, "up"]).map(drop)
    }

    fn lead_to(&self, node: &ClusterNode, peer: &ClusterNode) -> Result<()> {
        let addresses = peer.addresses();
        let (mac, remote) = (mac(peer.number), self.end_of(&addresses));
        let entry = ["bridge", "fdb", "replace", &mac, "dev", DEVICE, "dst", remote, "self", "permanent"];
        node.netns.run_ok(&entry)?;
        let ends = [format!("10.10.{}.0", peer.number), format!("fd00:10:{}::", peer.number)];
        for (range, end) in [peer.cidr_v4(), peer.cidr_v6()].iter().zip(&ends) {
            node.netns.ip(&["neigh", "replace", end, "lladdr", &mac, "dev", DEVICE, "nud", "permanent"])?;
            node.netns.ip(&[family(end), "route", "replace", range, "via", end, "dev", DEVICE, "onlink"])?;
        }
        Ok(())
    }

    /// Lets a node's kernel send pods' packets to the world with an address, which it holds from then on.
    ///
    /// # Errors
    /// Without nftables.
    pub fn translate(&self, node: &ClusterNode, pods: &str, address: &str) -> Result<()> {
        self.hold(node, address)?;
        let word = if address.contains(':') { "ip6" } else { "ip" };
        let table = format!("{word} scene");
        let rule = format!("{word} saddr {pods} {word} daddr != {pods} oifname eth0 snat to {address}");
        let chain = "{ type nat hook postrouting priority srcnat; }";
        node.netns.run_ok(&["nft", &format!("add table {table}")])?;
        node.netns.run_ok(&["nft", &format!("add chain {table} out {chain}")])?;
        node.netns.run_ok(&["nft", &format!("add rule {table} out {rule}")]).map(drop)
    }

    /// Gives a node an address on its uplink, as an administrator or another tool would.
    ///
    /// # Errors
    /// When it has it already.
    pub fn hold(&self, node: &ClusterNode, address: &str) -> Result<()> {
        let length = if address.contains(':') { 128 } else { 32 };
        let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        let words = ["addr", "add", &format!("{address}/{length}"), "dev", "eth0"];
        node.netns.ip(&[&words[..], nodad].concat()).map(drop)
    }
}

fn mac(number: usize) -> String {
    format!("02:00:00:00:fe:{number:02x}")
}
