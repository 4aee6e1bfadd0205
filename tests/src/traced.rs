//! A cluster whose nodes trace: packets that are injected, and live ones.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_datapath::traceflow::{Goal, Packet, PacketStory, Report, Request, Running, Tracer, Transport};
use podwire_datapath::{Flow, Observation, TraceOptions};
use podwire_harness::Pod;
use tokio::runtime::Runtime;

use crate::watched::{WatchedCluster, words};

/// One packet.
pub const ONE: Goal = Goal { packets: 1, replies: false, dropped_only: false };

/// The cluster, and a tracer for each node.
pub struct TracedCluster {
    /// The tracers by index of their node.
    pub tracers: Vec<Tracer>,
    /// Nodes, pods and policies.
    pub world: WatchedCluster,
    runtime: Runtime,
}

impl TracedCluster {
    /// As [`WatchedCluster::new`].
    ///
    /// # Errors
    /// When it does not come up.
    pub fn new() -> Result<Self> {
        let world = WatchedCluster::new()?;
        let tracers = world.nodes.iter().map(|watched| watched.node.tracer()).collect::<Result<_>>()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { tracers, world, runtime })
    }

    /// A pod by the numbers of its node and its own.
    pub fn pod(&self, node: usize, pod: usize) -> &Pod {
        &self.world.cluster.nodes[node].pods[pod]
    }

    /// A packet from a pod.
    ///
    /// # Errors
    /// When the node does not know the pod.
    pub fn packet(&self, from: (usize, usize), to: &str, transport: Transport) -> Result<Packet> {
        let pod = self.pod(from.0, from.1);
        let at = self.world.nodes[from.0].node.attachment(&name(pod))?;
        let destination: IpAddr = to.parse()?;
        let source = if destination.is_ipv4() { pod.v4.parse()? } else { pod.v6.parse()? };
        Ok(Packet {
            source_mac: at.mac,
            destination_mac: at.gateway,
            source,
            destination,
            ttl: 64,
            dont_fragment: true,
            identification: 77,
            transport,
            payload: 20,
        })
    }

    /// Begins a trace of a flow on all nodes: all reports come under one tag.
    ///
    /// # Errors
    /// As the library says.
    pub fn begin(&self, flow: Flow, options: TraceOptions) -> Result<Vec<Running>> {
        let _runtime = self.runtime.enter();
        let duration = Duration::from_secs(10);
        let mut request = Request { flows: vec![flow], options, duration, ..Request::default() };
        let mut running = Vec::new();
        for tracer in &self.tracers {
            let begun = tracer.begin(&request)?;
            request.tag = Some(begun.tag());
            running.push(begun);
        }
        Ok(running)
    }

    /// Begins a trace on one node.
    ///
    /// # Errors
    /// As the library says.
    pub fn begin_on(&self, node: usize, request: &Request) -> Result<Running> {
        let _runtime = self.runtime.enter();
        Ok(self.tracers[node].begin(request)?)
    }

    /// Injects a packet at a node's pod.
    ///
    /// # Errors
    /// As the library says.
    pub fn inject(&self, from: (usize, usize), packet: &Packet, tag: u8) -> Result<()> {
        let node = &self.world.nodes[from.0].node;
        let at = node.attachment(&name(self.pod(from.0, from.1)))?;
        Ok(node.injector()?.inject(&packet.frame(tag)?, at.ifindex)?)
    }

    /// Waits for the end of a trace on one node.
    pub fn finish(&self, running: Running, goal: Goal) -> Report {
        self.runtime.block_on(running.finish(goal))
    }

    /// Traces an injected packet over the first nodes of the cluster; what each of them saw.
    ///
    /// # Errors
    /// When it does not come to an end on each.
    pub fn trace(
        &self,
        from: (usize, usize),
        packet: &Packet,
        nodes: &[usize],
    ) -> Result<Vec<Vec<Observation>>> {
        let options = TraceOptions { ends: true, ..TraceOptions::default() };
        let mut running: Vec<Option<Running>> =
            self.begin(packet.flow(), options)?.into_iter().map(Some).collect();
        let tag = running[0].as_ref().context("no trace")?.tag();
        self.inject(from, packet, tag)?;
        let mut seen = Vec::new();
        for node in nodes {
            let begun = running[*node].take().context("a node twice")?;
            let report = self.finish(begun, ONE);
            ensure!(report.over && report.lost == 0, "node {node}: {report:?}");
            seen.push(only(&report)?.observations.clone());
        }
        Ok(seen)
    }
}

/// The only packet of a report.
///
/// # Errors
/// When there are others.
pub fn only(report: &Report) -> Result<&PacketStory> {
    match report.story.packets()[..] {
        [packet] => Ok(packet),
        ref other => anyhow::bail!("not one packet but {other:?}"),
    }
}

/// What each node says, in words.
pub fn spoken(seen: &[Vec<Observation>]) -> Vec<Vec<String>> {
    seen.iter().map(|of_node| words(of_node)).collect()
}

/// As endpoints are named.
pub fn name(pod: &Pod) -> String {
    format!("default/{}", pod.name)
}
