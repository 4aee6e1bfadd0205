//! Where things are, and the cargo that builds them.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// The workspace's root folder, absolute.
///
/// `cargo run` names the folder of this crate at run time, so a binary built in one clone and shared through a
/// common target directory works on the clone it is called from.
pub fn root() -> Result<PathBuf> {
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| OsString::from(env!("CARGO_MANIFEST_DIR")));
    let root = Path::new(&manifest).parent().context("xtask stands in no workspace")?;
    root.canonicalize().with_context(|| format!("the workspace {} cannot be read", root.display()))
}

/// Cargo's target folder of the host builds.
pub fn target() -> Result<PathBuf> {
    let root = root()?;
    Ok(env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir)))
}

/// The cargo that runs this program, in the workspace's root.
pub fn cargo() -> Result<Command> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root()?);
    Ok(command)
}

/// Cargo's home folder, where `cargo install` puts programs.
pub fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")))
}

/// The first file called `name` in `PATH` or among what `cargo install` built.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let installed = cargo_home().map(|home| home.join("bin"));
    // Administrators' tools are not in an ordinary user's PATH on Debian.
    let system = [PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")];
    env::split_paths(&path)
        .chain(installed)
        .chain(system)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Runs a command with this program's own output streams.
///
/// # Errors
/// When it cannot be started or ends with anything but success; the message is `what`.
pub fn run(command: &mut Command, what: &str) -> Result<()> {
    let status =
        command.status().with_context(|| format!("{what}: cannot start {:?}", command.get_program()))?;
    if !status.success() {
        bail!("{what} failed ({status})");
    }
    Ok(())
}

/// What a command writes to its standard output.
///
/// # Errors
/// When it cannot be started, fails, or writes no UTF-8.
pub fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed ({}): {}", output.status, errors.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} wrote no UTF-8"))
}
