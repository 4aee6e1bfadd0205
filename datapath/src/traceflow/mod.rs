//! Traces of packets. In: which packets, as flows or as what live ones look like. Out: what each stage did with them, as
//! it happens, and what became of them.
//!
//! ```text
//!  Request ─► Tracer::begin ─► Running ── next().await ─► Observation ─► Story ─► End
//!                                 │
//!                                 └─ dropped: the trace is over, its tag is free
//! ```
//!
//! A [`Running`] may be dropped at any point: packets that carry its tag still lose it.

mod packet;
mod story;
pub mod tags;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

pub use packet::{Packet, Transport};
pub use story::{End, Goal, PacketStory, Story, end_of};

use crate::error::{Context, Error, ErrorKind};
use crate::observe::{
    Account, Capture, Captures, Filter, Flow, Live, Observation, Place, Stream, Trace, TraceOptions, Watcher,
};

/// Observations that may wait for one trace; more are lost, and counted.
const QUEUE: usize = 4096;
/// How long a tag is taken again last: longer than an ended trace's rows stay.
const REST: Duration = Duration::from_secs(4);
/// The longest pause between two looks at what has ended.
const PERIOD: Duration = Duration::from_millis(100);

/// Begins traces. Cheap to clone, works on any thread.
#[derive(Clone)]
pub struct Tracer(Arc<Shared>);

struct Shared {
    watcher: Mutex<Watcher>,
    running: Mutex<HashMap<u32, Route>>,
    captures: Mutex<(Captures, Vec<Capture>)>,
    /// Tags of traces that have ended: their rows, which stay for a while, would keep the same flow from being traced.
    resting: Mutex<Vec<(Instant, u8)>>,
    numbers: AtomicU32,
    account: Mutex<Account>,
    end: AtomicBool,
}

/// Where observations of a trace go.
struct Route {
    queue: mpsc::Sender<Observation>,
    lost: Arc<AtomicU64>,
    tag: u8,
    flows: Vec<Flow>,
}

/// A trace that is to begin.
#[derive(Clone, Debug)]
pub struct Request {
    /// The tag; `None` for one that is free.
    pub tag: Option<u8>,
    /// Flows whose packets carry the tag already, or will.
    pub flows: Vec<Flow>,
    /// Live packets that get it.
    pub live: Vec<(Place, Filter)>,
    /// The most live packets.
    pub count: u32,
    /// One of so many.
    pub sampling: u32,
    /// Bytes of each live packet that are captured.
    pub capture: u32,
    /// How long.
    pub duration: Duration,
    /// The rest.
    pub options: TraceOptions,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            tag: None,
            flows: Vec::new(),
            live: Vec::new(),
            count: 1,
            sampling: 1,
            capture: 0,
            duration: Duration::from_secs(20),
            options: TraceOptions::default(),
        }
    }
}

impl Tracer {
    /// Takes what a [`Datapath::watch`](crate::Datapath::watch) gave for traces; `each` sees every observation.
    ///
    /// # Errors
    /// `Kernel` when no thread can be started.
    pub fn start(
        watcher: Watcher,
        traces: Stream,
        captures: Captures,
        each: impl Fn(&Observation) + Send + 'static,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            watcher: Mutex::new(watcher),
            running: Mutex::default(),
            captures: Mutex::new((captures, Vec::new())),
            resting: Mutex::default(),
            numbers: AtomicU32::new(1),
            account: Mutex::default(),
            end: AtomicBool::new(false),
        });
        let reader = shared.clone();
        std::thread::Builder::new()
            .name("traces".into())
            .spawn(move || reader.read(&traces, &each))
            .context(|| "starting to read traces".into())?;
        Ok(Self(shared))
    }

    /// Begins a trace.
    ///
    /// # Errors
    /// `Invalid`; `TableFull` when there is no tag or no room; `Kernel`. Nothing is begun then.
    pub fn begin(&self, request: &Request) -> Result<Running, Error> {
        let number = self.0.numbers.fetch_add(1, Ordering::Relaxed).max(1);
        let (queue, observations) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let tag = {
            let mut running = lock(&self.0.running);
            let tag = match request.tag {
                Some(tag) => tag,
                None => free_tag(&running, &lock(&self.0.resting), &request.flows)?,
            };
            let route = Route { queue, lost: lost.clone(), tag, flows: request.flows.clone() };
            running.insert(number, route);
            tag
        };
        // From here on dropping it ends it.
        let running = Running {
            tracer: self.clone(),
            number,
            tag,
            observations,
            lost,
            deadline: Instant::now() + request.duration,
        };
        let mut watcher = lock(&self.0.watcher);
        for flow in &request.flows {
            let trace =
                Trace { options: request.options, ..Trace::new(number, tag, *flow, request.duration) };
            watcher.trace(&trace)?;
        }
        for (place, filter) in &request.live {
            watcher.look_for(&Live {
                number,
                tag,
                spare: tags::spare(tag),
                place: *place,
                filter: *filter,
                duration: request.duration,
                count: request.count,
                sampling: request.sampling,
                capture: request.capture,
                options: request.options,
            })?;
        }
        drop(watcher);
        Ok(running)
    }

    /// How many traces run.
    pub fn running(&self) -> usize {
        lock(&self.0.running).len()
    }

    /// Observations of traced packets so far, and what became of them.
    pub fn account(&self) -> Account {
        *lock(&self.0.account)
    }

    /// What is watched besides.
    pub fn with_watcher<T>(&self, change: impl FnOnce(&mut Watcher) -> T) -> T {
        change(&mut lock(&self.0.watcher))
    }

    /// Ends all traces. What begins afterwards sees nothing.
    pub fn stop(&self) {
        self.0.end.store(true, Ordering::Relaxed);
        lock(&self.0.running).clear();
    }
}

