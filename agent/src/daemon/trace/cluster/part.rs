//! This node's part of one trace. In: the object as it changes. Out: a tag claimed, a packet injected, results written;
//! nothing, when the packet cannot come here.

use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::DynamicObject;
use podwire_datapath::object::{self, Object, TraceDestination, TraceSource, Traceflow};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::api::{Group, NoEnd, Server};
use super::{TTL, failed, is_over};
use crate::daemon::trace::plan::End;
use crate::daemon::trace::run::Local;
use crate::daemon::trace::state::{Phase, State};
use crate::daemon::trace::{Planned, Traces, view};
use crate::daemon::worker::Trouble;
use crate::kubernetes::short;

/// How long the others have to say that they look.
const READY: Duration = Duration::from_secs(2);
/// How much longer than asked for an object is kept: other nodes' last words come after the trace's end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long after its deadline a trace that nobody ended is ended by whoever notices.
const ORPHANED: Duration = Duration::from_secs(5);
/// The longest that a trace may take.
const LONGEST: Duration = Duration::from_secs(300);
/// Before a part that failed is tried again.
const LATER: Duration = Duration::from_secs(1);
/// Before a write that failed is tried again.
const AGAIN: Duration = Duration::from_millis(300);
/// The same of one that failed often.
const SELDOM: Duration = Duration::from_secs(5);
/// Between two states that are written while a trace goes on.
const PAUSE: Duration = Duration::from_millis(100);

/// This node's part.
pub struct Part {
    pub traces: Traces,
    pub server: Server,
    pub group: Group,
    pub object: watch::Receiver<Arc<DynamicObject>>,
    /// For those who asked for the trace here.
    pub told: watch::Sender<Value>,
}

impl Part {
    pub async fn run(mut self) {
        let name = self.latest().name_any();
        let end = Instant::now() + LONGEST;
        while !is_over(&self.status()) && Instant::now() < end {
            match self.play().await {
                Ok(()) => break,
                // The server is away, as a rule: what could not begin begins later.
                Err(why) => tracing::warn!(trace = %name, "{why}"),
            }
            sleep(LATER).await;
        }
        self.expire().await;
    }

    fn latest(&self) -> Arc<DynamicObject> {
        self.object.borrow().clone()
    }

    fn status(&self) -> Value {
        self.latest().data["status"].clone()
    }

    async fn play(&mut self) -> Result<(), String> {
        let object = self.latest();
        let Some(trace) = self.read(&object).await else { return Ok(()) };
        let deadline = Instant::now() + trace.timeout;
        let claimed = object.data["status"]["phase"].is_string();
        let ends = match self.ends(&trace).await {
            Ok(ends) => ends,
            Err(NoEnd::Refused(why)) => return self.refuse(&object, why).await,
            Err(NoEnd::Away(why)) => return Err(why),
        };
        // The endpoints are given back however this ends.
        let (planned, _release) = match self.traces.planned(trace.clone(), seed(&object), Some(ends)).await {
            Ok(planned) => planned,
            Err(Trouble::Refused(lines)) => return self.refuse(&object, lines.join("; ")).await,
            Err(Trouble::NotFound(line) | Trouble::Failed(line)) => return Err(line),
        };
        if planned.plan.owner {
            if claimed {
                let why = format!("the agent of {} ended while the trace ran", self.traces.node());
                return self.refuse(&object, why).await;
            }
            return self.lead(&object, &trace, planned, deadline).await;
        }
        if !planned.plan.concerned {
            return self.bury(deadline).await;
        }
        self.accompany(&trace, planned, deadline).await
    }

    /// The object as podwire reads it; one that is wrong is refused by whoever is first.
    async fn read(&self, object: &DynamicObject) -> Option<Traceflow> {
        let text = serde_json::to_string(object).ok()?;
        let read = match object::parse("Traceflow", &text) {
            Ok(mut objects) => objects.pop()?,
            Err(errors) => {
                let lines: Vec<String> =
                    errors.iter().map(|error| format!("{}: {}", error.field(), error.problem())).collect();
                let _ = self.refuse(object, lines.join("; ")).await;
                return None;
            }
        };
        match read.object {
            Object::Traceflow(trace) => Some(*trace),
            _ => None,
        }
    }

    async fn ends(&self, trace: &Traceflow) -> Result<(End, End), NoEnd> {
        let source = async {
            match &trace.source {
                TraceSource::Any => Ok(End::Any),
                TraceSource::Ip(ip) => self.server.behind(*ip).await,
                TraceSource::Pod(pod) => self.server.pod(pod).await,
            }
        };
        let destination = async {
            match &trace.destination {
                TraceDestination::Any => Ok(End::Any),
                TraceDestination::Ip(ip) => self.server.behind(*ip).await,
                TraceDestination::Pod(pod) => self.server.pod(pod).await,
                TraceDestination::Service(service) => self.server.service(service).await,
            }
        };
        tokio::try_join!(source, destination)
    }

