//! A place of its own for a run: a process namespace, and a mount namespace with its own /run, in which everything
//! that is named there (network namespaces, bpffs, pins) lives. The kernel takes all of it down with the run's
//! first process, whatever ends that.

use std::io::Read;
use std::process::{Command, ExitCode, Stdio, exit};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};

/// Says that a process is the inner one.
const INSIDE: &str = "PODWIRE_BENCH_INSIDE";

/// Whether this is the inner process; if so, its /run is made.
///
/// # Errors
/// Without root.
pub fn is_inside() -> Result<bool> {
    if std::env::var_os(INSIDE).is_none() {
        return Ok(false);
    }
    mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))
        .context("mounting /run")?;
    // The outer process holds the other end, and closes it when it is told to end, or dies.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        exit(130);
    });
    Ok(true)
}

/// Which processes the inner one sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// Its own, which end with it.
    Own,
    /// All of the machine, the kernel's threads included. What it starts has to end by itself.
    All,
}

/// Runs this program inside, with the same arguments.
///
/// # Errors
/// When it cannot be started.
pub fn run_inside(processes: Processes) -> Result<ExitCode> {
    let own: &[&str] = if processes == Processes::Own { &["--pid"] } else { &[] };
    let mut inner = Command::new("unshare")
        .args(own)
        .args(["--mount", "--fork", "--kill-child", "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .stdin(Stdio::piped())
        .spawn()
        .context("starting unshare (util-linux)")?;
    let life = Arc::new(Mutex::new(inner.stdin.take()));
    let held = Arc::clone(&life);
    podwire_tests::signals::on_end(move || {
        held.lock().unwrap_or_else(PoisonError::into_inner).take();
    })?;
    let status = inner.wait()?;
    drop(life);
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
