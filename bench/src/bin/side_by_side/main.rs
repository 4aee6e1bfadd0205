//! podwire beside what Linux has: added time per packet, TCP throughput, and Open vSwitch. Interleaved, with every
//! loss counted. `cargo xtask bench side-by-side`, as root; docs/bench.md says how to read it.
#![deny(unsafe_code)]

mod books;
mod contender;
mod enclosure;
mod frame;
mod generator;
mod kernel;
mod per_packet;
mod report;
mod scene;
mod spread;
mod target;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use serde_json::json;

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
    /// Bytes of a frame in the measurement per packet
    #[arg(long, default_value_t = 64)]
    frame: usize,
    /// Rounds of the measurement per packet
    #[arg(long)]
    rounds: Option<usize>,
    /// Frames of one contender in one round
    #[arg(long, default_value_t = 8192)]
    burst: u32,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if !enclosure::is_inside()? {
        return enclosure::run_inside();
    }
    run(&options)?;
    Ok(ExitCode::SUCCESS)
}

fn run(options: &Options) -> Result<()> {
    generator::keep_off()?;
    let before = report::machine();
    let rounds = options.rounds.unwrap_or(if options.quick { 40 } else { 200 });
    let plan = per_packet::Plan { rounds, burst: options.burst, frame_len: options.frame };
    report::heading(&format!(
        "Processor time per packet at a pod's hook, ns more than with nothing there: frames of {} bytes, {} rounds \
         of {} frames",
        plan.frame_len, plan.rounds, plan.burst
    ));
    let rows = per_packet::measure(plan)?;
    report::per_packet(&rows);
    let targets = target::per_packet(&rows)?;
    report::heading("Against the targets");
    report::targets(&targets);
    if let Some(path) = &options.json {
        let after = report::machine();
        report::write(
            path,
            &json!({
                "machine": {"before": before, "after": after},
                "perPacket": {"unit": "ns", "plan": plan, "rows": rows},
                "targets": targets,
            }),
        )?;
    }
    Ok(())
}
