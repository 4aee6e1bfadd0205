//! A network namespace with a name that `ip netns` knows.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use crate::ping::Ping;
use crate::process::{Background, run, run_ok};

/// A namespace, deleted on drop.
#[derive(Debug)]
pub struct NetNs {
    name: String,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl NetNs {
    /// Makes a namespace named `pw-ROLE-…`, loopback up and without the kernel's own IPv6 chatter.
    ///
    /// # Errors
    /// Without root.
    pub fn new(role: &str) -> Result<Self> {
        // The kernel gives process ids again, and a process that was killed leaves its namespaces behind: without
        // chance in the name, a later one would find it taken.
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let chance = RandomState::new().hash_one(count) as u32;
        let name = format!("pw-{role}-{}-{count}-{chance:08x}", std::process::id());
        run_ok(&["ip", "netns", "add", &name])?;
        let netns = Self { name };
        netns.ip(&["link", "set", "lo", "up"])?;
        for knob in ["accept_dad=0", "accept_ra=0", "autoconf=0", "router_solicitations=0"] {
            for scope in ["all", "default"] {
                netns.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{scope}.{knob}")])?;
            }
        }
        Ok(netns)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn words<'a>(&'a self, entry: &'a str, words: &[&'a str]) -> Vec<&'a str> {
        ["nsenter", entry].into_iter().chain(words.iter().copied()).collect()
    }

    fn entry(&self) -> String {
        format!("--net=/run/netns/{}", self.name)
    }

    /// Runs a command inside.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run(&self, words: &[&str]) -> Result<Output> {
        run(&self.words(&self.entry(), words))
    }

    /// Runs a command inside that must succeed; returns what it printed.
    ///
    /// # Errors
    /// When it fails.
    pub fn run_ok(&self, words: &[&str]) -> Result<String> {
        run_ok(&self.words(&self.entry(), words))
    }

    /// Runs `ip` inside.
    ///
    /// # Errors
    /// When it fails.
    pub fn ip(&self, words: &[&str]) -> Result<String> {
        let all: Vec<&str> = ["ip", "-n", &self.name].into_iter().chain(words.iter().copied()).collect();
        run_ok(&all)
    }

    /// A command inside, not started yet. It gets a process group of its own, so that Ctrl-C reaches the one who
    /// cleans up, and nobody before.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(self.entry()).arg(program).stdin(Stdio::null()).process_group(0);
        command
    }

    /// Starts a command inside in the background, its output thrown away.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&self, words: &[&str]) -> Result<Background> {
        let (program, arguments) = words.split_first().context("an empty command")?;
        let child =
            self.command(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Background::new(child))
    }

    /// Runs a closure on a fresh thread inside the namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered, the closure fails or panics.
    pub fn enter<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.enter_later(work)?.join().map_err(|panic| {
            anyhow!("{}", panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "it panicked".into()))
        })?
    }

    /// Starts a closure on a fresh thread inside the namespace.
    ///
    /// # Errors
    /// When the namespace cannot be opened.
    pub fn enter_later<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<std::thread::JoinHandle<Result<T>>> {
        let file = File::open(format!("/run/netns/{}", self.name))?;
        Ok(std::thread::Builder::new().name(self.name.clone()).spawn(move || {
            setns(&file, CloneFlags::CLONE_NEWNET).context("entering a namespace")?;
            work()
        })?)
    }

    /// A counter of an interface: `direction` rx or tx, `field` packets, bytes, errors, dropped.
    ///
    /// # Errors
    /// When there is no such interface or counter.
    pub fn counter(&self, interface: &str, direction: &str, field: &str) -> Result<u64> {
        let text = self.ip(&["-j", "-s", "link", "show", "dev", interface])?;
        let parsed: Value = serde_json::from_str(&text)?;
        parsed[0]["stats64"][direction][field].as_u64().with_context(|| format!("no counter in {text}"))
    }

    /// Switches an offload of an interface, named as `ethtool -K` names it: tso, gso, gro, tx, rx.
    ///
    /// # Errors
    /// When there is no such interface, or it cannot do otherwise.
    pub fn offload(&self, interface: &str, name: &str, on: bool) -> Result<()> {
        let state = if on { "on" } else { "off" };
        self.run_ok(&["ethtool", "-K", interface, name, state]).map(drop)
    }

    /// Sends `count` echo requests of `size` payload bytes; returns how many came back.
    ///
    /// # Errors
    /// When ping cannot be run.
    pub fn ping(&self, destination: &str, count: u32, size: u32) -> Result<u32> {
        let ping = Ping { destination: destination.to_owned(), count, size, ..Ping::default() };
        Ok(ping.run(self)?.received)
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        let _ = run(&["ip", "netns", "del", &self.name]);
    }
}
