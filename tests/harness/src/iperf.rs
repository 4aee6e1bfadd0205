//! Bulk traffic by iperf3. In: two namespaces and an address. Out: what iperf3 counted.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::netns::NetNs;
use crate::process::Background;

/// One transfer.
#[derive(Clone, Debug)]
pub struct Iperf {
    /// Address of the server, IPv4 or IPv6.
    pub destination: String,
    /// The server's port.
    pub port: u16,
    /// Bytes to send.
    pub bytes: u64,
    /// UDP at this many bits per second; TCP as fast as it goes without.
    pub udp_rate: Option<u64>,
    /// Processors of the client and the server; wherever the kernel likes without.
    pub cpus: Option<[usize; 2]>,
}

/// What iperf3 counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IperfReport {
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Payload bytes the server had read when the client said it was done: over TCP, what was still on its way then
    /// is missing without being lost. [`crate::Page`] tells what arrived to the byte.
    pub received_bytes: u64,
    /// TCP segments sent again; 0 for UDP.
    pub retransmits: u64,
    /// UDP datagrams lost; 0 for TCP.
    pub lost_packets: u64,
    /// Bits per second, as the receiver saw it.
    pub bits_per_second: f64,
}

/// What starts a command on a processor.
fn pinned(cpu: usize) -> Vec<String> {
    vec!["taskset".into(), "-c".into(), cpu.to_string()]
}

impl Iperf {
    /// Runs a server in `to`, and a client in `from` until all is sent.
    ///
    /// # Errors
    /// When either fails; with what it said.
    pub fn run(&self, from: &NetNs, to: &NetNs) -> Result<IperfReport> {
        let port = self.port.to_string();
        let [client, server] = self.cpus.map_or_else(Default::default, |cpus| cpus.map(pinned));
        let words =
            [&server[..], &["iperf3", "-s", "-1", "--forceflush", "-p", &port].map(str::to_owned)].concat();
        let mut child = to
            .command(&words[0])
            .args(&words[1..])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the server")?;
        let stdout = child.stdout.take().context("iperf3 has no stdout")?;
        let _server = Background::new(child);
        let mut lines = BufReader::new(stdout).lines();
        if !lines.any(|line| line.is_ok_and(|line| line.contains("listening"))) {
            bail!("iperf3 does not listen on port {port}");
        }
        // What it says later must not fill the pipe.
        std::thread::spawn(move || for _ in lines {});
        let (bytes, rate) = (self.bytes.to_string(), self.udp_rate.map(|rate| rate.to_string()));
        let mut words: Vec<&str> = client.iter().map(String::as_str).collect();
        words.extend(["iperf3", "-J", "-c", &self.destination, "-p", &port, "-n", &bytes]);
        if let Some(rate) = &rate {
            words.extend(["-u", "-b", rate]);
        }
        let output = from.run(&words)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let parsed: Value = serde_json::from_str(&said).with_context(|| format!("iperf3 said: {said}"))?;
        if let Some(error) = parsed["error"].as_str() {
            bail!("iperf3: {error}");
        }
        read_report(&parsed["end"], self.udp_rate.is_some())
    }
}

fn read_report(end: &Value, udp: bool) -> Result<IperfReport> {
    let number = |value: &Value| value.as_u64().with_context(|| format!("a counter is missing in {end}"));
    let (sent, received) = (&end["sum_sent"], &end["sum_received"]);
    Ok(IperfReport {
        sent_bytes: number(&sent["bytes"])?,
        received_bytes: number(&received["bytes"])?,
        retransmits: if udp { 0 } else { number(&sent["retransmits"])? },
        lost_packets: if udp { number(&received["lost_packets"])? } else { 0 },
        bits_per_second: received["bits_per_second"].as_f64().context("no rate")?,
    })
}
