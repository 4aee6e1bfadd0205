//! The maps as the stages see them.

use podwire_core::{
    abi::{
        ChunkRow, Direction, EndpointCounters, Entry, Generation, PrefixRow, Reason, RulesetRow,
        SessionCounters, SessionRow, SpanRow, limits,
    },
    stage::{self, Counters, Key, Tables},
};

use crate::maps;

/// A trie walk as a global function: the verifier checks those once, with unknown arguments, and skips them
/// where they are called.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn walk_trie(root: u32, high: u64, low: u64) -> u32 {
    stage::lookup(&Maps, Entry(root), Key { high, low }).0
}

/// All maps of this node.
pub struct Maps;

impl Tables for Maps {
    #[inline(always)]
    fn generation(&self) -> Generation {
        // Volatile: one load per packet, whatever the compiler would like.
        match maps::CONFIG.get_ptr(0) {
            // SAFETY: the map's only row; 8-byte aligned, so user space's store is seen whole.
            Some(row) => Generation(unsafe { core::ptr::read_volatile(&raw const (*row).generation) }),
            None => Generation(0),
        }
    }

    #[inline(always)]
    fn copy_mark(&self) -> u32 {
        maps::CONFIG.get(0).map_or(0, |row| row.copy_mark)
    }

    #[inline(always)]
    fn endpoint_slot(&self, ifindex: u32) -> Option<u32> {
        let stored = if ifindex < limits::DIRECT_INTERFACES {
            *maps::INTERFACES.get(ifindex)?
        } else {
            // SAFETY: the row is a number that user space replaces whole.
            *unsafe { maps::FAR_INTERFACES.get(ifindex) }?
        };
        stored.checked_sub(1)
    }

    #[inline(always)]
    fn endpoint_ruleset(&self, generation: Generation, slot: u32, direction: Direction) -> Option<u32> {
        let row = maps::ENDPOINTS.get(generation.bank() * limits::ENDPOINTS + slot)?;
        let index = match direction {
            Direction::Ingress => row.rulesets[0],
            Direction::Egress => row.rulesets[1],
        };
        index.checked_sub(1)
    }

    #[inline(always)]
    fn ruleset(&self, index: u32) -> Option<&RulesetRow> {
        maps::RULESETS.get(index)
    }

    #[inline(always)]
    fn node(&self, index: u32, byte: u8) -> Option<Entry> {
        maps::NODES.get(index).map(|row| Entry(row[byte as usize]))
    }

    #[inline(always)]
    fn prefix(&self, index: u32) -> Option<&PrefixRow> {
        maps::PREFIXES.get(index)
    }

    #[inline(always)]
    fn chunk(&self, index: u32) -> Option<&ChunkRow> {
        maps::CHUNKS.get(index)
    }

    #[inline(always)]
    fn span(&self, index: u32) -> Option<&SpanRow> {
        maps::SPANS.get(index)
    }

    #[inline(always)]
    fn walk(&self, root: Entry, key: Key) -> Entry {
        Entry(walk_trie(root.0, key.high, key.low))
    }

    #[inline(always)]
    fn session(&self, generation: Generation, session: u32) -> Option<&SessionRow> {
        if session >= limits::SESSIONS {
            return None;
        }
        maps::SESSIONS.get(generation.bank() * limits::SESSIONS + session)
    }
}

impl Counters for Maps {
    #[inline(always)]
    fn count_endpoint(&self, slot: u32, direction: Direction, change: impl FnOnce(&mut EndpointCounters)) {
        if let Some(row) = maps::ENDPOINT_COUNTERS.get_ptr_mut(slot * 2 + direction.index()) {
            // SAFETY: a per-CPU row; the program is not interrupted by another one on this CPU's hook.
            change(unsafe { &mut *row });
        }
    }

    #[inline(always)]
    fn count_session(&self, session: u32, change: impl FnOnce(&mut SessionCounters)) {
        if let Some(row) = maps::SESSION_COUNTERS.get_ptr_mut(session) {
            // SAFETY: as above.
            change(unsafe { &mut *row });
        }
    }

    #[inline(always)]
    fn count_reason(&self, reason: Reason) {
        if let Some(row) = maps::REASON_COUNTERS.get_ptr_mut(reason.index() as u32) {
            // SAFETY: as above.
            unsafe { *row = (*row).wrapping_add(1) };
        }
    }
}
