//! The result, for eyes and for programs.
#![allow(clippy::print_stdout, reason = "the result is what is printed")]

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use crate::target::Target;

/// Says what is being done.
pub fn heading(text: &str) {
    println!("\n{text}\n");
}

/// Says what is to be known.
pub fn note(text: &str) {
    println!("{text}");
}

/// Figures against what they should be.
pub fn targets(targets: &[Target]) {
    println!("{:<80} {:>6} {:>6} {:>6}  TARGET", "RATIO IN THE SAME RUN", "P25", "MEDIAN", "P75");
    for target in targets {
        println!(
            "{:<80} {:>6.2} {:>6.2} {:>6.2}  {}",
            target.what,
            target.ratio.p25,
            target.ratio.median,
            target.ratio.p75,
            target.verdict()
        );
    }
}

/// The machine, as far as figures depend on it.
pub fn machine() -> serde_json::Value {
    let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpu = line("/proc/cpuinfo").lines().find_map(|line| {
        line.strip_prefix("model name").map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned())
    });
    json!({
        "kernel": line("/proc/sys/kernel/osrelease"),
        "cpu": cpu,
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "load": line("/proc/loadavg"),
        "steal": steal(),
    })
}

/// Clock ticks that the hypervisor gave to others, since boot.
#[must_use]
pub fn steal() -> Option<u64> {
    fs::read_to_string("/proc/stat").ok()?.lines().next()?.split_whitespace().nth(8)?.parse().ok()
}

/// Writes everything, raw samples included.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, result: &impl Serialize) -> Result<()> {
    fs::write(path, serde_json::to_string_pretty(result)?)
        .with_context(|| format!("writing {}", path.display()))
}
