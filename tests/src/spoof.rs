//! Attempts to send in another's name. In: a pod, and a table of frames. Out: what was counted of each, and where it
//! was seen.

mod table;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pcap_file::pcap::PcapReader;
use podwire_harness::{Agent, Pod, RawSocket};

pub use table::{ALLOWED, Attempt, Fate, allowed_addresses, forbidden, legal};

use crate::agents;

/// How often each frame is sent.
pub const TIMES: u64 = 5;

/// Names that the expressions use, beside those that are told from the pods. `P` is the mark of `M` behind
/// the packet.
const PRELUDE: &str = "
import sys
from scapy.all import *
conf.verb = 0
BC = 'ff:ff:ff:ff:ff:ff'
def link_local(mac):
    return '::'.join(['fe80', in6_mactoifaceid(mac).lower()])
def cut(packet, length):
    return Raw(raw(packet)[:length])
def chain(count):
    packet = IPv6ExtHdrDestOpt()
    for _ in range(count - 1):
        packet = packet/IPv6ExtHdrDestOpt()
    return packet
OL = link_local(OM)
E = Ether(src=OM, dst=TO)
B = Ether(src=OM, dst=BC)
ALL = Ether(src=OM, dst='33:33:00:00:00:01')
ND = IPv6(src=OL, dst='ff02::1', hlim=255)
U = UDP(sport=4000, dport=9)
NONCE = Raw(b'\\x0e\\x01' + bytes(6))
ALERT = IPv6ExtHdrHopByHop(options=[RouterAlert(otype=5, value=0), PadN(otype=1, optdata=b'')])
def show(number, text):
    global M, P
    mark = b'pw#%06d!' % number
    M, P = Raw(mark), Padding(b'')
    bare = raw(eval(text))
    P = Padding(mark)
    print(raw(eval(text)).hex(), (mark if mark in bare else bare[6:]).hex())
";

/// Who the expressions are about.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    /// The sender.
    pub own: &'a Pod,
    /// Whose name it uses.
    pub neighbour: &'a Pod,
    /// The MAC address that the sender sends to.
    pub to: String,
    /// Its IPv4 gateway.
    pub gateway: String,
    /// Destination, IPv4 and IPv6.
    pub destination: [&'a str; 2],
}

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    /// By what it is found again: its mark, or, where that stands behind the packet and may be cut off on the way,
    /// all from its source MAC address to there.
    needle: Vec<u8>,
}

/// The frames of a table, in its order.
///
/// # Errors
/// When scapy does not understand one.
pub fn frames(scene: &Scene<'_>, table: &[Attempt]) -> Result<Vec<Frame>> {
    let Scene { own, neighbour, to, gateway, destination: [v4, v6] } = scene;
    let mut script = String::new();
    for (name, value) in [
        ("OM", own.mac.as_str()),
        ("O4", &own.v4),
        ("O6", &own.v6),
        ("NM", &neighbour.mac),
        ("N4", &neighbour.v4),
        ("N6", &neighbour.v6),
        ("TO", to),
        ("G4", gateway),
        ("D4", v4),
        ("D6", v6),
    ] {
        script += &format!("{name} = {value:?}\n");
    }
    script += PRELUDE;
    for (number, Attempt { expression, .. }) in table.iter().enumerate() {
        script += &format!("show({number}, r\"\"\"{expression}\"\"\")\n");
    }
    // Debian's interpreter: another one first in the path would not have scapy.
    let output = Command::new("/usr/bin/python3").args(["-c", &script]).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "scapy: {said}");
    let frames = String::from_utf8(output.stdout)?.lines().map(read_frame).collect::<Result<Vec<_>>>()?;
    ensure!(frames.len() == table.len(), "{} frames of {}", frames.len(), table.len());
    Ok(frames)
}

fn read_frame(line: &str) -> Result<Frame> {
    let (frame, needle) = line.split_once(' ').context("two words")?;
    Ok(Frame { bytes: bytes(frame)?, needle: bytes(needle)? })
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2).map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?));
    pairs.collect()
}

