//! The rival in C: bench/peers/af_xdp.c, built here, as a process that shares a file of counters.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use podwire_harness::{Background, NetNs};

use crate::site::{Worker, pin};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/af_xdp.c");

/// Builds it.
///
/// # Errors
/// Without gcc, or the development files of libxdp and libbpf.
pub fn build() -> Result<PathBuf> {
    let program = PathBuf::from("/run/af_xdp");
    let output = Command::new("gcc")
        .args(["-O2", "-o"])
        .arg(&program)
        .args([SOURCE, "-lxdp", "-lbpf"])
        .output()
        .context("starting gcc")?;
    if !output.status.success() {
        bail!("gcc: {}", String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("failed"));
    }
    Ok(program)
}

/// The running program.
pub struct Rival {
    ledger: File,
    process: Background,
}

/// Offsets of the ledger's words.
const PACKETS: u64 = 0;
const GO: u64 = 8;
const READY: u64 = 16;

impl Rival {
    /// Starts it in a namespace, bound to a processor. `mode` is rx, tx or packets.
    pub fn start(
        program: &Path,
        netns: &NetNs,
        mode: &str,
        interface: &str,
        bytes: usize,
        processor: usize,
    ) -> Result<Self> {
        let path = format!("/run/ledger-{mode}-{interface}");
        let ledger = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        ledger.set_len(4096)?;
        let mut command = netns.command("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program).args([mode, interface, &path, &bytes.to_string()]);
        let child = command.stderr(Stdio::null()).spawn()?;
        let process = Background::new(child);
        let mut rival = Self { ledger, process };
        let since = Instant::now();
        while rival.word(READY)? == 0 {
            if let Some(status) = rival.process.child().try_wait()? {
                bail!("the C program ended: {status}");
            }
            if since.elapsed() > Duration::from_secs(5) {
                bail!("the C program does not get ready");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        pin(rival.worker().0, processor)?;
        Ok(rival)
    }

    fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.ledger.read_exact_at(&mut bytes, at)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Packets received, or sent.
    pub fn packets(&self) -> Result<u64> {
        self.word(PACKETS)
    }

    /// Has it send, or stop.
    pub fn go(&self, on: bool) -> Result<()> {
        Ok(self.ledger.write_all_at(&u64::from(on).to_ne_bytes(), GO)?)
    }

    /// Its thread.
    pub fn worker(&mut self) -> Worker {
        Worker(i32::try_from(self.process.child().id()).unwrap_or_default())
    }
}
