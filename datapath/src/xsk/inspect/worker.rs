//! The loop of one queue. In: frames that the program hands over. Out: those that pass, by the other port.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Inspect;
use super::checksums;
use super::frame::{Inspected, Verdict};
use crate::datapath::health;
use crate::error::Error;
use crate::xsk::memory::Frame;
use crate::xsk::options::Copying;
use crate::xsk::port::Port;
use crate::xsk::program::Program;
use crate::xsk::receiver::{Receiver, is_gone};

/// How long a round waits for frames.
const WAIT: Duration = Duration::from_millis(5);
/// How long frames wait for room in the output's queue before they are lost.
const PUSH: Duration = Duration::from_millis(10);
/// How long a worker that is told to end may take with what it has.
const QUIT: Duration = Duration::from_millis(100);
/// How long an output that went down rests before it is tried again.
const REST: Duration = Duration::from_millis(50);

/// What became of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that were judged.
    pub inspected: u64,
    /// Passed as they were.
    pub passed: u64,
    /// Passed changed.
    pub changed: u64,
    /// Dropped by the inspector.
    pub dropped: u64,
    /// Lost: the output did not take them, or a changed frame was longer than the ports take. They count neither as
    /// passed nor as changed.
    pub lost: u64,
    /// Frames of podwire's own health check, which pass unseen.
    pub probes: u64,
}

impl Counts {
    /// Frames that were to go on did not.
    fn lose(&mut self, frames: u64) {
        let passed = frames.min(self.passed);
        self.passed -= passed;
        self.changed = self.changed.saturating_sub(frames - passed);
        self.lost += frames;
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        Self {
            inspected: self.inspected + other.inspected,
            passed: self.passed + other.passed,
            changed: self.changed + other.changed,
            dropped: self.dropped + other.dropped,
            lost: self.lost + other.lost,
            probes: self.probes + other.probes,
        }
    }
}

/// Counts that others read while the worker counts on.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Whether every buffer was where it should be when the worker ended.
    pub(super) balances: AtomicBool,
    cells: [AtomicU64; 6],
}

