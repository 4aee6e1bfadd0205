//! Stage admit. In: the slots of the mirrors that match. Out: the slots whose sessions get a copy, each session
//! once. Samples are taken and rates are kept here, before anything is cloned.

use super::packet::{Counters, State, Tables};
use super::verdict::Copies;
use crate::abi::{PolicyCounters, Reason, RulesetRow, SessionRow, limits};

/// Slots that get a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// By a clone.
    pub clones: u64,
    /// By a snapshot.
    pub snaps: u64,
}

/// Number of the lowest bit that is set, below 64.
#[inline(always)]
pub fn lowest(bits: u64) -> usize {
    // The compiler knows the bound and would leave the mask out; the verifier does not.
    (core::hint::black_box(bits.trailing_zeros()) & 63) as usize
}

/// Books every policy that matched a frame of `len` bytes, and leaves out what sessions do not want.
#[inline(always)]
pub fn admit<T: Tables + State + Counters>(copies: &Copies, len: u32, tables: &T) -> Admitted {
    let Some(rules) = tables.ruleset(copies.ruleset) else {
        return Admitted::default();
    };
    let mut rest = copies.slots;
    let mut wanted = copies.slots;
    for _ in 0..limits::RULESET_POLICIES {
        if rest == 0 {
            break;
        }
        let slot = lowest(rest);
        let bit = 1u64 << slot;
        rest &= !bit;
        tables.count_policy(rules.policies[slot] as u32, |row| row.matched(len));
        if wanted & bit != 0 {
            // The others of this session have their copy with this one.
            wanted &= !rules.shares[slot] | bit;
            if rules.limited & bit != 0 && !within_limits(copies, rules, slot, len, tables) {
                wanted &= !bit;
            }
        }
    }
    Admitted { clones: wanted & !rules.snaps, snaps: wanted & rules.snaps }
}

/// Whether the session takes this packet; one that it does not take is booked.
#[inline(always)]
fn within_limits<T: Tables + State + Counters>(
    copies: &Copies,
    rules: &RulesetRow,
    slot: usize,
    len: u32,
    tables: &T,
) -> bool {
    let session = rules.sessions[slot] as u32;
    let Some(row) = tables.session(copies.generation, session) else {
        return true;
    };
    if row.sampling > 1 && !is_sample(copies, row, session, tables) {
        tables.count_session(session, |counters| {
            counters.matched(len);
            counters.sampled_out_packets = counters.sampled_out_packets.wrapping_add(1);
        });
        return false;
    }
    if row.interval != 0 && !tables.pace(session, row.interval, row.burst, tables.now()) {
        tables.count_reason(Reason::RateLimited);
        tables.count_session(session, |counters| {
            counters.matched(len);
            counters.lost(Reason::RateLimited);
        });
        return false;
    }
    true
}

/// One flow, or one packet, in so many. Packets are counted by each CPU for itself; what has no flow is counted
/// by the packet.
#[inline(always)]
fn is_sample<T: Counters>(copies: &Copies, row: &SessionRow, session: u32, tables: &T) -> bool {
    if row.has(SessionRow::FLAG_BY_FLOW) && copies.flow_hash != 0 {
        return copies.flow_hash.is_multiple_of(row.sampling);
    }
    let mut number = 0;
    tables.count_session(session, |counters| number = counters.matched_packets);
    number.is_multiple_of(row.sampling as u64)
}

impl PolicyCounters {
    /// Books a packet of `len` bytes that the rules matched.
    #[inline(always)]
    pub fn matched(&mut self, len: u32) {
        self.matched_packets = self.matched_packets.wrapping_add(1);
        self.matched_bytes = self.matched_bytes.wrapping_add(len as u64);
    }
}
