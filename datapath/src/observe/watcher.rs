//! What is watched. In: traces, and whether drops are wanted. Out: rows in the datapath's tables.
//!
//! A trace ends at its deadline in the datapath itself, whatever becomes of who began it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use aya::maps::MapData;
use podwire_core::abi::{TraceKey, TraceRow, WatchRow, limits};
use podwire_core::stage::{Key, trace::LARGEST_TAG};

use crate::error::{Context, Error, ErrorKind};
use crate::maps::{self, Row, Table};
use crate::pins::Pins;
use crate::relay::monotonic_ns;
use crate::sys::wait_for_packets;

/// Windows in a second; see [`WatchRow::drops`].
const WINDOWS: u32 = 10;

/// Packets of one direction between two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// IP protocol, after IPv6 extension headers.
    pub protocol: u8,
    /// Source port; 0 for a protocol without ports.
    pub source_port: u16,
    /// Destination port; 0 for a protocol without ports.
    pub destination_port: u16,
}

/// A flow with a tag, which is to be traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Its number, of the caller's choice, in each of its observations. Not 0. Several flows may share one.
    pub number: u32,
    /// The DSCP value that its packets have, 1 to 63.
    pub tag: u8,
    /// The flow that they belong to.
    pub flow: Flow,
    /// How long.
    pub duration: Duration,
}

impl Trace {
    fn key(&self) -> Result<TraceKey, Error> {
        let flow = &self.flow;
        let wrong = if self.number == 0 {
            "its number is above 0"
        } else if !(1..=LARGEST_TAG).contains(&self.tag) {
            "its tag is 1 to 63"
        } else if flow.source.is_ipv4() != flow.destination.is_ipv4() {
            "its addresses are of one family"
        } else {
            let (source, destination) = (words(flow.source), words(flow.destination));
            return Ok(TraceKey {
                source,
                destination,
                ports: u32::from(flow.source_port) << 16 | u32::from(flow.destination_port),
                protocol: flow.protocol.into(),
                tag: self.tag.into(),
                family: if flow.source.is_ipv4() { 4 } else { 6 },
            });
        };
        Err(Error::new(ErrorKind::Invalid, format!("trace {}: {wrong}", self.number)))
    }
}

/// As the stages keep an address.
fn words(address: IpAddr) -> [u64; 2] {
    let Key { high, low } = match address {
        IpAddr::V4(address) => Key::from_v4(address.octets()),
        IpAddr::V6(address) => Key::from_v6(address.octets()),
    };
    [high, low]
}

/// Says what is watched. Dropping it ends all traces.
pub struct Watcher {
    row: Table<WatchRow>,
    traces: aya::maps::HashMap<MapData, Row<TraceKey>, Row<TraceRow>>,
    /// Deadlines.
    until: HashMap<TraceKey, u64>,
    /// The most drops per second and CPU.
    drops: Option<u32>,
}

impl Watcher {
    pub(super) fn open(pins: &Pins) -> Result<Self, Error> {
        let row = Table::reopen(pins, "WATCH")?;
        let traces = maps::reopen_hash(pins, "TRACES")?;
        let mut watcher = Self { row, traces, until: HashMap::new(), drops: None };
        watcher.silence()?;
        // What stages still say of an earlier run's traces is said before the count begins.
        wait_for_packets();
        Ok(watcher)
    }

    /// Begins to trace a flow, or goes on with it until a new deadline.
    ///
    /// # Errors
    /// `Invalid` for number 0, a tag that is none, addresses of two families; `TableFull`, `Kernel`. Nothing changed.
    pub fn trace(&mut self, trace: &Trace) -> Result<(), Error> {
        let key = trace.key()?;
        self.expire()?;
        if self.until.len() >= limits::TRACES as usize && !self.until.contains_key(&key) {
            let what = format!("a node has at most {} traced flows", limits::TRACES);
            return Err(Error::new(ErrorKind::TableFull, what));
        }
        let duration = u64::try_from(trace.duration.as_nanos()).unwrap_or(u64::MAX);
        let until = monotonic_ns().saturating_add(duration);
        let row = TraceRow { until, number: trace.number, pad: 0 };
        self.traces.insert(Row(key), Row(row), 0).context(|| "writing map TRACES".into())?;
        self.until.insert(key, until);
        self.tell()
    }

    /// Ends the trace of a flow, if there is one.
    ///
    /// # Errors
    /// `Invalid` as for [`trace`](Self::trace), `Kernel`.
    pub fn untrace(&mut self, trace: &Trace) -> Result<(), Error> {
        self.forget(&trace.key()?)
    }

    fn forget(&mut self, key: &TraceKey) -> Result<(), Error> {
        if self.until.remove(key).is_some() {
            remove(&mut self.traces, key)?;
        }
        self.tell()
    }

    /// Makes room: traces whose deadline is over are not traced any more, but have a row until this is called.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn expire(&mut self) -> Result<(), Error> {
        let now = monotonic_ns();
        let over: Vec<TraceKey> =
            self.until.iter().filter(|(_, until)| **until <= now).map(|(key, _)| *key).collect();
        for key in over {
            self.forget(&key)?;
        }
        Ok(())
    }

    /// How many flows are traced.
    pub fn traces(&self) -> usize {
        self.until.len()
    }

    /// Wants to see drops of packets that nobody traces, at most so many per second and CPU; `None` for none.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn watch_drops(&mut self, per_second: Option<u32>) -> Result<(), Error> {
        self.drops = per_second;
        self.tell()
    }

    /// Says in the datapath whether anything is watched.
    fn tell(&mut self) -> Result<(), Error> {
        let mut row = WatchRow::default();
        if !self.until.is_empty() {
            row.flags |= WatchRow::FLAG_TRACES;
        }
        if let Some(drops) = self.drops {
            row.flags |= WatchRow::FLAG_DROPS;
            row.drops = drops.div_ceil(WINDOWS);
        }
        self.row.set(0, row)
    }

    fn silence(&mut self) -> Result<(), Error> {
        self.row.set(0, WatchRow::default())?;
        let left: Vec<_> = self.traces.keys().filter_map(Result::ok).collect();
        left.iter().try_for_each(|key| remove(&mut self.traces, &key.0))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Err(error) = self.silence() {
            tracing::warn!(%error, "traces could not be ended before their time");
        }
    }
}

fn remove(
    traces: &mut aya::maps::HashMap<MapData, Row<TraceKey>, Row<TraceRow>>,
    key: &TraceKey,
) -> Result<(), Error> {
    match traces.remove(&Row(*key)) {
        Err(aya::maps::MapError::KeyNotFound) => Ok(()),
        other => other.context(|| "writing map TRACES".into()),
    }
}
