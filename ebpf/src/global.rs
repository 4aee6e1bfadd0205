//! Global functions: the verifier looks at each once, with unknown arguments, and skips it where it is called.
//! They take the context and numbers; anything larger comes by a per-CPU row.

use aya_ebpf::bindings::__sk_buff;
use podwire_core::{
    abi::{Direction, Entry, Generation, Reason, limits},
    stage::{self, Copies, Counters, Key, Tables, lowest},
};

use crate::{
    handover, held, live, maps, pod, reader, relay,
    skb::Skb,
    tables::{AS_ASKED, AS_IT_IS, Maps},
    uplink,
    verdict::DROP,
    watch,
};

/// Leaves what the packet is in row [`AS_IT_IS`] of `FACTS`.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn parse_frame(skb: *mut __sk_buff) -> u32 {
    Maps.keep_facts(AS_IT_IS, &stage::parse(&Skb::from_raw(skb)));
    1
}

/// [`stage::judge`] of the packet of row [`AS_IT_IS`] of `FACTS`: the reason plus one, 0 for none.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn judge_frame(skb: *mut __sk_buff, slot: u32, bank: u32) -> u32 {
    let generation = Generation(bank as u64);
    let (Some(facts), Some(row)) = (maps::FACTS.get(AS_IT_IS), Maps.endpoint(generation, slot)) else {
        return 0;
    };
    match stage::judge(slot, row, &Skb::from_raw(skb), facts, &Maps) {
        Some(reason) => reason as u32 + 1,
        None => 0,
    }
}

/// [`stage::opener`] of the packet of row [`AS_IT_IS`] of `FACTS`: a [`stage::Opener`], or [`NOBODY`].
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn flow_opener(ifindex: u32, direction: u32) -> u32 {
    let Some(facts) = maps::FACTS.get(AS_IT_IS) else {
        return NOBODY;
    };
    match stage::opener(Direction::from_index(direction), ifindex, facts, &Maps) {
        Some(opener) => opener.0,
        None => NOBODY,
    }
}

/// What [`flow_opener`] returns when it could not be kept.
pub const NOBODY: u32 = 4;

/// Walks a trie.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn walk_trie(root: u32, high: u64, low: u64) -> u32 {
    stage::lookup(&Maps, Entry(root), Key { high, low }).0
}

/// The slots of a rule set that match the packet of row [`AS_ASKED`] of `FACTS`.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn classify_facts(ruleset: u32, direction: u32) -> u64 {
    match maps::FACTS.get(AS_ASKED) {
        Some(facts) => stage::classify(&Maps, ruleset, Direction::from_index(direction), facts),
        None => 0,
    }
}

/// The slots that get a copy. Their sessions decide how.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn admit_slots(slots: u64, generation: u64, ruleset: u32, flow_hash: u32, len: u32) -> u64 {
    let copies = Copies { slots, generation: Generation(generation), ruleset, flow_hash, ..Copies::NONE };
    let admitted = stage::admit(&copies, len, &Maps);
    admitted.clones | admitted.snaps
}

/// Snapshots for these slots; returns those that have to be cloned. Readers' are never.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn snap_slots(
    skb: *mut __sk_buff,
    slots: u64,
    ruleset: u32,
    bank_and_direction: u32,
    flow_hash: u32,
) -> u64 {
    let Some(rules) = Maps.ruleset(ruleset) else {
        return 0;
    };
    let mut readers = slots & rules.readers;
    let rest = slots & !readers;
    for _ in 0..limits::RULESET_POLICIES {
        if readers == 0 {
            break;
        }
        let slot = lowest(readers);
        readers &= readers.wrapping_sub(1);
        hand_frame(skb, rules.sessions[slot] as u32, bank_and_direction);
    }
    match rest {
        0 => 0,
        rest => relay_slots(skb, rest, ruleset, bank_and_direction, flow_hash),
    }
}

