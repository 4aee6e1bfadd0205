//! What was counted of a session.

use super::latency::Quantiles;
use super::window;

/// Counters of a session. Bytes are those of mirrored frames, from their Ethernet headers on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Frames that came.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the first one came, in nanoseconds since 1970.
    pub first: u64,
    /// When the last one came, in nanoseconds since 1970.
    pub last: u64,
    /// Frames that their sender had cut.
    pub truncated: u64,
    /// Frames that went to the sink.
    pub delivered: u64,
    /// Whether any frame had a number.
    pub numbered: bool,
    /// What the numbers say; frames without one are not in it.
    pub numbers: window::Books,
    /// Time on the way.
    pub latency: Option<Quantiles>,
}

impl Account {
    /// Adds another session's counters; for sums of sessions that are gone.
    pub(super) fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.last = self.last.max(other.last);
        self.truncated += other.truncated;
        self.delivered += other.delivered;
        self.numbered |= other.numbered;
        let (sum, more) = (&mut self.numbers, &other.numbers);
        sum.received += more.received;
        sum.released += more.released;
        sum.duplicates += more.duplicates;
        sum.late += more.late;
        sum.waiting += more.waiting;
        sum.lost += more.lost;
        sum.reordered += more.reordered;
        sum.restarts += more.restarts;
    }
}
