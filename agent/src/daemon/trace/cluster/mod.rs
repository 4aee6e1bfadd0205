//! Traces over all nodes. In: Traceflow objects of an API server. Out: this node's part of each, and, where the packet
//! begins here, how it ended.
//!
//! ```text
//!  object ─► the source's node claims a tag ─► each node that the packet can come to says that it looks
//!         ─► the packet ─► each node writes what it saw ─► the source's node says how it ended
//! ```
//! No node leads: which one has which part follows from the object and from where its ends are.

mod api;
mod part;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, pin_mut};
use kube::ResourceExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher::{self, Event, watcher};
use podwire_datapath::object::Located;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::Traces;
use super::state::{State, object};
use crate::daemon::worker::Trouble;
use crate::kubernetes::short;
use api::{Group, Server};
use part::Part;

/// After a failure, before the next try: doubled each time. A kind that is not there is asked for as long as the agent runs.
const AGAIN: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(3);
/// Says how long an object is kept after its end, in seconds.
const TTL: &str = "podwire.io/ttl-after-finished";

/// Traces of the cluster, as this node sees them. Cheap to clone.
#[derive(Clone)]
pub struct Cluster(Arc<Shared>);

struct Shared {
    server: Server,
    /// By group and name.
    known: Mutex<BTreeMap<(Group, String), Known>>,
}

/// An object, and this node's part of it.
struct Known {
    uid: String,
    manifest: Value,
    /// The object as it was last seen.
    object: watch::Sender<Arc<DynamicObject>>,
    /// Its status, for those who asked for the trace here.
    status: watch::Sender<Value>,
    part: Option<tokio::task::AbortHandle>,
}

