//! Traces of this agent. In: Traceflow objects. Out: what became of each, told to whoever listens, and kept for a while.
//!
//! ```text
//!  object ─► worker: ends, interfaces ─► Plan ─► Tracer ─► observations ─► State ─► listeners, file
//! ```

mod cluster;
mod keep;
mod plan;
mod run;
mod state;
mod view;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use podwire_datapath::Injector;
use podwire_datapath::object::{Located, Object, Traceflow};
use podwire_datapath::traceflow::Tracer;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use cluster::Cluster;
pub use plan::{End, Ends, Plan, plan};
use run::{Here, Local, alone};
use state::{Phase, State, object};

use super::worker::{Message, Trouble};
use keep::Keep;

/// Traces that an agent has at a time, those included that are over and kept.
const MOST: usize = 10_000;
/// How long an endpoint keeps its programs after its last trace: packets on their way lose their tag by them.
const GRACE: Duration = Duration::from_secs(2);
/// How long results are kept.
pub const KEPT: Duration = Duration::from_secs(600);

/// What the worker knows of a trace.
#[derive(Debug)]
pub struct Planned {
    /// What to do.
    pub plan: Plan,
    /// Sends packets as if a pod had.
    pub injector: Injector,
    /// Nodes by their addresses.
    pub peers: BTreeMap<IpAddr, String>,
}

/// All traces. Cheap to clone.
#[derive(Clone)]
pub struct Traces(Arc<Shared>);

struct Shared {
    node: String,
    tracer: Tracer,
    worker: mpsc::Sender<Message>,
    runtime: Handle,
    keep: Keep,
    seeds: RandomState,
    entries: Mutex<BTreeMap<String, Entry>>,
    /// Where objects stand, when that is an API server.
    cluster: OnceLock<Cluster>,
}

struct Entry {
    manifest: Value,
    state: watch::Sender<Value>,
    task: Option<AbortHandle>,
    /// Gone this long after its end.
    ttl: Duration,
    /// When it ended.
    over: Option<Instant>,
    /// Gone with whoever asked for it.
    once: bool,
}

impl Traces {
    /// None yet, but those that an earlier run left: they are over.
    pub fn open(
        node: &str,
        tracer: Tracer,
        worker: mpsc::Sender<Message>,
        runtime: Handle,
        folder: &Path,
    ) -> Self {
        let keep = Keep::new(folder);
        let mut entries = BTreeMap::new();
        for left in keep.read() {
            let (state, _) = watch::channel(left.status);
            let entry = Entry {
                manifest: left.manifest,
                state,
                task: None,
                ttl: left.ttl,
                over: Some(Instant::now()),
                once: false,
            };
            entries.insert(left.name, entry);
        }
        let shared = Shared {
            node: node.to_owned(),
            tracer,
            worker,
            runtime,
            keep,
            seeds: RandomState::new(),
            entries: Mutex::new(entries),
            cluster: OnceLock::new(),
        };
        let traces = Self(Arc::new(shared));
        traces.0.runtime.spawn(traces.clone().look_after());
        traces
    }

    /// Has the objects of an API server for traces from now on.
    ///
    /// `follower` watches, `impatient` asks and writes.
    pub fn follow(&self, follower: kube::Client, impatient: kube::Client) {
        let cluster = Cluster::start(follower, impatient, self);
        let _ = self.0.cluster.set(cluster);
    }

    fn node(&self) -> &str {
        &self.0.node
    }

    fn runtime(&self) -> &Handle {
        &self.0.runtime
    }