impl Shared {
    fn publish(&self, counts: &Counts) {
        let values =
            [counts.inspected, counts.passed, counts.changed, counts.dropped, counts.lost, counts.probes];
        for (cell, value) in self.cells.iter().zip(values) {
            cell.store(value, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let [inspected, passed, changed, dropped, lost, probes] =
            self.cells.each_ref().map(|cell| cell.load(Ordering::Relaxed));
        Counts { inspected, passed, changed, dropped, lost, probes }
    }
}

/// Where frames leave.
pub(super) struct Output {
    pub(super) interface: String,
    pub(super) queue: u32,
    pub(super) copying: Copying,
    /// The longest frame.
    pub(super) frame: u32,
}

impl Output {
    fn open(&self, receiver: &Receiver) -> Result<Port, Error> {
        Port::succeed(&receiver.pool, &self.interface, self.queue, self.copying, self.frame)
    }
}

/// One queue's worker.
pub(super) struct Worker<I> {
    receiver: Receiver,
    output: Output,
    /// The output's socket; none while that is down.
    out: Option<Port>,
    down_since: Instant,
    inspector: I,
    shared: Arc<Shared>,
    counts: Counts,
}

impl<I: Inspect> Worker<I> {
    pub(super) fn new(receiver: Receiver, output: Output, inspector: I) -> Result<Self, Error> {
        let out = Some(output.open(&receiver)?);
        let (shared, counts, down_since) = (Arc::default(), Counts::default(), Instant::now());
        Ok(Self { receiver, output, out, down_since, inspector, shared, counts })
    }

    /// From now on frames come.
    pub(super) fn begin(&mut self, program: &mut Program) -> Result<(), Error> {
        self.receiver.begin(program)
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Works until it is told to end, or a port is gone.
    pub(super) fn run(mut self, end: &AtomicBool) {
        while !end.load(Ordering::Relaxed) {
            if let Err(error) = self.round() {
                tracing::warn!(%error, "an inspector's worker ends: its port is gone");
                break;
            }
        }
        // What was handed over is judged, and leaves, before the memory goes.
        self.receiver.quit();
        let until = Instant::now() + QUIT;
        let sending = |out: &Option<Port>| out.as_ref().is_some_and(|out| out.sending() > 0);
        while (!self.receiver.is_idle() || sending(&self.out)) && Instant::now() < until {
            if self.round().is_err() {
                break;
            }
        }
        self.shared.publish(&self.counts);
        self.shared.balances.store(self.receiver.ledger().balances(), Ordering::Relaxed);
    }

    fn round(&mut self) -> Result<(), Error> {
        let mut frames = self.receiver.receive_frames(WAIT)?;
        let packets = count(&frames);
        let mut passing = Vec::with_capacity(frames.len());
        if packets > 0 {
            self.judge(&mut frames, &mut passing);
        }
        // Also without new ones: what a busy output did not take waits.
        self.push(passing);
        if packets > 0 {
            self.receiver.finish(packets);
            self.shared.publish(&self.counts);
        }
        self.receiver.put_back(frames);
        Ok(())
    }

    /// Asks the inspector about whole packets, and sorts them by what it says.
    fn judge(&mut self, frames: &mut Vec<Frame>, passing: &mut Vec<Frame>) {
        let pool = &self.receiver.pool;
        // Packets of several buffers are judged as a copy in one piece.
        let mut copies: Vec<Vec<u8>> = frames
            .chunk_by(|one, _| one.has_more())
            .filter(|packet| packet.len() > 1)
            .map(|packet| packet.iter().flat_map(|frame| pool.bytes(frame)).copied().collect())
            .collect();
        let mut asked = Vec::with_capacity(frames.len());
        let mut probes = Vec::with_capacity(frames.len());
        let mut several = copies.iter_mut();
        for packet in frames.chunk_by_mut(|one, _| one.has_more()) {
            let bytes = match packet {
                [only] => pool.bytes_mut(only),
                _ => several.next().map(Vec::as_mut_slice).unwrap_or_default(),
            };
            probes.push(health::is_probe(bytes));
            if !health::is_probe(bytes) {
                asked.push(Inspected::new(bytes));
            }
        }
        self.inspector.inspect(&mut asked);
        let verdicts: Vec<_> = asked.into_iter().map(Inspected::into_parts).collect();
        let (mut verdicts, mut copies) = (verdicts.into_iter(), copies.into_iter());
        let mut probes = probes.into_iter();
        let mut rest = frames.drain(..);
        while let Some(first) = rest.next() {
            let mut packet = Parts { first, rest: Vec::new() };
            let mut copy = None;
            if packet.first.has_more() {
                copy = copies.next();
                let mut more = true;
                while more && let Some(frame) = rest.next() {
                    more = frame.has_more();
                    packet.rest.push(frame);
                }
            }
            if probes.next() == Some(true) {
                self.counts.probes += 1;
                passing.extend(packet);
                continue;
            }
            self.counts.inspected += 1;
            let (verdict, replaced) = verdicts.next().unwrap_or_default();
            match verdict {
                Verdict::Pass => {
                    self.counts.passed += 1;
                    passing.extend(packet);
                }
                Verdict::Drop => {
                    self.counts.dropped += 1;
                    self.receiver.free_all(packet);
                }
                Verdict::Changed => {
                    match change(&mut self.receiver, packet, replaced.or(copy), self.output.frame as usize) {
                        Ok(packet) => {
                            self.counts.changed += 1;
                            passing.extend(packet);
                        }
                        Err(packet) => {
                            self.counts.lost += 1;
                            self.receiver.free_all(packet);
                        }
                    }
                }
            }
        }
    }

    /// Sends, for so long as the output takes anything.
    fn push(&mut self, mut frames: Vec<Frame>) {
        if self.out.is_none() && self.down_since.elapsed() >= REST {
            self.down_since = Instant::now();
            self.out = self.output.open(&self.receiver).ok();
        }
        let Some(out) = &mut self.out else {
            return self.lose(frames);
        };
        if frames.is_empty() && out.sending() == 0 {
            return;
        }
        let until = Instant::now() + PUSH;
        let mut is_down = false;
        loop {
            out.send(&mut self.receiver.pool, &mut frames);
            let done = match out.flush() {
                Ok(done) => done,
                Err(error) if is_gone(&error) => {
                    is_down = true;
                    break;
                }
                Err(_) => false,
            };
            out.reap(&mut self.receiver.pool);
            if done && frames.is_empty() || Instant::now() >= until {
                break;
            }
        }
        let refused = out.take_refused();
        self.counts.lose(refused);
        if is_down {
            // What the socket still had goes with it: sent later, it would be old.
            let unsent = out.unsent() as u64;
            self.counts.lose(unsent);
            self.out = None;
            self.down_since = Instant::now();
            self.receiver.pool.abandon();
        }
        self.lose(frames);
    }

    fn lose(&mut self, frames: Vec<Frame>) {
        self.counts.lose(count(&frames));
        self.receiver.free_all(frames);
    }
}

/// Whole packets.
fn count(frames: &[Frame]) -> u64 {
    frames.iter().filter(|frame| !frame.has_more()).count() as u64
}

/// The buffers of one packet.
struct Parts {
    first: Frame,
    rest: Vec<Frame>,
}

impl IntoIterator for Parts {
    type Item = Frame;
    type IntoIter = std::iter::Chain<std::iter::Once<Frame>, std::vec::IntoIter<Frame>>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self.first).chain(self.rest)
    }
}

/// Puts a changed packet together again: in place, or from `bytes`. It comes back as it was when it does not fit.
fn change(
    receiver: &mut Receiver,
    mut packet: Parts,
    bytes: Option<Vec<u8>>,
    longest: usize,
) -> Result<Parts, Parts> {
    let Some(mut bytes) = bytes else {
        checksums::complete(receiver.pool.bytes_mut(&mut packet.first));
        return Ok(packet);
    };
    checksums::complete(&mut bytes);
    match receiver.pool.rewrite(&mut packet.first, &mut packet.rest, &bytes, longest) {
        true => Ok(packet),
        false => Err(packet),
    }
}
