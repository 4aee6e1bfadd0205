//! A cluster whose agents follow a real API server. In: how it is laid. Out: both, and what objects' status says.

use std::path::Path;

use anyhow::{Context, Result};
use podwire_harness::{ApiServer, Cluster, ClusterNode, ClusterOptions, eventually};
use serde_json::Value;

use crate::agents;

/// The server and the cluster. Agents go before the server.
#[derive(Debug)]
pub struct Followed {
    /// The cluster.
    pub cluster: Cluster,
    /// The server.
    pub server: ApiServer,
}

/// The file or folder of manifests that is delivered.
fn deployed(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name).display().to_string()
}

impl Followed {
    /// Two nodes with two pods each, known to a server that has podwire's definitions and rights; agents follow it
    /// and have all pods in force.
    ///
    /// # Errors
    /// When one of all that does not come up.
    pub fn new(options: ClusterOptions) -> Result<Self> {
        let mut followed = Self::without_agents(options)?;
        followed.cluster.start_following(&followed.server)?;
        agents::in_force(&followed.cluster).with_context(|| followed.logs())?;
        Ok(followed)
    }

    /// The same without agents yet.
    ///
    /// # Errors
    /// When the server or the cluster does not come up.
    pub fn without_agents(options: ClusterOptions) -> Result<Self> {
        let server = ApiServer::start()?;
        let crds = deployed("crds");
        server.kubectl_ok(&["apply", "--validate=false", "-f", &crds])?;
        server.kubectl_ok(&["apply", "--validate=false", "-f", &deployed("kubernetes/rbac.yaml")])?;
        server.kubectl_ok(&["wait", "--for=condition=established", "--timeout=20s", "-f", &crds])?;
        let cluster = Cluster::new(options)?;
        if !options.wiring.is_native() {
            cluster.forward()?;
        }
        cluster.router_knows_pods()?;
        cluster.join(&server)?;
        Ok(Self { cluster, server })
    }

    /// The status of an object: `resource` as `kubectl` names it.
    ///
    /// # Errors
    /// When there is no such object.
    pub fn status(&self, resource: &str, name: &str) -> Result<Value> {
        let text = self.server.kubectl_ok(&["get", resource, name, "-o", "json"])?;
        let mut object: Value = serde_json::from_str(&text)?;
        Ok(object["status"].take())
    }

    /// Waits until every node says this of an object: `state`, and `part` in the reason.
    ///
    /// # Errors
    /// When one says otherwise; with all that is said.
    pub fn every_node_says(&self, resource: &str, name: &str, state: &str, part: &str) -> Result<()> {
        let mut last = Value::Null;
        eventually(&format!("every node says {state} of {name}"), || {
            last = self.status(resource, name)?;
            Ok(self.cluster.nodes.iter().all(|node| {
                entry(&last, node).is_some_and(|entry| {
                    let reason = entry["reason"].as_str().unwrap_or_default();
                    entry["state"] == state && reason.contains(part)
                })
            }))
        })
        .with_context(|| format!("{last:#}\n{}", self.logs()))
    }

    /// What all agents say and logged.
    pub fn logs(&self) -> String {
        let logs = self.cluster.nodes.iter().filter_map(|node| {
            let agent = node.agent().ok()?;
            let status = agent.cli_ok(&["get", "status", "-o", "yaml"]).unwrap_or_default();
            let endpoints = agent.cli_ok(&["get", "endpoints", "-o", "wide"]).unwrap_or_default();
            Some(format!("{status}\n{endpoints}\n{}", agent.log()))
        });
        logs.collect::<Vec<_>>().join("\n--\n")
    }
}

/// What a node says in a status.
pub fn entry<'a>(status: &'a Value, node: &ClusterNode) -> Option<&'a Value> {
    status["nodes"].as_array()?.iter().find(|entry| entry["node"] == node.name)
}
