//! What stages say of a packet that somebody watches. In: what a stage did. Out: a record in a ring, or a count of
//! what did not fit.
//!
//! Nobody watches, as a rule: then a stage pays for one look at `WATCH`.

use aya_ebpf::{bindings::BPF_ANY, helpers::generated as helper};
use podwire_core::{
    abi::{
        Action, Class, Component, Generation, INJECTED, Mode, ObservationCounters, ObservationRow, Reason,
        TraceKey, TraceRow, WatchRow, limits,
    },
    stage::{Copies, Facts, Packet, State, Tables, lowest, trace},
};

use crate::{
    global, held,
    maps::{self, Draft},
    skb::{Skb, to_words},
    tables::{AS_IT_IS, Maps},
};

/// Length of a window of [`WatchRow::drops`] in nanoseconds.
const WINDOW: u64 = 100_000_000;

/// What a stage did.
#[derive(Clone, Copy)]
pub struct Note {
    pub component: Component,
    pub action: Action,
    pub reason: Option<Reason>,
    pub generation: Generation,
    /// The interface of the endpoint that it is about.
    pub ifindex: u32,
    /// The policy that it is about, plus one: a TrafficControl policy or an Egress policy, by component.
    pub policy: u32,
    /// Where it went: an absolute index into `TARGETS`, or for [`Action::MarkedForSnat`] the Egress mark.
    pub number: u32,
}

impl Note {
    #[inline(always)]
    pub const fn new(component: Component, action: Action, generation: Generation, ifindex: u32) -> Self {
        Self { component, action, reason: None, generation, ifindex, policy: 0, number: 0 }
    }

    #[inline(always)]
    pub const fn dropped(component: Component, reason: Reason, generation: Generation, ifindex: u32) -> Self {
        Self { reason: Some(reason), ..Self::new(component, Action::Dropped, generation, ifindex) }
    }

    /// What fits a register: component, action, what comes next, reason plus one, bank.
    #[inline(always)]
    fn word(self, after: u32) -> u32 {
        let reason = match self.reason {
            Some(reason) => reason as u32 + 1,
            None => 0,
        };
        let action = self.action as u32 | after;
        self.component as u32 | action << 8 | reason << 16 | self.generation.bank() << 31
    }
}

const _: () = assert!(Reason::COUNT < 1 << 15);

/// What comes after a note: other stages of podwire; none, so that the packet gets its DSCP value back; none, and a
/// packet that was injected to be seen and no more goes no further.
const GOES_ON: u32 = 0;
const LEAVES: u32 = 1 << 6;
const ENDS: u32 = 1 << 7;
const ACTION: u32 = LEAVES - 1;

/// Whether a packet goes on.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stays {
    Yes,
    /// It was injected to be seen and no more.
    No,
}

/// Whether somebody watches packets like this one.
#[inline(always)]
pub fn is_on(dropped: bool) -> bool {
    let Some(row) = maps::WATCH.get_ptr(0) else {
        return false;
    };
    // SAFETY: a map row; volatile because user space changes it meanwhile.
    let flags = unsafe { core::ptr::read_volatile(&raw const (*row).flags) };
    flags != 0 && (dropped || flags & WatchRow::FLAG_TRACES != 0)
}

/// Flags of what is watched.
#[inline(always)]
pub fn flags() -> u32 {
    maps::WATCH.get(0).map_or(0, |row| row.flags)
}

/// Whether the uplink's egress hook says what leaves by it.
#[inline(always)]
pub fn has_uplink() -> bool {
    flags() & WatchRow::FLAG_UPLINK != 0
}

/// Keeps the end of a packet, whose clone goes on, from looking like a drop.
#[inline(always)]
pub fn went_on(packet: Skb) {
    if is_on(false) {
        packet.set_mark(INJECTED);
    }
}

/// Says what a stage did.
#[inline(always)]
pub fn note(packet: Skb, note: Note) {
    say(packet, note, GOES_ON);
}

/// Says what the last stage did that sees the packet with its tag.
#[inline(always)]
pub fn restore(packet: Skb, note: Note) {
    say(packet, note, LEAVES);
}

/// Says what the last stage of all did, and whether the packet goes on from there.
#[inline(always)]
pub fn end(packet: Skb, note: Note) -> Stays {
    if say(packet, note, ENDS) == ENDED { Stays::No } else { Stays::Yes }
}

