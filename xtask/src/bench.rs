//! `cargo xtask bench`: the benches, as root, for BPF_PROG_TEST_RUN needs it.

use std::process::ExitCode;

use anyhow::Result;

use crate::{
    privilege,
    setup::{self, Group},
    test, workspace,
};

/// Runs the benches, with `arguments` passed on to cargo.
pub fn command(arguments: &[String], install: bool) -> Result<ExitCode> {
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
