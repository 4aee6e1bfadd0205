//! A trace as a picture. In: a trace. Out: columns, one for each route, of boxes in the frames of their nodes; the
//! forms draw these.
//!
//! ```text
//!  source ─► [ node: step ─► step ] ─► [ node: step ] ─► destination
//! ```

mod dot;
mod mermaid;
mod svg;
#[cfg(test)]
mod tests;

pub use dot::dot;
pub use mermaid::mermaid;
pub use svg::svg;

use super::path::{about, packet, plain};
use super::result::{Observation, Trace};
use super::route::{End, Route, is_single, routes};
use super::verdict::{Outcome, duration, sentences};

/// What every form draws.
struct Picture {
    title: String,
    /// The verdict, a sentence each.
    sentences: Vec<(Outcome, String)>,
    columns: Vec<Column>,
}

/// One route.
struct Column {
    /// Which packets; empty when there is but one.
    title: String,
    source: Step,
    frames: Vec<Frame>,
    destination: Option<Step>,
}

/// A node.
struct Frame {
    title: String,
    steps: Vec<Step>,
}

/// A box.
struct Step {
    /// Of one picture.
    number: usize,
    lines: Vec<String>,
    look: Look,
    /// What stands at the arrow that leads to it.
    arrow: String,
}

/// How a box is drawn; each also has a symbol or a shape of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// One of both ends.
    Outer,
    /// The packet went on.
    Plain,
    /// A copy, or a way through a tool.
    Side,
    /// The packet arrived.
    Good,
    /// The packet was dropped.
    Bad,
}

impl Look {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Outer => "outer",
            Self::Plain => "plain",
            Self::Side => "side",
            Self::Good => "good",
            Self::Bad => "bad",
        }
    }

    fn of(seen: &Observation) -> Self {
        match seen.action.as_str() {
            "Dropped" => Self::Bad,
            "Delivered" | "ForwardedOutOfNetwork" => Self::Good,
            "Mirrored" | "Redirected" | "Returned" => Self::Side,
            _ => Self::Plain,
        }
    }
}

impl Picture {
    fn of(trace: &Trace) -> Self {
        let routes = routes(trace);
        let single = is_single(&routes);
        let mut next = 0;
        let columns = routes.iter().map(|route| Column::of(trace, route, single, &mut next)).collect();
        let any = |end: &str| if end.is_empty() { "anywhere".to_owned() } else { plain(end) };
        let packet = packet(trace).map_or_else(String::new, |packet| format!(" ({packet})"));
        Self {
            title: format!("{} → {}{packet}", any(&trace.source), any(&trace.destination)),
            sentences: sentences(trace)
                .into_iter()
                .map(|(outcome, words)| (outcome, plain(&words)))
                .collect(),
            columns,
        }
    }

    /// All sentences as one text.
    fn verdict(&self) -> String {
        self.sentences
            .iter()
            .map(|(outcome, words)| format!("{} {words}", outcome.symbol()))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl Column {
    fn of(trace: &Trace, route: &Route<'_>, single: bool, next: &mut usize) -> Self {
        let mut number = || {
            *next += 1;
            *next
        };
        let (from, to) = if route.reply {
            (&trace.destination, &trace.source)
        } else {
            (&trace.source, &trace.destination)
        };
        let mut outer = |end: &str| Step {
            number: number(),
            lines: vec![if end.is_empty() { "anywhere".into() } else { plain(end) }],
            look: Look::Outer,
            arrow: String::new(),
        };
        let source = outer(from);
        let arrived = matches!(route.end(), End::Delivered(_) | End::Left(_));
        let destination = arrived.then(|| outer(to));
        let (mut frames, mut place, mut tunnel): (Vec<Frame>, _, _) = (Vec::new(), None, "");
        for hop in &route.hops {
            if place != Some(hop.place) {
                place = Some(hop.place);
                let role = hop.role.map_or_else(String::new, |role| format!(" ({})", plain(role)));
                frames.push(Frame { title: format!("{}{role}", plain(hop.node)), steps: Vec::new() });
            }
            let first = frames.last().is_some_and(|frame| frame.steps.is_empty());
            let latency = hop.seen.latency_ns.map_or_else(String::new, duration);
            let arrow = match (first, tunnel) {
                (true, tunnel) if !tunnel.is_empty() => {
                    let after = if latency.is_empty() { latency } else { format!(", {latency}") };
                    format!("tunnel to {}{after}", plain(tunnel))
                }
                _ => latency,
            };
            tunnel = hop.seen.text("tunnelDstIP").unwrap_or(tunnel);
            let step = Step { number: number(), lines: lines(hop.seen), look: Look::of(hop.seen), arrow };
            if let Some(frame) = frames.last_mut() {
                frame.steps.push(step);
            }
        }
        Self { title: route.title(single), source, frames, destination }
    }

    /// All boxes in their order.
    fn steps(&self) -> impl Iterator<Item = &Step> {
        let inner = self.frames.iter().flat_map(|frame| &frame.steps);
        std::iter::once(&self.source).chain(inner).chain(&self.destination)
    }
}

/// Stage, action, and what else is known.
fn lines(seen: &Observation) -> Vec<String> {
    let symbol = match Look::of(seen) {
        Look::Bad => "✗ ",
        Look::Good => "✓ ",
        _ => "",
    };
    let stage = match &seen.component_info {
        Some(info) => format!("{}/{info}", seen.component),
        None => seen.component.clone(),
    };
    let about = about(seen);
    let mut lines = vec![plain(&stage), format!("{symbol}{}", plain(&seen.action))];
    lines.extend((!about.is_empty()).then_some(about));
    lines
}
