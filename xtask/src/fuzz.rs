//! `cargo xtask fuzz`: cargo-fuzz over the targets in `fuzz/`, one after the other.

use std::{
    fs,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    setup::{self, Group},
    terminal, workspace,
};

/// `cargo xtask fuzz`.
#[derive(Args)]
pub struct Options {
    /// Only this target (default: all of fuzz/)
    target: Option<String>,
    /// Minutes for all targets together, shared equally
    #[arg(long, default_value_t = 5)]
    minutes: u32,
}

/// Runs `cargo xtask fuzz`.
pub fn command(options: &Options, install: bool) -> Result<ExitCode> {
    if install {
        setup::ensure(&[Group::Fuzz])?;
        ensure_nightly()?;
    }
    let listing = workspace::output(fuzz()?.arg("list"))?;
    let targets = chosen(&listing, options.target.as_deref())?;
    let root = workspace::root()?;
    let each = seconds_each(options.minutes, targets.len());
    for target in &targets {
        anstream::println!("fuzzing {target} for {each} s");
        // libFuzzer writes what it finds to the first folder: the seeds in the repository are the second.
        let found = workspace::target()?.join("fuzz-corpus").join(target);
        let seeds = root.join("fuzz/corpus").join(target);
        for folder in [&found, &seeds] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let mut run = fuzz()?;
        run.args(["run", target]).args([&found, &seeds]).args(["--", &format!("-max_total_time={each}")]);
        workspace::run(&mut run, &format!("fuzz target {target}"))?;
    }
    anstream::println!("{} targets, nothing found", targets.len());
    Ok(ExitCode::SUCCESS)
}

/// The sanitizer is a nightly's.
fn ensure_nightly() -> Result<()> {
    if workspace::output(nightly()?.arg("--version")).is_ok() {
        return Ok(());
    }
    let mut rustup = rustup()?;
    rustup.args(["toolchain", "install", "nightly", "--profile", "minimal"]);
    terminal::run_quietly("rustup toolchain install nightly", &mut rustup)
}

fn fuzz() -> Result<Command> {
    let mut command = nightly()?;
    command.arg("fuzz");
    Ok(command)
}

/// The nightly's cargo; the one that runs this program is another.
pub fn nightly() -> Result<Command> {
    let mut command = rustup()?;
    command.args(["run", "nightly", "cargo"]).current_dir(workspace::root()?);
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    Ok(command)
}

pub fn rustup() -> Result<Command> {
    Ok(Command::new(workspace::find_program("rustup").context("rustup is needed for a nightly toolchain")?))
}

fn chosen<'a>(listing: &'a str, wanted: Option<&str>) -> Result<Vec<&'a str>> {
    let all: Vec<&str> = listing.split_whitespace().collect();
    let chosen: Vec<&str> =
        all.iter().copied().filter(|name| wanted.is_none_or(|wanted| wanted == *name)).collect();
    if chosen.is_empty() {
        bail!("no fuzz target {}; there are: {}", wanted.unwrap_or("at all"), all.join(" "));
    }
    Ok(chosen)
}

/// At least one second, or libFuzzer would run without an end.
fn seconds_each(minutes: u32, targets: usize) -> u64 {
    (u64::from(minutes) * 60 / targets.max(1) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_target_or_all() {
        assert_eq!(chosen("wire\nconfig\n", None).unwrap(), ["wire", "config"]);
        assert_eq!(chosen("wire\nconfig\n", Some("config")).unwrap(), ["config"]);
        assert!(chosen("wire\n", Some("wir")).unwrap_err().to_string().contains("there are: wire"));
    }

    #[test]
    fn the_time_is_shared_and_never_endless() {
        assert_eq!(seconds_each(5, 3), 100);
        assert_eq!(seconds_each(0, 3), 1);
    }
}
