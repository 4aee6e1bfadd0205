//! What is watched. In: traces, and whether drops are wanted. Out: rows in the datapath's tables.
//!
//! A trace ends at its deadline in the datapath itself, whatever becomes of who began it. Its rows stay for a while
//! longer: packets on their way lose their tag by them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use aya::maps::MapData;
use podwire_core::abi::{TraceKey, TraceRow, WatchRow, limits};

use super::matches::Matches;
use super::trace::{Live, Trace};
use crate::error::{Context, Error, ErrorKind};
use crate::maps::{self, Row, Table};
use crate::pins::Pins;
use crate::relay::monotonic_ns;
use crate::sys::wait_for_packets;

/// Windows in a second; see [`WatchRow::drops`].
const WINDOWS: u32 = 10;
/// How long the rows of an ended trace stay.
const GRACE: Duration = Duration::from_secs(2);
/// The same of those of an earlier run: an agent that starts is busy with other things first.
const LEFT: Duration = Duration::from_secs(10);
/// Between two looks at all rows: each asks the kernel for every one.
const PAUSE: Duration = Duration::from_millis(500);

/// Says what is watched. Dropping it ends all traces; packets on their way still lose their tag, by rows that the next one
/// removes.
pub struct Watcher {
    row: Table<WatchRow>,
    traces: aya::maps::HashMap<MapData, Row<TraceKey>, Row<TraceRow>>,
    matches: Matches,
    /// Deadlines of flows, and whether they may be translated.
    until: HashMap<TraceKey, (u64, bool)>,
    /// Flags and deadlines of live traces, by number.
    live: HashMap<u32, (TraceKind, u64)>,
    /// Traces that ended, and when they may be forgotten; rows that the datapath itself made are theirs.
    ended: HashMap<u32, Instant>,
    /// Until when there are rows of an earlier run, and whether some are of translated flows.
    left: Option<(Instant, bool)>,
    /// When all rows were last looked at.
    swept: Instant,
    /// The most drops per second and CPU.
    drops: Option<u32>,
    uplink: bool,
}

#[derive(Clone, Copy, Default)]
struct TraceKind {
    replies: bool,
    translated: bool,
}

impl Watcher {
    pub(super) fn open(pins: &Pins) -> Result<Self, Error> {
        let row = Table::reopen(pins, "WATCH")?;
        let traces = maps::reopen_hash(pins, "TRACES")?;
        let matches = Matches::open(pins)?;
        let mut watcher = Self {
            row,
            traces,
            matches,
            until: HashMap::new(),
            live: HashMap::new(),
            ended: HashMap::new(),
            left: None,
            swept: Instant::now(),
            drops: None,
            uplink: false,
        };
        let over = watcher.end_all()?;
        watcher.left = over.map(|translated| (Instant::now() + LEFT, translated));
        watcher.tell()?;
        // What stages still say of an earlier run's traces is said before the count begins.
        wait_for_packets();
        Ok(watcher)
    }

    /// Begins to trace a flow, or goes on with it until a new deadline.
    ///
    /// # Errors
    /// `Invalid` for number 0, a tag that is none, addresses of two families; `TableFull`, `Kernel`. Nothing changed.
    pub fn trace(&mut self, trace: &Trace) -> Result<(), Error> {
        let until = after(trace.duration);
        let rows = trace.rows(until)?;
        self.expire()?;
        let new = rows.iter().filter(|(key, _)| !self.until.contains_key(key)).count();
        if self.until.len() + new > limits::TRACES as usize / 2 {
            let what = format!("a node has at most {} traced flows", limits::TRACES / 2);
            return Err(Error::new(ErrorKind::TableFull, what));
        }
        self.ended.remove(&trace.number);
        for (key, row) in rows {
            self.traces.insert(Row(key), Row(row), 0).context(|| "writing map TRACES".into())?;
            self.until.insert(key, (until, trace.options.translated));
        }
        self.tell()
    }

    /// Ends the trace of a flow, if there is one.
    ///
    /// # Errors
    /// `Invalid` as for [`trace`](Self::trace), `Kernel`.
    pub fn untrace(&mut self, trace: &Trace) -> Result<(), Error> {
        for (key, _) in trace.rows(0)? {
            self.forget(&key)?;
        }
        self.tell()
    }

    /// Begins to look for live packets.
    ///
    /// # Errors
    /// `Invalid`, `TableFull`, `Kernel`.
    pub fn look_for(&mut self, live: &Live) -> Result<(), Error> {
        let until = after(live.duration);
        let row = live.row(until)?;
        self.expire()?;
        for block in live.blocks() {
            self.matches.add(block, row)?;
        }
        self.ended.remove(&live.number);
        let kind = self.live.entry(live.number).or_default();
        kind.0.replies |= live.options.replies;
        kind.0.translated |= live.options.translated;
        kind.1 = kind.1.max(until);
        self.tell()
    }

