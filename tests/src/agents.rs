//! What the agents of a cluster say. In: a cluster. Out: their JSON, or what is not in force.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use podwire_harness::{Agent, Cluster, ClusterNode, ClusterOptions, eventually, run_ok};
use serde_json::Value;

/// A cluster whose agents run and have all pods in force.
///
/// # Errors
/// When one does not come up; with its log.
pub fn cluster(options: ClusterOptions) -> Result<Cluster> {
    let mut cluster = Cluster::new(options)?;
    if !options.wiring.is_native() {
        cluster.forward()?;
    }
    cluster.start()?;
    in_force(&cluster)?;
    Ok(cluster)
}

/// Waits until every agent has all of its node's pods in force, and all other nodes.
///
/// # Errors
/// Naming the node.
pub fn in_force(cluster: &Cluster) -> Result<()> {
    // Beside a CNI, a pod that nothing applies to carries no program.
    let good: &[&str] =
        if cluster.options().wiring.is_native() { &["InForce"] } else { &["InForce", "Idle"] };
    for node in &cluster.nodes {
        let agent = node.agent()?;
        eventually(&format!("the pods of {} are in force", node.name), || {
            let shown = get(agent, &["endpoints"])?;
            let items = shown["items"].as_array().context("no list")?;
            let states = items.iter().filter_map(|item| item["status"]["state"].as_str());
            let ready = states.filter(|state| good.contains(state)).count();
            Ok(ready == node.pods.len() && items.len() == ready)
        })
        .with_context(|| agent.log())?;
        if cluster.options().wiring.is_native() {
            eventually(&format!("{} knows the cluster", node.name), || {
                let shown = get(agent, &["nodes"])?;
                let items = shown["items"].as_array().context("no list")?;
                let own = items.iter().find(|item| item["metadata"]["name"] == *node.name);
                let ready = own.is_some_and(|item| item["status"]["state"] == "Ready");
                Ok(ready && items.len() == cluster.nodes.len())
            })
            .with_context(|| agent.log())?;
        }
    }
    Ok(())
}

/// `podwire get … -o json`.
///
/// # Errors
/// When it fails, or prints something else.
pub fn get(agent: &Agent, words: &[&str]) -> Result<Value> {
    let all = [&["get"], words, &["-o", "json"]].concat();
    Ok(serde_json::from_str(&agent.cli_ok(&all)?)?)
}

/// Nothing vanishes from an agent's books: of each pod, received = passed + redirected + dropped.
///
/// # Errors
/// With the row that does not add up.
pub fn books(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        let shown = get(node.agent()?, &["endpoints"])?;
        for item in shown["items"].as_array().into_iter().flatten() {
            let packets = &item["status"]["packets"];
            let number =
                |field: &str| packets[field].as_u64().with_context(|| format!("no {field} in {item}"));
            let booked = number("passed")? + number("redirected")? + number("dropped")?;
            ensure!(number("received")? == booked, "{}: {item}", node.name);
        }
    }
    Ok(())
}

/// What a node's agent counted, by reason.
///
/// # Errors
/// When it does not answer.
pub fn reasons(node: &ClusterNode) -> Result<BTreeMap<String, u64>> {
    let socket = node.scratch.path().join("podwire.sock").to_string_lossy().into_owned();
    let answer = run_ok(&["curl", "-sS", "--fail", "--unix-socket", &socket, "http://podwire/v1/status"])?;
    let shown: Value = serde_json::from_str(&answer)?;
    let reasons = shown["reasons"].as_object().context("no reasons")?;
    Ok(reasons.iter().map(|(reason, count)| (reason.clone(), count.as_u64().unwrap_or_default())).collect())
}
