//! The API: HTTP on a Unix socket. In: requests. Out: the worker's answers as JSON.

use std::collections::HashMap;
use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::{StreamExt, stream};
use serde_json::json;
use tokio::net::UnixListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::oneshot;

use super::observe::Feed;
use super::trace::{KEPT, Traces};
use super::worker::{Answer, Message, Trouble, View};

mod captures;
mod traceflows;

/// Time for answers under way when the agent ends.
const GRACE: Duration = Duration::from_secs(1);

type Worker = State<mpsc::Sender<Message>>;

/// Makes the socket: for root alone, and only in the place of one that nobody listens on.
pub fn listen(socket: &Path) -> Result<UnixListener> {
    let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    refuse_taken(socket)?;
    // Bound under another name and renamed, so that it is never there with wider rights.
    let draft = folder.join(format!(".podwire.{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&draft);
    let listener = UnixListener::bind(&draft).with_context(|| format!("binding {}", draft.display()))?;
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&draft, socket).with_context(|| format!("creating {}", socket.display()))?;
    Ok(listener)
}

/// Fails when somebody listens on the socket: asked before the datapath is touched as well.
pub fn refuse_taken(socket: &Path) -> Result<()> {
    if UnixStream::connect(socket).is_ok() {
        bail!("another agent serves {}; give each agent its own --socket", socket.display());
    }
    Ok(())
}

/// Serves until SIGINT or SIGTERM.
pub async fn run(
    listener: UnixListener,
    worker: mpsc::Sender<Message>,
    feed: Feed,
    traces: Traces,
) -> Result<()> {
    let view =
        |view| get(move |State(worker): Worker| answer(worker, move |answer| Message::View { view, answer }));
    let router = Router::new()
        .route("/v1/trafficcontrols", view(View::TrafficControls))
        .route("/v1/endpoints", view(View::Endpoints))
        .route("/v1/sessions", view(View::Sessions))
        .route("/v1/egresses", view(View::Egresses))
        .route("/v1/nodes", view(View::Nodes))
        .route("/v1/status", view(View::Status))
        .route("/v1/events", view(View::Events))
        .route("/v1/check", get(check))
        .with_state(worker.clone())
        .merge(
            Router::new()
                .route("/v1/apply", post(apply))
                .route("/v1/delete", post(delete))
                .with_state((worker.clone(), traces.clone())),
        )
        .merge(traceflows::routes(traces))
        .merge(captures::routes(worker))
        .layer(DefaultBodyLimit::max(podwire_datapath::object::MAX_TEXT))
        .merge(Router::new().route("/v1/observe", get(observe)).with_state(feed));
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let end = async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    };
    let (ending, ended) = oneshot::channel();
    let end = async move {
        end.await;
        let _ = ending.send(());
    };
    // Answers under way are finished; a client that never ends its request must not keep the agent.
    let late = async move {
        let _ = ended.await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = axum::serve(listener, router).with_graceful_shutdown(end) => served.context("serving"),
        () = late => Ok(()),
    }
}

