//! The collector. In: outer frames. Out: mirrored frames to a sink, by session, and what was counted.
//!
//! ```text
//!  source ─► decapsulation ─► session ─► window ─► sink
//!                  │   ▲         (counters, latency, talkers)
//!                  ▼   │
//!              reassembly
//! ```
//! It allocates nothing for a frame that goes straight through, takes no lock and formats no text.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use hashbrown::HashMap;
use podwire_core::wire::decap::{DecapError, Decapsulated, Receiver, decapsulate};

use super::account::Account;
use super::entry::{Budget, Entry, Order, Until};
use super::frame::Payload;
use super::reassembly::{self, Reassembly};
use super::report::{Reason, Report, SessionReport};
use super::session::{Key, Session};
use super::sink::Sink;
use super::source::Received;
use super::wanted::Wanted;
use super::window::Bounds;
use crate::error::Error;

/// How a collector works.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it takes.
    pub wanted: Wanted,
    /// Bounds of each session's window.
    pub order: Bounds,
    /// Bytes of frames that may wait in all windows together.
    pub order_bytes: usize,
    /// Bounds of reassembly.
    pub reassembly: reassembly::Bounds,
    /// Sessions at a time; the one that is idle for longest makes room.
    pub sessions: usize,
    /// Whether talkers are counted.
    pub talkers: bool,
    /// Whether outer UDP and GRE checksums are verified.
    pub verify: bool,
    /// Takes no more once the sink got so many frames.
    pub limit: Option<u64>,
}

impl Default for Options {
    /// Everything, as it comes; 1024 sessions.
    fn default() -> Self {
        Self {
            wanted: Wanted::default(),
            order: Bounds::default(),
            order_bytes: 64 << 20,
            reassembly: reassembly::Bounds::default(),
            sessions: 1024,
            talkers: true,
            verify: false,
            limit: None,
        }
    }
}

/// What became of outer packets. `packets = frames + not_tunnels + unwanted + undecodable + fragments`, where
/// `fragments` are those given to reassembly, less the packets that it made whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Outer packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Mirrored frames in sessions.
    pub frames: u64,
    /// Frames that the sink got.
    pub delivered: u64,
    /// Packets of something else.
    pub not_tunnels: u64,
    /// Mirrored frames of streams that are not wanted.
    pub unwanted: u64,
    /// Packets whose bytes cannot be read.
    pub undecodable: u64,
    /// Fragments of packets.
    pub fragments: u64,
    /// Sessions that began.
    pub sessions: u64,
    /// Sessions that made room for others.
    pub evicted: u64,
}

/// See the module.
pub struct Collector<S> {
    options: Options,
    sink: S,
    totals: Totals,
    /// Counters of sessions that are gone.
    gone: Account,
    reasons: HashMap<Reason, u64>,
    by_key: HashMap<Key, usize>,
    entries: Vec<Entry>,
    /// The session of the last frame: often that of the next one too.
    recent: usize,
    reassembly: Reassembly,
    waiting: Budget,
    ticked: u64,
    flushed: u64,
}

/// How often windows are looked at, and sinks are flushed, in nanoseconds.
const TICK: u64 = 1_000_000;
const FLUSH: u64 = 200_000_000;

impl<S: Sink> Collector<S> {
    /// A collector that has seen nothing.
    pub fn new(options: Options, sink: S) -> Self {
        let reassembly = Reassembly::new(options.reassembly);
        Self {
            options,
            sink,
            totals: Totals::default(),
            gone: Account::default(),
            reasons: HashMap::new(),
            by_key: HashMap::new(),
            entries: Vec::new(),
            recent: 0,
            reassembly,
            waiting: Budget::default(),
            ticked: 0,
            flushed: 0,
        }
    }

    /// Whether the limit is reached.
    pub fn is_full(&self) -> bool {
        self.options.limit.is_some_and(|limit| self.totals.delivered >= limit)
    }

