//! Suricata, between two interfaces (IPS) or listening on some (IDS). In: interfaces of a namespace and rules. Out:
//! its alerts and counters, as it writes them to `eve.json`.
//!
//! It gets no help that podwire is to make needless: it leaves the offloads of its interfaces as they are. It checks
//! checksums, but by its nature only those that the kernel calls finished (`TP_STATUS_CSUMNOTREADY` is not set): one
//! that the sender left to its device shows in a capture, and here by a peer that does not understand the packet.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::netns::NetNs;
use crate::process::{Background, run};

/// How long it may take to compile its rules and to open its interfaces.
const START: Duration = Duration::from_secs(60);
/// How long an event may take from the packet to the file: the counters come once a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// The part of the configuration that does not depend on the test. Streams are followed to their end (depth 0), not
/// only through their first megabyte.
const ENGINE: &str = "\
vars: {address-groups: {HOME_NET: any, EXTERNAL_NET: any}}
outputs:
  - fast: {enabled: yes, filename: fast.log}
  - eve-log:
      enabled: yes
      filetype: regular
      filename: eve.json
      types: [alert, anomaly, drop, flow, stats: {totals: yes, threads: no, deltas: no}]
stats: {enabled: yes, interval: 1}
logging:
  default-log-level: notice
  outputs: [console: {enabled: yes}]
app-layer: {protocols: {http: {enabled: yes}}}
exception-policy: auto
stream:
  checksum-validation: yes
  memcap: 64mb
  reassembly: {memcap: 256mb, depth: 0}
decoder: {erspan: {typeI: {enabled: true}}, vxlan: {enabled: true, ports: 4789}}
unix-command: {enabled: no}
";

/// Rules that find what an offload leaves unfinished: a checksum that is not the packet's.
const CHECKSUM_RULES: [&str; 6] = [
    "ip ipv4-csum",
    "tcp tcpv4-csum",
    "tcp tcpv6-csum",
    "udp udpv4-csum",
    "udp udpv6-csum",
    "icmp icmpv4-csum",
];
/// Their identifiers begin here; those of a test's own rules must not.
const CHECKSUM_SIDS: u64 = 9_000_000;

/// A running Suricata, killed on drop.
#[derive(Debug)]
pub struct Suricata {
    process: Background,
    folder: tempfile::TempDir,
}

/// One alert, or one packet that a rule dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// Identifier of the rule.
    pub sid: u64,
    /// The rule's `msg`.
    pub message: String,
    /// Whether the packet was dropped.
    pub blocked: bool,
}

impl Suricata {
    /// Whether Suricata is on this machine.
    pub fn is_installed() -> bool {
        run(&["suricata", "-V"]).is_ok_and(|output| output.status.success())
    }

    /// Listens on `interfaces` of `netns`.
    ///
    /// # Errors
    /// When it does not come up; with what it said.
    pub fn ids(netns: &NetNs, interfaces: &[&str], rules: &str) -> Result<Self> {
        Self::start(netns, &listening(interfaces), rules, false)
    }

    /// Listens on `interfaces` of `netns`, and switches their offloads off as it does when nobody tells it not to: the
    /// way to listen on a tunnel's end, where the kernel puts segments together again (GRO) behind any sender's back.
    ///
    /// # Errors
    /// When it does not come up; with what it said.
    pub fn ids_without_offloads(netns: &NetNs, interfaces: &[&str], rules: &str) -> Result<Self> {
        Self::start(netns, &listening(interfaces), rules, true)
    }

    /// Stands between two interfaces of `netns`: what enters one leaves by the other, unless a rule drops it.
    ///
    /// # Errors
    /// When it does not come up; with what it said.
    pub fn ips(netns: &NetNs, interfaces: [&str; 2], rules: &str) -> Result<Self> {
        let [first, second] = interfaces;
        let copy = |to: &str| format!(", copy-mode: ips, copy-iface: {to}");
        let entries = entry(first, 90, &copy(second)) + &entry(second, 91, &copy(first));
        Self::start(netns, &entries, rules, false)
    }

