//! Traceflows as a client of the agent's socket begins them. In: a spec. Out: the object when it is over.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwire_harness::{Cluster, ClusterNode, run};
use serde_json::{Value, json};

/// A cluster with every pod guarded, so that SpoofGuard says something.
///
/// # Errors
/// When it does not come up.
pub fn guard(cluster: &mut Cluster) -> Result<()> {
    let names: Vec<String> = cluster.pods().map(|pod| pod.name.clone()).collect();
    for name in names {
        cluster.about(&name)?.guard = "Enforce";
    }
    cluster.write_objects()
}

/// A Traceflow of podwire's own kind.
pub fn object(name: &str, spec: &Value) -> String {
    json!({
        "apiVersion": "podwire.io/v1alpha1",
        "kind": "Traceflow",
        "metadata": {"name": name},
        "spec": spec,
    })
    .to_string()
}

fn url(query: &str) -> String {
    format!("http://podwire/v1/traceflows?{query}")
}

fn socket(node: &ClusterNode) -> String {
    node.scratch.path().join("podwire.sock").to_string_lossy().into_owned()
}

/// Begins a trace and waits until it is over.
///
/// # Errors
/// When it is refused, or the last line does not say that it is over.
pub fn trace(node: &ClusterNode, name: &str, spec: &Value) -> Result<Value> {
    begin(node, name, spec)?.finish()
}

/// A trace that is under way.
#[derive(Debug)]
pub struct Begun(Child);

/// Begins a trace.
///
/// # Errors
/// When curl cannot be started, or the trace is not there soon.
pub fn begin(node: &ClusterNode, name: &str, spec: &Value) -> Result<Begun> {
    let child = std::process::Command::new("curl")
        .args(["-sSN", "--fail-with-body", "--unix-socket", &socket(node), "-d", &object(name, spec)])
        .arg(url("once=true"))
        .stdout(Stdio::piped())
        .spawn()?;
    let deadline = Instant::now() + Duration::from_secs(5);
    // Known to the agent, and with a tag: packets are looked for.
    while get(node, name).is_none_or(|found| found["status"]["dataplaneTag"].is_null()) {
        if Instant::now() > deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Begun(child))
}

impl Begun {
    /// Waits until it is over.
    ///
    /// # Errors
    /// As for [`trace`].
    pub fn finish(self) -> Result<Value> {
        let output = self.0.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{text}");
        let last = text.lines().last().with_context(|| "no line")?;
        let found: Value = serde_json::from_str(last).with_context(|| last.to_owned())?;
        ensure!(found["status"]["phase"] != "Running", "{found}");
        Ok(found)
    }

    /// SIGKILL to the client.
    ///
    /// # Errors
    /// When it is gone.
    pub fn kill(mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

/// A trace as it stands, `None` when there is none.
pub fn get(node: &ClusterNode, name: &str) -> Option<Value> {
    let at = format!("http://podwire/v1/traceflows/{name}");
    let output = run(&["curl", "-sS", "--fail", "--unix-socket", &socket(node), &at]).ok()?;
    output.status.success().then(|| serde_json::from_slice(&output.stdout).ok()).flatten()
}

/// What a refused trace is told.
///
/// # Errors
/// When it is not refused.
pub fn refused(node: &ClusterNode, spec: &Value) -> Result<String> {
    let body = object("refused", spec);
    let output = run(&["curl", "-sS", "--unix-socket", &socket(node), "-d", &body, &url("once=true")])?;
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    Ok(answer["error"].as_str().with_context(|| format!("not refused: {answer}"))?.to_owned())
}

/// `node role: Component Action [reason], …` for each result.
pub fn told(trace: &Value) -> Vec<String> {
    let results = trace["status"]["results"].as_array().cloned().unwrap_or_default();
    let line = |result: &Value| {
        let words: Vec<String> = result["observations"].as_array().into_iter().flatten().map(word).collect();
        let of = |field: &str| result[field].as_str().unwrap_or("?").to_owned();
        format!("{} {}: {}", of("node"), of("role"), words.join(", "))
    };
    results.iter().map(line).collect()
}

fn word(seen: &Value) -> String {
    let of = |field: &str| seen[field].as_str().unwrap_or_default().to_owned();
    let reason = seen["reason"].as_str().map_or(String::new(), |reason| format!(" {reason}"));
    format!("{} {}{reason}", of("component"), of("action"))
}

/// The observations of the first result without what differs from run to run.
pub fn lasting(trace: &Value) -> Vec<Value> {
    let results = trace["status"]["results"].as_array().cloned().unwrap_or_default();
    let mut all = Vec::new();
    for result in results {
        for mut seen in result["observations"].as_array().cloned().unwrap_or_default() {
            if let Some(fields) = seen.as_object_mut() {
                for field in ["time", "latencyNs"] {
                    fields.remove(field);
                }
            }
            all.push(seen);
        }
    }
    all
}
