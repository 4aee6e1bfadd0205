//! The picture for graphviz. In: a trace. Out: a digraph with a cluster for each node.

use std::fmt::Write;

use super::{Look, Picture, Step, plain};
use crate::cli::traceflow::result::Trace;

/// Draws a trace.
pub fn dot(trace: &Trace) -> String {
    let picture = Picture::of(trace);
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    line(format!("digraph {} {{", quoted(&plain(&trace.name))));
    let label = format!("{}\n{}", picture.title, picture.verdict());
    line(format!("  graph [label={}, labelloc=t, rankdir=TB, fontname=\"Helvetica\"];", quoted(&label)));
    line("  node [shape=box, style=rounded, fontname=\"Helvetica\"];".into());
    line("  edge [fontname=\"Helvetica\", fontsize=10];".into());
    let mut frame_number = 0;
    for column in &picture.columns {
        for step in std::iter::once(&column.source).chain(&column.destination) {
            line(format!("  {}", node(step, &column.title)));
        }
        for frame in &column.frames {
            frame_number += 1;
            line(format!("  subgraph cluster_{frame_number} {{"));
            line(format!("    label={};", quoted(&frame.title)));
            line("    style=rounded;".into());
            for step in &frame.steps {
                line(format!("    {}", node(step, "")));
            }
            line("  }".into());
        }
        let steps: Vec<&Step> = column.steps().collect();
        for pair in steps.windows(2) {
            if let [from, to] = pair {
                line(format!("  s{} -> s{} [label={}];", from.number, to.number, quoted(&to.arrow)));
            }
        }
    }
    line("}".into());
    out
}

fn node(step: &Step, title: &str) -> String {
    let mut lines = step.lines.clone();
    lines.extend((!title.is_empty()).then(|| title.to_owned()));
    let look = match step.look {
        Look::Outer => ", shape=ellipse, style=solid",
        Look::Plain => "",
        Look::Side => ", style=\"rounded,dotted\"",
        Look::Good => ", color=\"#1a7f37\", fontcolor=\"#1a7f37\"",
        Look::Bad => ", color=\"#cf222e\", fontcolor=\"#cf222e\", style=\"bold,dashed\", shape=octagon",
    };
    format!("s{} [label={}{look}];", step.number, quoted(&lines.join("\n")))
}

/// A quoted string: in it only the quote and the backslash mean something.
fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{text}\"")
}