    fn start(netns: &NetNs, interfaces: &str, rules: &str, disable_offloading: bool) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("podwire-suricata-").tempdir()?;
        let (configuration, rules_file) =
            (folder.path().join("suricata.yaml"), folder.path().join("test.rules"));
        let text = format!(
            "%YAML 1.1\n---\n{ENGINE}capture: {{disable-offloading: {disable_offloading}}}\naf-packet:\n{interfaces}"
        );
        std::fs::write(&configuration, text)?;
        std::fs::write(&rules_file, format!("{rules}\n{}", checksum_rules()))?;
        let console = std::fs::File::create(folder.path().join("console"))?;
        let child = netns
            .command("suricata")
            .args(["--af-packet", "-c"])
            .arg(&configuration)
            .arg("-S")
            .arg(&rules_file)
            .arg("-l")
            .arg(folder.path())
            .stdout(console.try_clone()?)
            .stderr(console)
            .spawn()
            .context("starting suricata")?;
        let mut suricata = Self { process: Background::new(child), folder };
        let deadline = Instant::now() + START;
        while !suricata.console().contains("Engine started") {
            if Instant::now() > deadline || suricata.process.child().try_wait()?.is_some() {
                bail!("suricata does not start:\n{}", suricata.console());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let console = suricata.console();
        let complaint = console.lines().find(|line| line.starts_with("E: "));
        anyhow::ensure!(complaint.is_none(), "suricata did not take everything:\n{console}");
        Ok(suricata)
    }

    /// What it wrote to its console so far.
    pub fn console(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("console")).unwrap_or_default()
    }

