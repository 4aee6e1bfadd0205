//! Stage redirect. In: the redirecting policies that match. Out: the first of them, and, once the kernel has
//! answered, what becomes of the packet.

use super::admit::lowest;
use super::packet::{Counters, Tables};
use super::tag::Tag;
use super::verdict::{Decision, Verdict};
use crate::abi::{Direction, Generation, PolicyCounters, PolicyRow, Reason, RulesetRow};

/// Where a packet shall go instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The slot's bit; 0 for no redirect.
    pub slot: u64,
    /// The policy.
    pub policy: u32,
    /// The tool's session.
    pub session: u32,
    /// Where it comes back.
    pub returns: u32,
    /// Whether it is dropped when the tool does not take it.
    pub closed: bool,
}

impl Redirect {
    /// Nowhere.
    pub const NONE: Self = Self { slot: 0, policy: 0, session: 0, returns: 0, closed: false };
}

/// What came of the try.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// There was nothing to try.
    None,
    /// The tool's port has the packet.
    Taken,
    /// It does not, and nothing left the node.
    Failed(Reason),
}

/// The first policy by priority, of those that match.
#[inline(always)]
pub(super) fn choose<T: Tables + Counters>(
    slots: u64,
    rules: &RulesetRow,
    tag: Tag,
    generation: Generation,
    tables: &T,
) -> Redirect {
    if slots == 0 {
        return Redirect::NONE;
    }
    let slot = lowest(slots);
    let (policy, session) = (rules.policies[slot] as u32, rules.sessions[slot] as u32);
    if tag.has_passed(session) {
        tables.count_policy(policy, |row| row.passed_tool_packets = row.passed_tool_packets.wrapping_add(1));
        return Redirect::NONE;
    }
    let (returns, flags) = tables.policy(generation, policy).map_or((0, 0), |row| (row.returns, row.flags));
    Redirect { slot: 1 << slot, policy, session, returns, closed: flags & PolicyRow::FLAG_CLOSED != 0 }
}

/// Books a packet of `len` bytes at its endpoint and its policy, and says what becomes of it.
#[inline(always)]
pub fn settle<T: Counters>(
    direction: Direction,
    len: u32,
    decision: &Decision,
    attempt: Attempt,
    tables: &T,
) -> Verdict {
    let redirect = &decision.redirect;
    let verdict = match attempt {
        Attempt::None => Verdict::Pass,
        Attempt::Taken => Verdict::Taken,
        Attempt::Failed(reason) if redirect.closed => Verdict::Drop(reason),
        Attempt::Failed(_) => Verdict::Pass,
    };
    let verdict = match verdict {
        Verdict::Pass if decision.ended => {
            tables.count_reason(Reason::TraceEnded);
            Verdict::Drop(Reason::TraceEnded)
        }
        other => other,
    };
    if let Attempt::Failed(reason) = attempt {
        tables.count_reason(reason);
    }
    if redirect.slot != 0 {
        tables.count_policy(redirect.policy, |row| row.redirected(len, attempt, redirect.closed));
    }
    // What podwire leads on is booked where its way is known.
    if let Some(slot) = decision.slot.checked_sub(1)
        && !(decision.leaves && matches!(verdict, Verdict::Pass))
    {
        let mirrored = decision.copies.slots != 0;
        tables.count_endpoint(slot, direction, |row| row.record(len, verdict, mirrored));
    }
    verdict
}

/// Books a packet of `len` bytes that is refused, at its endpoint and by its reason.
#[inline(always)]
pub fn settle_refused<T: Counters>(
    direction: Direction,
    len: u32,
    decision: &Decision,
    reason: Reason,
    tables: &T,
) -> Verdict {
    let verdict = Verdict::Drop(reason);
    tables.count_reason(reason);
    if let Some(slot) = decision.slot.checked_sub(1) {
        let mirrored = decision.copies.slots != 0;
        tables.count_endpoint(slot, direction, |row| row.record(len, verdict, mirrored));
    }
    verdict
}

impl PolicyCounters {
    #[inline(always)]
    fn redirected(&mut self, len: u32, attempt: Attempt, closed: bool) {
        self.matched(len);
        match attempt {
            Attempt::None => {}
            Attempt::Taken => {
                self.redirected_packets = self.redirected_packets.wrapping_add(1);
                self.redirected_bytes = self.redirected_bytes.wrapping_add(len as u64);
            }
            Attempt::Failed(_) if closed => self.refused_packets = self.refused_packets.wrapping_add(1),
            Attempt::Failed(_) => self.bypassed_packets = self.bypassed_packets.wrapping_add(1),
        }
    }
}
