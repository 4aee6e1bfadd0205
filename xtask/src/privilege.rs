//! Root's rights: had, borrowed through sudo, or asked for in one clear line.

use std::{ffi::OsStr, process::Command};

use anyhow::{Result, bail};
use nix::unistd::Uid;

use crate::workspace;

/// Whether this process is root.
pub fn is_root() -> bool {
    Uid::effective().is_root()
}

/// `program` as root: itself, or behind sudo.
///
/// sudo asks for its password here, on the terminal, and not later below a progress line.
///
/// # Errors
/// When this is not root and sudo is missing or refuses; the message begins with `purpose`.
pub fn as_root(program: impl AsRef<OsStr>, purpose: &str) -> Result<Command> {
    if is_root() {
        return Ok(Command::new(program));
    }
    if workspace::find_program("sudo").is_none() {
        bail!("{purpose} needs root, and there is no sudo here: run this command as root");
    }
    if !Command::new("sudo").arg("-v").status().is_ok_and(|status| status.success()) {
        bail!("{purpose} needs root, and sudo refused: run this command as root");
    }
    let mut command = Command::new("sudo");
    command.args(["-E", "--"]).arg(program);
    Ok(command)
}
