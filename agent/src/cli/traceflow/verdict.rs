//! The verdict: what became of the packet, in words, and what that means for a script.

use podwire_datapath::core::abi::Reason;

use super::result::Trace;
use super::route::{End, Hop, Route, is_single, routes};

/// What became of a trace, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Every packet was delivered, or left as it should.
    Arrived,
    /// A packet was dropped.
    Dropped,
    /// It has not ended yet.
    Running,
    /// It was not found out.
    Unknown,
}

impl Outcome {
    /// The worst of all routes.
    pub fn of(trace: &Trace) -> Self {
        let running = trace.phase == "Running" || trace.phase.is_empty();
        if trace.phase == "Failed" {
            return Self::Unknown;
        }
        let of = |route: &Route<'_>| match route.end() {
            End::Dropped(_) => Self::Dropped,
            End::Delivered(_) | End::Left(_) => Self::Arrived,
            End::Lost(_) if running => Self::Running,
            End::Lost(_) => Self::Unknown,
        };
        let none = if running { Self::Running } else { Self::Unknown };
        routes(trace).iter().map(of).max().unwrap_or(none)
    }

    /// A symbol that says it without a colour.
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Arrived => "✓",
            Self::Dropped => "✗",
            Self::Running => "…",
            Self::Unknown => "?",
        }
    }
}

/// What became of each route, a sentence each.
pub fn sentences(trace: &Trace) -> Vec<(Outcome, String)> {
    let routes = routes(trace);
    let failed = trace.phase == "Failed";
    let single = is_single(&routes);
    let mut said: Vec<(Outcome, String)> = routes
        .iter()
        .map(|route| {
            let (outcome, words) = sentence(route, failed || trace.phase == "Succeeded");
            let title = match route.title(single) {
                title if title.is_empty() => String::new(),
                title => format!("{}: ", capitalized(&title)),
            };
            (outcome, format!("{title}{words}"))
        })
        .collect();
    if failed {
        let reason = if trace.reason.is_empty() { "no reason is known" } else { &trace.reason };
        said.push((Outcome::Unknown, format!("Failed: {reason}")));
    } else if said.is_empty() && trace.phase == "Succeeded" {
        said.push((Outcome::Unknown, "No packet was seen".into()));
    } else if said.is_empty() {
        said.push((Outcome::Running, "No packet was seen yet".into()));
    }
    said
}

fn sentence(route: &Route<'_>, ended: bool) -> (Outcome, String) {
    let after = match (route.latency_ns(), route.span_ns()) {
        (Some(ns), _) => format!(" after {}", duration(ns)),
        (None, Some(ns)) => format!(" after {} by the nodes' clocks", duration(ns)),
        (None, None) => String::new(),
    };
    let many = if route.packets.len() > 1 { " (the first)" } else { "" };
    match route.end() {
        End::Delivered(hop) => {
            let pod = hop.seen.text("pod").unwrap_or("the pod");
            (Outcome::Arrived, format!("Delivered to {pod} on {}{after}{many}", hop.node))
        }
        End::Left(hop) => {
            let from = match (route.text("egressIP"), route.text("egress")) {
                (Some(ip), Some(egress)) => format!(" as {ip} (Egress {egress})"),
                (Some(ip), None) => format!(" as {ip}"),
                _ => String::new(),
            };
            (Outcome::Arrived, format!("Left the network at {}{from}{after}{many}", hop.node))
        }
        End::Dropped(hop) => (Outcome::Dropped, format!("Dropped by {}", dropped_by(hop))),
        End::Lost(Some(hop)) => {
            let outcome = if ended { Outcome::Unknown } else { Outcome::Running };
            let Hop { node, seen, .. } = hop;
            (outcome, format!("Last seen at {} on {node}: {}", seen.component, seen.action))
        }
        End::Lost(None) => (Outcome::Unknown, "Nothing was seen".into()),
    }
}

