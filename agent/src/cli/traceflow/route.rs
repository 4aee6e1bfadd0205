//! Routes: what became of each packet. In: a trace's results. Out: for each packet and direction its hops in the
//! order of the path, equal routes once, and how each ended.

use super::result::{Observation, Trace};

/// What one or more packets went through.
#[derive(Clone, Debug)]
pub struct Route<'a> {
    /// Their numbers, from 1 on.
    pub packets: Vec<u64>,
    /// Whether they are answers.
    pub reply: bool,
    /// Every observation, node by node; of the first of these packets.
    pub hops: Vec<Hop<'a>>,
}

/// An observation and where it was made.
#[derive(Clone, Copy, Debug)]
pub struct Hop<'a> {
    /// Index in the trace's results.
    pub place: usize,
    /// The node.
    pub node: &'a str,
    /// What it is on the path.
    pub role: Option<&'a str>,
    /// What was seen.
    pub seen: &'a Observation,
}

/// How a route ended.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// In a pod.
    Delivered(Hop<'a>),
    /// Out of the cluster.
    Left(Hop<'a>),
    /// Nowhere, for a reason.
    Dropped(Hop<'a>),
    /// That is not known; this is the last that is.
    Lost(Option<Hop<'a>>),
}

impl<'a> Route<'a> {
    /// How it ended.
    pub fn end(&self) -> End<'a> {
        let ends = |action: &str| self.hops.iter().rev().find(|hop| hop.seen.action == action).copied();
        // A copy or a redirected packet may be seen after; what ended it is said once.
        if let Some(hop) = ends("Dropped") {
            End::Dropped(hop)
        } else if let Some(hop) = ends("Delivered") {
            End::Delivered(hop)
        } else if let Some(hop) = ends("ForwardedOutOfNetwork") {
            End::Left(hop)
        } else {
            End::Lost(self.hops.last().copied())
        }
    }

    /// Nanoseconds from the first hop to the last, where each step is known.
    pub fn latency_ns(&self) -> Option<i64> {
        let steps: Option<Vec<i64>> = self.hops.iter().skip(1).map(|hop| hop.seen.latency_ns).collect();
        steps.filter(|steps| !steps.is_empty()).map(|steps| steps.iter().sum()).filter(|sum| *sum >= 0)
    }

    /// Nanoseconds between the first hop's time and the last one's, which may be by two clocks.
    pub fn span_ns(&self) -> Option<i64> {
        let time = |hop: &Hop<'_>| humantime::parse_rfc3339(hop.seen.text("time")?).ok();
        let (first, last) = (time(self.hops.first()?)?, time(self.hops.last()?)?);
        i64::try_from(last.duration_since(first).ok()?.as_nanos()).ok().filter(|ns| *ns > 0)
    }

    /// An observation's text, the first of the route that has it.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.hops.iter().find_map(|hop| hop.seen.text(key))
    }

    /// `packet 3`, `packets 1, 3-7`, `answer`; empty when there is but one packet.
    pub fn title(&self, single: bool) -> String {
        let what = if self.reply { "answer" } else { "packet" };
        match self.packets.as_slice() {
            _ if single && self.reply => what.to_owned(),
            _ if single => String::new(),
            [one] => format!("{what} {one}"),
            many => format!("{what}s {}", ranges(many)),
        }
    }

    fn is_alike(&self, other: &Self) -> bool {
        let key = |hop: &Hop<'a>| {
            let seen = hop.seen;
            (hop.place, &seen.component, &seen.component_info, &seen.action, &seen.reason, seen.text("pod"))
        };
        self.reply == other.reply
            && self.hops.len() == other.hops.len()
            && self.hops.iter().map(key).eq(other.hops.iter().map(key))
    }
}

/// All routes: packets first, answers after, equal ones as one.
pub fn routes(trace: &Trace) -> Vec<Route<'_>> {
    let all = || {
        trace.results.iter().enumerate().flat_map(|(place, result)| {
            let (node, role) = (result.node.as_str(), result.role.as_deref());
            result.observations.iter().map(move |seen| Hop { place, node, role, seen })
        })
    };
    let number = |hop: &Hop<'_>| hop.seen.packet.unwrap_or(1);
    let mut routes: Vec<Route<'_>> = Vec::new();
    for reply in [false, true] {
        let of_direction: Vec<Hop<'_>> = all().filter(|hop| hop.seen.is_reply() == reply).collect();
        let mut numbers: Vec<u64> = of_direction.iter().map(number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for packet in numbers {
            let mut hops: Vec<Hop<'_>> =
                of_direction.iter().filter(|hop| number(hop) == packet).copied().collect();
            let shares = |hop: &Hop<'_>| {
                trace
                    .results
                    .get(hop.place)
                    .is_some_and(|result| result.observations.iter().any(|seen| !seen.is_reply()))
            };
            // Results in the order of the packet's path have the answer's the other way round.
            if reply && hops.iter().all(shares) {
                hops.sort_by_key(|hop| std::cmp::Reverse(hop.place));
            }
            let route = Route { packets: vec![packet], reply, hops };
            match routes.iter_mut().find(|other| other.is_alike(&route)) {
                Some(other) => other.packets.push(packet),
                None => routes.push(route),
            }
        }
    }
    routes
}

/// Whether there is but one packet, and no more than one answer to it.
pub fn is_single(routes: &[Route<'_>]) -> bool {
    routes.iter().filter(|route| !route.reply).count() <= 1
        && routes.iter().all(|route| route.packets.len() == 1)
}

/// `1, 3-7` of numbers in their order.
fn ranges(numbers: &[u64]) -> String {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let part = |(first, last): &(u64, u64)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.iter().map(part).collect::<Vec<_>>().join(", ")
}
