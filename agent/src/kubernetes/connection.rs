//! How the API server stands: asked by a small question now and then, so that a silent one is noticed too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Between two questions.
const PERIOD: Duration = Duration::from_secs(5);
/// Between two questions while it is away.
const IMPATIENT: Duration = Duration::from_millis(500);
/// A question that has no answer by then has none.
const PATIENCE: Duration = Duration::from_secs(4);

/// What is known of the server, shared between threads.
#[derive(Clone, Debug, Default)]
pub struct Connection(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    since: SystemTime,
    /// Why it is away; `None` while it answers.
    problem: Option<String>,
    /// What could not be had lately, by resource.
    troubles: BTreeMap<&'static str, String>,
    /// Whether everything has been listed once.
    complete: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            since: SystemTime::now(),
            problem: Some("not asked yet".into()),
            troubles: BTreeMap::new(),
            complete: false,
        }
    }
}

impl Connection {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the command line.
    pub fn describe(&self) -> Value {
        let state = self.state();
        let word = if state.problem.is_none() { "connected" } else { "away" };
        let since = humantime::format_rfc3339_seconds(state.since).to_string();
        json!({
            "kind": "kubernetes",
            "summary": format!("kubernetes, {word} since {since}"),
            "state": word,
            "since": since,
            "problem": state.problem,
            "listed": state.complete,
            "resources": state.troubles,
        })
    }

    /// Notes what a resource cannot be had for; an empty text for nothing.
    pub fn note(&self, resource: &'static str, trouble: &str) {
        let mut state = self.state();
        if trouble.is_empty() {
            state.troubles.remove(resource);
        } else if state.troubles.get(resource).is_none_or(|known| known != trouble) {
            tracing::warn!(resource, "{trouble}");
            state.troubles.insert(resource, trouble.to_owned());
        }
    }

    /// Everything has been listed once.
    pub fn complete(&self) {
        self.state().complete = true;
    }

    /// Whether it answers.
    pub fn is_up(&self) -> bool {
        self.state().problem.is_none()
    }

    /// Takes the answer to a question; says whether the server has come back.
    fn take(&self, problem: Option<String>) -> bool {
        let mut state = self.state();
        let (was, is) = (state.problem.is_none(), problem.is_none());
        if was != is {
            state.since = SystemTime::now();
            match &problem {
                None => tracing::info!("the API server answers"),
                Some(problem) => {
                    tracing::warn!(problem, "the API server is away; what is in force stays");
                }
            }
        }
        state.problem = problem;
        is && !was
    }
}

/// Asks for ever. After each time away all resources are listed anew: a connection may have died in silence.
pub async fn watch(client: Client, connection: Connection, again: watch::Sender<u64>) {
    loop {
        let problem = match timeout(PATIENCE, client.apiserver_version()).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(short(&error)),
            Err(_) => Some(format!("no answer within {} s", PATIENCE.as_secs())),
        };
        let away = problem.is_some();
        if connection.take(problem) {
            again.send_modify(|count| *count += 1);
        }
        sleep(if away { IMPATIENT } else { PERIOD }).await;
    }
}

/// An error with its causes, in one line; what the server itself says stands for itself.
pub fn short(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(status) = error.downcast_ref::<kube::Error>().and_then(said) {
        return status;
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn said(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(status) => Some(format!("{} ({})", status.message, status.reason)),
        _ => None,
    }
}
