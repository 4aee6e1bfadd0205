//! What stages did with packets that somebody watches. In: which packets. Out: [`Observation`]s, with names, and an
//! account of those that were lost.
//!
//! ```text
//!  stage ─► ring of its class ─► reader ─► bounded queue ─► Stream::next ─► names
//!            │ full: lost         │ full: lost              └─► delivered
//! ```
//!
//! Traced packets and drops of others have each a ring, a reader and a queue of their own: a flood of drops takes
//! nothing from a trace. Counters are exact: what was generated was delivered, waits, or is counted as lost.

mod account;
mod captures;
mod filter;
mod matches;
mod names;
mod reader;
mod trace;
mod turn;
mod watcher;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use podwire_core::abi::{Action, Class, Component, ObservationRow, Reason, TraceRow};

pub use account::Account;
pub use captures::{Capture, Captures};
pub use filter::Filter;
pub(crate) use names::Names;
use names::address;
use reader::{Reader, Tally};
pub use trace::{Flow, Live, Place, Trace, TraceOptions};
use turn::Turn;
pub(crate) use turn::Turns;
pub use watcher::Watcher;

use crate::error::Error;
use crate::pins::Pins;
use crate::relay::clock_offset;

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub struct WatchOptions {
    /// Observations of one class that may wait for [`Stream::next`]; more are lost, and counted.
    pub queue: usize,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { queue: 4096 }
    }
}

/// Both ends: what is watched, and what was seen.
pub struct Watch {
    /// Says what is watched.
    pub watcher: Watcher,
    /// Observations of traced packets.
    pub traces: Stream,
    /// Observations of dropped packets that nobody traces.
    pub drops: Stream,
    /// Live packets that became traced.
    pub captures: Captures,
}

impl Watch {
    /// Begins to read. Traces that an earlier run left are ended.
    pub(crate) fn open(
        pins: &Pins,
        names: &Arc<Names>,
        turns: &Arc<Turns>,
        options: WatchOptions,
    ) -> Result<Self, Error> {
        let turn = Turn::begin(turns);
        let watcher = Watcher::open(pins)?;
        let stream = |class| Stream::open(pins, class, names, &turn, options);
        let captures = Captures::open(pins, &turn)?;
        Ok(Self { watcher, traces: stream(Class::Traces)?, drops: stream(Class::Drops)?, captures })
    }
}

/// What a stage did with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// When, in nanoseconds since 1970 by the node's clock.
    pub time_ns: u64,
    /// The trace's number, `None` for a drop that nobody traces.
    pub trace: Option<u32>,
    /// The stage.
    pub component: Component,
    /// What it did.
    pub action: Action,
    /// Why, where that needs a word.
    pub reason: Option<Reason>,
    /// Why the kernel's own stack dropped it, in its words (`enum skb_drop_reason`, without the prefix).
    pub kernel_reason: Option<String>,
    /// The endpoint that it is about.
    pub endpoint: Option<String>,
    /// Its interface, or the one where the packet was seen.
    pub ifindex: u32,
    /// The policy that it is about.
    pub policy: Option<String>,
    /// The node of an Egress policy's addresses, `None` for this one; of [`Component::Egress`].
    pub egress_node: Option<String>,
    /// The address that the packet leaves with; of [`Component::Egress`].
    pub egress_ip: Option<IpAddr>,
    /// Where the tunnel ends; of [`Component::Forwarding`].
    pub tunnel_destination: Option<IpAddr>,
    /// Source address, `None` for what is not IP.
    pub source: Option<IpAddr>,
    /// Destination address.
    pub destination: Option<IpAddr>,
    /// IP protocol; the EtherType for what is not IP.
    pub protocol: u32,
    /// Source port, 0 where there is none.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Destination MAC address of the frame, as the stage left it.
    pub destination_mac: [u8; 6],
    /// Time to live or hop limit, as the stage left it; 0 for what is not IP.
    pub ttl: u8,
    /// DSCP value.
    pub tag: u8,
    /// Length of the frame in bytes.
    pub length: u32,
    /// The CPU that saw it.
    pub cpu: u32,
    /// Its number among the observations of its class on that CPU, lost ones included.
    pub sequence: u64,
    /// How many of its class were lost on that CPU before it.
    pub lost_before: u64,
    /// Tells the packets of a trace apart.
    pub identity: u32,
    /// Whether the packet is the answer to a traced one.
    pub reply: bool,
    /// Whether this node says no more of it.
    pub last: bool,
}

