//! TrafficControl policies of a cluster, and a tool that gives every frame back.

use anyhow::{Context, Result, ensure};
use podwire_harness::{Cluster, NetNs, eventually};
use serde_json::Value;

use crate::{agents, reach};

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

/// What the first node says of a policy.
///
/// # Errors
/// When there is none of this name.
pub fn status(cluster: &Cluster, name: &str) -> Result<Value> {
    let agent = cluster.nodes.first().context("no node")?.agent()?;
    Ok(agents::get(agent, &["tc", name])?["status"].clone())
}

/// What became of packets of a redirect.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Packets that went to the tool.
    pub redirected: u64,
    /// Packets that the tool has.
    pub away: u64,
    /// Packets that went past it.
    pub bypassed: u64,
    /// Packets that it did not take, dropped.
    pub refused: u64,
}

impl Counts {
    /// Those of now.
    ///
    /// # Errors
    /// When there is no redirect of this name.
    pub fn of(cluster: &Cluster, name: &str) -> Result<Self> {
        let status = status(cluster, name)?;
        let counts = &status["redirect"];
        let number = |value: &Value| value.as_u64().with_context(|| status.to_string());
        Ok(Self {
            redirected: number(&counts["redirected"]["packets"])?,
            away: number(&counts["away"])?,
            bypassed: number(&counts["bypassed"])?,
            refused: number(&counts["refused"])?,
        })
    }
}

/// A tool of the first node that gives every frame back: two ports of a bridge that learns nothing, in a namespace of
/// its own.
#[derive(Debug)]
pub struct Tool {
    /// The namespace, with [`PORTS`] in it.
    pub netns: NetNs,
    name: String,
    before: Counts,
}

impl Tool {
    /// Starts it for a redirect of the first pod, and waits until packets go through it.
    ///
    /// # Errors
    /// When none do.
    pub fn start(cluster: &Cluster, name: &str) -> Result<Self> {
        let [(own, near), _] = reach::near_and_far(cluster)?;
        let node = reach::node_of(cluster, own)?;
        let netns = NetNs::new("tool")?;
        netns.ip(&["link", "add", "tool0", "type", "bridge", "mcast_snooping", "0"])?;
        netns.run_ok(&["sysctl", "-qw", "net.ipv6.conf.tool0.disable_ipv6=1"])?;
        netns.ip(&["link", "set", "tool0", "mtu", "1500", "up"])?;
        for port in PORTS {
            node.netns.ip(&["link", "set", port, "netns", netns.name()])?;
            netns.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{port}.disable_ipv6=1")])?;
            netns.ip(&["link", "set", port, "master", "tool0"])?;
            netns.ip(&["link", "set", port, "up"])?;
            netns.run_ok(&["bridge", "link", "set", "dev", port, "learning", "off"])?;
        }
        let mut before = Counts::of(cluster, name)?;
        eventually("packets go through the tool", || {
            let received = own.netns.ping(&near.v4, 1, 56)? + own.netns.ping(&near.v6, 1, 56)?;
            let (old, now) = (before, Counts::of(cluster, name)?);
            before = now;
            let all_taken = now.bypassed == old.bypassed && now.refused == old.refused;
            Ok(received == 2 && all_taken && now.redirected > old.redirected)
        })?;
        Ok(Self { netns, name: name.to_owned(), before })
    }

    /// What went through the tool came back, and nothing went past it.
    ///
    /// # Errors
    /// With the counters.
    pub fn all_returned(&self, cluster: &Cluster) -> Result<()> {
        eventually("all is back from the tool", || Ok(Counts::of(cluster, &self.name)?.away == 0))?;
        let (then, now) = (self.before, Counts::of(cluster, &self.name)?);
        ensure!(now.redirected > then.redirected, "{now:?}");
        ensure!(now.bypassed == then.bypassed && now.refused == then.refused, "{then:?} {now:?}");
        Ok(())
    }
}
