//! Runs a trace. In: what is wanted. Out: the result on standard output, and the exit code: 0 delivered, 1 dropped,
//! 2 wrong use, 3 no result, 4 no agent.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use super::end::End;
use super::request::{Taken, take_destination_for};
use super::result::Trace;
use super::route::{self, routes};
use super::verdict::{Outcome, sentences};
use super::{Expectation, Picture, Wanted, capture, path, picture};
use crate::cli::Format;
use crate::cli::output::print_value;
use crate::client::{Client, Ended};
use crate::failure::Failure;

/// How long results are kept unless said otherwise.
const KEPT: Duration = Duration::from_secs(600);
/// Time that an agent has for its answer once the trace has ended.
const GRACE: Duration = Duration::from_secs(5);

/// Traces, or shows what was saved.
pub fn trace(client: &Client, wanted: &Wanted) -> Result<(), Failure> {
    if let Some(file) = &wanted.read {
        let trace = Trace::read(&saved(file)?)
            .map_err(|error| Failure::Refused(vec![format!("{}: no trace: {error}", file.display())]))?;
        show(&trace, wanted)?;
        return wanted.expect.as_ref().map_or(Ok(()), |expected| check(&trace, expected, wanted));
    }
    let manifest = wanted.manifest()?;
    if wanted.no_wait && !matches!(wanted.picture(), Picture::Path | Picture::Yaml | Picture::Json) {
        return Err(Failure::Usage(vec![
            "--nowait has no picture yet; draw it later: podwire get traceflows NAME -o json | podwire traceflow -r - -o svg".into(),
        ]));
    }
    let trace = send(client, wanted, manifest).map_err(|failure| match failure {
        // Code 1 says that the packet was dropped, and nothing else.
        Failure::NotFound(lines) => Failure::Refused(lines),
        Failure::Run(line) => Failure::Refused(vec![line]),
        other => other,
    })?;
    if wanted.no_wait {
        return started(&trace, wanted);
    }
    show(&trace, wanted)?;
    match &wanted.expect {
        Some(expected) => check(&trace, expected, wanted),
        None => judge(&trace, wanted),
    }
}

impl Wanted {
    fn picture(&self) -> Picture {
        let terminal = std::io::stdout().is_terminal();
        self.output.unwrap_or(if terminal { Picture::Path } else { Picture::Yaml })
    }
}

/// A document: JSON, or YAML.
fn saved(file: &Path) -> Result<Value, Failure> {
    let mut text = String::new();
    let name = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("reading standard input")?;
        "<stdin>".to_owned()
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        file.display().to_string()
    };
    let json = serde_json::from_str(&text);
    // The last of JSON lines, as the agent writes them, is the whole of it.
    let json = json.or_else(|error| match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(last) if text.trim_start().starts_with('{') => serde_json::from_str(last).map_err(|_| error),
        _ => Err(error),
    });
    match json {
        Ok(value) => Ok(value),
        Err(error) if text.trim_start().starts_with('{') => {
            Err(Failure::Refused(vec![format!("{name}: {error}")]))
        }
        Err(_) => serde_saphyr::from_str(&text)
            .map_err(|error| Failure::Refused(vec![format!("{name}: {}", one_line(&error.to_string()))])),
    }
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Sends the request; a destination that is no pod is looked for among the Services.
fn send(client: &Client, wanted: &Wanted, mut manifest: Value) -> Result<Trace, Failure> {
    let named = wanted.destination.as_ref().filter(|end| matches!(end, End::Named { .. }));
    match (post(client, wanted, &manifest), named) {
        (Err(Failure::NotFound(mut lines)), Some(end)) => {
            take_destination_for(&mut manifest, end, Taken::Service);
            match post(client, wanted, &manifest) {
                Err(Failure::NotFound(more)) => {
                    lines.extend(more);
                    lines.dedup();
                    Err(Failure::NotFound(lines))
                }
                other => other,
            }
        }
        (answered, _) => answered,
    }
}