/// What [`write`] returns of a packet that goes no further.
const ENDED: u32 = 2;
/// The same of one that gets another DSCP value, which stands eight bits higher; so does [`live::start`].
///
/// [`live::start`]: crate::live::start
pub const DSCP: u32 = 4;
/// The same of one that is told of because it is dropped.
const TELL_ALL: u32 = 8;
/// What [`live::start`](crate::live::start) returns besides of one that comes from another node.
pub const RECEIVED: u32 = 16;
/// Beside a row's flags: nothing is told any more, but what has a tag still loses it.
const OVER: u32 = 1 << 31;
/// The same: it has no tag, and is known by its identity.
const UNTAGGED: u32 = 1 << 30;
/// What stands for the tag of such a packet.
const NO_TAG: u32 = 1 << 8;

#[inline(always)]
fn say(packet: Skb, note: Note, after: u32) -> u32 {
    if !is_on(matches!(note.action, Action::Dropped)) {
        return 0;
    }
    if look(packet) == 0 && !matches!(note.action, Action::Dropped) {
        return 0;
    }
    let told = global::observe(packet.as_raw(), note.word(after), note.ifindex, note.policy, note.number);
    if matches!(note.action, Action::Dropped) && told & TELL_ALL != 0 {
        global::tell_held();
    }
    if after != GOES_ON {
        set_dscp(packet, told);
    }
    told
}

/// Changes the DSCP value if a function said so.
#[inline(always)]
pub fn set_dscp(packet: Skb, told: u32) {
    if told & DSCP != 0 {
        global::set_dscp(packet.as_raw(), told >> 8);
    }
}

/// The tag of a packet if it is traced, else 0.
#[inline(always)]
pub fn tag_of(packet: Skb) -> u8 {
    if is_on(false) { look(packet) as u8 } else { 0 }
}

/// Whether a packet is traced, with a tag or without.
#[inline(always)]
pub fn is_traced(packet: Skb) -> bool {
    is_on(false) && look(packet) != 0
}

/// A packet goes to the host's stack, which may send it anywhere: it goes without its tag, and is known by its identity
/// where podwire sees it again.
#[inline(always)]
pub fn hand_over(packet: Skb) {
    if !is_on(false) || flags() & WatchRow::FLAG_TRANSLATED == 0 {
        return;
    }
    let tag = look(packet);
    if tag != 0 && tag != NO_TAG {
        set_dscp(packet, global::await_untagged());
    }
}

/// Leaves rows for the traced packet of row 0 of `OBSERVATION`. Returns [`DSCP`] and the value that it gets, or 1.
#[inline(always)]
pub fn await_untagged() -> u32 {
    let Some(draft) = maps::OBSERVATION.get_ptr_mut(0) else {
        return 1;
    };
    // SAFETY: a per-CPU row; the program is not interrupted by another one on this CPU's hooks.
    let Draft { key, other, trace, row } = unsafe { &mut *draft };
    if trace.flags & TraceRow::FLAG_TRANSLATED == 0 {
        return 1;
    }
    trace.flags &= !OVER;
    let untagged = key.untagged(row.identity);
    *other = untagged.to_any();
    keep(other, trace);
    *other = untagged.from_any();
    keep(other, trace);
    DSCP | trace.original << 8
}

#[inline(always)]
fn keep(key: &TraceKey, row: &TraceRow) {
    let _ = maps::TRACES.insert(key, row, BPF_ANY as u64);
}

/// Reads a packet and finds its trace, for what is said of it next. Returns its tag, 0 when it is not traced.
#[inline(always)]
fn look(packet: Skb) -> u32 {
    // Other packets may have been looked at meanwhile, and this one may have changed.
    global::parse_frame(packet.as_raw());
    global::find_trace(packet.as_raw())
}

/// Leaves the trace of the packet of row [`AS_IT_IS`] of `FACTS` in row 0 of `OBSERVATION`, with number 0 for none. Returns
/// the packet's tag, 0 when it is not traced.
#[inline(always)]
pub fn find_trace(packet: Skb) -> u32 {
    let (Some(facts), Some(draft)) = (maps::FACTS.get(AS_IT_IS), maps::OBSERVATION.get_ptr_mut(0)) else {
        return 0;
    };
    // SAFETY: a per-CPU row; the program is not interrupted by another one on this CPU's hooks.
    let draft = unsafe { &mut *draft };
    draft.trace.number = 0;
    let copied = packet.mark() != 0 && packet.mark() == Maps.copy_mark();
    let tag = trace::tag(&packet, facts);
    if copied || tag == 0 && flags() & WatchRow::FLAG_TRANSLATED == 0 {
        return 0;
    }
    let now = Maps.now();
    let Some(found) = find(draft, &packet, facts, tag) else {
        return 0;
    };
    draft.trace = *found;
    let has_tag = draft.key.tag & TraceKey::UNTAGGED == 0;
    if !has_tag {
        draft.trace.flags |= UNTAGGED;
    }
    if found.until <= now {
        draft.trace.flags |= OVER;
    }
    draft.row.identity = trace::identity(&packet, facts);
    if has_tag { tag as u32 } else { NO_TAG }
}

