//! Traces over the socket. In: Traceflow objects. Out: JSON lines, each the whole object as it stands.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use podwire_datapath::object::{self, Located, Object};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::respond;
use crate::daemon::trace::{KEPT, Traces};
use crate::daemon::worker::{Answer, Trouble};

pub fn routes(traces: Traces) -> Router {
    Router::new()
        .route("/v1/traceflows", get(list).post(begin))
        .route("/v1/traceflows/{name}", get(one))
        .with_state(traces)
}

async fn list(State(traces): State<Traces>) -> Response {
    respond(traces.get(None).ok_or_else(|| Trouble::Failed("no traces".into())))
}

async fn one(State(traces): State<Traces>, Path(name): Path<String>) -> Response {
    respond(traces.get(Some(&name)).ok_or_else(|| not_found(&name)))
}

fn not_found(name: &str) -> Trouble {
    Trouble::NotFound(format!("Traceflow/{name}: not found"))
}

/// Ends and forgets a trace.
pub async fn delete(traces: &Traces, name: &str) -> Answer {
    if !traces.delete(name).await? {
        return Err(not_found(name));
    }
    Ok(json!({"results": [{"object": format!("traceflow/{name}"), "result": "deleted"}]}))
}

/// The Traceflows of a text, if it can be read.
pub fn of(file: &str, text: &str) -> Vec<Located> {
    let objects = object::parse(file, text).unwrap_or_default();
    objects.into_iter().filter(|located| matches!(located.object, Object::Traceflow(_))).collect()
}

/// Begins a trace, and tells how it goes until it is over.
async fn begin(
    State(traces): State<Traces>,
    Query(query): Query<HashMap<String, String>>,
    text: String,
) -> Response {
    let is = |name: &str| query.get(name).is_some_and(|value| value == "true");
    let ttl = match query.get("ttlAfterFinished").map(|seconds| seconds.parse()) {
        None => KEPT,
        Some(Ok(seconds)) => Duration::from_secs(seconds),
        Some(Err(_)) => {
            let line = "ttlAfterFinished: allowed: a number of seconds".to_owned();
            return respond(Err(Trouble::Refused(vec![line])));
        }
    };
    let file = query.get("file").map_or("<request>", String::as_str);
    let located = match object::parse(file, &text) {
        Ok(mut objects) if objects.len() == 1 => objects.remove(0),
        Ok(_) => return respond(Err(Trouble::Refused(vec!["one Traceflow is expected".into()]))),
        Err(errors) => {
            return respond(Err(Trouble::Refused(errors.iter().map(ToString::to_string).collect())));
        }
    };
    let (name, manifest) = (located.object.metadata().name.clone(), located.manifest.clone());
    let once = is("once");
    let states = match traces.begin(located, ttl, once).await {
        Ok(states) => states,
        Err(trouble) => return respond(Err(trouble)),
    };
    // Dropped with the connection: a client that is killed ends its trace.
    let guard = once.then(|| Forget { traces: traces.clone(), name });
    let wait = query.get("wait").is_none_or(|value| value != "false");
    let begun = Telling { states: Some(states), manifest, wait, _guard: guard };
    let lines = stream::unfold(begun, |mut telling| async move {
        let line = telling.next().await?;
        Some((Ok::<_, Infallible>(line + "\n"), telling))
    });
    ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

struct Forget {
    traces: Traces,
    name: String,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.traces.drop_later(std::mem::take(&mut self.name));
    }
}

struct Telling {
    /// `None` when all is told.
    states: Option<watch::Receiver<Value>>,
    manifest: Value,
    wait: bool,
    _guard: Option<Forget>,
}

impl Telling {
    async fn next(&mut self) -> Option<String> {
        let states = self.states.as_mut()?;
        let status = loop {
            if self.wait {
                // An error: it is gone, deleted by somebody.
                states.changed().await.ok()?;
            }
            let status = states.borrow_and_update().clone();
            // At an API server an object has no status at first.
            if status["phase"].is_string() || !self.wait {
                break status;
            }
        };
        if !self.wait || status["phase"] != "Running" {
            self.states = None;
        }
        Some(Traces::with_status(&self.manifest, &status).to_string())
    }
}
