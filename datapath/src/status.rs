//! What is in force, and what was counted.

use std::collections::BTreeMap;
use std::time::Duration;

use podwire_core::abi::{
    Direction, EgressCounters, EndpointCounters, GuardCounters, OverlayCounters, PolicyCounters, Reason,
    SessionCounters,
};

use crate::compile::Usage;
use crate::desired::{Engine, SessionOptions, Target};

/// The outcome of an apply.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// The generation in force.
    pub generation: u64,
    /// By endpoint, in the order of the desired state.
    pub endpoints: Vec<EndpointState>,
    /// By session.
    pub sessions: Vec<SessionState>,
    /// How full the tables are.
    pub usage: Vec<Usage>,
    /// What is wrong with return ports, by the port.
    pub return_problems: BTreeMap<String, String>,
    /// By Egress policy, in the order of the desired state.
    pub egresses: Vec<EgressState>,
    /// What is wrong with the overlay, the routes or the address translation; empty when nothing is.
    pub network_problems: Vec<String>,
    /// When to refresh to take down what packets on their way may still need; `None`: nothing waits.
    pub again_in: Option<Duration>,
}

/// An endpoint's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointState {
    /// Its name.
    pub name: String,
    /// Host side of its interface.
    pub interface: String,
    /// `None` while the interface does not exist.
    pub ifindex: Option<u32>,
    /// Whether a program is attached, by [`Direction`].
    pub attached: [bool; 2],
    /// Why not in force as wanted; `None` when it is.
    pub problem: Option<String>,
}

/// A session's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// Its number, stable while the session lives.
    pub session: u32,
    /// Where it goes.
    pub target: Target,
    /// How and how many.
    pub options: SessionOptions,
    /// How its frames are made; never [`Engine::Auto`].
    pub engine: Engine,
    /// Names of the policies that feed it.
    pub policies: Vec<String>,
    /// Why copies are lost at present (device missing, no route), `None` when nothing is known to be wrong.
    pub problem: Option<String>,
}

/// An Egress policy's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressState {
    /// Its name.
    pub name: String,
    /// The number that other nodes know it by.
    pub id: u32,
    /// Why not in force as wanted; `None` when it is.
    pub problem: Option<String>,
}

/// Sums over all CPUs.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// By endpoint name and direction.
    pub endpoints: Vec<(String, Direction, EndpointCounters)>,
    /// By endpoint name: what its guard found.
    pub guards: Vec<(String, GuardCounters)>,
    /// By Egress policy name.
    pub egresses: Vec<(String, EgressCounters)>,
    /// Packets of pods that podwire does not know, held back on their way out of the cluster.
    pub held_packets: u64,
    /// Packets with the mark of an Egress address that is not there, dropped.
    pub unmapped_packets: u64,
    /// Of the overlay: out of it, into it.
    pub overlay: [OverlayCounters; 2],
    /// By session.
    pub sessions: Vec<(u32, Target, SessionCounters)>,
    /// By the name of a mirror or redirect.
    pub policies: Vec<(String, PolicyCounters)>,
    /// Frames that the segmenting device's queue did not take; they are lost to their sessions.
    pub segment_queue_drops: u64,
    /// Packets by reason, for the node, zeros included.
    pub reasons: Vec<(Reason, u64)>,
}

/// Adds the counters of one CPU.
pub(crate) fn sum_endpoint(mut sum: EndpointCounters, row: &EndpointCounters) -> EndpointCounters {
    sum.received_packets += row.received_packets;
    sum.received_bytes += row.received_bytes;
    sum.passed_packets += row.passed_packets;
    sum.passed_bytes += row.passed_bytes;
    sum.redirected_packets += row.redirected_packets;
    sum.redirected_bytes += row.redirected_bytes;
    sum.dropped_packets += row.dropped_packets;
    sum.dropped_bytes += row.dropped_bytes;
    sum.mirrored_packets += row.mirrored_packets;
    sum.mirrored_bytes += row.mirrored_bytes;
    sum
}

/// Adds the counters of one CPU.
pub(crate) fn sum_egress(mut sum: EgressCounters, row: &EgressCounters) -> EgressCounters {
    sum.marked_packets += row.marked_packets;
    sum.marked_bytes += row.marked_bytes;
    sum.forwarded_packets += row.forwarded_packets;
    sum.forwarded_bytes += row.forwarded_bytes;
    for (total, count) in sum.dropped_packets.iter_mut().zip(row.dropped_packets) {
        *total += count;
    }
    sum
}

/// Adds the counters of one CPU.
pub(crate) fn sum_guard(mut sum: GuardCounters, row: &GuardCounters) -> GuardCounters {
    for (total, count) in sum.dropped_packets.iter_mut().zip(row.dropped_packets) {
        *total += count;
    }
    for (total, count) in sum.observed_packets.iter_mut().zip(row.observed_packets) {
        *total += count;
    }
    sum
}

/// Adds the counters of one CPU.
pub(crate) fn sum_session(mut sum: SessionCounters, row: &SessionCounters) -> SessionCounters {
    sum.matched_packets += row.matched_packets;
    sum.matched_bytes += row.matched_bytes;
    sum.sent_packets += row.sent_packets;
    sum.sent_bytes += row.sent_bytes;
    sum.truncated_packets += row.truncated_packets;
    sum.queued_packets += row.queued_packets;
    sum.sampled_out_packets += row.sampled_out_packets;
    sum.handed_packets += row.handed_packets;
    sum.taken_packets += row.taken_packets;
    for (total, count) in sum.lost_packets.iter_mut().zip(row.lost_packets) {
        *total += count;
    }
    sum
}

/// Adds the counters of one CPU.
pub(crate) fn sum_policy(mut sum: PolicyCounters, row: &PolicyCounters) -> PolicyCounters {
    sum.matched_packets += row.matched_packets;
    sum.matched_bytes += row.matched_bytes;
    sum.redirected_packets += row.redirected_packets;
    sum.redirected_bytes += row.redirected_bytes;
    sum.returned_packets += row.returned_packets;
    sum.returned_bytes += row.returned_bytes;
    sum.bypassed_packets += row.bypassed_packets;
    sum.refused_packets += row.refused_packets;
    sum.passed_tool_packets += row.passed_tool_packets;
    sum.probes += row.probes;
    sum.probes_returned += row.probes_returned;
    sum
}
