//! This node's part of objects' status. In: reports, all of them each time. Out: server-side apply of what is other
//! than what was written, by a manager of this node's name: no node touches another's entry, and what a node no
//! longer says goes.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Connection, short};
use super::report::{Report, Subject};
use super::resource::Resource;

/// Before what failed is tried again.
const AGAIN: Duration = Duration::from_secs(2);
/// A write that has no answer by then has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Counters alone are written so seldom.
const COUNTS: Duration = Duration::from_secs(60);
/// The API server takes no longer name of a manager.
const MANAGER: usize = 128;

/// What was written of an object.
struct Written {
    report: Report,
    at: Instant,
    /// Since when the condition is as it is.
    since: SystemTime,
}

/// Writes for ever.
pub async fn write(
    client: Client,
    node: String,
    mut reports: watch::Receiver<Vec<Report>>,
    connection: Connection,
) {
    let mut written: BTreeMap<(Resource, String), Written> = BTreeMap::new();
    let manager: String = format!("podwire/{node}").chars().take(MANAGER).collect();
    loop {
        let wanted = reports.borrow_and_update().clone();
        let mut failed = false;
        written.retain(|key, _| wanted.iter().any(|report| key_of(&report.subject) == *key));
        for report in wanted {
            let key = key_of(&report.subject);
            let old = written.get(&key);
            if old.is_some_and(|old| !is_due(old, &report)) || !has_status(report.subject.resource) {
                continue;
            }
            let since = since(old, &report);
            let body = body(&report, &node, since);
            match timeout(PATIENCE, apply(&client, &report.subject, &manager, &body)).await {
                Ok(Ok(())) => {}
                // It is gone; the next reports know.
                Ok(Err(Error::Api(status))) if status.code == 404 => {}
                Ok(Err(error)) => {
                    connection.note("status", &format!("{}: {}", report.subject.name, short(&error)));
                    failed = true;
                }
                Err(_) => failed = true,
            }
            if failed {
                break;
            }
            written.insert(key, Written { report, at: Instant::now(), since });
        }
        if !failed {
            connection.note("status", "");
        }
        let again = async {
            match failed || !connection.is_up() {
                true => sleep(AGAIN).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = reports.changed() => if changed.is_err() { return },
            () = again => {}
        }
    }
}

fn key_of(subject: &Subject) -> (Resource, String) {
    (subject.resource, subject.uid.clone())
}

/// Antrea's TrafficControl has none.
fn has_status(resource: Resource) -> bool {
    matches!(resource, Resource::TrafficControls | Resource::Egresses | Resource::AntreaEgresses)
}

fn is_due(old: &Written, report: &Report) -> bool {
    let said = (&old.report.subject, &old.report.entry, &old.report.egress);
    said != (&report.subject, &report.entry, &report.egress)
        || (old.report.counts != report.counts && old.at.elapsed() > COUNTS)
}

fn since(old: Option<&Written>, report: &Report) -> SystemTime {
    let good = |report: &Report| report.egress.as_ref().map(|egress| egress.problem.is_none());
    match old {
        Some(old) if good(&old.report) == good(report) => old.since,
        _ => SystemTime::now(),
    }
}

async fn apply(client: &Client, subject: &Subject, manager: &str, body: &Value) -> Result<(), Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &subject.resource.api());
    let parameters = PatchParams::apply(manager).force();
    api.patch_status(&subject.name, &parameters, &Patch::Apply(body)).await.map(drop)
}

fn body(report: &Report, node: &str, since: SystemTime) -> Value {
    let subject = &report.subject;
    let api = subject.resource.api();
    let mut status = json!({});
    // Antrea's schema has no place for what each node says.
    if subject.resource != Resource::AntreaEgresses {
        let mut entry = report.entry.clone();
        entry["node"] = json!(node);
        entry["observedGeneration"] = json!(subject.generation);
        if let (Some(entry), Some(counts)) = (entry.as_object_mut(), report.counts.as_object()) {
            entry.extend(counts.clone());
            entry.retain(|_, value| !value.is_null());
        }
        status["nodes"] = json!([entry]);
    }
    if let Some(egress) = &report.egress {
        status["egressNode"] = json!(node);
        status["egressIP"] = json!(egress.ip);
        let good = egress.problem.is_none();
        let mut condition = json!({
            "type": "IPAssigned",
            "status": if good { "True" } else { "False" },
            "lastTransitionTime": humantime::format_rfc3339_seconds(since).to_string(),
            "reason": if good { "Assigned" } else { "Dropping" },
        });
        // Kubernetes 1.20 takes an empty text for null.
        if let Some(problem) = &egress.problem {
            condition["message"] = json!(problem);
        }
        status["conditions"] = json!([condition]);
    }
    json!({
        "apiVersion": api.api_version,
        "kind": api.kind,
        "metadata": {"name": subject.name},
        "status": status,
    })
}
