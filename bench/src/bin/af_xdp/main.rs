//! podwire's AF_XDP beside what there is: a C program on libxdp, packet sockets, tcpdump and dumpcap. Interleaved,
//! with every loss counted. `cargo xtask bench af-xdp`, as root; docs/bench.md says how to read it.
#![deny(unsafe_code)]

mod loss;
mod own;
mod pace;
mod receive;
mod rival;
mod rx;
mod site;
mod table;
mod tool;
mod tx;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use podwire_bench::calm::Calm;
use podwire_bench::target::Target;
use podwire_bench::{enclosure, generator, kernel, report};
use serde_json::{Value, json};

/// podwire's AF_XDP beside what there is.
#[derive(Clone, Debug, Parser)]
#[command(name = "af-xdp")]
struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Only these parts
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Rounds of each part; the measurement of losses, which takes longer, has a third of them
    #[arg(long, default_value_t = 12)]
    rounds: usize,
    /// Bytes of a frame; mirrored ones are longer by their outer headers
    #[arg(long, default_value_t = 64)]
    frame: usize,
    /// Offers in packets per second of the measurement of losses
    #[arg(long, value_delimiter = ',', default_values_t = [200_000, 400_000, 800_000, 1_200_000, 1_600_000, 2_000_000])]
    offers: Vec<u32>,
    /// Write everything, raw samples included, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Receive until SIGINT; what the measurement of losses starts
    #[command(hide = true)]
    Receive { how: receive::How, interface: String },
}

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Frames received and thrown away
    Rx,
    /// Frames sent
    Tx,
    /// What commands lose of a mirrored stream
    Loss,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if let Some(Command::Receive { how, interface }) = &options.command {
        receive::run(*how, interface)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !enclosure::is_inside()? {
        // The kernel's receiving threads have to be seen.
        return enclosure::run_inside(enclosure::Processes::All);
    }
    generator::apart(move || run(&options))?;
    Ok(ExitCode::SUCCESS)
}

fn run(options: &Options) -> Result<()> {
    kernel::go_first();
    let before = report::machine();
    let mut result = serde_json::Map::new();
    let mut targets = Vec::new();
    let wants = |part| options.part.is_empty() || options.part.contains(&part);
    let rival = rival::build();
    if let Err(error) = &rival {
        report::note(&format!("The C program is left out: {error:#}"));
    }
    let rival = rival.as_deref().ok();
    let mut calm = Calm::default();
    if wants(Part::Rx) {
        result.insert("rx".into(), rx(options, rival, &mut calm, &mut targets)?);
    }
    if wants(Part::Tx) {
        result.insert("tx".into(), tx(options, rival, &mut calm, &mut targets)?);
    }
    if wants(Part::Loss) {
        result.insert("loss".into(), loss(options, &mut calm, &mut targets)?);
    }
    report::heading("Against the targets");
    report::targets(&targets);
    calm.tell();
    result.insert("calm".into(), serde_json::to_value(calm)?);
    result.insert("targets".into(), serde_json::to_value(&targets)?);
    result.insert("machine".into(), json!({"before": before, "after": report::machine()}));
    options.json.as_ref().map_or(Ok(()), |path| report::write(path, &result))
}

fn rx(options: &Options, rival: Option<&Path>, calm: &mut Calm, targets: &mut Vec<Target>) -> Result<Value> {
    let plan = rx::Plan {
        rounds: options.rounds,
        burst: 1 << 18,
        flood: 1_600_000,
        offer: 200_000,
        milliseconds: 400,
        frame_len: options.frame,
    };
    report::heading(&format!(
        "Received and thrown away: VXLAN with frames of {} bytes inside, {} rounds; the offer is {} a second",
        plan.frame_len, plan.rounds, plan.offer
    ));
    let (rows, floor) = rx::measure(plan, rival, calm)?;
    table::rx(&rows, floor);
    targets.extend(rx::targets(&rows, plan.offer));
    Ok(json!({"plan": plan, "rows": rows, "floor": floor}))
}

fn tx(options: &Options, rival: Option<&Path>, calm: &mut Calm, targets: &mut Vec<Target>) -> Result<Value> {
    let plan = tx::Plan { rounds: options.rounds, milliseconds: 400, frame_len: options.frame };
    report::heading(&format!(
        "Sent on one processor and dropped by XDP at the other end: frames of {} bytes, {} rounds",
        plan.frame_len, plan.rounds
    ));
    let rows = tx::measure(plan, rival, calm)?;
    table::tx(&rows);
    targets.extend(tx::targets(&rows));
    Ok(json!({"plan": plan, "rows": rows}))
}

fn loss(options: &Options, calm: &mut Calm, targets: &mut Vec<Target>) -> Result<Value> {
    let plan = loss::Plan {
        rounds: options.rounds.div_ceil(3),
        offers: options.offers.clone(),
        milliseconds: 600,
        frame_len: options.frame,
    };
    let how = format!(
        "on one processor, frames of {} bytes inside, {} rounds of {} ms",
        plan.frame_len, plan.rounds, plan.milliseconds
    );
    report::heading(&format!("Kept of a VXLAN stream that is addressed to another host, {how}"));
    let passing = loss::passing(&plan, calm)?;
    table::loss(&passing);
    targets.extend(loss::targets(&passing));
    report::heading(&format!("Kept of a VXLAN stream that is addressed to this host, {how}"));
    let addressed = loss::addressed(&plan, calm)?;
    table::loss(&addressed);
    targets.extend(loss::targets(&addressed));
    Ok(json!({"plan": plan, "passing": passing, "addressed": addressed}))
}
