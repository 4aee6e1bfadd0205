//! Captures of this node. In: requests. Out: mirrors to readers, for as long as somebody reads them.
//!
//! They are no objects: an agent that starts again has none, and takes down what its captures left.

#[cfg(test)]
mod tests;
mod wanted;

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use podwire_datapath::core::abi::{Reason, SessionCounters};
use podwire_datapath::{Applied, Desired, Frames, Mirror, SessionOptions, Target};
use serde_json::{Map, Value, json};
use tokio::sync::{oneshot, watch};

pub use wanted::{Filters, Wanted};

use super::worker::Message;

/// Captures at a time.
pub const MOST: usize = 16;
/// How long frames that are in the ring are waited for: the reader takes milliseconds.
const DRAIN: Duration = Duration::from_secs(1);

/// Why a capture ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The agent ends.
    AgentEnds,
    /// What users want has no room beside it.
    NoRoom,
}

impl Cause {
    /// The word that the stream has.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AgentEnds => "AgentEnds",
            Self::NoRoom => "NoRoom",
        }
    }
}

/// A capture that runs.
struct Running {
    wanted: Wanted,
    since: SystemTime,
    /// By pod.
    readers: Vec<u32>,
    /// When its time is over, whether or not whoever asked for it still reads.
    until: Option<Instant>,
    /// It ends: nothing more is captured, and so long what was captured is waited for.
    ending: Option<Instant>,
    cause: Option<Cause>,
    states: watch::Sender<Value>,
    account: Option<oneshot::Sender<Value>>,
}

/// What whoever asked for a capture gets.
#[derive(Debug)]
pub struct Begun {
    /// Its number.
    pub id: u64,
    /// By pod.
    pub readers: Vec<u32>,
    /// The node's name.
    pub node: String,
    /// What is captured.
    pub frames: Frames,
    /// Of each pod whether it is captured at, or why not yet.
    pub states: watch::Receiver<Value>,
    /// What was counted, at the end.
    pub account: oneshot::Receiver<Value>,
    /// Ends it when nobody has it any more.
    pub _guard: Guard,
}

/// Dropped with whoever asked: a client that is killed ends its capture.
#[derive(Debug)]
pub struct Guard {
    worker: mpsc::Sender<Message>,
    id: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The worker may be gone, and its captures with it.
        let _ = self.worker.send(Message::EndCapture { id: self.id, answer: None });
    }
}

/// All of them.
#[derive(Default)]
pub struct Captures {
    running: BTreeMap<u64, Running>,
    last: u64,
    last_reader: u32,
}

impl Captures {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Numbers of those that run.
    pub fn numbers(&self) -> Vec<u64> {
        self.running.keys().copied().collect()
    }

    /// Whether one more may run.
    pub fn has_room(&self) -> bool {
        self.running.len() < MOST
    }

    /// New numbers for the readers of a capture.
    pub fn take_readers(&mut self, count: usize) -> Vec<u32> {
        std::iter::repeat_with(|| {
            self.last_reader = self.last_reader.wrapping_add(1);
            self.last_reader
        })
        .take(count)
        .collect()
    }

    /// Adds one; its mirrors have to be applied.
    pub fn add(
        &mut self,
        node: &str,
        wanted: Wanted,
        readers: Vec<u32>,
        frames: Frames,
        worker: mpsc::Sender<Message>,
    ) -> Begun {
        self.last += 1;
        let id = self.last;
        let (states, told) = watch::channel(Value::Null);
        let (account, end) = oneshot::channel();
        let running = Running {
            until: wanted.duration().and_then(|duration| Instant::now().checked_add(duration)),
            wanted,
            since: SystemTime::now(),
            readers: readers.clone(),
            ending: None,
            cause: None,
            states,
            account: Some(account),
        };
        self.running.insert(id, running);
        Begun {
            id,
            readers,
            node: node.to_owned(),
            frames,
            states: told,
            account: end,
            _guard: Guard { worker, id },
        }
    }

    /// Nothing more of these is captured once mirrors are applied again; all are waited for together. `cause`: why they end
    /// before their time. Says whether any of them goes on until now.
    pub fn begin_end(&mut self, ids: &[u64], cause: Option<Cause>, now: Instant) -> bool {
        let mut any = false;
        let going = |running: &&mut Running| running.ending.is_none();
        for running in
            self.running.iter_mut().filter(|(id, _)| ids.contains(id)).map(|(_, one)| one).filter(going)
        {
            (running.ending, running.cause, any) = (Some(now + DRAIN), cause, true);
        }
        any
    }

    /// Those whose time is over.
    pub fn over(&self, now: Instant) -> Vec<u64> {
        let is_over =
            |running: &Running| running.ending.is_none() && running.until.is_some_and(|at| at <= now);
        self.running.iter().filter(|(_, running)| is_over(running)).map(|(id, _)| *id).collect()
    }

    /// When the first one's time is over.
    pub fn next_over(&self) -> Option<Instant> {
        self.running.values().filter(|running| running.ending.is_none()).filter_map(|one| one.until).min()
    }

    /// Whether some end.
    pub fn are_ending(&self) -> bool {
        self.running.values().any(|running| running.ending.is_some())
    }