/// Sends a frame [`TIMES`] times.
///
/// # Errors
/// When the interface is down.
pub fn send(socket: &RawSocket, frame: &Frame) -> Result<()> {
    (0..TIMES).try_for_each(|_| socket.send(&frame.bytes))
}

/// What an agent's guard counted of a pod, by reason; `what`: `dropped` or `observed`.
///
/// # Errors
/// When it says nothing of the guard.
pub fn counted(agent: &Agent, pod: &Pod, what: &str) -> Result<BTreeMap<String, u64>> {
    let shown = agents::get(agent, &["endpoint", &pod.name])?;
    let row = shown["status"]["guard"][what].as_object();
    let row = row.with_context(|| format!("no status.guard.{what} in {shown}"))?;
    Ok(row.iter().map(|(reason, count)| (reason.clone(), count.as_u64().unwrap_or_default())).collect())
}

/// What an agent's guard counts of a pod, looked at after each frame.
#[derive(Debug)]
pub struct Books<'a> {
    agent: &'a Agent,
    pod: &'a Pod,
    what: &'static str,
    standing: BTreeMap<String, u64>,
    socket: RawSocket,
}

impl<'a> Books<'a> {
    /// Opens them, and the pod's interface; `what` as in [`counted`].
    ///
    /// # Errors
    /// When the agent says nothing of the guard.
    pub fn open(agent: &'a Agent, pod: &'a Pod, what: &'static str) -> Result<Self> {
        let (standing, socket) = (counted(agent, pod, what)?, RawSocket::open(&pod.netns, "eth0")?);
        Ok(Self { agent, pod, what, standing, socket })
    }

    /// Sends a frame and returns what was counted meanwhile, reasons that did not change left out. Waits a while for
    /// `expected` packets.
    ///
    /// # Errors
    /// When the agent or the interface does not work.
    pub fn send(&mut self, frame: &Frame, expected: u64) -> Result<BTreeMap<String, u64>> {
        send(&self.socket, frame)?;
        let deadline = Instant::now() + Duration::from_secs(1);
        loop {
            let now = counted(self.agent, self.pod, self.what)?;
            let mut new = now.clone();
            for (reason, count) in &mut new {
                *count -= self.standing.get(reason).copied().unwrap_or_default();
            }
            new.retain(|_, count| *count > 0);
            if new.values().sum::<u64>() >= expected || Instant::now() > deadline {
                self.standing = now;
                return Ok(new);
            }
        }
    }
}

/// Whether a fate is what was counted.
pub fn agrees(fate: Fate, counted: &BTreeMap<String, u64>) -> bool {
    let mut all = counted.iter();
    match (fate, all.next(), all.next()) {
        (Fate::Passes | Fate::Arrives, first, _) => first.is_none(),
        (Fate::Dropped(reason), Some((word, count)), None) => word == reason && *count == TIMES,
        (Fate::DroppedAnyhow, Some((_, count)), None) => *count == TIMES,
        (Fate::Dropped(_) | Fate::DroppedAnyhow, ..) => false,
    }
}

/// How often each of `frames` stands in a capture.
///
/// # Errors
/// When the file cannot be read.
pub fn seen(file: &Path, frames: &[Frame]) -> Result<Vec<u64>> {
    let mut counts = vec![0; frames.len()];
    let mut reader = PcapReader::new(File::open(file)?)?;
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        for (count, Frame { bytes, needle }) in counts.iter_mut().zip(frames) {
            // Half a header is found in every whole one.
            let may_be = bytes.len() >= 60 || packet.data.len() <= bytes.len();
            *count += u64::from(may_be && packet.data.windows(needle.len()).any(|part| part == *needle));
        }
    }
    Ok(counts)
}

/// The names and counts of a table's rows for which `wrong` holds.
pub fn rows(
    table: &[Attempt],
    counts: &[u64],
    wrong: impl Fn(Fate, u64) -> bool,
) -> Vec<(&'static str, u64)> {
    let all = table.iter().map(|attempt| attempt.name).zip(counts.iter().copied());
    let fates = table.iter().map(|attempt| attempt.fate);
    all.zip(fates).filter(|((_, count), fate)| wrong(*fate, *count)).map(|(row, _)| row).collect()
}