    fn here<'a>(
        &'a self,
        injector: &'a Injector,
        peer: &'a (dyn Fn(IpAddr) -> Option<String> + Sync),
    ) -> Here<'a> {
        Here { node: &self.0.node, tracer: &self.0.tracer, injector, peer }
    }

    /// Begins a trace. Its state as it changes, `None` when it is gone.
    ///
    /// # Errors
    /// `Refused`, `NotFound`: there can be no such trace.
    pub async fn begin(
        &self,
        located: Located,
        ttl: Duration,
        once: bool,
    ) -> Result<watch::Receiver<Value>, Trouble> {
        if let Some(cluster) = self.0.cluster.get() {
            return cluster.begin(&located, Some(ttl), once).await;
        }
        let Object::Traceflow(trace) = &located.object else {
            return Err(Trouble::Refused(vec![format!("{} is no Traceflow", located.identity())]));
        };
        let name = trace.metadata.name.clone();
        let (sender, receiver) = watch::channel(State::new().status());
        {
            let mut entries = self.entries();
            if entries.contains_key(&name) {
                return Err(Trouble::Refused(vec![format!("Traceflow/{name}: exists already")]));
            }
            if entries.len() >= MOST {
                let line = format!("Traceflow/{name}: this agent has {MOST} traces; delete some, or wait");
                return Err(Trouble::Refused(vec![line]));
            }
            let entry = Entry {
                manifest: located.manifest.clone(),
                state: sender.clone(),
                task: None,
                ttl,
                over: None,
                once,
            };
            entries.insert(name.clone(), entry);
        }
        // Until it runs, it goes with whoever waits here.
        let pending = Pending { traces: self, name: &name, state: &sender };
        let seed = self.0.seeds.hash_one((&name, SystemTime::now()));
        let (planned, release) = self.planned((**trace).clone(), seed, None).await?;
        let traces = self.clone();
        let (task_name, task_sender, data) = (name.clone(), sender.clone(), trace.capture);
        let task = self.0.runtime.spawn(async move {
            let tell = |state: &State| drop(task_sender.send_replace(state.status()));
            let state = traces.run(planned, release, data, tell).await;
            if state.phase != Phase::Running {
                traces.finished(&task_name, &task_sender, &state);
            }
        });
        std::mem::forget(pending);
        match self.entries().get_mut(&name).filter(|entry| entry.state.same_channel(&sender)) {
            Some(entry) => entry.task = Some(task.abort_handle()),
            // Deleted meanwhile.
            None => task.abort(),
        }
        self.0.keep.changed();
        Ok(receiver)
    }

    /// The plan, and what gives its endpoints back. `ends`: where they are known better than the datapath's thread knows
    /// them.
    async fn planned(
        &self,
        trace: Traceflow,
        seed: u64,
        ends: Option<(End, End)>,
    ) -> Result<(Planned, Release), Trouble> {
        let (answer, wait) = oneshot::channel();
        let ending = || Trouble::Failed("the agent is ending".into());
        let message = Message::PlanTrace { trace: Box::new(trace), seed, ends, answer };
        self.0.worker.send(message).map_err(|_| ending())?;
        let traces = self.clone();
        // A task of its own: whoever asks may be gone when the answer comes, and endpoints are given back then.
        let planned = self.0.runtime.spawn(async move {
            let planned = wait.await.map_err(|_| ending())??;
            let release = Release::new(&traces, &planned.plan);
            Ok((planned, release))
        });
        planned.await.map_err(|_| ending())?
    }

    async fn run(&self, planned: Planned, release: Release, data: u32, tell: impl Fn(&State)) -> State {
        let Planned { plan, injector, peers } = planned;
        let peer = |address| peers.get(&address).cloned();
        let here = self.here(&injector, &peer);
        let state = State::new();
        let over = match Local::begin(&here, plan, data) {
            Ok(local) => alone(here, local, state, tell).await,
            Err(why) => state.failed(why),
        };
        drop(release);
        over
    }

    fn finished(&self, name: &str, sender: &watch::Sender<Value>, state: &State) {
        if let Some(entry) = self.entries().get_mut(name).filter(|entry| entry.state.same_channel(sender)) {
            entry.over = Some(Instant::now());
        }
        sender.send_replace(state.status());
        self.0.keep.changed();
    }

    /// All of them, or one by name.
    pub fn get(&self, name: Option<&str>) -> Option<Value> {
        if let Some(cluster) = self.0.cluster.get() {
            return cluster.get(name);
        }
        let entries = self.entries();
        let whole = |entry: &Entry| object(&entry.manifest, &entry.state.borrow());
        match name {
            Some(name) => entries.get(name).map(whole),
            None => Some(json!({"items": entries.values().map(whole).collect::<Vec<_>>()})),
        }
    }

    /// The whole object of a state that [`begin`](Self::begin) told.
    pub fn with_status(manifest: &Value, status: &Value) -> Value {
        object(manifest, status)
    }

    /// Ends and forgets a trace. Whether there was one.
    ///
    /// # Errors
    /// `Failed` when objects stand at an API server that does not do it.
    pub async fn delete(&self, name: &str) -> Result<bool, Trouble> {
        match self.0.cluster.get() {
            Some(cluster) => cluster.delete(name).await,
            None => Ok(self.forget(name)),
        }
    }

    /// The same, without waiting for it.
    pub fn drop_later(&self, name: String) {
        let traces = self.clone();
        self.0.runtime.spawn(async move {
            if traces.delete(&name).await.is_err() {
                tracing::warn!(trace = %name, "it could not be deleted");
            }
        });
    }

    fn forget(&self, name: &str) -> bool {
        let Some(entry) = self.entries().remove(name) else {
            return false;
        };
        if let Some(task) = entry.task {
            task.abort();
        }
        self.0.keep.changed();
        true
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was kept long enough, and writes down what there is.
    async fn look_after(self) {
        loop {
            tokio::time::sleep(keep::PAUSE).await;
            let before = self.entries().len();
            self.entries().retain(|_, entry| entry.over.is_none_or(|over| over.elapsed() < entry.ttl));
            if self.entries().len() != before {
                self.0.keep.changed();
            }
            if !self.0.keep.is_due() {
                continue;
            }
            let all: Vec<keep::Left> = self
                .entries()
                .iter()
                .filter(|(_, entry)| !entry.once)
                .map(|(name, entry)| keep::Left {
                    name: name.clone(),
                    manifest: entry.manifest.clone(),
                    status: entry.state.borrow().clone(),
                    ttl: entry.ttl,
                })
                .collect();
            if let Err(error) = self.0.keep.write(&all) {
                tracing::warn!(%error, "traces could not be written down");
            }
        }
    }
}

/// A trace that does not run yet.
struct Pending<'a> {
    traces: &'a Traces,
    name: &'a str,
    state: &'a watch::Sender<Value>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut entries = self.traces.entries();
        if entries.get(self.name).is_some_and(|entry| entry.state.same_channel(self.state)) {
            entries.remove(self.name);
        }
    }
}

/// Gives endpoints back when a trace is over, however it ended.
struct Release {
    traces: Traces,
    endpoints: Vec<String>,
}

impl Release {
    fn new(traces: &Traces, plan: &Plan) -> Self {
        Self { traces: traces.clone(), endpoints: plan.endpoints.iter().cloned().collect() }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let endpoints = std::mem::take(&mut self.endpoints);
        let worker = self.traces.0.worker.clone();
        self.traces.0.runtime.spawn(async move {
            tokio::time::sleep(GRACE).await;
            let _ = worker.send(Message::EndTrace { endpoints });
        });
    }
}
