//! The picture as a mermaid flow chart. In: a trace. Out: a chart with a subgraph for each node.

use std::fmt::Write;

use super::{Look, Picture, Step};
use crate::cli::traceflow::result::Trace;

/// Draws a trace.
pub fn mermaid(trace: &Trace) -> String {
    let picture = Picture::of(trace);
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    line("flowchart TB".into());
    line(format!("  accTitle: {}", directive(&picture.title)));
    line(format!("  accDescr: {}", directive(&picture.verdict())));
    let verdict: Vec<String> = picture.verdict().lines().map(escaped).collect();
    line(format!("  verdict[\"{}\"]", verdict.join("<br/>")));
    let mut frame_number = 0;
    for column in &picture.columns {
        line(format!("  {}", node(&column.source, &column.title)));
        for frame in &column.frames {
            frame_number += 1;
            line(format!("  subgraph n{frame_number}[\"{}\"]", escaped(&frame.title)));
            frame.steps.iter().for_each(|step| line(format!("    {}", node(step, ""))));
            line("  end".into());
        }
        if let Some(destination) = &column.destination {
            line(format!("  {}", node(destination, &column.title)));
        }
        let steps: Vec<&Step> = column.steps().collect();
        for pair in steps.windows(2) {
            let [from, to] = pair else { continue };
            let label =
                if to.arrow.is_empty() { String::new() } else { format!("|\"{}\"|", escaped(&to.arrow)) };
            line(format!("  s{} -->{label} s{}", from.number, to.number));
        }
    }
    line("  classDef good stroke:#1a7f37,stroke-width:2px".into());
    line("  classDef bad stroke:#cf222e,stroke-width:3px,stroke-dasharray:6 3".into());
    line("  classDef side stroke-dasharray:2 2".into());
    for look in [Look::Good, Look::Bad, Look::Side] {
        let steps = picture.columns.iter().flat_map(super::Column::steps);
        let names: Vec<String> =
            steps.filter(|step| step.look == look).map(|step| format!("s{}", step.number)).collect();
        if !names.is_empty() {
            line(format!("  class {} {}", names.join(","), look.as_str()));
        }
    }
    out
}

fn node(step: &Step, title: &str) -> String {
    let mut lines: Vec<String> = step.lines.iter().map(|line| escaped(line)).collect();
    lines.extend((!title.is_empty()).then(|| escaped(title)));
    let label = lines.join("<br/>");
    let (open, close) = match step.look {
        Look::Outer => ("([", "])"),
        Look::Bad => ("{{", "}}"),
        _ => ("[", "]"),
    };
    format!("s{}{open}\"{label}\"{close}", step.number)
}

/// Whatever means something to mermaid, or to the HTML and Markdown that it makes of a label, by its number.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '"' | '#' | '&' | '<' | '>' | ';' | '`' | '\\' | '*' | '_' | '[' | ']' | '{' | '}' | '|'
            | '%' | '$' => {
                format!("#{};", u32::from(c))
            }
            c if c.is_control() => " ".into(),
            c => c.to_string(),
        })
        .collect()
}

/// Such a line ends where the line does, and has no escapes; a semicolon or a comment ends it as well.
fn directive(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' => ' ',
            ';' | '%' | '{' | '}' | '#' => ',',
            c if c.is_control() => ' ',
            c => c,
        })
        .collect()
}
