//! What stages say of a packet that somebody watches. In: what a stage did. Out: a record in a ring, or a count of
//! what did not fit.
//!
//! Nobody watches, as a rule: then a stage pays for one look at `WATCH`.

use aya_ebpf::helpers::generated as helper;
use podwire_core::{
    abi::{
        Action, Class, Component, Generation, Mode, ObservationCounters, ObservationRow, Reason, TraceKey,
        TraceRow, WatchRow, limits,
    },
    stage::{Copies, Facts, Packet, State, Tables, lowest, trace},
};

use crate::{
    global,
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

    /// What fits a register: component, action, reason plus one, bank.
    #[inline(always)]
    fn word(self) -> u32 {
        let reason = match self.reason {
            Some(reason) => reason as u32 + 1,
            None => 0,
        };
        self.component as u32 | (self.action as u32) << 8 | reason << 16 | self.generation.bank() << 31
    }
}

const _: () = assert!(Reason::COUNT < 1 << 15);

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

/// Says what a stage did.
#[inline(always)]
pub fn note(packet: Skb, note: Note) {
    if !is_on(matches!(note.action, Action::Dropped)) {
        return;
    }
    // Other packets may have been looked at meanwhile, and this one may have changed.
    global::parse_frame(packet.as_raw());
    global::observe(packet.as_raw(), note.word(), note.ifindex, note.policy, note.number);
}

/// Says that copies were made, one for each policy.
#[inline(always)]
pub fn mirrored(packet: Skb, copies: &Copies, ifindex: u32) {
    if copies.slots == 0 || !is_on(false) {
        return;
    }
    global::parse_frame(packet.as_raw());
    global::observe_copies(packet.as_raw(), copies.slots, copies.ruleset, copies.generation.bank(), ifindex);
}

/// See [`mirrored`].
#[inline(always)]
pub fn each_copy(packet: Skb, slots: u64, ruleset: u32, bank: u32, ifindex: u32) {
    let note = Note::new(Component::TrafficControl, Action::Mirrored, Generation(bank as u64), ifindex);
    let mut rest = slots;
    for _ in 0..limits::RULESET_POLICIES {
        let Some(rules) = Maps.ruleset(ruleset) else {
            return;
        };
        if rest == 0 {
            return;
        }
        let policy = rules.policies[lowest(rest)] as u32 + 1;
        rest &= rest.wrapping_sub(1);
        global::observe(packet.as_raw(), note.word(), ifindex, policy, 0);
    }
}

/// Writes the record of a packet whose facts are in row [`AS_IT_IS`] of `FACTS`, if it is traced, or dropped and
/// watched all the same.
#[inline(always)]
pub fn write(packet: Skb, word: u32, ifindex: u32, policy: u32, number: u32) {
    let (Some(facts), Some(watch), Some(mac)) =
        (maps::FACTS.get(AS_IT_IS), maps::WATCH.get(0), packet.read::<6>(0))
    else {
        return;
    };
    if packet.mark() != 0 && packet.mark() == Maps.copy_mark() || is_unguarded(word, ifindex) {
        return;
    }
    let Some(draft) = maps::OBSERVATION.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: a per-CPU row; the program is not interrupted by another one on this CPU's hooks.
    let Draft { key, row } = unsafe { &mut *draft };
    let now = Maps.now();
    let tag = trace::tag(&packet, facts);
    *key = trace::key(facts, tag);
    let traced = if tag != 0 { find(key, now) } else { 0 };
    let dropped = word >> 8 & 0xff == Action::Dropped as u32;
    let class = match traced {
        0 if dropped && watch.flags & WatchRow::FLAG_DROPS != 0 => Class::Drops,
        0 => return,
        _ => Class::Traces,
    };
    let Some(counters) = maps::OBSERVATION_COUNTERS.get_ptr_mut(class as u32) else {
        return;
    };
    // SAFETY: as above.
    let counters = unsafe { &mut *counters };
    let sequence = counters.generated;
    counters.generated = sequence.wrapping_add(1);
    if matches!(class, Class::Drops) && !admit(counters, watch.drops, now) {
        counters.suppressed = counters.suppressed.wrapping_add(1);
        return;
    }
    row.time_ns = now;
    row.mac = mac;
    row.sequence = sequence;
    row.lost = counters.lost;
    row.trace = traced;
    row.ifindex = ifindex;
    row.component = word & 0xff;
    row.action = word >> 8 & 0xff;
    row.reason = word >> 16 & 0x7fff;
    describe(row, packet, facts, tag);
    point(row, Generation((word >> 31) as u64), policy, number);
    if !output(class, row) {
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

/// The trace's number, 0 for none.
#[inline(always)]
fn find(key: &TraceKey, now: u64) -> u32 {
    // SAFETY: the row is replaced whole, never changed in place.
    match unsafe { maps::TRACES.get(key) } {
        Some(TraceRow { until, number, .. }) if *until > now => *number,
        _ => 0,
    }
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
fn describe(row: &mut ObservationRow, packet: Skb, facts: &Facts, tag: u8) {
    row.source = [facts.source.high, facts.source.low];
    row.destination = [facts.destination.high, facts.destination.low];
    row.family = trace::family(facts);
    row.ports = trace::ports(facts);
    row.protocol =
        if matches!(facts.mode, Mode::Other) { facts.ether_type as u32 } else { facts.protocol as u32 };
    row.len = packet.frame_len();
    row.ttl = trace::hops(&packet, facts);
    row.tag = tag;
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
