//! The picture as SVG. In: a trace. Out: a document of its own, from top to bottom, a column for each route; for
//! light and dark, and readable without colours or eyes.

use std::fmt::Write;

use super::{Column, Frame, Look, Picture, Step};
use crate::cli::traceflow::result::Trace;
use crate::cli::traceflow::verdict::Outcome;

/// Pixels of a character of the font at its size, which is one of even width.
const CHARACTER: f64 = 7.3;
/// Characters of a line in a box; the rest is in its title.
const LONGEST: usize = 56;
/// Pixels of a line of text.
const LINE: f64 = 17.0;
/// Pixels between text and the border around it.
const PADDING: f64 = 12.0;
/// Pixels between two boxes, where the arrow is.
const GAP: f64 = 30.0;
/// Pixels between an arrow and what stands at it.
const BESIDE: f64 = 8.0;
/// Pixels around a frame's boxes.
const INSET: f64 = 16.0;
/// Pixels around everything.
const MARGIN: f64 = 20.0;

/// Colours are written out for both: many viewers know no variables, and those without media queries show the
/// light ones.
const STYLE: &str = "
    .paper { fill: #ffffff; }
    text { fill: #1f2328; font: 12px ui-monospace, monospace; }
    .heading { font-weight: bold; }
    .dim { fill: #59636e; }
    .frame { fill: none; stroke: #8c959f; }
    .box { fill: #f6f8fa; stroke: #1f2328; }
    .side .box { stroke-dasharray: 2 3; }
    .good .box { stroke: #1a7f37; stroke-width: 2; }
    .bad .box { stroke: #cf222e; stroke-width: 3; stroke-dasharray: 7 3; }
    .good .action, .arrived { fill: #1a7f37; font-weight: bold; }
    .bad .action, .dropped { fill: #cf222e; font-weight: bold; }
    .arrow { stroke: #1f2328; fill: none; marker-end: url(#head); }
    #head path { fill: #1f2328; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; }
      text { fill: #e6edf3; }
      .dim { fill: #9198a1; }
      .frame { stroke: #6e7681; }
      .box { fill: #161b22; stroke: #e6edf3; }
      .good .box { stroke: #3fb950; }
      .bad .box { stroke: #f85149; }
      .good .action, .arrived { fill: #3fb950; }
      .bad .action, .dropped { fill: #f85149; }
      .arrow { stroke: #e6edf3; }
      #head path { fill: #e6edf3; }
    }
";

/// Draws a trace.
pub fn svg(trace: &Trace) -> String {
    let picture = Picture::of(trace);
    let longest = |texts: &mut dyn Iterator<Item = &str>| {
        texts.map(|text| text.chars().count().min(LONGEST)).max().unwrap_or(0) as f64 * CHARACTER
    };
    let mut body = Body { text: String::new(), y: MARGIN };
    let titles = picture.sentences.iter().map(|(_, words)| words.as_str()).chain([picture.title.as_str()]);
    let head =
        titles.map(|text| text.chars().count()).max().unwrap_or(0) as f64 * CHARACTER + 2.0 * CHARACTER;
    body.line(MARGIN, "heading", &picture.title);
    for (outcome, words) in &picture.sentences {
        let class = match outcome {
            Outcome::Arrived => "arrived",
            Outcome::Dropped => "dropped",
            _ => "dim",
        };
        body.line(MARGIN, class, &format!("{} {words}", outcome.symbol()));
    }
    let (top, mut bottom, mut x) = (body.y + PADDING, body.y, MARGIN);
    for column in &picture.columns {
        let frames = column.frames.iter().map(|frame| frame.title.as_str());
        let lines = column.steps().flat_map(|step| &step.lines).map(String::as_str);
        let boxes = longest(&mut lines.chain(frames).chain([column.title.as_str()])) + 2.0 * PADDING;
        // What stands at an arrow begins in the middle.
        let arrows = longest(&mut column.steps().map(|step| step.arrow.as_str()));
        let width = boxes.max(2.0 * (arrows + BESIDE - INSET));
        body.y = top;
        body.column(column, x, width);
        bottom = bottom.max(body.y);
        x += width + 2.0 * INSET + MARGIN;
    }
    let (width, height) = (x.max(head + 2.0 * MARGIN).ceil(), (bottom + MARGIN).ceil());
    let (title, description) = (escaped(&picture.title), escaped(&picture.verdict()));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-labelledby=\"title description\">\n  <title id=\"title\">{title}</title>\n  <desc id=\"description\">{description}</desc>\n  \
         <style>{STYLE}  </style>\n  <defs>\n    <marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" \
         markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\"/></marker>\n  </defs>\n  \
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n{}</svg>\n",
        body.text
    )
}

/// What is drawn, and how far down.
struct Body {
    text: String,
    y: f64,
}

impl Body {
    fn put(&mut self, text: &str) {
        let _ = writeln!(self.text, "  {text}");
    }

    fn line(&mut self, x: f64, class: &str, text: &str) {
        self.y += LINE;
        let (y, text) = (self.y, escaped(text));
        self.put(&format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"));
    }

    fn column(&mut self, column: &Column, x: f64, width: f64) {
        if !column.title.is_empty() {
            self.line(x + INSET, "heading", &column.title);
            self.y += PADDING;
        }
        let middle = x + INSET + width / 2.0;
        self.step(&column.source, x + INSET, width);
        for frame in &column.frames {
            self.frame(frame, x, width);
        }
        if let Some(destination) = &column.destination {
            self.arrow(middle, GAP, "");
            self.step(destination, x + INSET, width);
        }
    }

    fn frame(&mut self, frame: &Frame, x: f64, width: f64) {
        let middle = x + INSET + width / 2.0;
        self.arrow(middle, GAP, frame.steps.first().map_or("", |step| step.arrow.as_str()));
        let top = self.y;
        self.text.push_str("  <g>\n");
        self.line(x + PADDING, "heading", &shortened(&frame.title));
        self.y += PADDING;
        for (number, step) in frame.steps.iter().enumerate() {
            if number > 0 {
                self.arrow(middle, GAP, &step.arrow);
            }
            self.step(step, x + INSET, width);
        }
        let bottom = self.y + INSET;
        let (height, wide) = (bottom - top, width + 2.0 * INSET);
        self.put(&format!(
            "<rect class=\"frame\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{height:.1}\" rx=\"10\"/>"
        ));
        self.text.push_str("  </g>\n");
        self.y = bottom;
    }

    fn arrow(&mut self, x: f64, length: f64, label: &str) {
        let (from, to) = (self.y, self.y + length);
        self.put(&format!("<path class=\"arrow\" d=\"M{x:.1} {from:.1} V{to:.1}\"/>"));
        if !label.is_empty() {
            let (left, line, label) = (x + BESIDE, from + GAP / 2.0 + 4.0, escaped(&shortened(label)));
            self.put(&format!("<text class=\"dim\" x=\"{left:.1}\" y=\"{line:.1}\">{label}</text>"));
        }
        self.y = to;
    }

    fn step(&mut self, step: &Step, x: f64, width: f64) {
        let height = step.lines.len() as f64 * LINE + PADDING;
        let (y, class, whole) = (self.y, step.look.as_str(), escaped(&step.lines.join(": ")));
        let corner = if step.look == Look::Outer { height / 2.0 } else { 5.0 };
        self.put(&format!("<g class=\"{class}\"><title>{whole}</title>"));
        self.put(&format!(
            "<rect class=\"box\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"{corner:.1}\"/>"
        ));
        for (number, text) in step.lines.iter().enumerate() {
            let class = ["heading", "action"].get(number).copied().unwrap_or("about");
            let (left, text) = (x + PADDING, escaped(&shortened(text)));
            let line = y + LINE * (number + 1) as f64;
            self.put(&format!("<text class=\"{class}\" x=\"{left:.1}\" y=\"{line:.1}\">{text}</text>"));
        }
        self.put("</g>");
        self.y += height;
    }
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// Text in XML 1.0, which has no way to write control characters.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '&' => "&amp;".into(),
            '<' => "&lt;".into(),
            '>' => "&gt;".into(),
            '"' => "&quot;".into(),
            '\'' => "&#39;".into(),
            '\n' => "&#10;".into(),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => "\u{fffd}".into(),
            c => c.to_string(),
        })
        .collect()
}
