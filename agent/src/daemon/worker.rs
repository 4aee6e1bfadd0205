//! The thread that owns the datapath. In: messages. Out: the datapath does what the objects say, and answers.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Result;
use podwire_datapath::object::{self, Object, Traceflow};
use podwire_datapath::traceflow::Tracer;
use podwire_datapath::{Applied, Counters, Datapath, Desired};
use serde_json::{Value, json};
use tokio::sync::oneshot::Sender;

use super::Options;
use super::captures::{Begun, Captures, Cause, Wanted};
use super::changes::{ToldEgresses, tell_applied, tell_policies};
use super::convert::{Converted, EgressState, Here, PolicyState, convert};
use super::events::{Events, note};
use super::observe::Feed;
use super::report::reports;
use super::store::{Objects, Store};
use super::trace::{End, Planned};
use super::view::{Known, Standing};
use crate::kubernetes::{Link, Snapshot};

mod captured;
mod traced;

/// What was missed is healed this often.
const PERIOD: Duration = Duration::from_secs(5);
/// Changes that come together are taken together.
const SETTLE: Duration = Duration::from_millis(50);
/// The same while a capture waits for a pod.
const AT_ONCE: Duration = Duration::from_millis(2);

/// Until the next look for pods' interfaces and addresses that the kernel does not know yet.
const UNSETTLED: Duration = Duration::from_secs(1);
/// Between two looks at the tools that have a health check; the shortest timeout is twice as long.
const HEALTH_PERIOD: Duration = Duration::from_millis(100);

/// What the worker is told.
#[derive(Debug)]
pub enum Message {
    /// Devices, routes or addresses changed.
    Refresh,
    /// Files changed.
    Reload,
    /// The API server's objects.
    Cluster(Box<Snapshot>),
    /// Objects to apply.
    Apply { file: String, text: String, dry_run: bool, answer: Sender<Answer> },
    /// Objects to delete: those of a text, or one by identity.
    Delete { file: String, text: String, identity: Option<String>, answer: Sender<Answer> },
    /// A view.
    View { view: View, answer: Sender<Answer> },
    /// What this node does for a trace. Its endpoints keep their programs until [`Message::EndTrace`].
    PlanTrace {
        trace: Box<Traceflow>,
        seed: u64,
        ends: Option<(End, End)>,
        answer: Sender<Result<Planned, Trouble>>,
    },
    /// A trace of these endpoints is over.
    EndTrace { endpoints: Vec<String> },
    /// A capture. It goes on until [`Message::EndCapture`], which its guard sends to `worker`, or its time is over.
    BeginCapture { wanted: Box<Wanted>, worker: mpsc::Sender<Self>, answer: Sender<Result<Begun, Trouble>> },
    /// A capture is over.
    EndCapture { id: u64, answer: Option<Sender<Answer>> },
    /// The end.
    Stop { remove: bool },
}

/// What can be seen.
#[derive(Clone, Copy, Debug)]
pub enum View {
    /// Policies.
    TrafficControls,
    /// Endpoints.
    Endpoints,
    /// Sessions.
    Sessions,
    /// Egress policies.
    Egresses,
    /// The nodes.
    Nodes,
    /// This node as a whole.
    Status,
    /// What changed of late.
    Events,
    /// Captures that run.
    Captures,
}

/// An answer, or what is wrong.
pub type Answer = Result<Value, Trouble>;

/// What is wrong, a line each.
#[derive(Debug)]
pub enum Trouble {
    /// The objects are refused; nothing has changed.
    Refused(Vec<String>),
    /// There is no such object.
    NotFound(String),
    /// It failed.
    Failed(String),
}

/// The worker's state.
pub struct Worker {
    datapath: Datapath,
    feed: Feed,
    here: Here,
    store: Store,
    objects: Objects,
    policies: BTreeMap<String, PolicyState>,
    egresses: BTreeMap<String, EgressState>,
    told_egresses: ToldEgresses,
    applied: Applied,
    configuration_errors: Vec<String>,
    events: Events,
    /// How many traces look at an endpoint.
    traced: BTreeMap<String, usize>,
    captures: Captures,
}