fn dropped_by(hop: Hop<'_>) -> String {
    let Hop { node, seen, .. } = hop;
    let policy = ["policy", "egress", "networkPolicy"].into_iter().find_map(|key| seen.text(key));
    let policy = policy.map_or_else(String::new, |name| format!(" ({name})"));
    let reason = match &seen.reason {
        Some(reason) => match meaning(reason) {
            Some(meaning) => format!(": {reason} ({meaning})"),
            None => format!(": {reason}"),
        },
        None => String::new(),
    };
    format!("{}{policy} on {node}{reason}", seen.component)
}

fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

/// `840 ns`, `84 µs`, `1.2 ms`, `3.4 s`: two digits at least.
pub fn duration(ns: i64) -> String {
    let scaled = |unit: f64, name: &str| {
        let value = ns as f64 / unit;
        if value.abs() < 9.95 { format!("{value:.1} {name}") } else { format!("{value:.0} {name}") }
    };
    match ns.unsigned_abs() {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => scaled(1e3, "µs"),
        1_000_000..1_000_000_000 => scaled(1e6, "ms"),
        _ => scaled(1e9, "s"),
    }
}

/// A reason's word in a sentence; `None` for what this version does not know.
pub fn meaning(word: &str) -> Option<&'static str> {
    if word.starts_with("kernel: ") {
        return Some("the host's own stack dropped it");
    }
    let reason = Reason::ALL.iter().find(|reason| reason.as_str() == word)?;
    Some(match reason {
        Reason::Malformed => "its headers are cut short or contradict themselves",
        Reason::NoRoute => "no route leads to where it should go",
        Reason::NeighbourUnknown => "the next hop's address is unknown",
        Reason::TooBig => "it does not fit the path",
        Reason::DeviceMissing => "the target device does not exist",
        Reason::DeviceDown => "the target device is down or refused it",
        Reason::EncapsulationRefused => "the kernel could not put it into the tunnel",
        Reason::MirrorDeviceLost => "the private mirror device is missing or down",
        Reason::SessionMissing => "the session is not in force",
        Reason::CopyOfCopy => "it is a copy that came back",
        Reason::Stray => "it is no copy, and was on the mirror device",
        Reason::EndpointMissing => "the interface belongs to no endpoint",
        Reason::RateLimited => "the session's rate limit was reached",
        Reason::RingFull => "the ring to the encapsulator is full",
        Reason::SendFailed => "the kernel refused to send it",
        Reason::FlowTableFull => "the table of connections is full",
        Reason::TargetDead => "the tool that it is redirected to is dead, and the policy fails closed",
        Reason::ReturnUnknown => "it came back from a tool and nothing is known of its way there",
        Reason::ProbeReturned => "it answers a probe of a dead tool; the original went on without it",
        Reason::DecapsulationRefused => "it cannot be taken out of its tunnel",
        Reason::SpoofedMac => "its source MAC address is not the pod's",
        Reason::SpoofedIp => "its source address is not the pod's",
        Reason::SpoofedArp => "it is ARP in the name of another",
        Reason::SpoofedNdp => "it is neighbour discovery in the name of another, or in fragments",
        Reason::RouterMessage => "pods send no router's messages",
        Reason::DhcpServer => "pods send nothing that DHCP servers send",
        Reason::EtherTypeRefused => "it is neither IPv4 nor IPv6 nor ARP",
        Reason::Unreadable => "its headers cannot be read as far as they have to be judged",
        Reason::NoEgressNode => "the policy's node is not known, or not reached",
        Reason::RateExceeded => "more left under the policy than its bandwidth allows",
        Reason::EgressUnknown => "the node that it came to does not have the policy",
        Reason::TunnelUnknown => "what came by the overlay is none of this cluster's tunnels",
        Reason::OverlaySpoofed => "its source does not belong to the node that sent it",
        Reason::TtlExceeded => "its time to live is up",
        Reason::TraceEnded => "it was injected for a trace that ended there",
        Reason::ReaderMissing => "nobody reads captured frames",
        Reason::ReaderSlow => "whoever captures is too slow",
    })
}