fn post(client: &Client, wanted: &Wanted, manifest: &Value) -> Result<Trace, Failure> {
    let once = !wanted.no_wait && wanted.ttl_after_finished.is_none();
    let kept = wanted.ttl_after_finished.unwrap_or(KEPT).as_secs().to_string();
    let query = [
        ("once", if once { "true" } else { "false" }),
        ("ttlAfterFinished", if once { "" } else { kept.as_str() }),
        ("wait", if wanted.no_wait { "false" } else { "" }),
    ];
    let mut last = None;
    let read =
        client.post_lines("/v1/traceflows", &query, manifest.to_string(), wanted.timeout + GRACE, |line| {
            last = Some(line);
            Ok(())
        });
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    let known = |last: &Option<Value>| {
        let trace = last.as_ref().and_then(|object| Trace::read(object).ok()).unwrap_or_default();
        sentences(&trace).into_iter().map(|(_, words)| words).collect::<Vec<_>>().join("; ")
    };
    match read {
        Ok(Ended::Whole) => {}
        Ok(Ended::Interrupted) => {
            if !once {
                // Nobody wants the rest of it.
                let query = [("kind", "traceflow"), ("name", name)];
                let _ = client.post("/v1/delete", &query, String::new());
            }
            return Err(Failure::Interrupted(format!("interrupted; {}", known(&last))));
        }
        Ok(Ended::Overdue) => {
            let limit = wanted.timeout + GRACE;
            return Err(Failure::Refused(vec![format!(
                "the agent has not ended the trace within {limit:?}; {}",
                known(&last)
            )]));
        }
        // The connection broke in the middle.
        Err(Failure::Run(line)) if last.is_some() => {
            return Err(Failure::Unreachable(format!("{line}; {}", known(&last))));
        }
        Err(failure) => return Err(failure),
    }
    let Some(object) = &last else {
        return Err(Failure::Refused(vec!["the trace was taken away before anything was seen".into()]));
    };
    let trace = Trace::read(object)
        .map_err(|error| Failure::Run(format!("the agent's answer cannot be read: {error}")))?;
    if !wanted.no_wait && !matches!(trace.phase.as_str(), "Succeeded" | "Failed") {
        let known = known(&last);
        return Err(Failure::Refused(vec![format!("the trace was taken away before it ended; {known}")]));
    }
    Ok(trace)
}

/// A trace that goes on by itself: only its name is of use.
fn started(trace: &Trace, wanted: &Wanted) -> Result<(), Failure> {
    match wanted.picture() {
        Picture::Path => {
            writeln!(anstream::stdout().lock(), "traceflow/{} created", trace.name)?;
            let _ = writeln!(anstream::stderr(), "its result: podwire describe traceflow {}", trace.name);
            Ok(())
        }
        _ => show(trace, wanted),
    }
}

fn show(trace: &Trace, wanted: &Wanted) -> Result<(), Failure> {
    if let Some(file) = &wanted.capture {
        capture::write(file, trace)?;
    }
    let text = match wanted.picture() {
        Picture::Yaml => return document(trace, Format::Yaml),
        Picture::Json => return document(trace, Format::Json),
        Picture::Path => path::draw(trace),
        Picture::Dot => picture::dot(trace),
        Picture::Svg => picture::svg(trace),
        Picture::Mermaid => picture::mermaid(trace),
    };
    Ok(write!(anstream::stdout().lock(), "{text}")?)
}

fn document(trace: &Trace, format: Format) -> Result<(), Failure> {
    print_value(trace, format)
}

fn judge(trace: &Trace, wanted: &Wanted) -> Result<(), Failure> {
    match Outcome::of(trace) {
        Outcome::Arrived => Ok(()),
        Outcome::Dropped => Err(Failure::Shown(1)),
        // The path ends with the same words.
        Outcome::Running | Outcome::Unknown if wanted.picture() == Picture::Path => Err(Failure::Shown(3)),
        Outcome::Running | Outcome::Unknown => {
            let lines = sentences(trace).into_iter().filter(|(outcome, _)| *outcome >= Outcome::Running);
            Err(Failure::Refused(lines.map(|(_, words)| words).collect()))
        }
    }
}

/// Whether every packet ended as it was expected.
fn check(trace: &Trace, expected: &Expectation, wanted: &Wanted) -> Result<(), Failure> {
    let outcome = Outcome::of(trace);
    if outcome >= Outcome::Running {
        return judge(trace, wanted);
    }
    let routes = routes(trace);
    let mut ends = routes.iter().filter(|route| !route.reply);
    let (right, what) = match expected {
        Expectation::Delivered => (outcome == Outcome::Arrived, "delivered".to_owned()),
        Expectation::Dropped => {
            (ends.all(|route| matches!(route.end(), route::End::Dropped(_))), "dropped".to_owned())
        }
        Expectation::Egress(name) => {
            let left = |route: &route::Route<'_>| {
                matches!(route.end(), route::End::Left(_)) && route.text("egress") == Some(name)
            };
            (outcome == Outcome::Arrived && ends.all(left), format!("egress={name}"))
        }
    };
    if right {
        return Ok(());
    }
    let said: Vec<String> = sentences(trace).into_iter().map(|(_, words)| words).collect();
    let _ = writeln!(anstream::stderr(), "expected {what}: {}", said.join("; "));
    Err(Failure::Shown(1))
}
