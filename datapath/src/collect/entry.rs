//! One session: its counters, its window, its latencies, its talkers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use podwire_core::wire::decap::Metadata;
use podwire_core::wire::erspan::Direction;

use super::account::Account;
use super::frame::{Frame, Payload};
use super::latency::Latency;
use super::session::Session;
use super::sink::Sink;
use super::talkers::{Pair, Talkers};
use super::window::{Bounds, Released, Window};

/// What a slot of a window costs besides a frame's bytes.
const SLOT: usize = 128;

/// Bytes of frames that wait, over all sessions.
pub(super) type Budget = Arc<AtomicUsize>;

/// A frame that waits, and its share of the budget.
pub(super) struct Waiting {
    frame: Frame<'static>,
    budget: Budget,
}

impl Waiting {
    fn new(frame: &Frame<'_>, budget: &Budget) -> Self {
        budget.fetch_add(SLOT + frame.data().len(), Ordering::Relaxed);
        Self { frame: frame.keep(), budget: budget.clone() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.budget.fetch_sub(SLOT + self.frame.data().len(), Ordering::Relaxed);
    }
}

/// What a tunnel header says of a frame.
pub(super) struct About {
    pub(super) sequence: Option<u32>,
    pub(super) direction: Option<Direction>,
    pub(super) truncated: bool,
}

impl About {
    pub(super) fn of(metadata: &Metadata) -> Self {
        match metadata {
            Metadata::Vxlan { .. } | Metadata::Geneve { .. } | Metadata::ErspanI => {
                Self { sequence: None, direction: None, truncated: false }
            }
            Metadata::Gre { sequence, .. } => Self { sequence: *sequence, direction: None, truncated: false },
            Metadata::ErspanII { sequence, header } => {
                Self { sequence: Some(*sequence), direction: None, truncated: header.truncated }
            }
            Metadata::ErspanIII { sequence, header } => {
                Self { sequence: *sequence, direction: Some(header.direction), truncated: header.truncated }
            }
        }
    }
}

/// See the module.
pub(super) struct Entry {
    pub(super) session: Session,
    account: Account,
    window: Option<Window<Waiting>>,
    latency: Option<Latency>,
    talkers: Option<Talkers>,
}

impl Entry {
    pub(super) fn new(session: Session, talkers: bool) -> Self {
        let account = Account { first: session.since, ..Account::default() };
        let talkers = talkers.then(Talkers::default);
        Self { session, account, window: None, latency: None, talkers }
    }

    pub(super) fn last(&self) -> u64 {
        self.account.last
    }

    pub(super) fn account(&self) -> Account {
        let numbers = self.window.as_ref().map(Window::books);
        Account {
            numbered: numbers.is_some(),
            numbers: numbers.unwrap_or_default(),
            latency: self.latency.as_ref().and_then(Latency::quantiles),
            ..self.account
        }
    }

    pub(super) fn talkers(&self) -> Option<&Talkers> {
        self.talkers.as_ref()
    }

    /// Takes a frame; returns how many the sink got.
    pub(super) fn take(
        &mut self,
        time: u64,
        metadata: &Metadata,
        payload: Payload<'_>,
        order: &Order<'_>,
        sink: &mut impl Sink,
    ) -> u64 {
        let About { sequence, direction, truncated } = About::of(metadata);
        let frame = Frame { time, sequence, direction, truncated, payload };
        let len = frame.data().len() as u64;
        self.account.frames += 1;
        self.account.bytes += len;
        self.account.last = time;
        self.account.truncated += u64::from(truncated);
        if let Metadata::ErspanIII { header, .. } = metadata {
            let latency = self.latency.get_or_insert_default();
            latency.measure(header.timestamp, header.granularity, time);
        }
        if let Some(talkers) = &mut self.talkers
            && let Some(pair) = Pair::of(frame.data())
        {
            talkers.count(pair, len);
        }
        let Some(number) = sequence else {
            if order.left == 0 {
                return 0;
            }
            sink.frame(&self.session, &frame);
            self.account.delivered += 1;
            return 1;
        };
        let (session, mut delivered) = (&self.session, 0);
        let mut out = |released: Released<Waiting>| {
            if delivered == order.left {
                return;
            }
            delivered += 1;
            match released {
                Released::This => sink.frame(session, &frame),
                Released::Held(waiting) => sink.frame(session, &waiting.frame),
            }
        };
        let window = self.window.get_or_insert_with(|| Window::new(order.bounds));
        window.push(number, time, || Waiting::new(&frame, order.budget), &mut out);
        if window.is_waiting() && order.budget.load(Ordering::Relaxed) > order.bytes {
            window.flush(&mut out);
        }
        self.account.delivered += delivered;
        delivered
    }

    /// Releases what has waited long enough, or everything; at most `left` frames reach the sink.
    pub(super) fn release(&mut self, until: Until, left: u64, sink: &mut impl Sink) -> u64 {
        let Some(window) = &mut self.window else { return 0 };
        if !window.is_waiting() {
            return 0;
        }
        let (session, mut delivered) = (&self.session, 0);
        let mut out = |released: Released<Waiting>| {
            if let Released::Held(waiting) = released
                && delivered < left
            {
                delivered += 1;
                sink.frame(session, &waiting.frame);
            }
        };
        match until {
            Until::Time(now) => window.tick(now, &mut out),
            Until::Empty => window.flush(&mut out),
        }
        self.account.delivered += delivered;
        delivered
    }
}

/// How frames are put in order.
pub(super) struct Order<'a> {
    pub(super) bounds: Bounds,
    pub(super) budget: &'a Budget,
    /// Most bytes that may wait, over all sessions.
    pub(super) bytes: usize,
    /// Frames that the sink still takes.
    pub(super) left: u64,
}

/// How far a window is emptied.
#[derive(Clone, Copy)]
pub(super) enum Until {
    Time(u64),
    Empty,
}
