//! The cluster as objects, a folder for each node's agent.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::{Cluster, ClusterNode};

const HEAD: &str = "---\napiVersion: podwire.io/v1alpha1\nkind:";

impl Cluster {
    /// Writes all objects of today; agents that run read them by themselves.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_objects(&self) -> Result<()> {
        let nodes = self.node_objects()?;
        for node in &self.nodes {
            let folder = node.config();
            fs::create_dir_all(&folder)?;
            replace(&folder, "nodes.yaml", &nodes)?;
            replace(&folder, "pods.yaml", &node.endpoint_objects()?)?;
            replace(&folder, "policies.yaml", &self.policies)?;
        }
        Ok(())
    }

    /// Sets the objects that all nodes have, and writes everything.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn set_policies(&mut self, policies: &str) -> Result<()> {
        policies.clone_into(&mut self.policies);
        self.write_objects()
    }

    fn node_objects(&self) -> Result<String> {
        let mut text = String::new();
        for node in &self.nodes {
            let mut addresses = node.addresses().to_vec();
            addresses.retain(|address| self.speaks(address));
            writeln!(text, "{HEAD} Node\nmetadata: {{name: {}}}", node.name)?;
            let (addresses, v4, v6) = (quoted(&addresses), node.cidr_v4(), node.cidr_v6());
            writeln!(text, "spec: {{addresses: [{addresses}], podCIDRs: [{v4}, \"{v6}\"]}}")?;
        }
        Ok(text)
    }
}

impl ClusterNode {
    fn endpoint_objects(&self) -> Result<String> {
        let mut text = String::new();
        for pod in &self.pods {
            let Some(about) = self.about.get(&pod.name) else { continue };
            let labels: Vec<String> =
                about.labels.iter().map(|(key, value)| format!("{key}: {value}")).collect();
            let mut more = String::new();
            if !about.allowed.is_empty() {
                write!(more, ", allowedAddresses: [{}]", quoted(&about.allowed))?;
            }
            if !about.guard.is_empty() {
                write!(more, ", spoofGuard: {}", about.guard)?;
            }
            writeln!(
                text,
                "{HEAD} Endpoint\nmetadata: {{namespace: default, name: {}, labels: {{{}}}}}\n\
                 spec: {{interface: {}, mac: \"{}\", ips: [{}, \"{}\"]{more}}}",
                pod.name,
                labels.join(", "),
                pod.interface,
                pod.mac,
                pod.v4,
                pod.v6
            )?;
        }
        Ok(text)
    }
}

fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}

/// By renaming, so that a reader sees the old file or the new one.
fn replace(folder: &Path, name: &str, text: &str) -> Result<()> {
    let draft = folder.join(format!(".{name}.new"));
    fs::write(&draft, text)?;
    Ok(fs::rename(draft, folder.join(name))?)
}
