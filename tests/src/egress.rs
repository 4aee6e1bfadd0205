//! Egress policies of a cluster, and which address the world sees.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use podwire_harness::{
    Capture, Cluster, ClusterOptions, Pod, RunningStream, SERVER_V4, SERVER_V6, Wiring, Witness, eventually,
};
use serde_json::Value;

use crate::agents;

/// A cluster with a witness at the server, where pods' own addresses find their way back.
#[derive(Debug)]
pub struct World {
    /// The cluster.
    pub cluster: Cluster,
    /// The server.
    pub witness: Witness,
}

/// An Egress object of podwire's own kind for all pods; `fields` are those of its spec beyond `appliedTo`.
pub fn egress(name: &str, fields: &str) -> String {
    egress_of(name, "{podSelector: {matchLabels: {app: web}}}", fields)
}

/// An Egress object of podwire's own kind.
pub fn egress_of(name: &str, applied_to: &str, fields: &str) -> String {
    format!(
        "---\napiVersion: podwire.io/v1alpha1\nkind: Egress\nmetadata: {{name: {name}}}\n\
         spec: {{appliedTo: {applied_to}, {fields}}}\n"
    )
}

impl World {
    /// Two nodes with two pods each, agents running.
    ///
    /// # Errors
    /// When the cluster does not come up.
    pub fn new(wiring: Wiring) -> Result<Self> {
        Self::laid(ClusterOptions { wiring, ..ClusterOptions::default() })
    }

    /// A cluster that is laid otherwise.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn laid(options: ClusterOptions) -> Result<Self> {
        let cluster = agents::cluster(options)?;
        cluster.router_knows_pods()?;
        let witness = Witness::start(&cluster.server, 8081)?;
        Ok(Self { cluster, witness })
    }

    /// What the server sees of a pod.
    ///
    /// # Errors
    /// When the pod cannot be entered.
    pub fn source(&self, pod: &Pod, server: &str) -> Result<Option<IpAddr>> {
        self.witness.sees(&pod.netns, server)
    }

    /// Waits until the server sees a pod by `address`.
    ///
    /// # Errors
    /// When it does not, with what it sees instead.
    pub fn comes_as(&self, pod: &Pod, server: &str, address: &str) -> Result<()> {
        let (wanted, mut last): (IpAddr, _) = (address.parse()?, None);
        eventually(&format!("{} comes to {server} as {address}", pod.name), || {
            last = self.source(pod, server)?;
            Ok(last == Some(wanted))
        })
        .with_context(|| format!("{last:?}"))
    }

    /// Waits until the server sees a pod as if there were no policy: by its own address, or its node's.
    ///
    /// # Errors
    /// When it does not, with what it sees instead.
    pub fn comes_as_itself(&self, pod: &Pod, server: &str) -> Result<()> {
        let node = crate::reach::node_of(&self.cluster, pod)?.addresses();
        let own = [&pod.v4, &pod.v6, &node[0], &node[1]].map(|address| address.parse::<IpAddr>().ok());
        let mut last = None;
        eventually(&format!("{} comes to {server} as itself", pod.name), || {
            last = self.source(pod, server)?;
            Ok(last.is_some() && own.contains(&last))
        })
        .with_context(|| format!("{last:?}"))
    }

    /// Waits until all pods come as `addresses`, IPv4 and IPv6.
    ///
    /// # Errors
    /// When one does not.
    pub fn all_come_as(&self, addresses: [&str; 2]) -> Result<()> {
        for pod in self.cluster.pods() {
            for (server, address) in [SERVER_V4, SERVER_V6].into_iter().zip(addresses) {
                self.comes_as(pod, server, address)?;
            }
        }
        Ok(())
    }

    /// Waits until all pods come as themselves.
    ///
    /// # Errors
    /// When one does not.
    pub fn all_come_as_themselves(&self) -> Result<()> {
        for pod in self.cluster.pods() {
            for server in [SERVER_V4, SERVER_V6] {
                self.comes_as_itself(pod, server)?;
            }
        }
        Ok(())
    }

    /// Puts policies in force, and waits until all agents say so of `name`.
    ///
    /// # Errors
    /// When they do not.
    pub fn put(&mut self, policies: &str, name: &str) -> Result<()> {
        self.cluster.set_policies(policies)?;
        for node in &self.cluster.nodes {
            let agent = node.agent()?;
            eventually(&format!("Egress/{name} is ready on {}", node.name), || {
                let shown = agents::get(agent, &["egresses"])?;
                let mut items = shown["items"].as_array().into_iter().flatten();
                Ok(items.any(|item| item["metadata"]["name"] == name && item["status"]["state"] == "Ready"))
            })
            .with_context(|| agent.log())?;
        }
        Ok(())
    }

    /// The status of a policy on a node, the first being 0.
    ///
    /// # Errors
    /// When the node does not know it.
    pub fn status(&self, node: usize, name: &str) -> Result<Value> {
        let node = self.cluster.nodes.get(node).context("no such node")?;
        Ok(agents::get(node.agent()?, &["egresses", name])?["status"].take())
    }

    /// The status of a node as its own agent sees it.
    ///
    /// # Errors
    /// When its agent does not answer.
    pub fn node_status(&self, node: usize) -> Result<Value> {
        let node = self.cluster.nodes.get(node).context("no such node")?;
        Ok(agents::get(node.agent()?, &["nodes", &node.name])?["status"].take())
    }

    /// Lets a node hold addresses.
    ///
    /// # Errors
    /// When it has one already.
    pub fn hold(&self, node: usize, addresses: &[&str]) -> Result<()> {
        let node = self.cluster.nodes.get(node).context("no such node")?;
        addresses.iter().try_for_each(|address| self.cluster.hold(node, address))
    }

    /// A capture of what reaches the server, or the underlay's port of `node-1`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn capture(&self, at_server: bool, filter: &str) -> Result<Capture> {
        let folder = self.cluster.nodes.first().context("no node")?.scratch.path();
        let (netns, device) =
            if at_server { (&self.cluster.server, "eth0") } else { (&self.cluster.switch, "node-1") };
        Capture::start(netns, device, folder, filter, 0)
    }
}

/// The sources in a capture of datagrams to the server.
///
/// # Errors
/// When the file cannot be read.
pub fn sources(file: &Path) -> Result<BTreeSet<String>> {
    let rows = Capture::fields(file, 0, "udp && !icmp && !icmpv6", &["ip.src", "ipv6.src"])?;
    Ok(rows.into_iter().map(|row| row.concat()).collect())
}

/// Waits for a stream; some of it must have arrived.
///
/// # Errors
/// When nothing did.
pub fn some_arrived(stream: RunningStream) -> Result<()> {
    let report = stream.finish()?;
    ensure!(report.received > 0, "{report:?}");
    Ok(())
}
