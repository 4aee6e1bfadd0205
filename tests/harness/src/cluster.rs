//! Several nodes. In: how many, how their pods are wired, what the underlay speaks. Out: namespaces and cables, all
//! gone on drop; who forwards comes on top: podwire ([`Cluster::start`]) or the kernel ([`Cluster::forward`]).
//!
//! ```text
//!  node-1  web-1-5 ─ eth0 ══ veth-1-5 ┐
//!          web-1-6 ─ eth0 ══ veth-1-6 ┴ eth0 ══ node-1 ┐
//!  node-2  …                             eth0 ══ node-2 ┤ switch ├ router ══ eth0 ─ router ─ eth1 ══ eth0 ─ server
//! ```
//! Node N is 192.0.2.N and 2001:db8::N, its pods are 10.10.N.P and fd00:10:N::P. The router finds Egress addresses by
//! asking for them on the underlay, and knows no pods unless it is told.

mod kernel;
mod kubernetes;
mod manifest;
mod members;
mod underlay;
mod wiring;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::agent::{Agent, binary};
use crate::bpffs::Scratch;
use crate::netns::NetNs;
use crate::topology::Pod;

pub use underlay::{EGRESS_V4, EGRESS_V6, OTHER_SERVER_V4, OTHER_SERVER_V6, SERVER_V4, SERVER_V6};

/// Number of a node's first pod: lower ones are for gateways.
pub const FIRST_POD: usize = 5;

/// How pods are wired to their node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// A veth pair, nothing more: podwire forwards, and answers for a gateway that nobody holds.
    Native,
    /// As [`Wiring::Native`], but the pod has the node's whole network on its link, /24 and /64.
    NativeSubnet,
    /// As flannel's bridge plugin does: ports of a bridge that is the pods' gateway.
    Bridge,
    /// As Calico does: routes to each pod, and the node answers ARP for 169.254.1.1.
    Routed,
}

impl Wiring {
    /// Whether podwire has to forward.
    pub fn is_native(self) -> bool {
        matches!(self, Self::Native | Self::NativeSubnet)
    }
}

/// What the underlay speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Underlay {
    /// IPv4 and IPv6; nodes name their IPv4 address first.
    Dual,
    /// IPv4 alone.
    V4,
    /// IPv6 alone.
    V6,
}

/// How a cluster is laid.
#[derive(Clone, Copy, Debug)]
pub struct ClusterOptions {
    /// Number of nodes.
    pub nodes: usize,
    /// Pods of each.
    pub pods: usize,
    /// How they are wired.
    pub wiring: Wiring,
    /// What the underlay speaks.
    pub underlay: Underlay,
    /// MTU of the underlay.
    pub underlay_mtu: u32,
    /// MTU of the pods' interfaces.
    pub pod_mtu: u32,
}

impl Default for ClusterOptions {
    /// Pods' packets fit into VXLAN over either family.
    fn default() -> Self {
        Self {
            nodes: 2,
            pods: 2,
            wiring: Wiring::Native,
            underlay: Underlay::Dual,
            underlay_mtu: 1500,
            pod_mtu: 1430,
        }
    }
}

/// A node with its pods.
#[derive(Debug)]
pub struct ClusterNode {
    /// From 1.
    pub number: usize,
    /// `node-1`, `node-2`, …
    pub name: String,
    /// Its namespace; the uplink is `eth0`.
    pub netns: NetNs,
    /// Its files: `config/`, the bpffs, the agent's log.
    pub scratch: Scratch,
    /// Its pods.
    pub pods: Vec<Pod>,
    /// What is known of a pod beyond its cable, by the pod's name.
    pub about: BTreeMap<String, About>,
    agent: Option<Agent>,
}

/// What an Endpoint object says of a pod beyond its cable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// `spec.allowedAddresses`.
    pub allowed: Vec<String>,
    /// `spec.spoofGuard`; absent when empty.
    pub guard: &'static str,
}

impl ClusterNode {
    /// The agent.
    ///
    /// # Errors
    /// When none runs.
    pub fn agent(&self) -> Result<&Agent> {
        self.agent.as_ref().with_context(|| format!("no agent runs on {}", self.name))
    }

    /// Its addresses in the underlay, as a dual one has them.
    pub fn addresses(&self) -> [String; 2] {
        [format!("192.0.2.{}", self.number), format!("2001:db8::{}", self.number)]
    }

    /// Where its agent reads objects from.
    pub fn config(&self) -> PathBuf {
        self.scratch.path().join("config")
    }
}

/// Nodes, an underlay, and a server far away.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes.
    pub nodes: Vec<ClusterNode>,
    /// The underlay's switch: a bridge `br0`, with ports named after what hangs there.
    pub switch: NetNs,
    /// The router between the underlay (`eth0`) and the server (`eth1`).
    pub router: NetNs,
    /// The server.
    pub server: NetNs,
    /// Objects of all nodes alike: Egress and the like.
    policies: String,
    options: ClusterOptions,
}

impl Cluster {
    /// Lays a cluster; nobody forwards between its nodes yet.
    ///
    /// # Errors
    /// Without root or iproute2.
    pub fn new(options: ClusterOptions) -> Result<Self> {
        let (switch, router, server) = (NetNs::new("switch")?, NetNs::new("router")?, NetNs::new("server")?);
        let mut cluster =
            Self { nodes: Vec::new(), switch, router, server, policies: String::new(), options };
        cluster.lay_underlay()?;
        for _ in 0..options.nodes {
            cluster.add_node()?;
        }
        Ok(cluster)
    }

    /// Whether an address, of a node or of the world beyond, can be used on this underlay.
    pub fn speaks(&self, address: &str) -> bool {
        match self.options.underlay {
            Underlay::Dual => true,
            Underlay::V4 => !address.contains(':'),
            Underlay::V6 => address.contains(':'),
        }
    }

    /// How it is laid.
    pub fn options(&self) -> ClusterOptions {
        self.options
    }

    /// All pods.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.nodes.iter().flat_map(|node| &node.pods)
    }

    /// Starts an agent on each node; everybody forwards from then on.
    ///
    /// # Errors
    /// When one does not come up; with its log.
    pub fn start(&mut self) -> Result<()> {
        self.write_objects()?;
        (0..self.nodes.len()).try_for_each(|index| self.start_agent(index, &[]))
    }

    /// Starts the agent of one node.
    ///
    /// # Errors
    /// When it does not come up; with its log.
    pub fn start_agent(&mut self, index: usize, extra: &[&str]) -> Result<()> {
        self.start_build(&binary(), index, extra)
    }

    /// As [`Cluster::start_agent`], of another build of podwire.
    ///
    /// # Errors
    /// When it does not come up; with its log.
    pub fn start_build(&mut self, build: &Path, index: usize, extra: &[&str]) -> Result<()> {
        let forwarding = if self.options.wiring.is_native() { "native" } else { "host" };
        let node = self.nodes.get_mut(index).context("no such node")?;
        let words = [&["--forwarding", forwarding], extra].concat();
        let (netns, folder) = (&node.netns, node.scratch.path());
        node.agent = Some(Agent::start_build(build, netns, folder, &node.name, "eth0", &words)?);
        Ok(())
    }

    /// SIGKILL to the agent of one node.
    ///
    /// # Errors
    /// When none runs.
    pub fn kill_agent(&mut self, index: usize) -> Result<()> {
        let node = self.nodes.get_mut(index).context("no such node")?;
        node.agent.take().context("no agent runs")?.kill();
        Ok(())
    }
}
