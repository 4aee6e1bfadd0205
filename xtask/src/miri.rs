//! `cargo xtask miri`: the parts that touch no kernel, by an interpreter that sees undefined behaviour.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::{
    fuzz::{nightly, rustup},
    setup::{self, Group},
    terminal, workspace,
};

/// Tests of the library that call nothing but Rust.
const PURE: [&str; 5] =
    ["collect::window", "collect::reassembly", "collect::session", "collect::talkers", "xsk::ledger"];

/// Runs `cargo xtask miri`.
pub fn command(install: bool) -> Result<ExitCode> {
    if install {
        setup::ensure(&[Group::Lint])?;
        let mut toolchain = rustup()?;
        toolchain.args([
            "toolchain",
            "install",
            "nightly",
            "--profile",
            "minimal",
            "-c",
            "miri",
            "-c",
            "rust-src",
        ]);
        terminal::run_quietly("rustup toolchain install nightly, with miri", &mut toolchain)?;
    }
    workspace::run(miri("podwire-core")?.args(["--", "xsk", "wire::decap"]), "Miri over podwire-core")?;
    let mut library = miri("podwire-datapath")?;
    library.args(["--lib", "--features", "xsk", "--"]).args(PURE);
    workspace::run(&mut library, "Miri over podwire-datapath")?;
    Ok(ExitCode::SUCCESS)
}

/// Miri is some hundred times slower than the machine: few cases of each property.
fn miri(package: &str) -> Result<Command> {
    let mut command = nightly()?;
    command.args(["miri", "test", "--package", package]);
    command.arg("--target-dir").arg(workspace::target()?.join("miri"));
    command.env("PROPTEST_CASES", "4").env("MIRIFLAGS", "-Zmiri-disable-isolation");
    Ok(command)
}
