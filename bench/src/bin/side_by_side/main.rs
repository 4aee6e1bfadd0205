//! podwire beside what Linux has: added time per packet, TCP throughput, and Open vSwitch. Interleaved, with every
//! loss counted. `cargo xtask bench side-by-side`, as root; docs/bench.md says how to read it.
#![deny(unsafe_code)]

mod contender;
mod forwarding;
mod ovs;
mod per_packet;
mod report;
mod scene;
mod switching;
mod target;
mod tcp;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use podwire_bench::{enclosure, generator, kernel};
use serde_json::{Value, json};

use crate::target::Target;

/// podwire beside what Linux has.
#[derive(Debug, Parser)]
#[command(name = "side-by-side")]
struct Options {
    /// A run below a minute: fewer rounds
    #[arg(long)]
    quick: bool,
    /// Write everything, raw samples included, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Frames per second that are offered to Open vSwitch and to podwire
    #[arg(long, default_value_t = 200_000)]
    offer: u32,
    /// Bytes of a frame in the measurement per packet
    #[arg(long, default_value_t = 64)]
    frame: usize,
    /// Rounds of the measurement per packet
    #[arg(long)]
    rounds: Option<usize>,
    /// Only contenders whose name contains this, for a profile; may be given more than once
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Frames of one contender in one round
    #[arg(long, default_value_t = 8192)]
    burst: u32,
}

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Added time per packet at a pod's hook
    PerPacket,
    /// TCP throughput under a mirror
    Tcp,
    /// Open vSwitch's userspace datapath, forwarding and mirroring
    Ovs,
    /// From pod to pod, on one node and between two, by podwire's forwarding and by its rivals
    Forwarding,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if !enclosure::is_inside()? {
        return enclosure::run_inside(enclosure::Processes::Own);
    }
    run(&options)?;
    Ok(ExitCode::SUCCESS)
}

fn run(options: &Options) -> Result<()> {
    // What is started from here on inherits it: both ends of a transfer, a switch, podwire's own threads.
    kernel::go_first();
    let before = report::machine();
    let mut result = serde_json::Map::new();
    let mut targets = Vec::new();
    let wants = |part| options.part.is_empty() || options.part.contains(&part);
    if wants(Part::PerPacket) {
        result.insert("perPacket".into(), per_packet(options, &mut targets)?);
    }
    if wants(Part::Tcp) {
        result.insert("tcp".into(), tcp(options, &mut targets)?);
    }
    if wants(Part::Ovs) {
        result.insert("ovs".into(), ovs(options, &mut targets)?);
    }
    if wants(Part::Forwarding) {
        result.insert("forwarding".into(), forwarding(options, &mut targets)?);
    }
    report::heading("Against the targets");
    report::targets(&targets);
    result.insert("targets".into(), serde_json::to_value(&targets)?);
    result.insert("machine".into(), json!({"before": before, "after": report::machine()}));
    options.json.as_ref().map_or(Ok(()), |path| report::write(path, &result))
}

fn per_packet(options: &Options, targets: &mut Vec<Target>) -> Result<Value> {
    let rounds = options.rounds.unwrap_or(if options.quick { 40 } else { 200 });
    let plan = per_packet::Plan { rounds, burst: options.burst, frame_len: options.frame };
    report::heading(&format!(
        "Processor time per packet at a pod's hook, ns more than with nothing there: {} rounds of {} frames of {} \
         bytes",
        plan.rounds, plan.burst, plan.frame_len
    ));
    let (contenders, missing): (Vec<_>, Vec<_>) = contender::chosen(&options.only)
        .into_iter()
        .partition(|contender| contender.way.program().is_none_or(contender::is_installed));
    for contender in missing {
        report::note(&format!("{} is left out: it is not installed.", contender.name));
    }
    let rows = generator::apart(move || per_packet::measure(plan, &contenders))?;
    report::per_packet(&rows);
    targets.extend(target::per_packet(&rows));
    Ok(json!({"unit": "ns", "plan": plan, "rows": rows}))
}

fn tcp(options: &Options, targets: &mut Vec<Target>) -> Result<Value> {
    let plan = match options.quick {
        true => tcp::Plan { rounds: 4, bytes: 1 << 30 },
        false => tcp::Plan { rounds: 12, bytes: 3 << 30 },
    };
    report::heading(&format!(
        "TCP throughput from pod to pod, one stream of {} MiB, {} rounds",
        plan.bytes >> 20,
        plan.rounds
    ));
    if !contender::is_installed("iperf3") {
        report::note("iperf3 is not installed; left out.");
        return Ok(Value::Null);
    }
    let rows = tcp::measure(plan)?;
    report::tcp(&rows);
    targets.extend(tcp::targets(&rows)?);
    Ok(json!({"unit": "Gbit/s", "plan": plan, "rows": rows}))
}

fn ovs(options: &Options, targets: &mut Vec<Target>) -> Result<Value> {
    let plan = switching::Plan {
        rounds: if options.quick { 2 } else { 10 },
        offer: options.offer,
        milliseconds: if options.quick { 400 } else { 1000 },
        frame_len: options.frame,
    };
    report::heading(&format!(
        "Packets from pod to pod at an offer of {} a second for {} ms, {} rounds",
        plan.offer, plan.milliseconds, plan.rounds
    ));
    if !contender::is_installed("ovs-vswitchd") {
        report::note("Open vSwitch is not installed; left out.");
        return Ok(Value::Null);
    }
    let rows = switching::measure(plan)?;
    report::switching(&rows);
    targets.extend(switching::targets(&rows));
    Ok(json!({"unit": "packets per second", "plan": plan, "rows": rows}))
}

fn forwarding(options: &Options, targets: &mut Vec<Target>) -> Result<Value> {
    let plan = match options.quick {
        true => forwarding::Plan { rounds: 2, bytes: 256 << 20, exchanges: 2000 },
        false => forwarding::Plan { rounds: 12, bytes: 2 << 30, exchanges: 20_000 },
    };
    report::heading(&format!(
        "From pod to pod: one TCP stream of {} MiB, {} exchanges of a small message, {} rounds",
        plan.bytes >> 20,
        plan.exchanges,
        plan.rounds
    ));
    if !contender::is_installed("iperf3") {
        report::note("iperf3 is not installed; left out.");
        return Ok(Value::Null);
    }
    let (rows, left_out) = forwarding::measure(plan)?;
    report::forwarding(&rows);
    for way in &left_out {
        report::note(&format!("{} is left out: {}", way.name, way.why));
    }
    targets.extend(forwarding::targets(&rows));
    Ok(json!({"units": {"rate": "Gbit/s", "rest": "us"}, "plan": plan, "rows": rows, "leftOut": left_out}))
}
