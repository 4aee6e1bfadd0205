//! The maps as the stages see them.

use aya_ebpf::helpers::generated as helper;
use podwire_core::{
    abi::{
        ChunkRow, Direction, EgressCounters, EgressRow, EndpointCounters, EndpointRow, Entry, EntryKind,
        FlowKey, FlowRow, Generation, GuardCounters, NetworkRow, PolicyCounters, PolicyRow, PrefixRow,
        Reason, RulesetRow, SessionCounters, SessionRow, SpanRow, TargetRow, TripKey, TripRow, TunnelKey,
        limits,
    },
    stage::{Counters, Facts, Key, Opener, State, Tables},
};

use crate::{atomic, global, maps};

/// Row of `FACTS` with what the packet is.
pub const AS_IT_IS: u32 = 0;
/// Row of `FACTS` with what the classifier is asked about: the same, or the packet that opened the connection.
pub const AS_ASKED: u32 = 1;

/// All maps of this node.
pub struct Maps;

impl Maps {
    /// Leaves what the packet is in a row of `FACTS`: as it is in [`AS_IT_IS`], as the classifier shall see it in
    /// [`AS_ASKED`].
    #[inline(always)]
    pub fn keep_facts(&self, row: u32, facts: &Facts) {
        if let Some(row) = maps::FACTS.get_ptr_mut(row) {
            // SAFETY: a per-CPU row.
            unsafe { *row = *facts };
        }
    }

    /// Number of the return port behind an interface.
    #[inline(always)]
    pub fn return_port(&self, ifindex: u32) -> Option<u32> {
        // SAFETY: a number that is replaced whole.
        unsafe { maps::RETURN_PORTS.get(ifindex) }.copied()
    }

    /// Number of the return port behind a tunnel.
    #[inline(always)]
    pub fn return_tunnel(&self, key: &TunnelKey) -> Option<u32> {
        // SAFETY: a number that is replaced whole.
        unsafe { maps::RETURN_TUNNELS.get(key) }.copied()
    }

    /// The node's clock in nanoseconds since 1970, at a time of the monotonic clock.
    #[inline(always)]
    pub fn wall_clock(&self, now: u64) -> u64 {
        now.wrapping_add(maps::CLOCK.get(0).map_or(0, |offset| *offset))
    }

    /// Whether the user-space encapsulator looked at its ring within the last second.
    #[inline(always)]
    pub fn relay_is_alive(&self, now: u64) -> bool {
        looked_of_late(1, now)
    }

    /// Whether the reader of captured frames did.
    #[inline(always)]
    pub fn reader_is_alive(&self, now: u64) -> bool {
        looked_of_late(2, now)
    }

    /// The next number of a session: one count for all CPUs.
    #[inline(always)]
    pub fn next_sequence(&self, session: u32) -> u32 {
        match maps::SEQUENCES.get_ptr_mut(session) {
            // SAFETY: a map row, 8-byte aligned, touched by atomic operations only.
            Some(row) => unsafe { atomic::fetch_add(row, 1) as u32 },
            None => 0,
        }
    }

    /// Remembers a flow that goes away. Written only when that changes something: a write takes a lock.
    #[inline(always)]
    pub fn set_trip(&self, key: &TripKey, row: &TripRow) {
        // SAFETY: the row is only compared; what another CPU writes meanwhile is the same or is overwritten.
        if unsafe { maps::TRIPS.get(key) } == Some(row) {
            return;
        }
        let _ = maps::TRIPS.insert(key, row, 0);
    }

