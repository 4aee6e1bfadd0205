//! Observations for whoever asks. In: the datapath's streams. Out: JSON lines, the last ones and those to come, and
//! an account of those that were lost.
//!
//! ```text
//!  datapath ─► a thread per class ─┬─► the last ones, kept
//!                                  └─► broadcast ─► one bounded queue per listener
//! ```
//! Some drops are always told: seeing them costs only packets that are dropped anyway.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwire_datapath::traceflow::Tracer;
use podwire_datapath::{Account, Datapath, Observation, Stream, Watch, WatchOptions};
use serde_json::{Value, json};
use tokio::sync::broadcast;

/// Observations that are kept.
const KEPT: usize = 1000;
/// Observations that may wait for one listener.
const QUEUE: usize = 4096;
/// Drops of packets that nobody traces that are told, per second and CPU.
const DROPS: u32 = 100;
/// How often the account is looked at while nothing happens.
const PERIOD: Duration = Duration::from_millis(250);

/// What is observed on this node.
#[derive(Clone)]
pub struct Feed {
    shared: Arc<Shared>,
    tracer: Tracer,
}

struct Shared {
    node: String,
    recent: Mutex<VecDeque<Arc<Value>>>,
    listeners: broadcast::Sender<Arc<Value>>,
    /// Drops of packets that nobody traces.
    dropped: Mutex<Account>,
    ended: AtomicBool,
}

impl Feed {
    /// Begins to observe.
    pub fn start(datapath: &Datapath, node: &str) -> Result<Self> {
        let Watch { mut watcher, traces, drops, captures } = datapath.watch(WatchOptions::default())?;
        watcher.watch_drops(Some(DROPS))?;
        let shared = Arc::new(Shared {
            node: node.to_owned(),
            recent: Mutex::default(),
            listeners: broadcast::channel(QUEUE).0,
            dropped: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let teller = shared.clone();
        let tracer = Tracer::start(watcher, traces, captures, move |seen| {
            teller.tell(Arc::new(observation_json(&teller.node, seen)));
        })?;
        let reader = shared.clone();
        std::thread::Builder::new()
            .name("drops".into())
            .spawn(move || reader.read(&drops))
            .context("starting to read observations")?;
        Ok(Self { shared, tracer })
    }

    /// Tells of a change of an object's state.
    pub fn tell_event(&self, event: Value) {
        self.shared.tell(Arc::new(event));
    }

    /// Begins traces.
    pub fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }

    /// Ends: nothing is watched any more.
    pub fn stop(&self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.tracer.stop();
    }

    /// The last observations, and a queue of those to come.
    pub fn listen(&self) -> (Vec<Arc<Value>>, broadcast::Receiver<Arc<Value>>) {
        // Under the lock of those that are kept, so that none is missed or told twice.
        let recent = lock(&self.shared.recent);
        (recent.iter().cloned().collect(), self.shared.listeners.subscribe())
    }

    /// How many there were of each class, and what became of them.
    pub fn accounts(&self) -> Value {
        json!({
            "traces": account_json(&self.tracer.account()),
            "drops": account_json(&lock(&self.shared.dropped)),
        })
    }
}

impl Shared {
    fn read(&self, drops: &Stream) {
        let mut counted = Instant::now();
        while !self.ended.load(Ordering::Relaxed) {
            if let Some(seen) = drops.next(PERIOD) {
                self.tell(Arc::new(observation_json(&self.node, &seen)));
            }
            // Not for each one: it asks the kernel.
            if counted.elapsed() < PERIOD {
                continue;
            }
            counted = Instant::now();
            match drops.account() {
                Ok(account) => *lock(&self.dropped) = account,
                Err(error) => tracing::warn!(%error, "counting observations"),
            }
        }
    }

    fn tell(&self, seen: Arc<Value>) {
        let mut recent = lock(&self.recent);
        if recent.len() == KEPT {
            recent.pop_front();
        }
        recent.push_back(seen.clone());
        // Nobody may listen.
        let _ = self.listeners.send(seen);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn account_json(account: &Account) -> Value {
    json!({
        "generated": account.generated,
        "delivered": account.delivered,
        "lost": {
            "rateLimited": account.rate_limited,
            "ringFull": account.ring_full,
            "queueFull": account.queue_full,
            "unreadable": account.unreadable,
        },
    })
}

/// Why, where that needs a word: podwire's own, or the kernel's with that name before it.
pub fn reason(seen: &Observation) -> Option<String> {
    let kernel = seen.kernel_reason.as_ref().map(|reason| format!("kernel: {reason}"));
    kernel.or(seen.reason.map(|reason| reason.as_str().to_owned()))
}

/// What is not known is left out.
fn observation_json(node: &str, seen: &Observation) -> Value {
    let time = std::time::UNIX_EPOCH + Duration::from_nanos(seen.time_ns);
    let dst_mac = seen.destination_mac.map(|byte| format!("{byte:02x}")).join(":");
    let egress = seen.component.as_str() == "Egress";
    let out = json!({
        "time": humantime::format_rfc3339_nanos(time).to_string(),
        "node": node,
        "trace": seen.trace,
        "component": seen.component.as_str(),
        "action": seen.action.as_str(),
        "reason": reason(seen),
        "pod": seen.endpoint,
        "policy": seen.policy.as_ref().filter(|_| !egress),
        "egress": seen.policy.as_ref().filter(|_| egress),
        "egressIP": seen.egress_ip,
        "egressNode": match &seen.egress_node {
            None if egress => Some(node.to_owned()),
            other => other.clone(),
        },
        "tunnelDstIP": seen.tunnel_destination,
        "srcIP": seen.source,
        "dstIP": seen.destination,
        "protocol": seen.protocol,
        "srcPort": (seen.source_port != 0).then_some(seen.source_port),
        "dstPort": (seen.destination_port != 0).then_some(seen.destination_port),
        "dstMAC": dst_mac,
        "ttl": (seen.ttl != 0).then_some(seen.ttl),
        "length": seen.length,
        "interface": seen.ifindex,
        "cpu": seen.cpu,
        "sequence": seen.sequence,
        "lostBefore": (seen.lost_before != 0).then_some(seen.lost_before),
    });
    match out {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        other => other,
    }
}
