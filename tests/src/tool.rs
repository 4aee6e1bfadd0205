//! TrafficControl policies of a cluster, and a tool that gives every frame back.

use anyhow::{Context, Result, ensure};
use podwire_harness::{Cluster, ClusterNode, eventually};
use serde_json::Value;

use crate::agents;

/// The internal ports of [`redirect`].
pub const PORTS: [&str; 2] = ["ips-in", "ips-out"];

/// A TrafficControl; `selector`: labels of the pods, `fields`: of its spec beyond `appliedTo`.
pub fn policy(name: &str, selector: &str, fields: &str) -> String {
    format!(
        "---\napiVersion: podwire.io/v1alpha1\nkind: TrafficControl\nmetadata: {{name: {name}}}\n\
         spec: {{appliedTo: {{podSelector: {{matchLabels: {{{selector}}}}}}}, {fields}}}\n"
    )
}

/// A mirror of everything.
pub fn mirror(name: &str, selector: &str, target: &str) -> String {
    policy(name, selector, &format!("direction: Both, action: Mirror, targetPort: {{{target}}}"))
}

/// A redirect of everything in a direction, through [`PORTS`].
pub fn redirect(name: &str, selector: &str, direction: &str, failure: &str) -> String {
    let [target, back] = PORTS.map(|port| format!("{{internal: {{name: {port}}}}}"));
    let fields = format!(
        "direction: {direction}, action: Redirect, targetPort: {target}, returnPort: {back}, \
         failurePolicy: {failure}"
    );
    policy(name, selector, &fields)
}

/// Puts policies in force, and waits until the first node says so of `name`.
///
/// # Errors
/// When it does not, with what it says instead.
pub fn put(cluster: &mut Cluster, policies: &str, name: &str) -> Result<()> {
    cluster.set_policies(policies)?;
    let agent = cluster.nodes.first().context("no node")?.agent()?;
    let wanted = policies.to_owned();
    let mut last = Value::Null;
    eventually(&format!("TrafficControl/{name} is ready"), || {
        let shown = agents::get(agent, &["tc"])?;
        let items = shown["items"].as_array().cloned().unwrap_or_default();
        last = shown;
        let named = |item: &Value| {
            wanted.contains(&format!("name: {}}}", item["metadata"]["name"].as_str().unwrap_or("?")))
        };
        let all = items.iter().all(named);
        let ready =
            items.iter().any(|item| item["metadata"]["name"] == name && item["status"]["state"] == "Ready");
        Ok(all && ready)
    })
    .with_context(|| format!("{last}\n{}", agent.log()))
}

/// A tool on the first node that gives every frame back: two ports of a bridge that learns nothing.
///
/// # Errors
/// When its ports are not there.
pub fn start(node: &ClusterNode) -> Result<()> {
    let netns = &node.netns;
    netns.ip(&["link", "add", "tool0", "type", "bridge", "mcast_snooping", "0"])?;
    netns.run_ok(&["sysctl", "-qw", "net.ipv6.conf.tool0.disable_ipv6=1"])?;
    netns.ip(&["link", "set", "tool0", "mtu", "1500", "up"])?;
    for port in PORTS {
        netns.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{port}.disable_ipv6=1")])?;
        netns.ip(&["link", "set", port, "master", "tool0"])?;
        netns.ip(&["link", "set", port, "up"])?;
        netns.run_ok(&["bridge", "link", "set", "dev", port, "learning", "off"])?;
    }
    Ok(())
}

/// What the first node says of a policy.
///
/// # Errors
/// When there is none of this name.
pub fn status(cluster: &Cluster, name: &str) -> Result<Value> {
    let agent = cluster.nodes.first().context("no node")?.agent()?;
    Ok(agents::get(agent, &["tc", name])?["status"].clone())
}

/// What went through the tool came back, and nothing went past it.
///
/// # Errors
/// With the counters.
pub fn all_returned(cluster: &Cluster, name: &str) -> Result<()> {
    let mut last = Value::Null;
    eventually("all is back from the tool", || {
        last = status(cluster, name)?["redirect"].clone();
        Ok(last["away"] == 0)
    })
    .with_context(|| last.to_string())?;
    ensure!(last["redirected"]["packets"].as_u64().is_some_and(|count| count > 0), "{last}");
    ensure!(last["bypassed"] == 0 && last["refused"] == 0, "{last}");
    Ok(())
}
