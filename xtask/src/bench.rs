//! `cargo xtask bench`: the benches, as root, for BPF_PROG_TEST_RUN needs it; `cargo xtask bench side-by-side`:
//! podwire beside what Linux has.

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};

use crate::{
    privilege,
    setup::{self, Group},
    test, workspace,
};

/// The bench that is a program of its own: its rivals are set up beside podwire, which criterion cannot do.
const SIDE_BY_SIDE: &str = "side-by-side";

/// Runs the benches, with `arguments` passed on to cargo, or to the side-by-side run when it comes first.
pub fn command(arguments: &[String], install: bool) -> Result<ExitCode> {
    if let Some((SIDE_BY_SIDE, rest)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return side_by_side(rest, install);
    }
    if install {
        setup::ensure(&[Group::Test])?;
    }
    let mut cargo = workspace::cargo()?;
    cargo.args(["bench", "--package", "podwire-bench"]).args(arguments);
    if !privilege::is_root() {
        let (variable, runner) = test::as_root_runner()?;
        cargo.env(variable, runner);
    }
    workspace::run(&mut cargo, "the benches")?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the side-by-side run and becomes it.
fn side_by_side(arguments: &[String], install: bool) -> Result<ExitCode> {
    if install {
        setup::ensure(&[Group::Bench])?;
    }
    let mut build = workspace::cargo()?;
    build.args(["build", "--release", "--package", "podwire-bench", "--bin", SIDE_BY_SIDE]);
    // Where podwire forwards, its agents do.
    build.args(["--package", "podwire", "--bin", "podwire"]);
    workspace::run(&mut build, "the build of the side-by-side run")?;
    let program = workspace::target()?.join("release").join(SIDE_BY_SIDE);
    let mut run: Command = privilege::as_root(&program, "the side-by-side run")?;
    run.args(arguments);
    Err(run.exec()).with_context(|| format!("cannot start {}", program.display()))
}