/// [`relay::snap`].
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn relay_slots(
    skb: *mut __sk_buff,
    slots: u64,
    ruleset: u32,
    bank_and_direction: u32,
    flow_hash: u32,
) -> u64 {
    let copies = Copies {
        slots,
        generation: Generation((bank_and_direction & 1) as u64),
        ruleset,
        flow_hash,
        direction: Direction::from_index(bank_and_direction >> 1 & 1),
        ..Copies::NONE
    };
    relay::snap(Skb::from_raw(skb), &copies, slots)
}

/// [`reader::hand`] of the frame to a session's reader.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn hand_frame(skb: *mut __sk_buff, session: u32, bank_and_direction: u32) -> u32 {
    reader::hand(Skb::from_raw(skb), session, bank_and_direction);
    1
}

/// Books copies that never reached the mirror program.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn book_lost(slots: u64, ruleset: u32, len: u32) -> u32 {
    Maps.count_reason(Reason::MirrorDeviceLost);
    let Some(rules) = Maps.ruleset(ruleset) else {
        return 0;
    };
    let mut rest = slots;
    for _ in 0..limits::RULESET_POLICIES {
        if rest == 0 {
            break;
        }
        let slot = lowest(rest);
        rest &= rest.wrapping_sub(1);
        Maps.count_session(rules.sessions[slot] as u32, |row| {
            row.matched(len);
            row.lost(Reason::MirrorDeviceLost);
        });
    }
    1
}

/// [`watch::write`] of the packet of row [`AS_IT_IS`] of `FACTS`.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn observe(skb: *mut __sk_buff, word: u32, ifindex: u32, policy: u32, number: u32) -> u32 {
    watch::write(Skb::from_raw(skb), word, ifindex, policy, number)
}

/// [`held::tell`].
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn tell_held() -> u32 {
    held::tell();
    1
}

/// [`Skb::set_dscp`] of the packet of row [`AS_IT_IS`] of `FACTS`.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn set_dscp(skb: *mut __sk_buff, dscp: u32) -> u32 {
    match maps::FACTS.get(AS_IT_IS) {
        Some(facts) => Skb::from_raw(skb).set_dscp(facts, dscp as u8) as u32,
        None => 0,
    }
}

/// [`watch::find_trace`].
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn find_trace(skb: *mut __sk_buff) -> u32 {
    watch::find_trace(Skb::from_raw(skb))
}

/// [`watch::await_untagged`].
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn await_untagged() -> u32 {
    watch::await_untagged()
}

/// [`live::start`].
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn begin_trace(skb: *mut __sk_buff, block: u32) -> u32 {
    live::start(Skb::from_raw(skb), block)
}

/// [`watch::each_copy`] of the same packet.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn observe_copies(
    skb: *mut __sk_buff,
    slots: u64,
    ruleset: u32,
    bank: u32,
    ifindex: u32,
) -> u32 {
    watch::each_copy(Skb::from_raw(skb), slots, ruleset, bank, ifindex);
    1
}

/// [`pod::remember`].
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn remember_trip(skb: *mut __sk_buff, ifindex: u32, who: u32, returns: u32) -> u32 {
    pod::remember(Skb::from_raw(skb), ifindex, who, returns);
    1
}

/// [`uplink::arrive`]: the program's return code, or [`NOT_OURS`].
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn arrive_frame(skb: *mut __sk_buff) -> i32 {
    uplink::arrive(Skb::from_raw(skb)).unwrap_or(NOT_OURS)
}

/// What [`arrive_frame`] returns for a packet that is none of its business; no program returns it.
pub const NOT_OURS: i32 = 1000;

/// [`handover::tunnel`] with the job of row 0 of `JOB`, and its outcome booked. Returns the program's code.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn send_tunnelled(skb: *mut __sk_buff) -> i32 {
    let Some(job) = maps::JOB.get(0) else {
        return DROP;
    };
    handover::send(Skb::from_raw(skb), job)
}

/// Writes the outer headers of the packet of row 0 of `PACKET` to the scratch row; returns their length.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn fill_headers(session: u32, bank: u32) -> u32 {
    match Maps.session(Generation(bank as u64), session) {
        Some(row) => handover::fill_scratch(row),
        None => 0,
    }
}