    /// What it wrote to `fast.log` so far, a line per alert.
    pub fn fast_log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("fast.log")).unwrap_or_default()
    }

    /// The alerts so far, without those about checksums.
    ///
    /// # Errors
    /// When `eve.json` cannot be read.
    pub fn alerts(&self) -> Result<Vec<Alert>> {
        Ok(alerts(&read_events(self.folder.path())?))
    }

    /// Waits until `wanted` alerts of a rule are there; returns how many there are.
    ///
    /// # Errors
    /// When they do not come.
    pub fn wait_for_alerts(&self, sid: u64, wanted: usize) -> Result<usize> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.alerts()?.iter().filter(|alert| alert.sid == sid).count();
            if found >= wanted {
                return Ok(found);
            }
            if Instant::now() > deadline {
                bail!("{found} of {wanted} alerts of rule {sid}:\n{}", self.fast_log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops it when it has read all that waits for it, so that it closes all flows and writes its last counters.
    ///
    /// # Errors
    /// When it leaves no counters.
    pub fn stop(mut self) -> Result<SuricataReport> {
        self.catch_up()?;
        self.process.interrupt();
        let events = read_events(self.folder.path())?;
        let last = events.iter().rfind(|event| event["event_type"] == "stats");
        let stats = last.with_context(|| format!("no counters:\n{}", self.console()))?["stats"].clone();
        Ok(SuricataReport { events, stats })
    }

    /// Waits until its counters stand still: at the end it throws away what is in its rings, and on a busy machine it
    /// may be seconds behind.
    fn catch_up(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let packets = || -> Result<Vec<u64>> {
            let events = read_events(self.folder.path())?;
            Ok(events.iter().filter_map(|event| event["stats"]["decoder"]["pkts"].as_u64()).collect())
        };
        let before = packets()?.len();
        while Instant::now() < deadline {
            // The first new one may be about the time before.
            if matches!(packets()?.get(before..), Some([.., earlier, later]) if earlier == later) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// SIGKILL: it has no time to tell anybody.
    pub fn kill(self) {}
}

/// What Suricata had seen when it was stopped.
#[derive(Clone, Debug)]
pub struct SuricataReport {
    events: Vec<Value>,
    stats: Value,
}

impl SuricataReport {
    /// A counter, named as in `eve.json`: `tcp.reassembly_gap`.
    ///
    /// # Errors
    /// When there is no such counter.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let found = name.split('.').try_fold(&self.stats, |level, word| level.get(word));
        found.and_then(Value::as_u64).with_context(|| format!("suricata has no counter {name}"))
    }

    /// The alerts, without those about checksums.
    pub fn alerts(&self) -> Vec<Alert> {
        alerts(&self.events)
    }

    /// How many packets a rule reported or dropped.
    pub fn count(&self, sid: u64) -> usize {
        self.alerts().iter().filter(|alert| alert.sid == sid).count()
    }

    /// Flows as `eve.json` has them, with packets and bytes in both directions and the state they ended in.
    pub fn flows(&self) -> impl Iterator<Item = &Value> {
        self.events.iter().filter(|event| event["event_type"] == "flow")
    }

    /// Each sign of a packet that was lost, cut or unfinished on its way to Suricata, by name and number. Empty when
    /// it saw everything as it would be on a wire.
    ///
    /// # Errors
    /// When one of the counters does not exist.
    pub fn flaws(&self) -> Result<Vec<(String, u64)>> {
        const COUNTERS: [&str; 11] = [
            "capture.kernel_drops",
            "capture.errors",
            "decoder.invalid",
            "decoder.too_many_layers",
            "decoder.event.afpacket.trunc_pkt",
            "decoder.event.ipv4.trunc_pkt",
            "decoder.event.ipv6.trunc_pkt",
            "tcp.invalid_checksum",
            "tcp.reassembly_gap",
            "tcp.segment_memcap_drop",
            "tcp.ssn_memcap_drop",
        ];
        let mut flaws: Vec<(String, u64)> = Vec::new();
        for name in COUNTERS {
            flaws.push((name.to_owned(), self.counter(name)?));
        }
        for (rule, sid) in CHECKSUM_RULES.iter().zip(CHECKSUM_SIDS..) {
            let count = every_alert(&self.events).filter(|alert| alert.sid == sid).count();
            flaws.push((format!("alerts {rule}"), u64::try_from(count)?));
        }
        // Its own words for a malformed packet, one anomaly each.
        for event in self.events.iter().filter(|event| event["event_type"] == "anomaly") {
            let anomaly = &event["anomaly"];
            // What it thinks of the application's protocol is not about the packets.
            if anomaly["type"] != "applayer" {
                flaws.push((format!("anomaly {}", anomaly["event"]), 1));
            }
        }
        flaws.retain(|(_, count)| *count > 0);
        Ok(flaws)
    }

    /// The counters, all of them.
    pub fn stats(&self) -> &Value {
        &self.stats
    }
}

fn listening(interfaces: &[&str]) -> String {
    interfaces.iter().zip(90..).map(|(interface, cluster)| entry(interface, cluster, "")).collect()
}

/// The entry of one interface. `extra`: further keys, after a comma.
fn entry(interface: &str, cluster: u32, extra: &str) -> String {
    // The kernel puts fragments together before an IDS sees them when it may; a frame that is forwarded must stay.
    let defrag = if extra.is_empty() { "yes" } else { "no" };
    format!(
        "  - {{interface: {interface}, threads: 1, cluster-id: {cluster}, cluster-type: cluster_flow, \
         use-mmap: yes, tpacket-v3: no, ring-size: 65536, checksum-checks: yes, defrag: {defrag}{extra}}}\n"
    )
}

fn checksum_rules() -> String {
    CHECKSUM_RULES.iter().zip(CHECKSUM_SIDS..).fold(String::new(), |mut text, (rule, sid)| {
        let (protocol, keyword) = rule.split_once(' ').unwrap_or_default();
        let _ = writeln!(
            text,
            "alert {protocol} any any -> any any (msg:\"invalid checksum\"; {keyword}:invalid; sid:{sid}; rev:1;)"
        );
        text
    })
}

fn read_events(folder: &Path) -> Result<Vec<Value>> {
    let file: PathBuf = folder.join("eve.json");
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    // The last line may not be whole yet.
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn every_alert(events: &[Value]) -> impl Iterator<Item = Alert> {
    events.iter().filter(|event| event["event_type"] == "alert").filter_map(|event| {
        let alert = &event["alert"];
        Some(Alert {
            sid: alert["signature_id"].as_u64()?,
            message: alert["signature"].as_str()?.to_owned(),
            blocked: alert["action"] == "blocked",
        })
    })
}

fn alerts(events: &[Value]) -> Vec<Alert> {
    let checksums = CHECKSUM_SIDS..CHECKSUM_SIDS + CHECKSUM_RULES.len() as u64;
    every_alert(events).filter(|alert| !checksums.contains(&alert.sid)).collect()
}