/// Says that copies were made, one for each policy.
#[inline(always)]
pub fn mirrored(packet: Skb, copies: &Copies, ifindex: u32) {
    if copies.slots == 0 || !is_on(false) {
        return;
    }
    if look(packet) != 0 {
        let bank = copies.generation.bank();
        global::observe_copies(packet.as_raw(), copies.slots, copies.ruleset, bank, ifindex);
    }
}

/// See [`mirrored`].
#[inline(always)]
pub fn each_copy(packet: Skb, slots: u64, ruleset: u32, bank: u32, ifindex: u32) {
    let note = Note::new(Component::TrafficControl, Action::Mirrored, Generation(bank as u64), ifindex);
    // A capture is nobody's policy.
    let mut rest = slots & !Maps.ruleset(ruleset).map_or(0, |rules| rules.readers);
    for _ in 0..limits::RULESET_POLICIES {
        let Some(rules) = Maps.ruleset(ruleset) else {
            return;
        };
        if rest == 0 {
            return;
        }
        let policy = rules.policies[lowest(rest)] as u32 + 1;
        rest &= rest.wrapping_sub(1);
        global::observe(packet.as_raw(), note.word(GOES_ON), ifindex, policy, 0);
    }
}

/// Writes the record of the packet of row [`AS_IT_IS`] of `FACTS`, if it is traced as row 0 of `OBSERVATION` says, or
/// dropped and watched all the same. Returns [`ENDED`], or [`DSCP`] and the value, or [`TELL_ALL`], or 1.
#[inline(always)]
pub fn write(packet: Skb, word: u32, ifindex: u32, policy: u32, number: u32) -> u32 {
    let (Some(facts), Some(watch), Some(mac)) =
        (maps::FACTS.get(AS_IT_IS), maps::WATCH.get(0), packet.read::<6>(0))
    else {
        return 1;
    };
    if packet.mark() != 0 && packet.mark() == Maps.copy_mark() || is_unguarded(word, ifindex) {
        return 1;
    }
    let Some(draft) = maps::OBSERVATION.get_ptr_mut(0) else {
        return 1;
    };
    // SAFETY: a per-CPU row; the program is not interrupted by another one on this CPU's hooks.
    let Draft { trace, row, .. } = unsafe { &mut *draft };
    let dropped = word >> 8 & ACTION == Action::Dropped as u32;
    let class = if trace.number != 0 {
        Class::Traces
    } else if dropped && watch.flags & WatchRow::FLAG_DROPS != 0 {
        Class::Drops
    } else {
        return 1;
    };
    row.trace = trace.number;
    row.flags = trace.flags & TraceRow::FLAG_REPLY;
    if word >> 8 & (LEAVES | ENDS) != 0 {
        row.flags |= ObservationRow::FLAG_LAST;
    }
    row.time_ns = Maps.now();
    row.mac = mac;
    row.ifindex = ifindex;
    row.component = word & 0xff;
    row.action = word >> 8 & ACTION;
    row.reason = word >> 16 & 0x7fff;
    describe(row, packet, facts);
    point(row, Generation((word >> 31) as u64), policy, number);
    let only_dropped = trace.number != 0 && trace.flags & TraceRow::FLAG_DROPPED_ONLY != 0;
    if trace.flags & OVER != 0 && trace.number != 0 {
        // Too late.
    } else if !only_dropped {
        send(class, row, watch.drops);
    } else if !dropped {
        held::keep(row);
    }
    let tell_all = if only_dropped && dropped { TELL_ALL } else { 1 };
    if trace.number == 0 || word >> 8 & (LEAVES | ENDS) == 0 {
        return tell_all;
    }
    if word >> 8 & ENDS != 0 && trace.flags & TraceRow::FLAG_ENDS != 0 {
        return ENDED;
    }
    if trace.flags & UNTAGGED != 0 {
        return tell_all;
    }
    tell_all | DSCP | trace.original << 8
}

/// Numbers a record and sends it, unless there are too many drops.
#[inline(always)]
pub fn send(class: Class, row: &mut ObservationRow, drops: u32) {
    let Some(counters) = maps::OBSERVATION_COUNTERS.get_ptr_mut(class as u32) else {
        return;
    };
    // SAFETY: as in `write`.
    let counters = unsafe { &mut *counters };
    row.sequence = counters.generated;
    row.lost = counters.lost;
    counters.generated = row.sequence.wrapping_add(1);
    if matches!(class, Class::Drops) && !admit(counters, drops, row.time_ns) {
        counters.suppressed = counters.suppressed.wrapping_add(1);
    } else if !output(class, row) {
        counters.lost = counters.lost.wrapping_add(1);
    }
}

