//! The pipeline: what happens to a packet, in which order, as functions over a few small traits.
//!
//! In: a [`Packet`] and the [`Tables`]. Out: a [`Decision`]. The BPF programs, the reference model of the
//! tests and the fuzz targets run these same functions; only the traits' implementations differ.
//!
//! ```text
//!  pod:       parse ► guard ► classify (► flow) ─► Decision { copies, refused, redirect }
//!  copies:    admit (policy, session, sample, pace) ─► snapshots, clones ─► copy: fit, dress, hand over
//!  redirect:  tried ─► settle ─► Verdict
//!  leave:     parse ► answer ► route ► egress ─► Way, for endpoints whose packets podwire leads
//!  returned:  parse ► trip ─► back to the pod's hook, tagged
//!  arrival:   a tunnelled packet ─► the return port that it came by
//! ```

mod admit;
pub mod answer;
mod arrival;
mod classify;
pub mod copy;
mod flow;
mod guard;
pub mod leave;
mod packet;
mod parse;
mod redirect;
mod tag;
pub mod trace;
mod trip;
mod verdict;

pub use admit::{Admitted, admit, lowest};
pub use arrival::{Arrival, arrival};
pub use classify::{Key, classify, lookup};
pub use flow::{Opener, opener};
pub use guard::{Own, guard, judge};
pub use packet::{Counters, Packet, State, Tables};
pub use parse::{Facts, Fragment, Transport, parse};
pub use redirect::{Attempt, Redirect, settle, settle_refused};
pub use tag::{RETURNING, Tag};
pub use trip::{Returned, link_trip_key, returned, trip_key};
pub use verdict::{Copies, Decision, Verdict};

use crate::abi::{Direction, EndpointRow, Generation, Reason};

/// What the kernel keeps beside a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The host-side interface.
    pub ifindex: u32,
    /// `skb->mark`.
    pub mark: u32,
    /// `skb->tc_index`.
    pub tag: Tag,
}

/// The stages of a pod's hook, in order, up to what is wanted: copies and a redirect.
///
/// The generation is read once, here, and carried along.
#[inline(always)]
pub fn pod<P: Packet, T: Tables + State + Counters>(
    direction: Direction,
    beside: &Beside,
    packet: &P,
    tables: &T,
) -> Decision {
    let Some(slot) = tables.endpoint_slot(beside.ifindex) else {
        tables.count_reason(Reason::EndpointMissing);
        return Decision::PASS;
    };
    let generation = tables.generation();
    let decision = Decision { slot: slot + 1, ..Decision::PASS };
    let Some(row) = tables.endpoint(generation, slot) else {
        return decision;
    };
    let leaves = row.flags & EndpointRow::FLAG_LEAVES != 0 && matches!(direction, Direction::Egress);
    let decision = Decision { leaves, ..decision };
    let ruleset = any_ruleset(row);
    let guarded = row.is_guarded() && matches!(direction, Direction::Egress);
    let asked = row.flags & EndpointRow::FLAG_ANSWERS != 0 && matches!(direction, Direction::Ingress);
    if ruleset.is_none() && !guarded && !asked {
        return decision;
    }
    if beside.mark != 0 && beside.mark == tables.copy_mark() {
        tables.count_reason(Reason::CopyOfCopy);
        return decision;
    }
    let back = beside.tag.is_back();
    if back && matches!(direction, Direction::Egress) {
        // Mirrored before it went to the tool.
        return decision;
    }
    let facts = packet.facts();
    let decision = Decision { is_read: true, ..decision };
    if facts.malformed {
        tables.count_reason(Reason::Malformed);
    }
    if asked && !leave::is_inside(&facts, generation, tables) {
        flow::note_question(beside.ifindex, &facts, tables);
    }
    let refused = if guarded { packet.judge(generation, slot, &facts, tables) } else { None };
    let decision = Decision { refused, ..decision };
    let Some(ruleset) = ruleset else {
        return decision;
    };
    let slots = matching(direction, beside.ifindex, row, &facts, tables);
    let Some(rules) = tables.ruleset(ruleset) else {
        return decision;
    };
    let redirect = if back || refused.is_some() {
        Redirect::NONE
    } else {
        redirect::choose(slots & rules.redirects, rules, beside.tag, generation, tables)
    };
    Decision {
        copies: copies(slots & !rules.redirects, ruleset, direction, generation, &facts),
        redirect,
        ..decision
    }
}

/// The slots of all policies that apply.
#[inline(always)]
fn matching<T: Tables + State + Counters>(
    direction: Direction,
    ifindex: u32,
    row: &EndpointRow,
    facts: &Facts,
    tables: &T,
) -> u64 {
    let own = slots_of(row, direction, facts, tables);
    if row.flags & EndpointRow::FLAG_STATEFUL == 0 {
        return own;
    }
    flow::with_connections(direction, ifindex, row, facts, own, tables)
}

/// The slots that match a packet of this direction.
#[inline(always)]
fn slots_of<T: Tables>(row: &EndpointRow, direction: Direction, facts: &Facts, tables: &T) -> u64 {
    match ruleset_of(row, direction) {
        Some(ruleset) => tables.classify(ruleset, direction, facts),
        None => 0,
    }
}

#[inline(always)]
fn ruleset_of(row: &EndpointRow, direction: Direction) -> Option<u32> {
    match direction {
        Direction::Ingress => row.rulesets[0].checked_sub(1),
        Direction::Egress => row.rulesets[1].checked_sub(1),
    }
}

/// Either rule set: both number their slots alike.
#[inline(always)]
fn any_ruleset(row: &EndpointRow) -> Option<u32> {
    let either = if row.rulesets[0] != 0 { row.rulesets[0] } else { row.rulesets[1] };
    either.checked_sub(1)
}

#[inline(always)]
fn copies(slots: u64, ruleset: u32, direction: Direction, generation: Generation, facts: &Facts) -> Copies {
    Copies {
        slots,
        ruleset,
        generation,
        direction,
        flow_hash: facts.flow_hash(),
        network_offset: facts.network_offset,
        payload_offset: facts.payload_offset,
        ether_type: facts.ether_type,
        protocol: facts.protocol,
    }
}
