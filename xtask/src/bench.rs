//! `cargo xtask bench`: the benches, as root, for BPF_PROG_TEST_RUN needs it; `cargo xtask bench side-by-side`:
//! podwire beside what Linux has; `cargo xtask bench af-xdp`: its AF_XDP beside a C program, packet sockets and
//! tcpdump; `cargo xtask bench traces`: how long a trace takes.

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
/// The bench of AF_XDP, beside a C program that it builds.
const AF_XDP: &str = "af-xdp";
/// The bench of traces, which needs clusters of its own.
const TRACES: &str = "traces";

/// Runs the benches, with `arguments` passed on to cargo, or to a bench of its own when its name comes first.
pub fn command(arguments: &[String], install: bool) -> Result<ExitCode> {
    match arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some((SIDE_BY_SIDE, rest)) => return program(SIDE_BY_SIDE, &[Group::Bench], rest, install),
        Some((AF_XDP, rest)) => return program(AF_XDP, &[Group::Bench], rest, install),
        Some((TRACES, rest)) => return program(TRACES, &[Group::Test], rest, install),
        _ => {}
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

/// Builds a bench that is a program, and becomes it.
fn program(name: &str, groups: &[Group], arguments: &[String], install: bool) -> Result<ExitCode> {
    if install {
        setup::ensure(groups)?;
    }
    let mut build = workspace::cargo()?;
    build.args(["build", "--release", "--package", "podwire-bench", "--bin", name]);
    // Where podwire forwards, its agents do.
    build.args(["--package", "podwire", "--bin", "podwire"]);
    workspace::run(&mut build, &format!("the build of the bench {name}"))?;
    let program = workspace::target()?.join("release").join(name);
    let mut run: Command = privilege::as_root(&program, &format!("the bench {name}"))?;
    run.args(arguments);
    Err(run.exec()).with_context(|| format!("cannot start {}", program.display()))
}
