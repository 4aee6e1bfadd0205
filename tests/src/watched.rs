//! Clusters whose nodes are driven by the library, with eyes on what their stages do.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_core::abi::{Action, Component};
use podwire_datapath::{
    Desired, Egress, EgressNode, Endpoint, Flow, Forwarding, Guard, Hook, Network, Observation, Peer, Stream,
    Trace, Watch, WatchOptions,
};
use podwire_harness::{Cluster, ClusterNode, ClusterOptions, Pod, Tagged, Wiring};

use crate::node::Node;

/// Longest time for an observation to come.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long none must come for the story to be over.
const QUIET: Duration = Duration::from_millis(300);

/// A node, and what it sees.
pub struct Watched {
    /// The datapath.
    pub node: Node,
    /// What it sees.
    pub watch: Watch,
}

/// A cluster whose pods are guarded and forwarded by the library, and whose nodes are watched.
pub struct WatchedCluster {
    /// The nodes by index.
    pub nodes: Vec<Watched>,
    /// The namespaces.
    pub cluster: Cluster,
    egresses: Vec<Egress>,
}

impl WatchedCluster {
    /// Two nodes with two pods each; podwire forwards.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn new() -> Result<Self> {
        let cluster = Cluster::new(ClusterOptions { wiring: Wiring::Native, ..ClusterOptions::default() })?;
        let mut nodes = Vec::new();
        for node in &cluster.nodes {
            let node = Node::open_with(&node.netns, &node.scratch, Hook::Auto, "eth0")?;
            let watch = node.watch(WatchOptions::default())?;
            nodes.push(Watched { node, watch });
        }
        let this = Self { nodes, cluster, egresses: Vec::new() };
        this.apply()?;
        Ok(this)
    }

    /// Puts Egress policies in force: each for all pods, or for none when its list has an empty name.
    ///
    /// # Errors
    /// When a node refuses them.
    pub fn set_egresses(&mut self, egresses: Vec<Egress>) -> Result<()> {
        self.egresses = egresses;
        self.apply()
    }

    fn apply(&self) -> Result<()> {
        for (index, watched) in self.nodes.iter().enumerate() {
            let desired = self.desired(index)?;
            let applied = watched.node.apply(&desired)?;
            ensure!(applied.network_problems.is_empty(), "{:?}", applied.network_problems);
        }
        Ok(())
    }

    /// What a node shall do.
    ///
    /// # Errors
    /// When the harness's addresses are none.
    pub fn desired(&self, index: usize) -> Result<Desired> {
        let here = &self.cluster.nodes[index];
        let peers = self.cluster.nodes.iter().filter(|node| node.number != here.number);
        let peers = peers
            .map(|node| {
                Ok(Peer { name: node.name.clone(), addresses: addresses(node)?, pod_cidrs: cidrs(node)? })
            })
            .collect::<Result<_>>()?;
        let endpoints = here.pods.iter().map(guarded).collect::<Result<Vec<_>>>()?;
        let mut egresses = self.egresses.clone();
        for egress in &mut egresses {
            let all = endpoints.iter().map(|endpoint| endpoint.name.clone());
            egress.endpoints = if egress.endpoints.is_empty() { all.collect() } else { Vec::new() };
            if egress.node == EgressNode::Peer(here.name.clone()) {
                egress.node = EgressNode::Here;
            }
        }
        let network = Network {
            forwarding: Forwarding::Native,
            addresses: addresses(here)?,
            pod_cidrs: cidrs(here)?,
            peers,
            except: Vec::new(),
        };
        Ok(Desired { endpoints, egresses, network, ..Desired::default() })
    }
}

/// An Egress policy for all pods, whose addresses podwire puts on a node.
///
/// # Errors
/// When an address is none.
pub fn egress(name: &str, ips: &[&str], node: &str) -> Result<Egress> {
    Ok(Egress {
        name: name.into(),
        endpoints: Vec::new(),
        ips: ips.iter().map(|address| address.parse()).collect::<Result<_, _>>()?,
        node: EgressNode::Peer(node.into()),
        own: true,
        destinations: Vec::new(),
        except: Vec::new(),
        bandwidth: None,
    })
}

/// A pod as an endpoint whose guard drops.
///
/// # Errors
/// When the harness's addresses are none.
pub fn guarded(pod: &Pod) -> Result<Endpoint> {
    let bytes: Vec<u8> =
        pod.mac.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>()?;
    Ok(Endpoint {
        mac: Some(bytes.try_into().ok().context("a MAC address has six bytes")?),
        ips: vec![pod.v4.parse()?, pod.v6.parse()?],
        guard: Guard::Enforce,
        ..crate::wish::endpoint(pod)
    })
}

fn addresses(node: &ClusterNode) -> Result<Vec<IpAddr>> {
    node.addresses().iter().map(|address| Ok(address.parse()?)).collect()
}

fn cidrs(node: &ClusterNode) -> Result<Vec<ipnet::IpNet>> {
    [node.cidr_v4(), node.cidr_v6()].iter().map(|cidr| Ok(cidr.parse()?)).collect()
}

/// The trace of a flow of tagged datagrams from a pod.
///
/// # Errors
/// When the pod's address is none.
pub fn trace(number: u32, pod: &Pod, sent: &Tagged) -> Result<Trace> {
    let source = if sent.destination.is_ipv4() { &pod.v4 } else { &pod.v6 };
    let flow = Flow {
        source: source.parse()?,
        destination: sent.destination,
        protocol: 17,
        source_port: sent.source_port,
        destination_port: sent.port,
    };
    Ok(Trace::new(number, sent.tag, flow, Duration::from_secs(60)))
}

/// The observations of a trace until its packet's story is over: `last` has come, and nothing after it.
///
/// # Errors
/// When it never ends so.
pub fn story(stream: &Stream, last: (Component, Action)) -> Result<Vec<Observation>> {
    let mut seen: Vec<Observation> = Vec::new();
    while seen.last().is_none_or(|seen| (seen.component, seen.action) != last) {
        let next = stream.next(PATIENCE);
        seen.push(next.with_context(|| format!("nothing after {:?}", words(&seen)))?);
    }
    let more = stream.next(QUIET);
    ensure!(more.is_none(), "after {:?} came {more:?}", words(&seen));
    Ok(seen)
}

/// `Component Action`, and the reason where there is one.
pub fn words(story: &[Observation]) -> Vec<String> {
    let word = |seen: &Observation| {
        let reason = seen.reason.map_or(String::new(), |reason| format!(" {}", reason.as_str()));
        format!("{} {}{reason}", seen.component.as_str(), seen.action.as_str())
    };
    story.iter().map(word).collect()
}