/// Whether the record would say that a guard let a packet go on where there is none.
#[inline(always)]
fn is_unguarded(word: u32, ifindex: u32) -> bool {
    const GUARD: u32 = Component::SpoofGuard as u32 | (Action::Forwarded as u32) << 8;
    if word & 0xffff != GUARD {
        return false;
    }
    let row = Maps.endpoint_slot(ifindex).and_then(|slot| Maps.endpoint(Maps.generation(), slot));
    !row.is_some_and(|row| row.is_guarded())
}

/// The trace of a packet with this tag, or without one where the host's stack has had it: then the key says so.
#[inline(always)]
pub fn find<'a, P: Packet>(draft: &mut Draft, packet: &P, facts: &Facts, tag: u8) -> Option<&'a TraceRow> {
    draft.key = trace::key(facts, tag);
    let tagged = if tag == 0 { None } else { look_up(&draft.key) };
    if tagged.is_some() || flags() & WatchRow::FLAG_TRANSLATED == 0 {
        return tagged;
    }
    draft.key = draft.key.untagged(trace::identity(packet, facts));
    draft.other = draft.key.to_any();
    let moved = look_up(&draft.other);
    if moved.is_some() {
        return moved;
    }
    draft.other = draft.key.from_any();
    look_up(&draft.other)
}

#[inline(always)]
pub fn look_up<'a>(key: &TraceKey) -> Option<&'a TraceRow> {
    // SAFETY: numbers of a row of a preallocated map; what changes meanwhile is the trace's own.
    unsafe { maps::TRACES.get(key) }
}

/// Whether one more fits into the window.
#[inline(always)]
fn admit(counters: &mut ObservationCounters, most: u32, now: u64) -> bool {
    let window = now / WINDOW;
    if counters.window != window {
        counters.window = window;
        counters.in_window = 0;
    }
    counters.in_window = counters.in_window.wrapping_add(1);
    counters.in_window <= most as u64
}

/// What the packet is.
#[inline(always)]
fn describe(row: &mut ObservationRow, packet: Skb, facts: &Facts) {
    row.source = [facts.source.high, facts.source.low];
    row.destination = [facts.destination.high, facts.destination.low];
    row.family = trace::family(facts);
    row.ports = trace::ports(facts);
    row.protocol =
        if matches!(facts.mode, Mode::Other) { facts.ether_type as u32 } else { facts.protocol as u32 };
    row.len = packet.frame_len();
    row.ttl = trace::hops(&packet, facts);
    row.tag = trace::tag(&packet, facts);
    // SAFETY: the helper takes nothing and cannot fail.
    row.cpu = unsafe { helper::bpf_get_smp_processor_id() };
    row.pad = 0;
}

/// Which policy it is about and where it went.
#[inline(always)]
fn point(row: &mut ObservationRow, generation: Generation, policy: u32, number: u32) {
    let egress = row.component == Component::Egress as u32;
    row.policy = match policy.checked_sub(1) {
        Some(policy) if egress => Maps.egress(generation, policy).map_or(0, |row| row.name_hash),
        Some(policy) => Maps.policy(generation, policy).map_or(0, |row| row.name_hash),
        None => 0,
    };
    let (address, family) = there(row.action, generation, number).unwrap_or(([0; 4], 0));
    row.address = address;
    row.address_family = family;
}

/// The address behind a target's number or an Egress mark, and its family.
#[inline(always)]
fn there(action: u32, generation: Generation, number: u32) -> Option<([u32; 4], u32)> {
    if number == 0 {
        return None;
    }
    if action != Action::MarkedForSnat as u32 {
        return Maps.target(number).map(|target| (to_words(target.remote), target.family));
    }
    let shift = Maps.network(generation)?.egress_mark.trailing_zeros() & 31;
    let row = maps::EGRESS_ADDRESSES.get(number >> shift)?;
    Some((to_words(row.bytes), row.family))
}

/// Into the ring. The reader is woken by each record of a trace, which are few; drops can wait.
#[inline(always)]
fn output(class: Class, row: &ObservationRow) -> bool {
    let ring = match class {
        Class::Traces => &raw const maps::OBSERVATIONS,
        Class::Drops => &raw const maps::DROPS,
    };
    let flags = match class {
        Class::Traces => 0,
        Class::Drops => aya_ebpf::bindings::BPF_RB_NO_WAKEUP,
    };
    let data = core::ptr::from_ref(row).cast_mut().cast();
    // SAFETY: the map is a ring buffer; the length is the row's.
    unsafe {
        helper::bpf_ringbuf_output(
            ring.cast_mut().cast(),
            data,
            size_of::<ObservationRow>() as u64,
            flags as u64,
        ) == 0
    }
}
