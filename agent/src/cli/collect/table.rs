//! What was counted, as a table that is drawn again and again.

use std::fmt::Write;
use std::time::Duration;

use podwire_datapath::collect::{Losses, Quantiles, Report};

use super::json::{Moment, ends};
use crate::cli::output;

/// Draws over what it drew before.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// Lines that are on the terminal.
    lines: usize,
}

impl Screen {
    /// The text with what takes the cursor to the beginning of the last one.
    pub(super) fn over(&mut self, text: &str, (width, height): (usize, usize)) -> String {
        // What has left the terminal at the top, or takes two lines of it, cannot be drawn over.
        let shown: Vec<&str> = text.lines().take(height.saturating_sub(1).max(1)).collect();
        let mut out = String::new();
        if self.lines != 0 {
            let _ = write!(out, "\x1b[{}A\r\x1b[J", self.lines);
        }
        for line in &shown {
            out.extend(line.chars().take(width));
            out.push('\n');
        }
        self.lines = shown.len();
        out
    }

    /// What takes the last table away.
    pub(super) fn clear(&mut self) -> String {
        let lines = std::mem::take(&mut self.lines);
        if lines == 0 { String::new() } else { format!("\x1b[{lines}A\r\x1b[J") }
    }
}

/// The table. `before`: the last report, and how long ago that was.
pub(super) fn text(report: &Report, before: Option<(&Report, Duration)>, moment: &Moment<'_>) -> String {
    let header = [
        "KIND",
        "ID",
        "SOURCE",
        "DESTINATION",
        "FRAMES",
        "FRAMES/S",
        "BITS/S",
        "LOST",
        "DUP",
        "LATE",
        "REORD",
        "CUT",
        "LATENCY p50/p99/max",
    ];
    let mut rows = Vec::new();
    for one in &report.sessions {
        let (key, account) = (&one.session.key, &one.account);
        let rates = before.map(|(before, time)| {
            let old = before.sessions.iter().find(|old| old.session.number == one.session.number);
            let (frames, bytes) = old.map_or((0, 0), |old| (old.account.frames, old.account.bytes));
            let per_second = |count: u64| count as f64 / time.as_secs_f64().max(0.001);
            (per_second(account.frames - frames), per_second((account.bytes - bytes) * 8))
        });
        let numbers = |count: u64| if account.numbered { count.to_string() } else { "-".into() };
        rows.push(vec![
            key.kind.to_string(),
            key.id.map_or_else(|| "-".into(), |id| id.to_string()),
            key.source.to_string(),
            key.destination.to_string(),
            account.frames.to_string(),
            rates.map_or_else(|| "-".into(), |(frames, _)| format!("{frames:.0}")),
            rates.map_or_else(|| "-".into(), |(_, bits)| scaled(bits)),
            numbers(account.numbers.lost),
            numbers(account.numbers.duplicates),
            numbers(account.numbers.late),
            numbers(account.numbers.reordered),
            account.truncated.to_string(),
            account.latency.as_ref().map_or_else(|| "-".into(), latency),
        ]);
    }
    let mut text = output::table(&header, rows);
    for one in report.sessions.iter().filter(|one| !one.talkers.is_empty()) {
        let _ = writeln!(text, "\n{}", one.session.key);
        for talker in &one.talkers {
            let (source, destination) = ends(&talker.pair);
            let error = if talker.error == 0 { String::new() } else { format!(" (-{})", talker.error) };
            let _ = writeln!(text, "  {source} > {destination}   {} bytes{error}", talker.bytes);
        }
    }
    let _ = write!(text, "\n{}", foot(report, moment));
    text
}

fn foot(report: &Report, moment: &Moment<'_>) -> String {
    let totals = &report.totals;
    let mut text = format!(
        "{}: {} packets, {} frames, {} delivered in {} s\n",
        moment.source,
        totals.packets,
        totals.frames,
        totals.delivered,
        moment.elapsed.as_secs()
    );
    let parts = &report.fragments;
    let lost_parts = parts.overlaps + parts.malformed + parts.expired + parts.evicted;
    let few = [
        ("not of a tunnel", totals.not_tunnels),
        ("not wanted", totals.unwanted),
        ("packets put together from fragments", parts.packets),
        ("fragments without their packet", lost_parts),
        ("sessions made room for others", totals.evicted),
    ];
    let reasons = report.undecodable.iter().map(|(reason, count)| (reason.as_str(), *count));
    let losses = |losses: &Losses| losses.some().collect::<Vec<_>>();
    let told: Vec<String> = few
        .into_iter()
        .chain(reasons)
        .chain(losses(moment.source_losses))
        .chain(losses(moment.sink_losses))
        .filter(|(_, count)| *count != 0)
        .map(|(what, count)| format!("{what} {count}"))
        .collect();
    if !told.is_empty() {
        let _ = writeln!(text, "{}", told.join(", "));
    }
    text
}

fn latency(way: &Quantiles) -> String {
    if way.ahead != 0 {
        return format!("clock differs: {} frames are ahead", way.ahead);
    }
    [way.p50, way.p99, way.most].map(|time| time_of(Duration::from_nanos(time))).join("/")
}

fn time_of(time: Duration) -> String {
    match time.as_nanos() {
        0..1_000 => format!("{}ns", time.as_nanos()),
        1_000..1_000_000 => format!("{}us", time.as_micros()),
        1_000_000..10_000_000_000 => format!("{}ms", time.as_millis()),
        _ => format!("{}s", time.as_secs()),
    }
}

fn scaled(bits: f64) -> String {
    match bits {
        bits if bits >= 1e9 => format!("{:.2}G", bits / 1e9),
        bits if bits >= 1e6 => format!("{:.2}M", bits / 1e6),
        bits if bits >= 1e3 => format!("{:.1}k", bits / 1e3),
        bits => format!("{bits:.0}"),
    }
}
