//! Nodes and pods come and go.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::underlay::forwards;
use super::{About, Cluster, ClusterNode, FIRST_POD, Wiring};
use crate::bpffs::Scratch;
use crate::netns::NetNs;
use crate::topology::Pod;

impl Cluster {
    /// Adds the next node, with as many pods as the options say. Its agent, if any, is for the caller to start, and
    /// the others hear of it by [`Cluster::write_objects`].
    ///
    /// # Errors
    /// Without root or iproute2.
    pub fn add_node(&mut self) -> Result<()> {
        let number = self.nodes.last().map_or(1, |node| node.number + 1);
        let netns = NetNs::new("node")?;
        forwards(&netns)?;
        let node = ClusterNode {
            number,
            name: format!("node-{number}"),
            netns,
            scratch: Scratch::new()?,
            pods: Vec::new(),
            about: BTreeMap::new(),
            agent: None,
        };
        let [v4, v6] = node.addresses();
        self.plug_in(&node.netns, &node.name, &format!("{v4}/24"), &format!("{v6}/64"))?;
        if self.options.wiring == Wiring::Bridge {
            node.lay_bridge(self.options.pod_mtu)?;
        }
        self.nodes.push(node);
        let index = self.nodes.len() - 1;
        (0..self.options.pods).try_for_each(|_| self.add_pod(index))
    }

    /// Takes the last node out of the underlay, with its pods and its agent.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove_last_node(&mut self) -> Result<()> {
        let mut node = self.nodes.pop().context("no node")?;
        node.agent = None;
        self.switch.ip(&["link", "del", &node.name]).map(drop)
    }

    /// Adds a pod to a node; its Endpoint object is written by [`Cluster::write_objects`].
    ///
    /// # Errors
    /// When its names are taken.
    pub fn add_pod(&mut self, index: usize) -> Result<()> {
        self.add_pod_with_mtu(index, self.options.pod_mtu)
    }

    /// Adds a pod whose interface has an MTU of its own.
    ///
    /// # Errors
    /// When its names are taken.
    pub fn add_pod_with_mtu(&mut self, index: usize, mtu: u32) -> Result<()> {
        let wiring = self.options.wiring;
        let node = self.nodes.get_mut(index).context("no such node")?;
        let taken = node.pods.last().and_then(|pod| pod.name.rsplit('-').next()?.parse::<usize>().ok());
        let (number, place) = (taken.map_or(FIRST_POD, |last| last + 1), node.number);
        let pod = Pod {
            netns: NetNs::new("pod")?,
            name: format!("web-{place}-{number}"),
            interface: format!("veth-{place}-{number}"),
            v4: format!("10.10.{place}.{number}"),
            v6: format!("fd00:10:{place}::{number}"),
            mac: format!("02:00:00:00:{place:02x}:{number:02x}"),
        };
        node.connect(&pod, wiring, mtu)?;
        let labels = [("app", "web"), ("node", &node.name), ("pod", &pod.name)];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        node.about.insert(pod.name.clone(), About { labels, ..About::default() });
        node.pods.push(pod);
        Ok(())
    }

    /// Removes a node's last pod and its cable.
    ///
    /// # Errors
    /// When it has none.
    pub fn remove_last_pod(&mut self, index: usize) -> Result<()> {
        let node = self.nodes.get_mut(index).context("no such node")?;
        let pod = node.pods.pop().context("no pod")?;
        node.about.remove(&pod.name);
        node.netns.ip(&["link", "del", &pod.interface]).map(drop)
    }

    /// What is known of a pod, for a test to change before [`Cluster::write_objects`].
    ///
    /// # Errors
    /// When there is no such pod.
    pub fn about(&mut self, pod: &str) -> Result<&mut About> {
        self.nodes
            .iter_mut()
            .find_map(|node| node.about.get_mut(pod))
            .with_context(|| format!("no pod {pod}"))
    }

    /// The pod of a name.
    ///
    /// # Errors
    /// When there is no such pod.
    pub fn pod(&self, name: &str) -> Result<&Pod> {
        self.pods().find(|pod| pod.name == name).with_context(|| format!("no pod {name}"))
    }
}
