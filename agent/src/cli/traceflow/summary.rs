//! Traces in lists: `get traceflows` and `describe traceflow`. In: objects as the agent answers them. Out: what a
//! table shows of them, and one of them in full.

use std::io::Write;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::path;
use super::result::Trace;
use super::verdict::{Outcome, sentences};
use crate::failure::Failure;

/// Adds what a table shows under `summary`.
pub fn summarize(object: &mut Value) {
    let Ok(trace) = Trace::read(object) else {
        return;
    };
    let shown = |end: String| if end.is_empty() { "any".to_owned() } else { end };
    let started =
        object.pointer("/status/startTime").or_else(|| object.pointer("/metadata/creationTimestamp"));
    let started = started.and_then(Value::as_str).and_then(|time| humantime::parse_rfc3339_weak(time).ok());
    let words = sentences(&trace).into_iter().map(|(outcome, words)| format!("{} {words}", outcome.symbol()));
    let summary = json!({
        "verdict": verdict(&trace, words.collect()),
        "source": shown(trace.source),
        "destination": shown(trace.destination),
        "age": started.map(age),
    });
    if let Some(fields) = object.as_object_mut() {
        fields.insert("summary".into(), summary);
    }
}

fn verdict(trace: &Trace, words: Vec<String>) -> String {
    match Outcome::of(trace) {
        Outcome::Running => "-".into(),
        _ => words.join("; "),
    }
}

/// `5s`, `3m`, `2h`: one unit.
fn age(started: SystemTime) -> String {
    let age = SystemTime::now().duration_since(started).unwrap_or(Duration::ZERO).as_secs();
    match age {
        0..60 => format!("{age}s"),
        60..3600 => format!("{}m", age / 60),
        3600..86400 => format!("{}h", age / 3600),
        _ => format!("{}d", age / 86400),
    }
}

/// Everything of one trace.
pub fn describe(object: &Value) -> Result<(), Failure> {
    let trace = Trace::read(object)
        .map_err(|error| Failure::Run(format!("the agent's answer cannot be read: {error}")))?;
    let mut out = anstream::stdout().lock();
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned();
    writeln!(
        out,
        "name:    {}\nphase:   {}\nstarted: {}",
        trace.name,
        trace.phase,
        text("/status/startTime")
    )?;
    if let Some(tag) = object.pointer("/status/dataplaneTag") {
        writeln!(out, "tag:     {tag}")?;
    }
    for (field, value) in object["spec"].as_object().into_iter().flatten() {
        writeln!(out, "spec.{field}: {value}")?;
    }
    Ok(write!(out, "\n{}", path::draw(&trace))?)
}