    /// Whether a dead target may be tried with a packet now; at most ten times a second.
    #[inline(always)]
    pub fn probe_is_due(&self, session: u32) -> bool {
        const PERIOD: u64 = 100_000_000;
        let Some(row) = maps::LIVE.get_ptr_mut(session) else {
            return false;
        };
        let now = self.now();
        // SAFETY: plain numbers; two CPUs at once probe twice, which harms nothing.
        unsafe {
            if now < (*row).probe_at {
                return false;
            }
            (*row).probe_at = now + PERIOD;
            (*row).pad = 1;
        }
        true
    }
}

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
    fn endpoint(&self, generation: Generation, slot: u32) -> Option<&EndpointRow> {
        maps::ENDPOINTS.get(generation.bank() * limits::ENDPOINTS + slot)
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
        // Most fields of most rules are not looked at; a call costs more than this comparison.
        if matches!(root.kind(), EntryKind::Row | EntryKind::Any) {
            return root;
        }
        Entry(global::walk_trie(root.0, key.high, key.low))
    }

    #[inline(always)]
    fn classify(&self, ruleset: u32, direction: Direction, facts: &Facts) -> u64 {
        self.keep_facts(AS_ASKED, facts);
        global::classify_facts(ruleset, direction.index())
    }

    #[inline(always)]
    fn policy(&self, generation: Generation, policy: u32) -> Option<&PolicyRow> {
        if policy >= limits::POLICIES {
            return None;
        }
        maps::POLICIES.get(generation.bank() * limits::POLICIES + policy)
    }

    #[inline(always)]
    fn live(&self, session: u32) -> u32 {
        maps::LIVE.get(session).map_or(0, |row| row.state)
    }

    #[inline(always)]
    fn network(&self, generation: Generation) -> Option<&NetworkRow> {
        maps::NETWORK.get(generation.bank())
    }

    #[inline(always)]
    fn target(&self, index: u32) -> Option<&TargetRow> {
        maps::TARGETS.get(index)
    }

    #[inline(always)]
    fn egress(&self, generation: Generation, policy: u32) -> Option<&EgressRow> {
        if policy >= limits::EGRESSES {
            return None;
        }
        maps::EGRESSES.get(generation.bank() * limits::EGRESSES + policy)
    }

    #[inline(always)]
    fn egress_id(&self, id: u32) -> Option<u32> {
        // SAFETY: a number that is replaced whole.
        unsafe { maps::EGRESS_IDS.get(id) }.copied()
    }

    #[inline(always)]
    fn session(&self, generation: Generation, session: u32) -> Option<&SessionRow> {
        if session >= limits::SESSIONS {
            return None;
        }
        maps::SESSIONS.get(generation.bank() * limits::SESSIONS + session)
    }
}

impl State for Maps {
    #[inline(always)]
    fn now(&self) -> u64 {
        // SAFETY: the helper takes nothing.
        unsafe { helper::bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn flow(&self, key: &FlowKey) -> Option<FlowRow> {
        // SAFETY: copied out; a torn read mixes two times of one connection.
        unsafe { maps::FLOWS.get(key) }.copied()
    }

    #[inline(always)]
    fn touch_flow(&self, key: &FlowKey, row: &FlowRow) {
        if let Some(old) = maps::FLOWS.get_ptr_mut(key) {
            // SAFETY: as above.
            unsafe { *old = *row };
        }
    }

    #[inline(always)]
    fn open_flow(&self, key: &FlowKey, row: &FlowRow) -> bool {
        maps::FLOWS.insert(key, row, 0).is_ok()
    }

    #[inline(always)]
    fn opener(&self, direction: Direction, ifindex: u32, _: &Facts) -> Option<Opener> {
        match global::flow_opener(ifindex, direction.index()) {
            global::NOBODY => None,
            opener => Some(Opener(opener)),
        }
    }

    #[inline(always)]
    fn trip(&self, key: &TripKey) -> Option<TripRow> {
        // SAFETY: copied out.
        unsafe { maps::TRIPS.get(key) }.copied()
    }

    #[inline(always)]
    fn take_probe(&self, session: u32) -> bool {
        let Some(row) = maps::LIVE.get_ptr_mut(session) else {
            return false;
        };
        // SAFETY: plain numbers.
        unsafe {
            let waiting = (*row).pad != 0;
            (*row).pad = 0;
            waiting
        }
    }

    #[inline(always)]
    fn pace(&self, session: u32, interval: u64, burst: u64, now: u64) -> bool {
        const TRIES: usize = 4;
        let Some(row) = maps::PACES.get_ptr_mut(session) else {
            return true;
        };
        for _ in 0..TRIES {
            // SAFETY: a map row, 8-byte aligned.
            let at = unsafe { core::ptr::read_volatile(row) };
            if at > now + burst {
                return false;
            }
            let next = if at > now { at } else { now } + interval;
            // SAFETY: as above.
            if unsafe { atomic::compare_exchange(row, at, next) } == at {
                return true;
            }
        }
        false
    }
}

#[inline(always)]
fn looked_of_late(row: u32, now: u64) -> bool {
    const SECOND: u64 = 1_000_000_000;
    maps::CLOCK.get(row).is_some_and(|last| now.wrapping_sub(*last) < SECOND)
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
    fn count_guard(&self, slot: u32, change: impl FnOnce(&mut GuardCounters)) {
        if let Some(row) = maps::GUARD_COUNTERS.get_ptr_mut(slot) {
            // SAFETY: as above.
            change(unsafe { &mut *row });
        }
    }

    #[inline(always)]
    fn count_egress(&self, policy: u32, change: impl FnOnce(&mut EgressCounters)) {
        if let Some(row) = maps::EGRESS_COUNTERS.get_ptr_mut(policy) {
            // SAFETY: as above.
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
    fn count_policy(&self, policy: u32, change: impl FnOnce(&mut PolicyCounters)) {
        if let Some(row) = maps::POLICY_COUNTERS.get_ptr_mut(policy) {
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
