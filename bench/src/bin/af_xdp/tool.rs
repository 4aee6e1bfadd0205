//! Commands that receive a mirrored stream. In: an interface. Out: how many packets each says it kept.
//!
//! One more contender is one more line in [`all`].

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
    kept: fn(&str) -> Option<u64>,
}

pub const TCPDUMP: &str = "tcpdump -w /dev/null";
pub const PCAPNG: &str = "podwire xsk, decapsulated, pcapng";
pub const COLLECT: &str = "podwire collect -w /dev/null";

/// All of them that are there.
pub fn all() -> Result<Vec<Tool>> {
    let own = std::env::current_exe()?;
    let collect = own.with_file_name("podwire");
    let (own, collect) = (own.to_string_lossy().into_owned(), collect.to_string_lossy().into_owned());
    let tools = [
        (TCPDUMP, "tcpdump -p -n -i IF -s 0 -w /dev/null".to_owned(), tcpdump as fn(&str) -> Option<u64>),
        ("tcpdump -B 4096 -w /dev/null", "tcpdump -p -n -i IF -s 0 -B 4096 -w /dev/null".to_owned(), tcpdump),
        ("dumpcap -w /dev/null", "dumpcap -p -q -i IF -w /dev/null".to_owned(), dumpcap),
        ("podwire xsk, counted", format!("{own} receive count IF"), summary),
        (PCAPNG, format!("{own} receive pcapng IF"), summary),
        (COLLECT, format!("{collect} collect --interface IF -w /dev/null --output json"), summary),
    ];
    Ok(tools
        .into_iter()
        .map(|(name, line, kept)| Tool { name, words: line.split(' ').map(str::to_owned).collect(), kept })
        .filter(Tool::is_there)
        .collect())
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
    kept: fn(&str) -> Option<u64>,
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