/// Observations of one class, in the order of their ring.
pub struct Stream {
    rows: Receiver<ObservationRow>,
    names: Arc<Names>,
    tally: Arc<Tally>,
    account: account::Source,
    _reader: Reader,
}

impl Stream {
    fn open(
        pins: &Pins,
        class: Class,
        names: &Arc<Names>,
        turn: &Turn,
        options: WatchOptions,
    ) -> Result<Self, Error> {
        let account = account::Source::open(pins, class)?;
        let tally = Arc::new(Tally::default());
        let (reader, rows) =
            Reader::start(pins, class, account.begun_at(), tally.clone(), turn, options.queue)?;
        Ok(Self { rows, names: names.clone(), tally, account, _reader: reader })
    }

    /// The next observation; `None` when none came in time. Blocks.
    pub fn next(&self, timeout: Duration) -> Option<Observation> {
        loop {
            match self.rows.recv_timeout(timeout) {
                Ok(row) => match self.named(&row) {
                    Some(observation) => {
                        self.tally.deliver();
                        return Some(observation);
                    }
                    None => self.tally.misread(),
                },
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// How many there were, and what became of them.
    ///
    /// # Errors
    /// `Kernel` when the counters cannot be read.
    pub fn account(&self) -> Result<Account, Error> {
        self.account.read(&self.tally)
    }

    /// `None` for a component or an action that this release does not know.
    fn named(&self, row: &ObservationRow) -> Option<Observation> {
        let component = Component::from_number(row.component)?;
        let action = Action::from_number(row.action)?;
        let addresses = [row.source, row.destination].map(|words| ip(row.family, words));
        let there = address(row.address_family, bytes(row.address));
        let egress = (component == Component::Egress).then(|| self.names.egress(row.policy)).flatten();
        let egress_ip = match action {
            Action::MarkedForSnat => there,
            // The policy's node chooses; every node chooses alike.
            Action::ForwardedToEgressNode => egress.as_ref().and_then(|egress| egress.address(row)),
            _ => None,
        };
        Some(Observation {
            time_ns: row.time_ns.wrapping_add(clock_offset()),
            trace: (row.trace != 0).then_some(row.trace),
            component,
            action,
            reason: row.reason.checked_sub(1).and_then(Reason::from_number),
            kernel_reason: (row.reason & ObservationRow::KERNEL_REASON != 0)
                .then(|| self.names.kernel_reason(row.reason & !ObservationRow::KERNEL_REASON)),
            endpoint: self.names.endpoint(row.ifindex),
            ifindex: row.ifindex,
            policy: match &egress {
                Some(egress) => Some(egress.name.clone()),
                None => self.names.policy(row.policy),
            },
            egress_node: egress.and_then(|egress| egress.node),
            egress_ip,
            tunnel_destination: there.filter(|_| component == Component::Forwarding),
            source: addresses[0],
            destination: addresses[1],
            protocol: row.protocol,
            source_port: (row.ports >> 16) as u16,
            destination_port: row.ports as u16,
            destination_mac: row.mac,
            ttl: row.ttl,
            tag: row.tag,
            length: row.len,
            cpu: row.cpu,
            sequence: row.sequence,
            lost_before: row.lost,
            identity: row.identity,
            reply: row.flags & TraceRow::FLAG_REPLY != 0,
            last: row.flags & ObservationRow::FLAG_LAST != 0,
        })
    }
}

fn bytes(words: [u32; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (four, word) in bytes.chunks_exact_mut(4).zip(words) {
        four.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// An address as the stages keep it: left-aligned words.
fn ip(family: u32, words: [u64; 2]) -> Option<IpAddr> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&words[0].to_be_bytes());
    bytes[8..].copy_from_slice(&words[1].to_be_bytes());
    address(family, bytes)
}
