//! How long a trace takes, end to end: from the request on the agent's socket to the last word. In: how many. Out: p50 and
//! p99 on one node, and over two nodes that see each other through a real API server.
//!
//! Run by `cargo xtask bench traces`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use podwire_harness::{ClusterNode, ClusterOptions, Wiring};
use podwire_tests::agents;
use podwire_tests::flows::{guard, object};
use podwire_tests::kubernetes::Followed;
use serde_json::{Value, json};

/// How long traces take, end to end.
#[derive(Parser)]
struct Options {
    /// Traces of each kind.
    #[arg(long, default_value_t = 300)]
    count: usize,
    /// One node alone: without an API server.
    #[arg(long)]
    one_node: bool,
}

/// What was asked for, in milliseconds at the median.
const GOALS: [f64; 2] = [20.0, 50.0];

#[allow(clippy::print_stdout, reason = "a bench prints its figures")]
fn main() -> Result<()> {
    let options = Options::parse();
    println!(
        "{:<34} {:>8} {:>8} {:>8} {:>8}  goal",
        "end to end, milliseconds", "p50", "p99", "max", "count"
    );
    let options_of = ClusterOptions { nodes: 1, wiring: Wiring::Native, ..ClusterOptions::default() };
    let mut cluster = agents::cluster(options_of)?;
    guard(&mut cluster)?;
    let node = &cluster.nodes[0];
    let one = measure(node, &node.pods[0].name, &node.pods[1].name, options.count, 1)?;
    print("one node", one, GOALS[0]);
    drop(cluster);
    if options.one_node {
        return Ok(());
    }
    let followed = Followed::new(ClusterOptions::default())?;
    let [here, there] = &followed.cluster.nodes[..] else { unreachable!("two nodes") };
    let (from, to) = (&here.pods[0].name, &there.pods[0].name);
    print("two nodes, by the API server", measure(here, from, to, options.count, 2)?, GOALS[1]);
    Ok(())
}

/// Traces one after the other; all must have reached the other pod.
fn measure(node: &ClusterNode, from: &str, to: &str, count: usize, nodes: usize) -> Result<Vec<f64>> {
    let mut took = Vec::new();
    for number in 0..count + WARM {
        let spec = json!({
            "source": {"pod": from}, "destination": {"pod": to},
            "packet": {"transportHeader": {"tcp": {"dstPort": 80}}},
        });
        let began = Instant::now();
        let over = trace(node, &object(&format!("bench-{number}"), &spec))?;
        let elapsed = began.elapsed().as_secs_f64() * 1e3;
        let seen = over["status"]["results"].as_array().map_or(0, Vec::len);
        ensure!(over["status"]["phase"] == "Succeeded" && seen == nodes, "{over}");
        if number >= WARM {
            took.push(elapsed);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    took.sort_by(f64::total_cmp);
    Ok(took)
}

/// Traces that are not counted.
const WARM: usize = 10;

fn trace(node: &ClusterNode, body: &str) -> Result<Value> {
    let mut stream = UnixStream::connect(node.scratch.path().join("podwire.sock"))?;
    let len = body.len();
    write!(
        stream,
        "POST /v1/traceflows?once=true HTTP/1.0\r\nhost: podwire\r\ncontent-length: {len}\r\n\r\n{body}"
    )?;
    let mut last = String::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line.starts_with('{') {
            let over = !line.contains("\"phase\":\"Running\"");
            last = line;
            if over {
                break;
            }
        }
    }
    serde_json::from_str(&last).with_context(|| format!("not an object: {last}"))
}

#[allow(clippy::print_stdout, reason = "a bench prints its figures")]
fn print(name: &str, took: Vec<f64>, goal: f64) {
    let at = |share: f64| took.get(((took.len() - 1) as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    let met = if at(0.5) < goal { "met" } else { "MISSED" };
    println!(
        "{name:<34} {:>8.2} {:>8.2} {:>8.2} {:>8}  below {goal} at the median: {met}",
        at(0.5),
        at(0.99),
        at(1.0),
        took.len()
    );
}
