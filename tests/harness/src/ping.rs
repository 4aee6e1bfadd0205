//! Echo requests. In: a namespace and an address. Out: how many went out and how many came back.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::netns::NetNs;

/// A series of echo requests.
#[derive(Clone, Debug)]
pub struct Ping {
    /// Address, IPv4 or IPv6.
    pub destination: String,
    /// Requests.
    pub count: u32,
    /// Payload bytes of each.
    pub size: u32,
    /// Time between two.
    pub interval: Duration,
    /// Never in fragments: what exceeds the MTU of the path is not sent. Else the kernel decides.
    pub whole: bool,
}

impl Default for Ping {
    fn default() -> Self {
        Self {
            destination: String::new(),
            count: 1,
            size: 56,
            interval: Duration::from_millis(2),
            whole: false,
        }
    }
}

/// What ping counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingReport {
    /// Requests sent; ping counts those the kernel refused as too long, too.
    pub transmitted: u32,
    /// Answers.
    pub received: u32,
}

impl Ping {
    /// Sends all and waits for the answers, at most 2 s for the last.
    ///
    /// # Errors
    /// When ping cannot be run.
    pub fn run(&self, from: &NetNs) -> Result<PingReport> {
        let (count, size) = (self.count.to_string(), self.size.to_string());
        let interval = self.interval.as_secs_f64().to_string();
        let mut words = vec!["ping", "-n", "-q", "-i", &interval, "-W", "2", "-c", &count, "-s", &size];
        if self.whole {
            words.extend(["-M", "do"]);
        }
        words.push(&self.destination);
        read_report(&String::from_utf8_lossy(&from.run(&words)?.stdout))
    }
}

fn read_report(said: &str) -> Result<PingReport> {
    let number = |what: &str| {
        let found = said.lines().find_map(|line| line.split(", ").find_map(|part| part.strip_suffix(what)));
        found.and_then(|text| text.parse().ok()).with_context(|| format!("ping said: {said}"))
    };
    Ok(PingReport { transmitted: number(" packets transmitted")?, received: number(" received")? })
}