    /// Frames that the sink still takes.
    fn left(&self) -> u64 {
        self.options.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.totals.delivered))
    }

    /// Where frames go.
    pub fn sink(&self) -> &S {
        &self.sink
    }

    /// Takes an outer frame.
    #[inline]
    pub fn receive(&mut self, received: &Received<'_>) {
        if self.is_full() {
            return;
        }
        self.totals.packets += 1;
        self.totals.bytes += received.data.len() as u64;
        match self.decapsulate(received.data) {
            Ok(found) => {
                let inner = received.data.get(found.inner.clone()).unwrap_or_default();
                self.accept(received.time, &found, Payload::Borrowed(inner));
            }
            Err(DecapError::OuterFragment(_)) => {
                self.totals.fragments += 1;
                if let Some(whole) = self.reassembly.push(received.data, received.time) {
                    self.totals.fragments -= 1;
                    self.receive_whole(received.time, whole.into());
                }
            }
            Err(error) => self.refuse(&error),
        }
    }

    fn receive_whole(&mut self, time: u64, frame: Bytes) {
        match self.decapsulate(&frame) {
            Ok(found) => {
                let inner = Payload::Kept(frame.slice(found.inner.clone()));
                self.accept(time, &found, inner);
            }
            Err(error) => self.refuse(&error),
        }
    }

    fn decapsulate(&self, frame: &[u8]) -> Result<Decapsulated, DecapError> {
        let Wanted { vxlan_ports, geneve_ports, .. } = &self.options.wanted;
        decapsulate(frame, &Receiver { vxlan_ports, geneve_ports, verify: self.options.verify })
    }

    fn refuse(&mut self, error: &DecapError) {
        match Reason::of(error) {
            None => self.totals.not_tunnels += 1,
            Some(reason) => {
                self.totals.undecodable += 1;
                *self.reasons.entry(reason).or_default() += 1;
            }
        }
    }

    fn accept(&mut self, time: u64, found: &Decapsulated, payload: Payload<'_>) {
        if !self.options.wanted.accepts(&found.metadata) {
            self.totals.unwanted += 1;
            return;
        }
        self.totals.frames += 1;
        let at = self.entry(Key::of(found), time);
        let order = Order {
            bounds: self.options.order,
            budget: &self.waiting,
            bytes: self.options.order_bytes,
            left: self.left(),
        };
        if let Some(entry) = self.entries.get_mut(at) {
            self.totals.delivered += entry.take(time, &found.metadata, payload, &order, &mut self.sink);
        }
    }

    /// Where the session of a key is; makes it if there is none.
    fn entry(&mut self, key: Key, time: u64) -> usize {
        if self.entries.get(self.recent).is_some_and(|entry| entry.session.key == key) {
            return self.recent;
        }
        self.recent = match self.by_key.get(&key) {
            Some(at) => *at,
            None => self.begin(key, time),
        };
        self.recent
    }

    #[cold]
    fn begin(&mut self, key: Key, time: u64) -> usize {
        let session = Session { number: self.totals.sessions, key, since: time };
        self.totals.sessions += 1;
        let entry = Entry::new(session, self.options.talkers);
        let at = if self.entries.len() < self.options.sessions.max(1) {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            self.replace(entry)
        };
        self.by_key.insert(key, at);
        at
    }

    /// In the place of the one that is idle for longest.
    fn replace(&mut self, entry: Entry) -> usize {
        let idle = self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.last());
        let at = idle.map_or(0, |(at, _)| at);
        let left = self.left();
        if let Some(place) = self.entries.get_mut(at) {
            let mut old = std::mem::replace(place, entry);
            self.totals.delivered += old.release(Until::Empty, left, &mut self.sink);
            self.by_key.remove(&old.session.key);
            let account = old.account();
            self.gone.add(&account);
            self.totals.evicted += 1;
            self.sink.account(&old.session, &account);
            self.sink.end(&old.session);
        }
        at
    }

    /// Releases what has waited long enough. Call it when no frame came for a while, and between batches.
    pub fn tick(&mut self, now: u64) {
        if now.wrapping_sub(self.ticked) < TICK {
            return;
        }
        self.ticked = now;
        self.reassembly.expire(now);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            let mut left = self.left();
            for entry in &mut self.entries {
                let delivered = entry.release(Until::Time(now), left, &mut self.sink);
                left -= delivered;
                self.totals.delivered += delivered;
            }
        }
        if now.wrapping_sub(self.flushed) >= FLUSH {
            self.flushed = now;
            self.entries.iter().for_each(|entry| self.sink.account(&entry.session, &entry.account()));
            self.sink.flush();
        }
    }

    /// Releases everything, and ends the sink.
    ///
    /// # Errors
    /// As the sink says.
    pub fn finish(&mut self) -> Result<(), Error> {
        let mut left = self.left();
        for entry in &mut self.entries {
            let delivered = entry.release(Until::Empty, left, &mut self.sink);
            left -= delivered;
            self.totals.delivered += delivered;
            self.sink.account(&entry.session, &entry.account());
            self.sink.end(&entry.session);
        }
        self.sink.finish()
    }

    /// What was counted, with the `top` heaviest talkers of each session.
    pub fn report(&self, top: usize) -> Report {
        let sessions = self.entries.iter().map(|entry| SessionReport {
            session: entry.session.clone(),
            account: entry.account(),
            talkers: entry.talkers().map(|talkers| talkers.top(top)).unwrap_or_default(),
        });
        Report {
            totals: self.totals,
            gone: self.gone,
            undecodable: self.reasons.iter().map(|(reason, count)| (reason.to_string(), *count)).collect(),
            fragments: self.reassembly.books(),
            sessions: sessions.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