    /// Says that there can be no such trace, unless somebody has said something.
    async fn refuse(&self, object: &DynamicObject, why: String) -> Result<(), String> {
        let said = self.server.claim(object, failed(why)).await;
        said.map(drop).map_err(|error| short(&error))
    }

    /// The packet begins here: a tag, the others, the packet, and how it ended.
    async fn lead(
        &mut self,
        object: &DynamicObject,
        trace: &Traceflow,
        planned: Planned,
        deadline: Instant,
    ) -> Result<(), String> {
        let Planned { plan, injector, peers } = planned;
        let peer = |address| peers.get(&address).cloned();
        let traces = self.traces.clone();
        let here = traces.here(&injector, &peer);
        let (role, elsewhere) = (plan.role, plan.elsewhere.clone());
        let mut local = match Local::begin(&here, plan, trace.capture) {
            Ok(local) => local,
            Err(why) => return self.refuse(object, why).await,
        };
        let mut state = State::new();
        state.tag = local.tag();
        state.results =
            vec![json!({"node": traces.node(), "role": role, "timestamp": 0, "observations": []})];
        match self.server.claim(object, state.status()).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return Err(short(&error)),
        }
        if let Some(node) = &elsewhere {
            self.wait_for(node).await;
        }
        if let Err(why) = local.inject(&here, &mut state) {
            return self.end(state.failed(why)).await;
        }
        let mut told = Instant::now();
        let over = loop {
            if local.is_over() && self.others_are_over(&local) {
                break true;
            }
            let mut object = self.object.clone();
            let changed = tokio::select! {
                seen = local.next(), if !local.is_over() => seen.is_some(),
                changed = timeout_at(deadline, object.changed()) => matches!(changed, Ok(Ok(()))),
            };
            self.object = object;
            if !changed {
                break false;
            }
            if told.elapsed() > PAUSE && !local.is_over() {
                told = Instant::now();
                local.show(&here, &mut state);
                let _ = self.server.say(self.group, &self.latest().name_any(), &state.status()).await;
            }
        };
        local.show(&here, &mut state);
        if over {
            state.phase = Phase::Succeeded;
        } else {
            let why = self.unfinished(&local, elsewhere.as_deref());
            state = state.failed(why);
        }
        self.end(state).await
    }

    /// Another node takes part: it looks, and writes what it saw, until the trace is over.
    async fn accompany(
        &mut self,
        trace: &Traceflow,
        planned: Planned,
        deadline: Instant,
    ) -> Result<(), String> {
        let Planned { mut plan, injector, peers } = planned;
        let peer = |address| peers.get(&address).cloned();
        let Some(tag) = self.tag(deadline).await else {
            return self.bury(deadline).await;
        };
        plan.request.tag = Some(tag);
        let traces = self.traces.clone();
        let here = traces.here(&injector, &peer);
        let role = plan.role;
        let mut local = Local::begin(&here, plan, trace.capture)?;
        let name = self.latest().name_any();
        let mut state = State::new();
        let empty = json!([{"node": traces.node(), "role": role, "timestamp": 0, "observations": []}]);
        self.server
            .say(self.group, &name, &json!({"results": empty}))
            .await
            .map_err(|error| short(&error))?;
        let mut due = None;
        while !is_over(&self.status()) {
            let mut object = self.object.clone();
            let pause = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                seen = local.next() => {
                    if seen.is_none() {
                        break;
                    }
                    // The last word at once, the others together.
                    let now = Instant::now();
                    due = Some(if local.is_over() { now } else { due.unwrap_or(now + PAUSE) });
                }
                changed = object.changed() => if changed.is_err() { return Ok(()) },
                () = pause => {
                    due = None;
                    local.show(&here, &mut state);
                    let said = json!({"results": state.results});
                    if let Err(error) = self.server.say(self.group, &name, &said).await {
                        tracing::debug!(trace = %name, "{}", short(&error));
                        due = Some(Instant::now() + AGAIN);
                    }
                }
            }
            self.object = object;
        }
        local.show(&here, &mut state);
        // Nothing was seen here: nothing is said. What was seen and not said yet is, although the trace is over.
        if state.results.is_empty() {
            let _ = self.server.say(self.group, &name, &json!({})).await;
        } else if due.is_some() {
            let _ = self.server.say(self.group, &name, &json!({"results": state.results})).await;
        }
        self.bury(deadline).await
    }

    /// The tag that the source's node claims.
    async fn tag(&mut self, deadline: Instant) -> Option<u8> {
        loop {
            let status = self.status();
            if is_over(&status) {
                return None;
            }
            if let Some(tag) = status["dataplaneTag"].as_u64().filter(|tag| *tag != 0) {
                return u8::try_from(tag).ok();
            }
            timeout_at(deadline, self.object.changed()).await.ok()?.ok()?;
        }
    }

    /// Until a node says that it looks, or for as long as that is worth.
    async fn wait_for(&mut self, node: &str) {
        let patience = Instant::now() + READY;
        while result_of(&self.status(), node).is_none() {
            if !matches!(timeout_at(patience, self.object.changed()).await, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Whether those who have the packet now have said how it ended.
    fn others_are_over(&self, local: &Local) -> bool {
        let handed = local.handed_on_count();
        if handed == 0 {
            return true;
        }
        let status = self.status();
        let others = status["results"].as_array().cloned().unwrap_or_default();
        let ended: usize =
            others.iter().filter(|result| result["node"] != self.traces.node()).map(view::ends).sum();
        ended >= handed
    }

    fn unfinished(&self, local: &Local, elsewhere: Option<&str>) -> String {
        let Some(address) = local.handed_on() else { return local.unfinished() };
        let node = elsewhere.map(str::to_owned).or(address.map(|address| address.to_string()));
        let node = node.unwrap_or_else(|| "another node".into());
        match result_of(&self.status(), &node) {
            Some(result) if result["observations"].as_array().is_some_and(|seen| !seen.is_empty()) => {
                format!("timeout: {node} has the packet; nothing more was seen of it")
            }
            Some(_) => format!("timeout: {node} looks for the packet and has not seen it"),
            None => format!("timeout: {node} does not answer"),
        }
    }

    /// The last word; tried again for as long as the server is away.
    async fn end(&self, state: State) -> Result<(), String> {
        let name = self.latest().name_any();
        let mut pause = AGAIN;
        loop {
            match self.server.say(self.group, &name, &state.status()).await {
                Ok(()) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                // Whoever waits here is told all the same.
                Err(error) => drop(self.told.send_replace(self.merged(&state, &short(&error)))),
            }
            sleep(pause).await;
            pause = (pause * 2).min(SELDOM);
        }
    }

    /// The last word with what the others said so far, for when the server does not take it.
    fn merged(&self, state: &State, trouble: &str) -> Value {
        let mut state = state.clone();
        let known = self.status();
        let others = known["results"].as_array().into_iter().flatten();
        state.results.extend(others.filter(|result| result["node"] != self.traces.node()).cloned());
        let note = format!("the API server does not take the result: {trouble}");
        state.reason = Some(state.reason.map_or(note.clone(), |reason| format!("{reason}; {note}")));
        state.status()
    }

    /// Ends a trace whose own node does not.
    async fn bury(&mut self, deadline: Instant) -> Result<(), String> {
        let late = deadline + ORPHANED;
        while !is_over(&self.status()) {
            match timeout_at(late, self.object.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Ok(()),
                Err(_) => {
                    let object = self.latest();
                    let mut status = object.data["status"].clone();
                    let first = status["results"][0]["node"].as_str().map(|node| format!("{node}, "));
                    let first = first.unwrap_or_else(|| "the node ".into());
                    status["phase"] = "Failed".into();
                    status["reason"] =
                        format!("timeout: {first}where the packet begins, does not answer").into();
                    return self.server.claim(&object, status).await.map(drop).map_err(|error| short(&error));
                }
            }
        }
        Ok(())
    }

    /// Deletes the object when it was kept long enough, where it asks for that. Every node would; the first does.
    async fn expire(&mut self) {
        let Some(ttl) = self.latest().annotations().get(TTL).and_then(|text| text.parse().ok()) else {
            return;
        };
        while !is_over(&self.status()) {
            if self.object.changed().await.is_err() {
                return;
            }
        }
        sleep(Duration::from_secs(ttl).saturating_add(LAST_WORDS)).await;
        let _ = self.server.delete(self.group, &self.latest().name_any()).await;
    }
}

fn result_of<'a>(status: &'a Value, node: &str) -> Option<&'a Value> {
    status["results"].as_array()?.iter().find(|result| result["node"] == node)
}

/// The same number at every node.
fn seed(object: &DynamicObject) -> u64 {
    // FNV-1a, then a mix.
    struct Fnv(u64);
    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            mixed ^ (mixed >> 33)
        }
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    hash.write(object.uid().unwrap_or_default().as_bytes());
    hash.finish()
}