impl Cluster {
    /// Follows the objects of both groups for ever.
    pub fn start(follower: kube::Client, impatient: kube::Client, traces: &Traces) -> Self {
        let node = traces.node().to_owned();
        let cluster =
            Self(Arc::new(Shared { server: Server::new(impatient, &node), known: Mutex::default() }));
        for group in Group::ALL {
            traces.runtime().spawn(cluster.clone().follow(follower.clone(), group, traces.clone()));
        }
        cluster
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<(Group, String), Known>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow(self, client: kube::Client, group: Group, traces: Traces) {
        let (mut said, mut wait) = (String::new(), AGAIN);
        loop {
            let events = watcher(
                Api::<DynamicObject>::all_with(client.clone(), &group.resource()),
                watcher::Config::default(),
            );
            pin_mut!(events);
            let mut listed = Vec::new();
            while let Some(event) = events.next().await {
                // Each try begins with this one, before the server is asked.
                if !matches!(event, Ok(Event::Init) | Err(_)) {
                    wait = AGAIN;
                }
                match event {
                    Ok(Event::Init) => listed.clear(),
                    Ok(Event::InitApply(object)) => listed.push(object),
                    Ok(Event::InitDone) => self.take_all(group, std::mem::take(&mut listed), &traces),
                    Ok(Event::Apply(object)) => self.take(group, object, &traces),
                    Ok(Event::Delete(object)) => self.forget(group, &object.name_any()),
                    Err(error) => {
                        // Antrea's kind is not everywhere.
                        let now = short(&error);
                        if now != said && group == Group::Podwire {
                            tracing::warn!("traces cannot be followed: {now}");
                        }
                        said = now;
                        sleep(wait).await;
                        wait = (wait * 2).min(LONGEST);
                    }
                }
            }
            sleep(AGAIN).await;
        }
    }

    fn take_all(&self, group: Group, objects: Vec<DynamicObject>, traces: &Traces) {
        let names: Vec<String> = objects.iter().map(ResourceExt::name_any).collect();
        let gone: Vec<String> = self
            .known()
            .keys()
            .filter(|(of, name)| *of == group && !names.contains(name))
            .map(|(_, name)| name.clone())
            .collect();
        gone.iter().for_each(|name| self.forget(group, name));
        objects.into_iter().for_each(|object| self.take(group, object, traces));
    }

    fn take(&self, group: Group, mut object: DynamicObject, traces: &Traces) {
        object.managed_fields_mut().clear();
        // What came from a list lacks these.
        let resource = group.resource();
        object.types.get_or_insert(kube::api::TypeMeta {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        });
        let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
        let status = object.data["status"].clone();
        let mut manifest = serde_json::to_value(&object).unwrap_or_default();
        if let Some(fields) = manifest.as_object_mut() {
            fields.remove("status");
        }
        let object = Arc::new(object);
        let mut all = self.known();
        let same = all.get(&(group, name.clone())).is_some_and(|known| known.uid == uid);
        if same {
            if let Some(known) = all.get_mut(&(group, name)) {
                known.manifest = manifest;
                known.object.send_replace(object);
                known.status.send_replace(status);
            }
            return;
        }
        let over = is_over(&status);
        let mut known = Known {
            uid,
            manifest,
            object: watch::channel(object.clone()).0,
            status: watch::channel(status).0,
            part: None,
        };
        // One that is over may still have to be deleted in time.
        if !over || object.annotations().contains_key(TTL) {
            let part = Part {
                traces: traces.clone(),
                server: self.0.server.clone(),
                group,
                object: known.object.subscribe(),
                told: known.status.clone(),
            };
            known.part = Some(traces.runtime().spawn(part.run()).abort_handle());
        }
        if let Some(old) = all.insert((group, name), known)
            && let Some(part) = old.part
        {
            part.abort();
        }
    }

    fn forget(&self, group: Group, name: &str) {
        if let Some(known) = self.known().remove(&(group, name.to_owned()))
            && let Some(part) = known.part
        {
            part.abort();
        }
    }

    /// Creates the object of a trace. Its status as it changes.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn begin(
        &self,
        located: &Located,
        ttl: Option<Duration>,
        once: bool,
    ) -> Result<watch::Receiver<Value>, Trouble> {
        let mut manifest = located.manifest.clone();
        // Should this agent die, another one deletes what was to leave nothing.
        let ttl = if once { Some(super::KEPT) } else { ttl };
        if let Some(ttl) = ttl {
            manifest["metadata"]["annotations"][TTL] = json!(ttl.as_secs().to_string());
        }
        let (group, name) = (Group::of(&manifest), located.object.metadata().name.clone());
        let created = self.0.server.create(&manifest).await.map_err(|error| match &error {
            kube::Error::Api(status) if (400..500).contains(&status.code) => {
                Trouble::Refused(vec![format!("Traceflow/{name}: {}", short(&error))])
            }
            _ => Trouble::Failed(format!("Traceflow/{name}: the API server: {}", short(&error))),
        })?;
        let uid = created.uid().unwrap_or_default();
        // It comes by the watch, too; whoever is first.
        for _ in 0..400 {
            let seen = self
                .known()
                .get(&(group, name.clone()))
                .and_then(|known| (known.uid == uid).then(|| known.status.subscribe()));
            if let Some(mut status) = seen {
                status.mark_changed();
                return Ok(status);
            }
            sleep(Duration::from_millis(5)).await;
        }
        Err(Trouble::Failed(format!("Traceflow/{name}: created, but the API server does not tell of it")))
    }

    /// Deletes an object of either group. Whether there was one.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn delete(&self, name: &str) -> Result<bool, Trouble> {
        let groups: Vec<Group> =
            self.known().keys().filter(|(_, known)| known == name).map(|(group, _)| *group).collect();
        let mut there = false;
        for group in groups {
            there |= self.0.server.delete(group, name).await.map_err(|error| {
                Trouble::Failed(format!("Traceflow/{name}: the API server: {}", short(&error)))
            })?;
        }
        Ok(there)
    }

    /// All of them, or one by name.
    pub fn get(&self, name: Option<&str>) -> Option<Value> {
        let all = self.known();
        let whole = |known: &Known| object(&known.manifest, &known.status.borrow());
        match name {
            Some(name) => all.iter().find(|((_, known), _)| known == name).map(|(_, known)| whole(known)),
            None => Some(json!({"items": all.values().map(whole).collect::<Vec<_>>()})),
        }
    }
}

/// Whether a status says that the trace is over.
fn is_over(status: &Value) -> bool {
    matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// The state that a trace has failed with, as it is written.
fn failed(reason: String) -> Value {
    State::new().failed(reason).status()
}
