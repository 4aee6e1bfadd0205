//! The cluster as Kubernetes' own objects. In: an API server. Out: its Nodes and Pods, as kubelets would have made
//! them, and agents that follow it.

use std::fmt::Write;

use anyhow::Result;
use serde_json::{Value, json};

use super::{Cluster, ClusterNode};
use crate::api_server::ApiServer;
use crate::topology::Pod;

impl Cluster {
    /// Connects every node to a server that knows them from then on, with their pods.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn join(&self, server: &ApiServer) -> Result<()> {
        for node in &self.nodes {
            server.connect(&node.netns)?;
        }
        let nodes: String = self.nodes.iter().map(ClusterNode::core_object).collect();
        server.apply(&nodes)?;
        for node in &self.nodes {
            let mut addresses = node.addresses().to_vec();
            addresses.retain(|address| self.speaks(address));
            let addresses: Vec<Value> =
                addresses.iter().map(|it| json!({"type": "InternalIP", "address": it})).collect();
            server.set_status("node", &node.name, &json!({"addresses": addresses}))?;
        }
        self.publish_pods(server)
    }

    /// Makes all pods of today known, with the labels of today. Where nothing but podwire forwards, nothing else tells
    /// their interfaces: they say them themselves.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn publish_pods(&self, server: &ApiServer) -> Result<()> {
        let said = self.options().wiring.is_native();
        let mut text = String::new();
        for node in &self.nodes {
            for pod in &node.pods {
                text += &node.pod_object(pod, said)?;
            }
        }
        server.apply(&text)?;
        for pod in self.pods() {
            let ips = json!([{"ip": pod.v4}, {"ip": pod.v6}]);
            let status = json!({"phase": "Running", "podIP": pod.v4, "podIPs": ips});
            server.set_status("pod", &pod.name, &status)?;
        }
        Ok(())
    }

    /// Starts an agent on each node that follows the server.
    ///
    /// # Errors
    /// When one does not come up; with its log.
    pub fn start_following(&mut self, server: &ApiServer) -> Result<()> {
        let file = server.kubeconfig().display().to_string();
        (0..self.nodes.len()).try_for_each(|index| self.start_agent(index, &["--kubeconfig", &file]))
    }
}

impl ClusterNode {
    fn core_object(&self) -> String {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {}}}\n\
             spec: {{podCIDR: {v4}, podCIDRs: [{v4}, \"{}\"]}}\n",
            self.name,
            self.cidr_v6(),
            v4 = self.cidr_v4()
        )
    }

    fn pod_object(&self, pod: &Pod, said: bool) -> Result<String> {
        let mut text = format!("---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\n", pod.name);
        if said {
            let (interface, mac) = (&pod.interface, &pod.mac);
            writeln!(
                text,
                "  annotations: {{podwire.io/interface: {interface}, podwire.io/mac: \"{mac}\"}}"
            )?;
        }
        let labels = self.about.get(&pod.name).map(|about| about.labels.clone()).unwrap_or_default();
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        writeln!(text, "  namespace: default\n  labels: {{{}}}", labels.join(", "))?;
        writeln!(text, "spec: {{nodeName: {}, containers: [{{name: main, image: none}}]}}", self.name)?;
        Ok(text)
    }
}
