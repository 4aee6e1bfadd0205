//! Commands. In: words. Out: what they printed, or an error that says so.

use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started.
pub fn run(words: &[&str]) -> Result<Output> {
    let (program, arguments) = words.split_first().context("an empty command")?;
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", words.join(" ")))
}

/// Runs a command that must succeed; returns what it printed.
///
/// # Errors
/// When it cannot be started or fails; with what it said.
pub fn run_ok(words: &[&str]) -> Result<String> {
    let output = run(words)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{}: {}: {}", words.join(" "), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command in the background, killed on drop.
#[derive(Debug)]
pub struct Background(Child);

impl Background {
    /// Takes care of a child.
    pub fn new(child: Child) -> Self {
        Self(child)
    }

    /// The child.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Asks it to end and waits until it has.
    pub fn interrupt(&mut self) {
        if let Ok(pid) = i32::try_from(self.0.id()) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGINT);
        }
        let _ = self.0.wait();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
