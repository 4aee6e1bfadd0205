//! `cargo xtask demo`: builds the demo and becomes it.

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};

use crate::{
    ebpf, privilege,
    setup::{self, Group},
    workspace,
};

/// Runs the demo, with `arguments` passed on.
///
/// The object in the repository is enough for it, so a newcomer waits for no BPF toolchain; with changed sources the
/// demo shows what they do, and they are built first.
pub fn command(arguments: &[String], install: bool) -> Result<ExitCode> {
    let root = workspace::root()?;
    let stale = ebpf::check(&root).err();
    if install {
        let build = stale.as_ref().map(|_| Group::Build);
        setup::ensure(&build.into_iter().chain([Group::Demo]).collect::<Vec<_>>())?;
    }
    let mut build = workspace::cargo()?;
    build.args([
        "build",
        "--package",
        "podwire-tests",
        "--no-default-features",
        "--bin",
        "demo",
        "--package",
        "podwire",
        "--bin",
        "podwire",
    ]);
    workspace::run(&mut build, "the build of the demo")?;

    let program = workspace::target()?.join("debug/demo");
    let mut demo = privilege::as_root(&program, "the demo")?;
    if let Some(reason) = stale {
        anstream::eprintln!("{reason:#}; the demo runs what these sources give");
        demo.env(ebpf::OBJECT_VARIABLE, ebpf::build_aside(&root)?);
    }
    demo.args(arguments).current_dir(root);
    Err(demo.exec()).with_context(|| format!("cannot start {}", shown(&demo)))
}

fn shown(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}