/// A tag that no other trace of these flows has, and few others.
fn free_tag(running: &HashMap<u32, Route>, resting: &[(Instant, u8)], flows: &[Flow]) -> Result<u8, Error> {
    let may = |tag| {
        !running.values().any(|route| route.tag == tag && route.flows.iter().any(|f| flows.contains(f)))
    };
    let users = |tag| {
        let rest = resting.iter().filter(|(since, used)| *used == tag && since.elapsed() < REST);
        running.values().filter(|route| route.tag == tag).count() + rest.count()
    };
    tags::choose(may, users)
        .ok_or_else(|| Error::new(ErrorKind::TableFull, "every tag is taken by a trace of the same packets"))
}

impl Shared {
    fn read(&self, traces: &Stream, each: &dyn Fn(&Observation)) {
        let mut looked = Instant::now();
        while !self.end.load(Ordering::Relaxed) {
            if let Some(seen) = traces.next(PERIOD) {
                each(&seen);
                self.hand_on(seen);
            }
            // Not for each one: both ask the kernel.
            if looked.elapsed() < PERIOD {
                continue;
            }
            looked = Instant::now();
            match traces.account() {
                Ok(account) => *lock(&self.account) = account,
                Err(error) => tracing::warn!(%error, "counting observations"),
            }
            if let Err(error) = lock(&self.watcher).expire() {
                tracing::warn!(%error, "forgetting traces that are over");
            }
        }
    }

    fn hand_on(&self, seen: Observation) {
        let running = lock(&self.running);
        let Some(route) = seen.trace.and_then(|number| running.get(&number)) else {
            return;
        };
        if route.queue.try_send(seen).is_err() {
            route.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A trace under way. Dropping it ends the trace.
pub struct Running {
    tracer: Tracer,
    number: u32,
    tag: u8,
    observations: mpsc::Receiver<Observation>,
    lost: Arc<AtomicU64>,
    deadline: Instant,
}

impl Running {
    /// Its number in observations.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// The DSCP value of its packets.
    pub const fn tag(&self) -> u8 {
        self.tag
    }

    /// When it ends by itself.
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Observations that were lost because nobody took them in time.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The next observation; `None` at the deadline, or when all traces were [stopped](Tracer::stop). A call that is dropped loses nothing.
    pub async fn next(&mut self) -> Option<Observation> {
        tokio::time::timeout_at(self.deadline, self.observations.recv()).await.ok().flatten()
    }

    /// Waits until the goal is reached, or the deadline.
    pub async fn finish(mut self, goal: Goal) -> Report {
        let mut story = Story::default();
        while !story.is_over(&goal) {
            match self.next().await {
                Some(seen) => story.add(seen),
                None => break,
            }
        }
        Report { over: story.is_over(&goal), story, captures: self.captures(), lost: self.lost() }
    }

    /// Live packets of this trace that were captured since the last call.
    pub fn captures(&mut self) -> Vec<Capture> {
        let (ring, waiting) = &mut *lock(&self.tracer.0.captures);
        waiting.extend(ring);
        waiting.extract_if(.., |capture| capture.trace == self.number).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.tracer.0.running).remove(&self.number);
        {
            let mut resting = lock(&self.tracer.0.resting);
            resting.retain(|(since, _)| since.elapsed() < REST);
            resting.push((Instant::now(), self.tag));
        }
        if let Err(error) = lock(&self.tracer.0.watcher).end(self.number) {
            tracing::warn!(%error, "a trace could not be ended before its time");
        }
        let _ = self.captures();
    }
}

/// What came of a trace on this node.
#[derive(Clone, Debug)]
pub struct Report {
    /// Whether the goal was reached, and not the deadline.
    pub over: bool,
    /// What became of each packet.
    pub story: Story,
    /// Live packets as they were.
    pub captures: Vec<Capture>,
    /// Observations that were lost.
    pub lost: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