/// Observations, a JSON object a line: those that are kept, then, when it is followed, those to come. An `Account`
/// says how many were lost, at the end of those that are kept and whenever this listener lost some.
async fn observe(State(feed): State<Feed>, Query(query): Query<HashMap<String, String>>) -> Response {
    let follow = query.get("follow").is_some_and(|value| value == "true");
    let (kept, coming) = feed.listen();
    let account =
        |feed: &Feed, slow: u64| json!({"kind": "Account", "classes": feed.accounts(), "listenerSlow": slow});
    let last = account(&feed, 0);
    let kept = kept.into_iter().map(|seen| seen.to_string()).chain([last.to_string()]);
    let coming = stream::unfold((coming, feed, 0), move |(mut coming, feed, slow)| async move {
        if !follow {
            return None;
        }
        match coming.recv().await {
            Ok(seen) => Some((seen.to_string(), (coming, feed, slow))),
            Err(RecvError::Lagged(more)) => {
                let slow = slow + more;
                Some((account(&feed, slow).to_string(), (coming, feed, slow)))
            }
            Err(RecvError::Closed) => None,
        }
    });
    let lines = stream::iter(kept).chain(coming).map(|line| Ok::<_, Infallible>(line + "\n"));
    ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// What this kernel offers, as `podwire check -o json` prints it.
async fn check() -> Json<serde_json::Value> {
    Json(crate::cli::features())
}

async fn apply(
    State((worker, traces)): State<(mpsc::Sender<Message>, Traces)>,
    Query(query): Query<HashMap<String, String>>,
    text: String,
) -> Response {
    let file = query.get("file").cloned().unwrap_or_else(|| "<request>".into());
    let dry_run = query.get("dryRun").is_some_and(|value| value == "true");
    let begun = if dry_run { Vec::new() } else { traceflows::of(&file, &text) };
    let applied = ask(worker, |answer| Message::Apply { file, text, dry_run, answer }).await;
    let mut applied = match applied {
        Ok(applied) => applied,
        refused => return respond(refused),
    };
    for located in begun {
        let name = located.object.metadata().name.clone();
        if let Err(trouble) = traces.begin(located, KEPT, false).await {
            return respond(Err(trouble));
        }
        if let Some(results) = applied["results"].as_array_mut() {
            results.push(json!({"object": format!("traceflow/{name}"), "result": "created", "note": null}));
        }
    }
    respond(Ok(applied))
}

async fn delete(
    State((worker, traces)): State<(mpsc::Sender<Message>, Traces)>,
    Query(query): Query<HashMap<String, String>>,
    text: String,
) -> Response {
    let file = query.get("file").cloned().unwrap_or_else(|| "<request>".into());
    if let (Some(kind), Some(name)) = (query.get("kind"), query.get("name"))
        && matches!(kind.to_lowercase().as_str(), "tf" | "traceflow" | "traceflows")
    {
        return respond(traceflows::delete(&traces, name).await);
    }
    let identity = match (query.get("kind"), query.get("name")) {
        (Some(kind), Some(name)) => match identity(kind, name, query.get("namespace")) {
            Some(identity) => Some(identity),
            None => {
                let line = format!(
                    "unknown kind {kind}; allowed: egress, endpoint, namespace, node, traceflow, trafficcontrol"
                );
                return respond(Err(Trouble::Refused(vec![line])));
            }
        },
        _ => None,
    };
    answer(worker, |answer| Message::Delete { file, text, identity, answer }).await
}

/// `Kind/name` of what a user calls `tc mirror-web`.
fn identity(kind: &str, name: &str, namespace: Option<&String>) -> Option<String> {
    Some(match kind.to_lowercase().as_str() {
        "tc" | "trafficcontrol" | "trafficcontrols" => format!("TrafficControl/{name}"),
        "eg" | "egress" | "egresses" => format!("Egress/{name}"),
        "ns" | "namespace" | "namespaces" => format!("Namespace/{name}"),
        "no" | "node" | "nodes" => format!("Node/{name}"),
        "ep" | "endpoint" | "endpoints" => {
            format!("Endpoint/{}/{name}", namespace.map_or("default", String::as_str))
        }
        _ => return None,
    })
}

async fn answer(
    worker: mpsc::Sender<Message>,
    message: impl FnOnce(oneshot::Sender<Answer>) -> Message,
) -> Response {
    respond(ask(worker, message).await)
}

async fn ask(
    worker: mpsc::Sender<Message>,
    message: impl FnOnce(oneshot::Sender<Answer>) -> Message,
) -> Answer {
    let (answer, wait) = oneshot::channel();
    if worker.send(message(answer)).is_err() {
        return Err(Trouble::Failed("the agent is ending".into()));
    }
    wait.await.unwrap_or_else(|_| Err(Trouble::Failed("the agent is ending".into())))
}

/// `{error, kind, details}`: the first line, what kind of trouble, and every line.
fn respond(answer: Answer) -> Response {
    let (status, kind, lines) = match answer {
        Ok(value) => return Json(value).into_response(),
        Err(Trouble::Refused(lines)) => (StatusCode::UNPROCESSABLE_ENTITY, "Refused", lines),
        Err(Trouble::NotFound(line)) => (StatusCode::NOT_FOUND, "NotFound", vec![line]),
        Err(Trouble::Failed(line)) => (StatusCode::INTERNAL_SERVER_ERROR, "Failed", vec![line]),
    };
    (status, Json(json!({"error": lines.first(), "kind": kind, "details": lines}))).into_response()
}
