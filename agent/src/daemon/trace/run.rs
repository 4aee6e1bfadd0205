//! One trace on this node. In: its plan. Out: states, each as something is known, the last one when it is over.

use std::collections::HashSet;
use std::time::Duration;

use podwire_datapath::traceflow::{End, Running, Story, Tracer, end_of};
use podwire_datapath::{Capture, Injector, Observation};
use tokio::time::{Instant, timeout_at};

use super::plan::{Plan, flow};
use super::state::{Phase, State};
use super::view;

/// Between two states that are told: each has all that came before.
const PAUSE: Duration = Duration::from_millis(50);
/// Captured packets that are kept until it is known whether they were dropped, where only those are wanted.
const UNDECIDED: usize = 4096;

/// What a trace needs of its node.
pub struct Here<'a> {
    /// The node's name.
    pub node: &'a str,
    /// Begins traces.
    pub tracer: &'a Tracer,
    /// Sends packets as if a pod had.
    pub injector: &'a Injector,
    /// Names a node by its end of the overlay.
    pub peer: &'a (dyn Fn(std::net::IpAddr) -> Option<String> + Sync),
}

/// A trace under way on this node.
pub struct Local {
    running: Running,
    story: Story,
    plan: Plan,
    data: u32,
    undecided: Vec<Capture>,
}

impl Local {
    /// Begins to look.
    pub fn begin(here: &Here<'_>, plan: Plan, data: u32) -> Result<Self, String> {
        let running = here.tracer.begin(&plan.request).map_err(|error| error.to_string())?;
        Ok(Self { running, story: Story::default(), plan, data, undecided: Vec::new() })
    }

    /// The tag of its packets.
    pub fn tag(&self) -> u8 {
        self.running.tag()
    }

    /// Injects the packet, if there is one, and shows it.
    pub fn inject(&self, here: &Here<'_>, state: &mut State) -> Result<(), String> {
        let Some((packet, ifindex)) = &self.plan.inject else {
            return Ok(());
        };
        let wrong = |error: podwire_datapath::Error| error.to_string();
        let frame = packet.frame(self.tag()).map_err(wrong)?;
        // As the pod would have sent it: without the tag.
        state.captured =
            packet.frame(0).ok().and_then(|frame| view::captured(&frame, self.data)).into_iter().collect();
        here.injector.inject(&frame, *ifindex).map_err(wrong)
    }

    /// The next observation; `None` at the deadline.
    pub async fn next(&mut self) -> Option<Observation> {
        let seen = self.running.next().await?;
        self.story.add(seen.clone());
        Some(seen)
    }

    /// Whether this node has seen enough.
    pub fn is_over(&self) -> bool {
        self.story.is_over(&self.plan.goal)
    }

    /// What this node saw so far.
    pub fn show(&mut self, here: &Here<'_>, state: &mut State) {
        let many = self.plan.goal.packets > 1;
        let result = view::result(here.node, self.plan.role, &self.story, flow(&self.plan), many);
        state.results = result.into_iter().collect();
        if self.plan.inject.is_none() {
            state.captured.extend(view::all_captured(&self.captures(), self.data));
        }
    }

    /// Packets that were captured since the last call. Where only drops are wanted all that match are, and those that
    /// nothing is told of are left out.
    fn captures(&mut self) -> Vec<Capture> {
        let new = self.running.captures();
        if !self.plan.goal.dropped_only {
            return new;
        }
        self.undecided.extend(new);
        let told: HashSet<u32> = self.story.packets().iter().map(|packet| packet.identity).collect();
        let captures = self.undecided.extract_if(.., |capture| told.contains(&capture.identity)).collect();
        let over = self.undecided.len().saturating_sub(UNDECIDED);
        self.undecided.drain(..over);
        captures
    }

    /// Whether another node has a packet now, and where it was sent if that is known.
    pub fn handed_on(&self) -> Option<Option<std::net::IpAddr>> {
        let packets = self.story.packets();
        let last = packets.iter().rfind(|packet| packet.end() == Some(End::HandedOn))?;
        Some(last.observations.iter().filter_map(|seen| seen.tunnel_destination).next_back())
    }

    /// How many packets other nodes have now.
    pub fn handed_on_count(&self) -> usize {
        self.story.packets().iter().filter(|packet| packet.end() == Some(End::HandedOn)).count()
    }

    /// Why it is not over at the deadline.
    pub fn unfinished(&self) -> String {
        let waited = self.plan.request.duration.as_secs();
        let lost = match self.running.lost() {
            0 => String::new(),
            lost => format!("; {lost} observations were lost"),
        };
        let packets = self.story.packets();
        let ended = packets.iter().filter(|packet| packet.end().is_some()).count();
        let last = packets.iter().flat_map(|packet| packet.observations.last()).next_back();
        match last {
            None if self.plan.inject.is_some() => {
                format!("timeout: nothing was seen of the packet within {waited} s{lost}")
            }
            None => format!("timeout: no packet matched within {waited} s{lost}"),
            Some(seen) if self.plan.goal.packets > 1 && end_of(seen).is_some() => {
                let wanted = self.plan.goal.packets;
                format!("timeout: {ended} of {wanted} packets within {waited} s{lost}")
            }
            Some(seen) => {
                let (component, action) = (seen.component.as_str(), seen.action.as_str());
                format!("timeout: last seen after {component} {action}, nothing more within {waited} s{lost}")
            }
        }
    }
}

/// Runs a trace that this node alone sees, to its end. `tell` gets each state.
pub async fn alone(here: Here<'_>, mut local: Local, mut state: State, tell: impl Fn(&State)) -> State {
    state.tag = local.tag();
    if let Err(why) = local.inject(&here, &mut state) {
        return state.failed(why);
    }
    tell(&state);
    // When what was seen since is told.
    let mut due: Option<Instant> = None;
    while !local.is_over() {
        let seen = match due {
            Some(at) => timeout_at(at, local.next()).await,
            None => Ok(local.next().await),
        };
        match seen {
            Ok(Some(_)) => due = due.or_else(|| Some(Instant::now() + PAUSE)),
            Ok(None) => {
                local.show(&here, &mut state);
                let why = local.unfinished();
                return state.failed(why);
            }
            Err(_) => {}
        }
        if due.is_some_and(|at| at <= Instant::now()) {
            local.show(&here, &mut state);
            tell(&state);
            due = None;
        }
    }
    local.show(&here, &mut state);
    match local.handed_on() {
        None => State { phase: Phase::Succeeded, ..state },
        Some(address) => {
            let node = address.map_or_else(
                || "another node".to_owned(),
                |address| match (here.peer)(address) {
                    Some(node) => format!("{node} ({address})"),
                    None => format!("the node at {address}"),
                },
            );
            state.failed(format!(
                "{node} has the packet and does not answer: nodes see each other's traces through the Kubernetes API"
            ))
        }
    }
}
