//! Captures of this node. In: requests. Out: mirrors to readers, for as long as somebody reads them.
//!
//! They are no objects: an agent that starts again has none, and takes down what its captures left.

#[cfg(test)]
mod tests;
mod wanted;

use std::collections::BTreeMap;
use std::time::SystemTime;

use podwire_datapath::core::abi::{Reason, SessionCounters};
use podwire_datapath::{Applied, Desired, Frames, Mirror, SessionOptions, Target};
use serde_json::{Map, Value, json};
use tokio::sync::{oneshot, watch};

pub use wanted::{Filters, Wanted};

/// Captures at a time.
pub const MOST: usize = 16;

/// A capture that runs.
struct Running {
    wanted: Wanted,
    since: SystemTime,
    /// By pod.
    readers: Vec<u32>,
    /// It ends: nothing more is captured.
    ending: bool,
    states: watch::Sender<Value>,
    account: oneshot::Sender<Value>,
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
    pub fn add(&mut self, node: &str, wanted: Wanted, readers: Vec<u32>, frames: Frames) -> Begun {
        self.last += 1;
        let id = self.last;
        let (states, told) = watch::channel(Value::Null);
        let (account, end) = oneshot::channel();
        let running = Running {
            wanted,
            since: SystemTime::now(),
            readers: readers.clone(),
            ending: false,
            states,
            account,
        };
        self.running.insert(id, running);
        Begun { id, readers, node: node.to_owned(), frames, states: told, account: end }
    }

    /// Nothing more is captured once its mirrors are applied again. Returns its readers, `None` for one that has ended.
    pub fn begin_end(&mut self, id: u64) -> Option<Vec<u32>> {
        let running = self.running.get_mut(&id)?;
        running.ending = true;
        Some(running.readers.clone())
    }

    /// Forgets it and tells the account to whoever asked for it. `failure`: why it ended before its time.
    pub fn end(&mut self, id: u64, counters: &[SessionCounters], failure: Option<&str>) {
        if let Some(running) = self.running.remove(&id) {
            let account = json!({"kind": "End", "failure": failure, "pods": running.pods(counters)});
            // Who asked may be gone.
            let _ = running.account.send(account);
        }
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
                let applies = known && !running.ending && rules.is_some();
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
        for running in self.running.values().filter(|running| !running.ending) {
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