    /// Ends a trace with all that belongs to it. Packets on their way still lose their tag.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn end(&mut self, number: u32) -> Result<(), Error> {
        self.matches.end(number)?;
        self.live.remove(&number);
        self.ended.entry(number).or_insert_with(|| Instant::now() + GRACE);
        self.tell()
    }

    fn forget(&mut self, key: &TraceKey) -> Result<(), Error> {
        if self.until.remove(key).is_some() {
            remove(&mut self.traces, key)?;
        }
        Ok(())
    }

    /// Makes room: traces whose deadline is over are not traced any more, but have rows until this is called.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn expire(&mut self) -> Result<(), Error> {
        let now = monotonic_ns();
        let over: Vec<u32> =
            self.live.iter().filter(|(_, (_, until))| *until <= now).map(|(number, _)| *number).collect();
        for number in over {
            self.end(number)?;
        }
        let gone = now.saturating_sub(GRACE.as_nanos() as u64);
        let over: Vec<TraceKey> =
            self.until.iter().filter(|(_, (until, _))| *until <= gone).map(|(key, _)| *key).collect();
        for key in &over {
            self.forget(key)?;
        }
        let now = Instant::now();
        let due = self.ended.values().chain(self.left.as_ref().map(|(at, _)| at)).any(|at| *at <= now);
        if due && self.swept.elapsed() >= PAUSE {
            self.sweep(now)?;
            self.swept = now;
        }
        self.tell()
    }

    /// Removes the rows of traces that ended a while ago, those included that the datapath made.
    fn sweep(&mut self, at: Instant) -> Result<(), Error> {
        let ended: HashMap<u32, Instant> = self.ended.extract_if(|_, until| *until <= at).collect();
        self.left = self.left.filter(|(until, _)| *until > at);
        let now = monotonic_ns();
        let rows: Vec<_> = self.traces.iter().filter_map(Result::ok).collect();
        for (key, row) in rows {
            let over = row.0.until.saturating_add(GRACE.as_nanos() as u64) <= now;
            if ended.contains_key(&row.0.number) || over && self.left.is_none() {
                self.until.remove(&key.0);
                remove(&mut self.traces, &key.0)?;
            }
        }
        Ok(())
    }

    /// How many flows are traced.
    pub fn traces(&self) -> usize {
        let now = monotonic_ns();
        self.until.values().filter(|(until, _)| *until > now).count()
    }

    /// Rows that the datapath has for traced flows, those included whose trace is over.
    pub fn rows(&self) -> usize {
        self.traces.keys().filter(Result::is_ok).count()
    }

    /// Wants to see drops of packets that nobody traces, at most so many per second and CPU; `None` for none.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn watch_drops(&mut self, per_second: Option<u32>) -> Result<(), Error> {
        self.drops = per_second;
        self.tell()
    }

    /// Says that a program at the uplink's egress hook tells what leaves by it.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn watch_uplink(&mut self, there: bool) -> Result<(), Error> {
        self.uplink = there;
        self.tell()
    }

    /// Says in the datapath whether anything is watched.
    fn tell(&mut self) -> Result<(), Error> {
        let mut row = WatchRow::default();
        let over = !self.ended.is_empty() || self.left.is_some();
        let busy = !self.until.is_empty() || !self.live.is_empty() || over;
        let replies = self.until.keys().any(|key| key.tag == 0);
        let translated =
            self.until.values().any(|(_, some)| *some) || self.left.is_some_and(|(_, some)| some);
        let of_live = |of: fn(&TraceKind) -> bool| self.live.values().any(|(kind, _)| of(kind));
        let flags = [
            (busy, WatchRow::FLAG_TRACES),
            (!self.matches.is_empty() || replies || of_live(|kind| kind.replies), WatchRow::FLAG_LIVE),
            (translated || of_live(|kind| kind.translated), WatchRow::FLAG_TRANSLATED),
            (busy && self.uplink, WatchRow::FLAG_UPLINK),
            (self.drops.is_some(), WatchRow::FLAG_DROPS),
        ];
        row.flags = flags.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag);
        row.drops = self.drops.map_or(0, |drops| drops.div_ceil(WINDOWS));
        self.row.set(0, row)
    }

    /// Ends all traces. Whether there were rows, and if so, whether some are of translated flows.
    fn end_all(&mut self) -> Result<Option<bool>, Error> {
        self.matches.clear()?;
        let now = monotonic_ns();
        let rows: Vec<_> = self.traces.iter().filter_map(Result::ok).collect();
        for (key, row) in rows.iter().filter(|(_, row)| row.0.until > now) {
            let over = TraceRow { until: now, ..row.0 };
            self.traces.insert(*key, Row(over), 0).context(|| "writing map TRACES".into())?;
        }
        Ok((!rows.is_empty()).then(|| rows.iter().any(|(key, _)| is_untagged(&key.0))))
    }

    /// Leaves of what is watched only what takes tags off.
    fn silence(&mut self) -> Result<(), Error> {
        let flags = match self.end_all()? {
            Some(true) => WatchRow::FLAG_TRACES | WatchRow::FLAG_TRANSLATED,
            Some(false) => WatchRow::FLAG_TRACES,
            None => 0,
        };
        self.row.set(0, WatchRow { flags, ..WatchRow::default() })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Err(error) = self.silence() {
            tracing::warn!(%error, "traces could not be ended before their time");
        }
    }
}

/// Whether a row is of a packet that the host's stack has.
fn is_untagged(key: &TraceKey) -> bool {
    key.tag & TraceKey::UNTAGGED != 0
}

/// A time to come, by the monotonic clock.
fn after(duration: Duration) -> u64 {
    monotonic_ns().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
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
