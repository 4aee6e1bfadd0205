//! A trace for eyes: hop by hop, a heading for each node, and the verdict in words.

use std::fmt::Write;

use clap::builder::styling::{AnsiColor, Style};

use super::result::{Observation, Trace};
use super::route::{Route, is_single, routes};
use super::verdict::{Outcome, duration, sentences};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const WARN: Style = AnsiColor::Yellow.on_default();

/// The text, with colours that the stream takes out where nobody sees them.
pub fn draw(trace: &Trace) -> String {
    let mut text = String::new();
    let any = |end: &str| if end.is_empty() { "anywhere".to_owned() } else { plain(end) };
    let (source, destination) = (any(&trace.source), any(&trace.destination));
    let packet = packet(trace).map_or_else(String::new, |packet| format!("  {packet}"));
    line(&mut text, &format!("{BOLD}{source} → {destination}{BOLD:#}{packet}"));
    let routes = routes(trace);
    let single = is_single(&routes);
    let width = routes.iter().flat_map(|route| &route.hops).map(|hop| about(hop.seen).chars().count()).max();
    for route in &routes {
        let title = route.title(single);
        if !title.is_empty() {
            line(&mut text, &format!("\n{BOLD}{title}{BOLD:#}"));
        }
        draw_route(&mut text, route, width.unwrap_or(0).min(60));
    }
    line(&mut text, "");
    for (outcome, words) in sentences(trace) {
        let style = style(outcome);
        line(&mut text, &format!("{style}{} {}{style:#}", outcome.symbol(), plain(&words)));
    }
    text
}

fn draw_route(text: &mut String, route: &Route<'_>, width: usize) {
    let mut place = None;
    for hop in &route.hops {
        if place != Some(hop.place) {
            place = Some(hop.place);
            let role = hop.role.map_or_else(String::new, |role| format!(" ({})", plain(role)));
            line(text, &format!("\n{BOLD}{}{BOLD:#}{role}", plain(hop.node)));
        }
        let seen = hop.seen;
        let (symbol, style) = look(seen);
        let component = match &seen.component_info {
            Some(info) => format!("{}/{info}", seen.component),
            None => seen.component.clone(),
        };
        let (component, action, about) = (plain(&component), plain(&seen.action), about(seen));
        let latency = seen.latency_ns.map_or_else(String::new, |ns| format!("{:>8}", signed(ns)));
        line(
            text,
            &format!(
                "  {style}{symbol}{style:#} {component:<18} {style}{action:<22}{style:#} {about:<width$}  {DIM}{latency}{DIM:#}"
            ),
        );
    }
}

fn signed(ns: i64) -> String {
    if ns < 0 { duration(ns) } else { format!("+{}", duration(ns)) }
}

/// Without the blanks at its end, which stand before a style's own end.
fn line(text: &mut String, line: &str) {
    let blank = format!("  {DIM}{DIM:#}");
    let line = line.strip_suffix(&blank).unwrap_or(line).trim_end();
    let _ = writeln!(text, "{line}");
}

/// A symbol says what a colour says.
pub(super) fn look(seen: &Observation) -> (&'static str, Style) {
    match seen.action.as_str() {
        "Dropped" => ("✗", BAD),
        "Delivered" | "ForwardedOutOfNetwork" => ("✓", GOOD),
        "Mirrored" => ("⧉", WARN),
        "Redirected" => ("↪", WARN),
        "Returned" => ("↩", WARN),
        "Received" => ("↓", Style::new()),
        _ => ("→", Style::new()),
    }
}

fn style(outcome: Outcome) -> Style {
    match outcome {
        Outcome::Arrived => GOOD,
        Outcome::Dropped => BAD,
        Outcome::Running | Outcome::Unknown => WARN,
    }
}

/// What else is known, in the order in which it matters.
pub(super) fn about(seen: &Observation) -> String {
    const KEYS: [(&str, &str); 10] = [
        ("pod", ""),
        ("policy", "policy "),
        ("networkPolicy", "network policy "),
        ("egress", "Egress "),
        ("egressIP", "as "),
        ("egressNode", "at "),
        ("translatedSrcIP", "source now "),
        ("translatedDstIP", "destination now "),
        ("tunnelDstIP", "by tunnel to "),
        ("srcPodIP", "from "),
    ];
    let mut parts: Vec<String> = seen.reason.iter().map(|reason| plain(reason)).collect();
    parts.extend(KEYS.iter().filter_map(|(key, words)| Some(format!("{words}{}", plain(seen.text(key)?)))));
    if let Some(ttl) = seen.more.get("ttl").and_then(serde_json::Value::as_u64) {
        parts.push(format!("ttl {ttl}"));
    }
    parts.join(", ")
}

/// `tcp 10.0.0.5:1000 > 10.0.0.6:80, 60 bytes` of the first packet that was captured.
pub(super) fn packet(trace: &Trace) -> Option<String> {
    let packet = trace.packets().next()?;
    let header = packet.transport_header.as_ref();
    let transport = ["tcp", "udp", "sctp", "icmp"]
        .into_iter()
        .find_map(|name| Some((name, header?.get(name).filter(|fields| !fields.is_null())?)));
    let port = |name: &str| {
        let (_, fields) = transport?;
        fields.get(name).and_then(serde_json::Value::as_u64)
    };
    let end = |ip: &Option<String>, port: Option<u64>| {
        let ip = plain(ip.as_deref().unwrap_or("?"));
        match port {
            Some(port) if ip.contains(':') => format!("[{ip}]:{port}"),
            Some(port) => format!("{ip}:{port}"),
            None => ip,
        }
    };
    let number = [(&packet.ip_header, "protocol"), (&packet.ipv6_header, "nextHeader")]
        .into_iter()
        .find_map(|(header, field)| header.as_ref()?[field].as_u64());
    let name = match (transport, number) {
        (Some(("icmp", _)), Some(58)) => "icmpv6".to_owned(),
        (Some((name, _)), _) => name.to_owned(),
        (None, Some(132)) => "sctp".to_owned(),
        (None, Some(number)) => format!("protocol {number}"),
        (None, None) => "packet".to_owned(),
    };
    let length = packet.length.map_or_else(String::new, |length| format!(", {length} bytes"));
    let (source, destination) = (end(&packet.src_ip, port("srcPort")), end(&packet.dst_ip, port("dstPort")));
    Some(format!("{name} {source} > {destination}{length}"))
}

/// What a name can do to a terminal is taken from it.
pub(super) fn plain(text: &str) -> String {
    let harmless = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if harmless(c) { c } else { '\u{fffd}' }).collect()
}
