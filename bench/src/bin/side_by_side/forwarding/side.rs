//! The ways from pod to pod, each with nodes and pods of its own, so that all stand ready at once.

use anyhow::{Context, Result, ensure};
use podwire_harness::{Cluster, ClusterOptions, Pod, Wiring};

use crate::contender::is_installed;
use crate::ovs::Switch;

/// A way.
#[derive(Debug)]
pub struct Way {
    /// What readers see.
    pub name: &'static str,
    /// On one node, or between two.
    pub way: &'static str,
    forwarder: Forwarder,
    nodes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forwarder {
    Bridge,
    Routes,
    OpenVSwitch,
    /// Guards its pods too, which the others do not, or does not either.
    Podwire {
        guard: bool,
    },
}

const ONE: &str = "one node";
const TWO: &str = "two nodes";

/// All ways.
pub const WAYS: [Way; 8] = [
    Way { name: "Linux bridge", way: ONE, forwarder: Forwarder::Bridge, nodes: 1 },
    Way { name: "plain routed veths", way: ONE, forwarder: Forwarder::Routes, nodes: 1 },
    Way { name: "OVS userspace datapath", way: ONE, forwarder: Forwarder::OpenVSwitch, nodes: 1 },
    Way { name: "podwire", way: ONE, forwarder: Forwarder::Podwire { guard: false }, nodes: 1 },
    Way {
        name: "podwire with SpoofGuard",
        way: ONE,
        forwarder: Forwarder::Podwire { guard: true },
        nodes: 1,
    },
    Way { name: "kernel vxlan with routes", way: TWO, forwarder: Forwarder::Routes, nodes: 2 },
    Way { name: "podwire", way: TWO, forwarder: Forwarder::Podwire { guard: false }, nodes: 2 },
    Way {
        name: "podwire with SpoofGuard",
        way: TWO,
        forwarder: Forwarder::Podwire { guard: true },
        nodes: 2,
    },
];

impl Way {
    pub fn is_podwire(&self) -> bool {
        matches!(self.forwarder, Forwarder::Podwire { .. })
    }
}

/// A way that stands.
#[derive(Debug)]
pub struct Side {
    pub way: &'static Way,
    // Before the cluster: a switch lives in its namespaces.
    _switch: Option<Switch>,
    cluster: Cluster,
}

impl Side {
    /// Lays it, and sees that packets pass.
    pub fn new(way: &'static Way) -> Result<Self> {
        let wiring = match way.forwarder {
            Forwarder::Bridge => Wiring::Bridge,
            Forwarder::Routes => Wiring::Routed,
            Forwarder::OpenVSwitch => Wiring::NativeSubnet,
            Forwarder::Podwire { .. } => Wiring::Native,
        };
        let options = ClusterOptions { nodes: way.nodes, wiring, ..ClusterOptions::default() };
        let mut cluster = Cluster::new(options)?;
        let mut switch = None;
        match way.forwarder {
            Forwarder::Bridge => {}
            Forwarder::Routes => cluster.forward()?,
            Forwarder::OpenVSwitch => {
                ensure!(is_installed("ovs-vswitchd"), "it is not installed");
                let node = cluster.nodes.first().context("a node")?;
                switch = Some(Switch::learning(&node.netns, node.scratch.path(), &node.pods)?);
            }
            Forwarder::Podwire { guard } => {
                let guard = if guard { "Enforce" } else { "Off" };
                for node in &mut cluster.nodes {
                    node.about.values_mut().for_each(|about| about.guard = guard);
                }
                cluster.start()?;
                podwire_tests::agents::in_force(&cluster)?;
            }
        }
        let side = Self { way, _switch: switch, cluster };
        let (from, to) = side.ends()?;
        podwire_harness::eventually("a packet passes", || Ok(from.netns.ping(&to.v4, 1, 56)? == 1))?;
        Ok(side)
    }

    /// The client and the server.
    pub fn ends(&self) -> Result<(&Pod, &Pod)> {
        let pod = |node: usize, pod: usize| self.cluster.nodes.get(node).and_then(|node| node.pods.get(pod));
        let to = if self.way.nodes == 1 { pod(0, 1) } else { pod(1, 0) };
        pod(0, 0).zip(to).context("two pods")
    }
}
