//! The pipeline: what happens to a packet, in which order, as functions over two small traits.
//!
//! In: a [`Packet`] and the [`Tables`]. Out: a [`Decision`]. The BPF programs, the reference model of the
//! tests and the fuzz targets run these same functions; only the traits' implementations differ.
//!
//! ```text
//!  parse ► classify ► mirror ─► Decision { verdict, copies }
//!                        copies ─► (private mirror device) ─► copy: fit, dress, hand over
//! ```

mod classify;
pub mod copy;
mod packet;
mod parse;
mod verdict;

pub use classify::{Key, classify, lookup};
pub use packet::{Counters, Packet, Tables};
pub use parse::{Facts, Transport, parse};
pub use verdict::{Copies, Decision, Verdict};

use crate::abi::{Direction, Generation, Reason};

/// The stages of a pod's hook, in order, for a packet on the host-side interface `ifindex`.
///
/// `mark` is the packet's `skb->mark`. The generation is read once, here, and carried along.
#[inline(always)]
pub fn pod<P: Packet, T: Tables + Counters>(
    direction: Direction,
    ifindex: u32,
    mark: u32,
    packet: &P,
    tables: &T,
) -> Decision {
    let Some(slot) = tables.endpoint_slot(ifindex) else {
        tables.count_reason(Reason::EndpointMissing);
        return Decision::PASS;
    };
    let generation = tables.generation();
    let copies = mirror(direction, slot, generation, mark, packet, tables);
    let decision = Decision { verdict: Verdict::Pass, copies };
    tables.count_endpoint(slot, direction, |row| row.record(packet.frame_len(), &decision));
    decision
}

/// Which sessions want a copy of this packet.
#[inline(always)]
fn mirror<P: Packet, T: Tables + Counters>(
    direction: Direction,
    slot: u32,
    generation: Generation,
    mark: u32,
    packet: &P,
    tables: &T,
) -> Copies {
    let Some(ruleset) = tables.endpoint_ruleset(generation, slot, direction) else {
        return Copies::NONE;
    };
    if mark != 0 && mark == tables.copy_mark() {
        tables.count_reason(Reason::CopyOfCopy);
        return Copies::NONE;
    }
    let facts = parse(packet);
    if facts.malformed {
        tables.count_reason(Reason::Malformed);
    }
    Copies {
        sessions: classify(tables, ruleset, direction, &facts),
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