    /// Forgets those that end and whose frames are all read, or waited for long enough, and tells the account to whoever
    /// asked. Returns the readers of each.
    pub fn end_read(
        &mut self,
        now: Instant,
        counters: impl Fn(u32) -> SessionCounters,
    ) -> Vec<(u64, Vec<u32>)> {
        let mut ended = Vec::new();
        self.running.retain(|id, running| {
            let Some(deadline) = running.ending else { return true };
            let counters: Vec<_> = running.readers.iter().map(|reader| counters(*reader)).collect();
            let is_read = counters.iter().all(|row| row.handed_packets <= row.taken_packets);
            if !is_read && now < deadline {
                return true;
            }
            let cause = running.cause.map(Cause::as_str);
            let account = json!({"kind": "End", "cause": cause, "pods": running.pods(&counters)});
            if let Some(teller) = running.account.take() {
                // Who asked may be gone.
                let _ = teller.send(account);
            }
            ended.push((*id, running.readers.clone()));
            false
        });
        ended
    }

    /// Forgets one that has not come into force.
    pub fn forget(&mut self, id: u64) {
        self.running.remove(&id);
    }

    /// Adds the mirrors to what is wanted.
    pub fn add_to(&self, desired: &mut Desired) {
        let mut mirrors = Vec::new();
        for (id, running) in &self.running {
            let request = &running.wanted.request;
            for (pod, reader) in request.pods.iter().zip(&running.readers) {
                let rules = running.wanted.rules(pod, desired);
                let known = desired.endpoints.iter().any(|endpoint| endpoint.name == pod.name);
                // Without endpoints it keeps its session, and what was counted.
                let applies = known && running.ending.is_none() && rules.is_some();
                mirrors.push(Mirror {
                    name: format!("capture {id} {}", pod.name),
                    endpoints: if applies { vec![pod.name.clone()] } else { Vec::new() },
                    directions: running.wanted.directions().to_vec(),
                    rules: rules.unwrap_or_default(),
                    stateful: false,
                    target: Target::Reader { number: *reader },
                    options: SessionOptions { truncate: request.snaplen, ..SessionOptions::default() },
                });
            }
        }
        desired.mirrors.extend(mirrors);
    }

    /// Tells what became of the pods.
    pub fn tell(&self, applied: &Applied) {
        for running in self.running.values().filter(|running| running.ending.is_none()) {
            let state = json!({"kind": "State", "pods": running.states(applied)});
            running.states.send_if_modified(|old| {
                let news = *old != state;
                *old = state;
                news
            });
        }
    }

    /// Whether one waits for a pod.
    pub fn is_waiting(&self) -> bool {
        let waits = |state: &Value| {
            state["pods"].as_array().into_iter().flatten().any(|pod| !pod["waiting"].is_null())
        };
        self.running.values().any(|running| waits(&running.states.borrow()))
    }

    /// For `podwire get captures`.
    pub fn view(&self, applied: &Applied, counters: impl Fn(u32) -> SessionCounters) -> Value {
        let items: Vec<Value> = self
            .running
            .iter()
            .map(|(id, running)| {
                let counters: Vec<_> = running.readers.iter().map(|reader| counters(*reader)).collect();
                let (request, states) = (&running.wanted.request, running.states(applied));
                let names: Vec<&str> = request.pods.iter().map(|pod| pod.name.as_str()).collect();
                let sum = |of: fn(&SessionCounters) -> u64| counters.iter().map(of).sum::<u64>();
                let waiting = states.iter().any(|state| !state["waiting"].is_null());
                json!({
                    "apiVersion": podwire_datapath::object::API_VERSION,
                    "kind": "Capture",
                    "metadata": {"name": id.to_string()},
                    "spec": request,
                    "status": {
                        "since": humantime::format_rfc3339_seconds(running.since).to_string(),
                        "state": if waiting { "Waiting" } else { "Capturing" },
                        "podNames": names,
                        "states": states,
                        "pods": running.pods(&counters),
                        "matched": sum(|row| row.matched_packets),
                        "lost": sum(|row| row.lost_packets.iter().sum()),
                    },
                })
            })
            .collect();
        json!({"items": items})
    }
}

impl Running {
    fn states(&self, applied: &Applied) -> Vec<Value> {
        let state = |name: &str| {
            let found = applied.endpoints.iter().find(|endpoint| endpoint.name == name);
            let waiting = match found {
                None => Some("the pod is not known yet".to_owned()),
                Some(endpoint) => endpoint.problem.clone().or_else(|| {
                    (!endpoint.attached.contains(&true)).then(|| "the other end is not known yet".to_owned())
                }),
            };
            json!({"name": name, "waiting": waiting})
        };
        self.wanted.request.pods.iter().map(|pod| state(&pod.name)).collect()
    }

    fn pods(&self, counters: &[SessionCounters]) -> Vec<Value> {
        let pods = self.wanted.request.pods.iter().zip(counters);
        pods.map(|(pod, row)| {
            let lost = Reason::ALL.iter().map(|reason| (reason, row.lost_packets[reason.index()]));
            let lost: Map<String, Value> = lost
                .filter(|(_, count)| *count > 0)
                .map(|(reason, count)| (reason.as_str().to_owned(), json!(count)))
                .collect();
            json!({
                "name": pod.name,
                "matched": row.matched_packets,
                "matchedBytes": row.matched_bytes,
                "read": row.sent_packets,
                "lostTotal": row.lost_packets.iter().sum::<u64>(),
                "lost": lost,
            })
        })
        .collect()
    }
}
