//! `podwire collect` in a namespace. In: its words. Out: what it counted, and the files that it wrote.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pcap_file::pcapng::{Block, PcapNgReader};
use podwire_harness::{Background, Capture, NetNs, binary, run};
use serde_json::Value;

/// A running collector.
#[derive(Debug)]
pub struct Collecting {
    process: Background,
    stdout: PathBuf,
    said: std::sync::mpsc::Receiver<String>,
}

impl Collecting {
    /// Starts it at `eth0`, and returns when it listens. Standard output goes to a file in `folder`.
    ///
    /// # Errors
    /// With what it said instead.
    pub fn start(netns: &NetNs, folder: &Path, words: &[&str]) -> Result<Self> {
        let stdout = folder.join("collect.json");
        let mut child = netns
            .command(&binary().to_string_lossy())
            .args(["collect", "--interface", "eth0", "-o", "json"])
            .args(words)
            .stdout(File::create(&stdout)?)
            .stderr(Stdio::piped())
            .spawn()
            .context("starting podwire collect")?;
        let stderr = child.stderr.take().context("no stderr")?;
        let process = Background::new(child);
        let (tell, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let mut before = Vec::new();
        loop {
            match said.recv_timeout(Duration::from_secs(20)) {
                Ok(line) if line.starts_with("collecting: ") => break,
                Ok(line) => before.push(line),
                Err(_) => bail!("podwire collect does not listen: {before:?}"),
            }
        }
        Ok(Self { process, stdout, said })
    }

    /// The last object that it printed.
    ///
    /// # Errors
    /// When there is none.
    pub fn last(&self) -> Result<Value> {
        let text = std::fs::read_to_string(&self.stdout)?;
        let whole = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        whole.last().context("nothing was printed")
    }

    /// Waits until it has seen as many frames.
    ///
    /// # Errors
    /// With what it has seen, when that does not happen.
    pub fn wait_for(&self, frames: u64) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.last().ok().and_then(|last| last["frames"].as_u64()).unwrap_or_default() < frames {
            ensure!(Instant::now() < deadline, "{frames} frames, but {:#}", self.last()?);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Ctrl-C, after a moment for what is on its way; returns the summary.
    ///
    /// # Errors
    /// When it ends otherwise than well, or its books do not add up.
    pub fn stop(mut self) -> Result<Value> {
        std::thread::sleep(Duration::from_millis(400));
        let pid = Pid::from_raw(i32::try_from(self.process.child().id())?);
        kill(pid, Signal::SIGINT)?;
        self.end()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As [`Collecting::stop`].
    pub fn end(mut self) -> Result<Value> {
        let status = self.process.child().wait()?;
        let said: Vec<String> = self.said.iter().collect();
        ensure!(status.success() && said.is_empty(), "{status}: {said:?}");
        let last = self.last()?;
        ensure!(last["kind"] == "Summary", "{last}");
        balance(&last)?;
        Ok(last)
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// When it has ended already.
    pub fn kill(mut self) -> Result<()> {
        self.process.child().kill()?;
        self.process.child().wait()?;
        Ok(())
    }
}

/// Runs it to an end that comes by itself.
///
/// # Errors
/// When it cannot be started.
pub fn collect(netns: &NetNs, words: &[&str]) -> Result<Output> {
    let binary = binary().to_string_lossy().into_owned();
    let mut all = vec![binary.as_str(), "collect"];
    all.extend(words);
    netns.run(&all)
}

/// Every packet and frame is in the books once.
fn balance(summary: &Value) -> Result<()> {
    let number = |pointer: &str| {
        summary.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("{pointer} of {summary}"))
    };
    let undecodable: u64 = summary["undecodable"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(_, count)| count.as_u64())
        .sum();
    let parts = number("/fragments/received")? - number("/fragments/packets")?;
    let booked = number("/frames")? + number("/notTunnels")? + number("/unwanted")? + undecodable + parts;
    ensure!(number("/packets")? == booked, "packets: {summary:#}");
    for session in summary["sessions"].as_array().context("no sessions")? {
        let Some(books) = session["numbers"].as_object() else { continue };
        let of = |name: &str| books.get(name).and_then(Value::as_u64).unwrap_or_default();
        let booked = of("released") + of("duplicates") + of("late") + of("waiting");
        ensure!(of("received") == booked, "numbers: {session:#}");
    }
    Ok(())
}

/// The session of a kind and identifier, over IPv4 or IPv6.
///
/// # Errors
/// When there is none.
pub fn session<'a>(summary: &'a Value, kind: &str, id: Option<(&str, u64)>, v6: bool) -> Result<&'a Value> {
    let sessions = summary["sessions"].as_array().context("no sessions")?;
    let is = |one: &&Value| {
        one["kind"] == kind
            && id.is_none_or(|(name, number)| one[name] == number)
            && one["source"].as_str().is_some_and(|source| source.contains(':') == v6)
    };
    sessions.iter().find(is).with_context(|| format!("{kind} {id:?} in {summary:#}"))
}

/// A field of a session's numbers.
pub fn count(session: &Value, field: &str) -> u64 {
    session["numbers"][field].as_u64().unwrap_or_default()
}

/// Frames of a file by the name of their interface.
///
/// # Errors
/// When it is no whole pcapng.
pub fn frames(file: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    File::open(file)?.read_to_end(&mut bytes)?;
    let mut reader = PcapNgReader::new(bytes.as_slice())?;
    let (mut names, mut frames) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block? {
            Block::InterfaceDescription(block) => {
                let text = format!("{:?}", block.options);
                let name = text.split("IfName(\"").nth(1).and_then(|rest| rest.split('"').next());
                names.push(name.context("an interface without a name")?.to_owned());
            }
            Block::EnhancedPacket(packet) => {
                let name = names.get(packet.interface_id as usize).context("no such interface")?;
                frames.push((name.clone(), packet.data.to_vec()));
            }
            _ => {}
        }
    }
    Ok(frames)
}

/// How many packets capinfos and tshark find in a file, which they read to its end without complaint.
///
/// # Errors
/// When they complain, or disagree.
pub fn packets(file: &Path) -> Result<usize> {
    let path = file.to_string_lossy();
    let output = run(&["capinfos", "-M", "-c", &path])?;
    let (said, text) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    ensure!(output.status.success() && said.trim().is_empty(), "capinfos {path}: {said}");
    let number =
        text.lines().find_map(|line| line.strip_prefix("Number of packets:")).context("no number")?;
    let counted: usize = number.trim().parse()?;
    let read = Capture::count(file, 0, "")?;
    ensure!(read == counted, "{path}: tshark {read}, capinfos {counted}");
    Ok(counted)
}
