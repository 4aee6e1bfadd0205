//! The daemon, started as an operator starts it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::netns::NetNs;
use crate::process::{Background, run};

/// A running `podwire agent`, killed on drop; what it pinned goes with the bpffs.
#[derive(Debug)]
pub struct Agent {
    process: Background,
    folder: PathBuf,
    socket: PathBuf,
}

impl Agent {
    /// Starts the daemon in a node's namespace, with everything under `folder`: `config/` is its configuration,
    /// `bpf` its bpffs. Returns when its socket answers.
    ///
    /// # Errors
    /// When it does not come up; with its log.
    pub fn start(node: &NetNs, folder: &Path, extra: &[&str]) -> Result<Self> {
        Self::start_as(node, folder, "node-1", "uplink0", extra)
    }

    /// As [`Agent::start`], under a name and with an uplink.
    ///
    /// # Errors
    /// When it does not come up; with its log.
    pub fn start_as(node: &NetNs, folder: &Path, name: &str, uplink: &str, extra: &[&str]) -> Result<Self> {
        Self::start_build(&binary(), node, folder, name, uplink, extra)
    }

    /// As [`Agent::start_as`], of another build of podwire.
    ///
    /// # Errors
    /// When it does not come up; with its log.
    pub fn start_build(
        build: &Path,
        node: &NetNs,
        folder: &Path,
        name: &str,
        uplink: &str,
        extra: &[&str],
    ) -> Result<Self> {
        let socket = folder.join("podwire.sock");
        let log = std::fs::File::options().create(true).append(true).open(folder.join("agent.log"))?;
        let mut command = node.command(&build.to_string_lossy());
        command.args(["agent", "--node", name, "--uplink", uplink]);
        // An agent's objects stand in files, or at an API server.
        if !extra.contains(&"--kubeconfig") {
            let config = folder.join("config");
            std::fs::create_dir_all(&config)?;
            command.arg("--config").arg(&config);
        }
        let child = command
            .arg("--socket")
            .arg(&socket)
            .arg("--bpffs")
            .arg(folder.join("bpf/podwire"))
            .arg("--state")
            .arg(folder.join("state"))
            .args(extra)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting podwire agent")?;
        let mut agent = Self { process: Background::new(child), folder: folder.to_owned(), socket };
        let deadline = Instant::now() + Duration::from_secs(90);
        while !agent.cli(&["get", "sessions"])?.status.success() {
            if Instant::now() > deadline || agent.process.child().try_wait()?.is_some() {
                bail!("podwire agent does not answer:\n{}", agent.log());
            }
            std::thread::sleep(Duration::from_millis(30));
        }
        Ok(agent)
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("agent.log")).unwrap_or_default()
    }

    /// Runs the command line against it.
    ///
    /// # Errors
    /// When the binary cannot be started.
    pub fn cli(&self, words: &[&str]) -> Result<Output> {
        let (binary, socket) =
            (binary().to_string_lossy().into_owned(), self.socket.to_string_lossy().into_owned());
        let mut all = vec![binary.as_str(), "--socket", socket.as_str()];
        all.extend(words);
        run(&all)
    }

    /// Runs the command line, which must succeed; returns what it printed.
    ///
    /// # Errors
    /// When it fails; with what it said.
    pub fn cli_ok(&self, words: &[&str]) -> Result<String> {
        let output = self.cli(words)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("podwire {}: {}: {said}\n{}", words.join(" "), output.status, self.log());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts the command line against it; its output goes into a pipe.
    ///
    /// # Errors
    /// When the binary cannot be started.
    pub fn spawn(&self, words: &[&str]) -> Result<Child> {
        let mut command = Command::new(binary());
        command.arg("--socket").arg(&self.socket).args(words).stdout(Stdio::piped());
        command.spawn().context("starting the command line")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// SIGKILL.
    pub fn kill(self) {}

    /// Of each endpoint, received = passed + redirected + dropped. An agent that does not answer has no books.
    fn books(&self) -> Result<()> {
        let Ok(shown) = self.cli(&["get", "endpoints", "-o", "json"]) else { return Ok(()) };
        let Ok(shown) = serde_json::from_slice::<serde_json::Value>(&shown.stdout) else { return Ok(()) };
        for item in shown["items"].as_array().into_iter().flatten() {
            let packets = &item["status"]["packets"];
            let number = |field: &str| packets[field].as_u64().unwrap_or_default();
            let booked = number("passed") + number("redirected") + number("dropped");
            anyhow::ensure!(number("received") == booked, "the books do not add up: {item}");
        }
        Ok(())
    }

    /// SIGINT, and waits for the end.
    pub fn stop(mut self) {
        self.process.interrupt();
    }
}

/// How often an agent's books are looked at before they count as wrong: packets may be on their way.
const LAST_LOOKS: usize = 20;

/// Every test ends with a look at the books.
impl Drop for Agent {
    fn drop(&mut self) {
        let mut books = self.books();
        for _ in 1..LAST_LOOKS {
            if books.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
            books = self.books();
        }
        assert!(std::thread::panicking() || books.is_ok(), "{books:?}");
    }
}

/// The binary under test: `PODWIRE_BIN`, else the one next to the test executable.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("PODWIRE_BIN") {
        return PathBuf::from(path);
    }
    let mut folder = std::env::current_exe().unwrap_or_default();
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    folder.join("podwire")
}
