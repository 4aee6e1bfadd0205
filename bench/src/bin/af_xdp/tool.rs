//! Commands that receive a mirrored stream. In: an interface. Out: how many packets each says it kept.
//!
//! One more contender is one more line in [`passing`] or [`addressed`].

use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_harness::NetNs;
use serde_json::Value;

use crate::site::{RECEIVER, process_time};

/// A command under test.
#[derive(Clone, Debug)]
pub struct Tool {
    pub name: &'static str,
    /// The program and its words; `IF` stands for the interface.
    words: Vec<String>,
    /// It listens at the kernel's tunnel device, else at the interface where the stream arrives.
    pub at_device: bool,
    kept: Kept,
}

pub const TCPDUMP: &str = "tcpdump -w /dev/null";
pub const PCAPNG: &str = "podwire xsk, decapsulated, pcapng";
pub const COLLECT: &str = "podwire collect -w /dev/null";

pub const DEVICE: &str = "tcpdump at the vxlan device";

type Kept = fn(&str) -> Option<u64>;
const TCPDUMP_LINE: &str = "tcpdump -p -n -i IF -s 0 -w /dev/null";
const DUMPCAP_LINE: &str = "dumpcap -p -q -i IF -w /dev/null";

fn collect_line() -> Result<String> {
    let program = std::env::current_exe()?.with_file_name("podwire");
    Ok(format!("{} collect --interface IF -w /dev/null --output json", program.display()))
}

/// Those that are there for a stream that is addressed to this host.
pub fn addressed() -> Result<Vec<Tool>> {
    let tools = [
        (DEVICE, TCPDUMP_LINE.to_owned(), tcpdump as Kept),
        ("dumpcap at the vxlan device", DUMPCAP_LINE.to_owned(), dumpcap),
        (COLLECT, collect_line()?, summary),
    ];
    Ok(there(tools).map(|tool| Tool { at_device: tool.name != COLLECT, ..tool }).collect())
}

/// Those that are there for a stream that is addressed to another one.
pub fn passing() -> Result<Vec<Tool>> {
    let own = std::env::current_exe()?.display().to_string();
    let tools = [
        (TCPDUMP, TCPDUMP_LINE.to_owned(), tcpdump as Kept),
        ("tcpdump -B 4096 -w /dev/null", "tcpdump -p -n -i IF -s 0 -B 4096 -w /dev/null".to_owned(), tcpdump),
        ("dumpcap -w /dev/null", DUMPCAP_LINE.to_owned(), dumpcap),
        ("podwire xsk, counted", format!("{own} receive count IF"), summary),
        (PCAPNG, format!("{own} receive pcapng IF"), summary),
        (COLLECT, collect_line()?, summary),
    ];
    Ok(there(tools).collect())
}

fn there(tools: impl IntoIterator<Item = (&'static str, String, Kept)>) -> impl Iterator<Item = Tool> {
    let made = tools.into_iter().map(|(name, line, kept)| {
        let words = line.split(' ').map(str::to_owned).collect();
        Tool { name, words, at_device: false, kept }
    });
    made.filter(Tool::is_there)
}

impl Tool {
    fn is_there(&self) -> bool {
        let mut words =
            self.words.iter().take_while(|word| *word != "-p" && *word != "-i" && !word.starts_with("--"));
        let program = words.next().map(PathBuf::from).unwrap_or_default();
        // A podwire without that command says so.
        let wants: Vec<&String> = words.filter(|word| *word == "collect").collect();
        std::process::Command::new(&program)
            .args(wants)
            .arg("--help")
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|output| program.ends_with("podwire") <= output.status.success())
    }

    /// Starts it in a namespace, on the receiver's processor.
    pub fn start(&self, netns: &NetNs, interface: &str) -> Result<Running> {
        let said = File::options().read(true).write(true).create(true).truncate(true).open("/run/said")?;
        let processor = RECEIVER.to_string();
        let child = netns
            .command("setpriv")
            .args(["--pdeathsig", "KILL", "taskset", "-c", processor.as_str()])
            .args(self.words.iter().map(|word| if word == "IF" { interface } else { word }))
            .stdout(said.try_clone()?)
            .stderr(said.try_clone()?)
            .spawn()
            .with_context(|| format!("starting {}", self.name))?;
        Ok(Running { child, said, kept: self.kept })
    }
}

/// A command that runs.
pub struct Running {
    child: std::process::Child,
    said: File,
    kept: Kept,
}

impl Running {
    /// Its processor time in ns, with that of its children.
    pub fn time(&self) -> Result<u64> {
        process_time(self.child.id())
    }

    /// Ends it; packets that it kept.
    pub fn end(mut self) -> Result<u64> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGINT)?;
        self.child.wait()?;
        let mut text = String::new();
        self.said.rewind()?;
        self.said.read_to_string(&mut text)?;
        (self.kept)(&text).with_context(|| format!("it says: {text}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tcpdump(said: &str) -> Option<u64> {
    let line =
        said.lines().find(|line| line.contains(" packets captured") || line.contains(" packet captured"))?;
    line.split(' ').next()?.parse().ok()
}

fn dumpcap(said: &str) -> Option<u64> {
    let (_, rest) = said.rsplit_once("Packets captured: ")?;
    rest.split_whitespace().next()?.parse().ok()
}

fn summary(said: &str) -> Option<u64> {
    said.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .rfind(|object| object["kind"] == "Summary")
        .and_then(|object| object["delivered"].as_u64())
}
