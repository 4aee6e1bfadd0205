//! Echo requests. In: a namespace and an address. Out: how many went out and how many came back, or what a router said.

use std::net::IpAddr;
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

/// What came back for one echo request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hop {
    /// The answer.
    Reply,
    /// The hop limit ended at this address.
    Exceeded(IpAddr),
    /// Too long for what lies behind: the MTU of that path.
    TooBig(u32),
    /// Nothing, or something else.
    Nothing,
}

impl Hop {
    /// Sends one echo request of `size` payload bytes in one piece, with a hop limit, and waits two seconds.
    ///
    /// # Errors
    /// When ping cannot be run.
    pub fn ask(from: &NetNs, destination: &str, hop_limit: u8, size: u32) -> Result<Self> {
        let (limit, size) = (hop_limit.to_string(), size.to_string());
        let words = ["ping", "-n", "-c", "1", "-W", "2", "-t", &limit, "-s", &size, "-M", "do", destination];
        let output = from.run(&words)?;
        Ok(read_hop(&(String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr))))
    }
}

fn read_hop(said: &str) -> Hop {
    // iputils says `mtu: 1450` of its own kernel's refusal, `mtu=1450` and `mtu = 1450` of a router's.
    let mtu = said.split("mtu").nth(1).and_then(|rest| {
        rest.trim_start_matches([':', '=', ' ']).split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    });
    let exceeded =
        said.lines().find(|line| line.contains("Time to live exceeded") || line.contains("Time exceeded"));
    let from = exceeded.and_then(|line| line.strip_prefix("From ")?.split([' ', '%']).next());
    match (said.contains(" bytes from "), mtu, from.and_then(|text| text.parse().ok())) {
        (true, ..) => Hop::Reply,
        (_, Some(mtu), _) => Hop::TooBig(mtu),
        (_, _, Some(address)) => Hop::Exceeded(address),
        _ => Hop::Nothing,
    }
}

fn read_report(said: &str) -> Result<PingReport> {
    let number = |what: &str| {
        let found = said.lines().find_map(|line| line.split(", ").find_map(|part| part.strip_suffix(what)));
        found.and_then(|text| text.parse().ok()).with_context(|| format!("ping said: {said}"))
    };
    Ok(PingReport { transmitted: number(" packets transmitted")?, received: number(" received")? })
}