impl Worker {
    /// Opens the datapath and applies what the files say.
    pub fn open(options: &Options, link: Option<Link>) -> Result<Self> {
        let store = Store::open(options, link)?;
        let datapath = Datapath::open(options.datapath())?;
        let feed = Feed::start(&datapath, &options.node)?;
        let told = feed.clone();
        let mut worker = Self {
            datapath,
            feed,
            here: options.here(),
            store,
            objects: Objects::default(),
            policies: BTreeMap::new(),
            egresses: BTreeMap::new(),
            told_egresses: ToldEgresses::default(),
            applied: Applied::default(),
            configuration_errors: Vec::new(),
            events: Events::new(move |event| told.tell_event(event.to_json())),
            traced: BTreeMap::new(),
            captures: Captures::default(),
        };
        // A mistake in the files must not take down what an earlier run left in force: nothing is applied then.
        worker.reload();
        Ok(worker)
    }

    /// Begins traces.
    pub fn tracer(&self) -> Tracer {
        self.feed.tracer()
    }

    /// What is observed.
    pub fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// Works until told to stop.
    pub fn run(mut self, messages: &Receiver<Message>) -> Result<()> {
        let mut due = Instant::now() + PERIOD;
        let mut changed = false;
        loop {
            // Looked at before each message, so that many questions cannot put it off.
            if due <= Instant::now() {
                if std::mem::take(&mut changed) || self.store.stale() || !self.configuration_errors.is_empty()
                {
                    self.reload();
                }
                self.heal();
                self.report();
                due = Instant::now() + PERIOD;
            }
            let mut wait = due;
            if let Some(later) = self.applied.again_in.take() {
                due = due.min(Instant::now() + later);
            }
            if self.store.is_unsettled() {
                due = due.min(Instant::now() + UNSETTLED);
                wait = due;
            }
            if self.datapath.has_health_checks() {
                wait = wait.min(Instant::now() + HEALTH_PERIOD);
                self.check_health();
            }
            self.look_at_captures();
            if let Some(over) = self.captures.next_over() {
                wait = wait.min(over);
            }
            if self.captures.are_ending() {
                wait = wait.min(Instant::now() + captured::LOOK);
            }
            wait = wait.min(due);
            match messages.recv_timeout(wait.saturating_duration_since(Instant::now())) {
                Ok(Message::Stop { remove: true }) => return Ok(self.datapath.remove()?),
                Ok(Message::Stop { remove: false }) | Err(RecvTimeoutError::Disconnected) => {
                    self.take_captures_down();
                    self.datapath.close();
                    return Ok(());
                }
                Ok(Message::Refresh) => due = due.min(Instant::now() + self.settle()),
                Ok(Message::Reload) => {
                    changed = true;
                    due = due.min(Instant::now() + self.settle());
                }
                Ok(Message::Cluster(snapshot)) => {
                    self.store.take(*snapshot);
                    self.reload();
                    self.report();
                }
                Ok(message) => self.answer(message),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Who waits to capture a pod's first packets has no time to lose.
    fn settle(&self) -> Duration {
        if self.captures.is_waiting() { AT_ONCE } else { SETTLE }
    }

    fn check_health(&mut self) {
        match self.datapath.check_health() {
            Ok(news) => {
                for (policy, alive) in news {
                    let object = format!("TrafficControl/{policy}");
                    let (reason, message) = if alive {
                        ("ToolAlive", "packets come back from the tool again")
                    } else {
                        ("ToolSilent", "nothing came back from the tool in time; it counts as dead")
                    };
                    note(&mut self.events, object, !alive, reason, message.into());
                }
            }
            Err(error) => tracing::error!(%error, "checking the tools' health"),
        }
    }

    fn answer(&mut self, message: Message) {
        // Who asked may be gone.
        let _ = match message {
            Message::Apply { file, text, dry_run, answer } => answer.send(self.apply(&file, &text, dry_run)),
            Message::Delete { file, text, identity, answer } => {
                answer.send(self.delete(&file, &text, identity))
            }
            Message::View { view, answer } => answer.send(self.view(view)),
            Message::PlanTrace { trace, seed, ends, answer } => {
                // What nobody waits for any more must not keep programs.
                if let Err(Ok(planned)) = answer.send(self.plan_trace(&trace, seed, ends)) {
                    self.end_trace(planned.plan.endpoints);
                }
                Ok(())
            }
            Message::EndTrace { endpoints } => {
                self.end_trace(endpoints);
                Ok(())
            }
            Message::BeginCapture { wanted, worker, answer } => {
                // What nobody waits for any more is dropped, and its guard ends it.
                let _ = answer.send(self.begin_capture(*wanted, worker));
                Ok(())
            }
            Message::EndCapture { id, answer } => {
                let ended = self.end_capture(id);
                let said = if ended {
                    Ok(json!({"result": "ended"}))
                } else {
                    Err(Trouble::NotFound(format!("Capture/{id}: not found")))
                };
                answer.map_or(Ok(()), |answer| answer.send(said))
            }
            Message::Refresh | Message::Reload | Message::Cluster(_) | Message::Stop { .. } => Ok(()),
        };
    }

    /// Reads the files again. What was in force stays when they are wrong.
    fn reload(&mut self) {
        let errors = match self.store.reload() {
            // Until everything has been listed once, what an earlier run left stays in force.
            Ok(None) => Vec::new(),
            Ok(Some(store)) => match self.install(store) {
                Ok(()) => Vec::new(),
                Err(Trouble::Refused(errors)) => errors,
                Err(Trouble::NotFound(error) | Trouble::Failed(error)) => vec![error],
            },
            Err(errors) => errors,
        };
        if errors != self.configuration_errors {
            for error in &errors {
                tracing::error!("{error}");
            }
        }
        self.configuration_errors = errors;
    }

    /// Finds what no event told of.
    fn heal(&mut self) {
        match self.datapath.refresh() {
            Ok(applied) => {
                self.take(applied);
                self.told_egresses.tell(&mut self.events, &self.egresses, &self.applied);
            }
            Err(error) => tracing::error!(%error, "refreshing"),
        }
    }

    /// Makes a store's objects so: all or nothing of files, what fits of an API server's.
    fn install(&mut self, store: Store) -> Result<(), Trouble> {
        let mut objects = store.objects().map_err(Trouble::Refused)?;
        let (policies, egresses) = loop {
            let Converted { desired, policies, egresses } = convert(&objects.set, &self.here);
            match self.put_in_force(&desired) {
                Ok(()) => break (policies, egresses),
                Err(Trouble::Refused(why))
                    if store.is_lenient() && objects.leave_out_newest(&self.objects.set, &why.join("; ")) => {
                }
                Err(trouble) => return Err(trouble),
            }
        };
        tell_policies(&mut self.events, &self.policies, &policies);
        self.told_egresses.tell(&mut self.events, &egresses, &self.applied);
        (self.store, self.objects, self.policies, self.egresses) = (store, objects, policies, egresses);
        Ok(())
    }

    fn put_in_force(&mut self, desired: &Desired) -> Result<(), Trouble> {
        use podwire_datapath::ErrorKind::{Invalid, TableFull};
        let mut all = desired.clone();
        self.captures.add_to(&mut all);
        let applied = match self.datapath.apply(&all) {
            // What users want goes before captures.
            Err(error) if error.kind() == TableFull && !self.captures.is_empty() => {
                self.end_captures(Cause::NoRoom);
                self.datapath.apply(desired)
            }
            other => other,
        };
        let applied = applied.map_err(|error| match error.kind() {
            Invalid | TableFull => Trouble::Refused(vec![error.to_string()]),
            _ => Trouble::Failed(error.to_string()),
        })?;
        self.take(applied);
        Ok(())
    }

    /// Remembers what is in force; changes are told.
    fn take(&mut self, applied: Applied) {
        tell_applied(&mut self.events, &self.here.node, &self.applied, &applied);
        self.applied = applied;
        self.captures.tell(&self.applied);
    }

    fn apply(&mut self, file: &str, text: &str, dry_run: bool) -> Answer {
        let objects = object::parse(file, text)
            .map_err(|errors| Trouble::Refused(errors.iter().map(ToString::to_string).collect()))?;
        let mut store = self.store.clone();
        let files = store.files()?;
        let done: Vec<(String, &str)> = objects
            .into_iter()
            .filter(|located| !matches!(located.object, Object::Traceflow(_)))
            .map(|located| {
                let name = printed(&located);
                (name, files.keep(located))
            })
            .collect();
        let notes = if dry_run {
            let converted = convert(&store.objects().map_err(Trouble::Refused)?.set, &self.here);
            notes(&converted.policies, &converted.egresses, None)
        } else {
            self.install(store)?;
            self.save()?;
            notes(&self.policies, &self.egresses, Some(&self.applied))
        };
        let results: Vec<Value> = done
            .iter()
            .map(|(object, result)| json!({"object": object, "result": result, "note": notes.get(object)}))
            .collect();
        Ok(json!({"results": results}))
    }

    fn delete(&mut self, file: &str, text: &str, identity: Option<String>) -> Answer {
        let names: Vec<(String, String)> = match identity {
            Some(identity) => vec![(identity.clone(), identity)],
            None => object::parse(file, text)
                .map_err(|errors| Trouble::Refused(errors.iter().map(ToString::to_string).collect()))?
                .iter()
                .map(|located| (located.identity(), printed(located)))
                .collect(),
        };
        let mut store = self.store.clone();
        for (identity, _) in &names {
            store.files()?.forget(identity).map_err(Trouble::NotFound)?;
        }
        self.install(store)?;
        self.save()?;
        let results: Vec<Value> =
            names.iter().map(|(_, object)| json!({"object": object, "result": "deleted"})).collect();
        Ok(json!({"results": results}))
    }

    fn save(&mut self) -> Result<(), Trouble> {
        self.store
            .files()?
            .save()
            .map_err(|error| Trouble::Failed(format!("{error:#}; it is in force until the agent ends")))
    }

    /// Tells the API server what became of its objects.
    fn report(&self) {
        self.store.report(|| {
            let counters = self.datapath.counters().unwrap_or_default();
            let connections = BTreeMap::new();
            let known = self.known(&counters, &connections);
            let mut all = reports(&known, &self.objects);
            all.extend(self.store.refused());
            all
        });
    }

    fn known<'a>(&'a self, counters: &'a Counters, connections: &'a BTreeMap<String, u64>) -> Known<'a> {
        Known {
            node: &self.here.node,
            forwarding: self.here.forwarding,
            set: &self.objects.set,
            policies: &self.policies,
            egresses: &self.egresses,
            applied: &self.applied,
            counters,
            observations: self.feed.accounts(),
            connections,
            events: &self.events,
            store: self.describe_store(),
        }
    }

    /// Where objects stand, and which of them are not taken.
    fn describe_store(&self) -> Value {
        let mut store = self.store.describe();
        let left_out = self.objects.left_out.iter();
        let left_out = left_out.map(|(located, why)| json!({"object": located.identity(), "reason": why}));
        let refused = self.store.refused();
        let refused = refused.iter().map(|report| {
            let object = format!("{} {}", report.subject.resource.name(), report.subject.name);
            json!({"object": object, "reason": report.entry["reason"]})
        });
        let refused: Vec<Value> = left_out.chain(refused).collect();
        if self.store.is_lenient() {
            store["refused"] = json!(refused);
        }
        store
    }

    fn view(&self, view: View) -> Answer {
        let counters = self.datapath.counters().map_err(|error| Trouble::Failed(error.to_string()))?;
        let connections = match view {
            View::Egresses => self.connections(),
            _ => BTreeMap::new(),
        };
        let known = self.known(&counters, &connections);
        Ok(match view {
            View::Captures => self.view_captures(),
            View::TrafficControls => known.traffic_controls(),
            View::Endpoints => known.endpoints(),
            View::Sessions => known.sessions(),
            View::Egresses => known.egresses(),
            View::Nodes => known.nodes(),
            View::Status => known.status(&self.configuration_errors),
            View::Events => known.all_events(),
        })
    }

    /// By Egress policy; all else is shown without them.
    fn connections(&self) -> BTreeMap<String, u64> {
        self.datapath.connections().unwrap_or_else(|error| {
            tracing::warn!(%error, "Egress policies are shown without their connections");
            BTreeMap::new()
        })
    }
}

/// What whoever applied objects should know, by object: that a policy is not in force, or drops.
fn notes(
    policies: &BTreeMap<String, PolicyState>,
    egresses: &BTreeMap<String, EgressState>,
    applied: Option<&Applied>,
) -> BTreeMap<String, String> {
    let refused = policies.iter().filter_map(|(name, state)| {
        Some((format!("trafficcontrol/{name}"), format!("not in force: {}", state.reason.as_ref()?)))
    });
    let troubled = egresses.iter().filter_map(|(name, state)| {
        // What was only tried has not reached the datapath.
        let standing = match applied {
            Some(applied) => Standing::of_egress(name, state, applied),
            None => Standing::placed(state)?,
        };
        let note = match standing.word {
            "NotInForce" => format!("not in force: {}", standing.reason?),
            "Dropping" => standing.reason?,
            _ => return None,
        };
        Some((format!("egress/{name}"), note))
    });
    refused.chain(troubled).collect()
}

/// `trafficcontrol/mirror-web`, as `kubectl` names objects.
fn printed(located: &object::Located) -> String {
    format!("{}/{}", located.object.kind().to_lowercase(), located.object.metadata().name)
}
