//! Packets that become traced. In: a packet at a pod's hook, or out of the overlay. Out: the packet with the tag of its
//! trace, which the last stage that sees it takes off again; and its first bytes, as they were, in a ring.
//!
//! Nobody looks for any, as a rule: then a hook pays for one look at `WATCH`.

use aya_ebpf::{bindings::BPF_ANY, helpers::generated as helper};
use podwire_core::{
    abi::{
        Action, CaptureRow, Component, Direction, Generation, MatchBlock, MatchRow, TraceKey, TraceRow,
        WatchRow, limits,
    },
    stage::{Facts, Packet, State, Tables, trace},
};

use crate::{
    atomic, global, held,
    maps::{self, CAPTURES, Draft, RECORD},
    skb::Skb,
    tables::{AS_IT_IS, Maps},
    watch::{self, Note},
};

/// At a pod's hook.
#[inline(always)]
pub fn begin(packet: Skb, direction: Direction, ifindex: u32) {
    if !watch::is_on(false) || watch::flags() & WatchRow::FLAG_LIVE == 0 {
        return;
    }
    global::parse_frame(packet.as_raw());
    let told = global::begin_trace(packet.as_raw(), MatchBlock::of_hook(ifindex, direction));
    watch::set_dscp(packet, told);
    if matches!(direction, Direction::Ingress) && told & watch::RECEIVED != 0 {
        watch::note(packet, Note::new(Component::Forwarding, Action::Received, Generation(0), ifindex));
    }
}

/// Out of the overlay. `tag`: the DSCP value of the outer header, where nodes put the tag of a traced packet.
#[inline(always)]
pub fn resume(packet: Skb, tag: u8) {
    if tag == 0 || !watch::is_on(false) {
        return;
    }
    global::parse_frame(packet.as_raw());
    let told = global::begin_trace(packet.as_raw(), MatchBlock::of_tag(tag as u32));
    watch::set_dscp(packet, told);
}

/// [`begin`] and [`resume`], of the packet of row [`AS_IT_IS`] of `FACTS`. Returns [`watch::DSCP`] and the tag when the
/// packet gets one, 1 otherwise.
#[inline(always)]
pub fn start(packet: Skb, block: u32) -> u32 {
    held::forget();
    let (Some(facts), Some(draft)) = (maps::FACTS.get(AS_IT_IS), maps::OBSERVATION.get_ptr_mut(0)) else {
        return 1;
    };
    if trace::family(facts) == 0 || packet.mark() != 0 && packet.mark() == Maps.copy_mark() {
        return 1;
    }
    // SAFETY: a per-CPU row; the program is not interrupted by another one on this CPU's hooks.
    let draft = unsafe { &mut *draft };
    let now = Maps.now();
    let own = trace::tag(&packet, facts);
    let arrived = block & MatchBlock::of_tag(0) != 0;
    if arrived {
        draft.key = trace::key(facts, block as u8);
        if go_on(&draft.key, own, now) {
            return tagged(draft.key.tag);
        }
    } else {
        if watch::find(draft, &packet, facts, own).is_some() {
            return 1;
        }
        draft.key = trace::key(facts, 0);
        if answer(draft, own, now) {
            return tagged(draft.key.tag);
        }
    }
    // SAFETY: a row that user space replaces whole.
    let Some(MatchBlock { base, len }) = (unsafe { maps::MATCH_BLOCKS.get(block) }).copied() else {
        return 1;
    };
    let shape = trace::Shape::of(&packet, facts);
    let mut chosen = NONE;
    for number in 0..limits::MATCH_BLOCK {
        if number >= len {
            break;
        }
        let Some(row) = maps::MATCHES.get(base + number) else {
            break;
        };
        // User space writes a row before it is in a block.
        if row.until > now && row.taken < row.count as u64 && trace::matches(row, facts, &shape) {
            chosen = base + number;
            break;
        }
    }
    // The verifier would follow what comes next once for each place in the block.
    let chosen = packet.opaque(chosen);
    let Some(row) = maps::MATCHES.get_ptr_mut(chosen) else {
        return 1;
    };
    if !take(packet, facts, draft, row, own, now, arrived) {
        return 1;
    }
    let received = draft.trace.flags & TraceRow::FLAG_RECEIVED != 0;
    tagged(draft.key.tag) | if received { watch::RECEIVED } else { 0 }
}

/// No row.
const NONE: u32 = u32::MAX;

#[inline(always)]
const fn tagged(tag: u32) -> u32 {
    watch::DSCP | tag << 8
}

/// Goes on with a trace of another node, whose flow is known.
#[inline(always)]
fn go_on(key: &TraceKey, own: u8, now: u64) -> bool {
    let Some(row) = maps::TRACES.get_ptr_mut(key) else {
        return false;
    };
    // SAFETY: numbers of a row of a preallocated map.
    unsafe {
        if (*row).until <= now {
            return false;
        }
        (*row).original = own as u32;
    }
    true
}

/// The answer to a traced packet gets the tag that the row of tag 0 says.
#[inline(always)]
fn answer(draft: &mut Draft, own: u8, now: u64) -> bool {
    let Some(row) = maps::TRACES.get_ptr_mut(draft.key) else {
        return false;
    };
    // SAFETY: as above. Two CPUs at once may trace two answers, which harms nothing.
    let row = unsafe { &mut *row };
    if row.until <= now || row.left == 0 || row.tag == own as u32 {
        return false;
    }
    row.left -= 1;
    draft.trace = *row;
    draft.trace.original = own as u32;
    draft.key.tag = row.tag;
    insert(&draft.key, &draft.trace)
}

/// Makes a packet a traced one, if it is its turn.
#[inline(always)]
fn take(
    packet: Skb,
    facts: &Facts,
    draft: &mut Draft,
    row: *mut MatchRow,
    own: u8,
    now: u64,
    arrived: bool,
) -> bool {
    // SAFETY: a map row; the counts are aligned to eight bytes, and changed by atomic operations alone.
    let row = unsafe { &mut *row };
    // SAFETY: as above.
    let seen = unsafe { atomic::fetch_add(&raw mut row.seen, 1) };
    if row.sampling > 1 && !(seen as u32).is_multiple_of(row.sampling) {
        return false;
    }
    let tag = if row.tag == own as u32 { row.spare } else { row.tag };
    draft.key = trace::key(facts, tag as u8);
    match watch::look_up(&draft.key) {
        Some(old) if old.until > now => {
            if old.number != row.number || old.original != own as u32 {
                // The tag is on its way with packets that leave with another DSCP value.
                return false;
            }
        }
        _ if row.flows >= limits::MATCH_FLOWS => return false,
        _ => row.flows += 1,
    }
    // Other nodes have counted already what they send.
    // SAFETY: as above.
    if !arrived && unsafe { atomic::fetch_add(&raw mut row.taken, 1) } >= row.count as u64 {
        return false;
    }
    draft.trace = TraceRow {
        until: row.until,
        number: row.number,
        flags: row.flags,
        original: own as u32,
        tag,
        left: 0,
        pad: 0,
    };
    if !insert(&draft.key, &draft.trace) {
        return false;
    }
    if row.flags & TraceRow::FLAG_REPLIES != 0 {
        await_answer(draft, tag);
    }
    capture(packet, facts, row, now);
    true
}

/// The next packet of the other direction is the answer.
#[inline(always)]
fn await_answer(draft: &mut Draft, tag: u32) {
    draft.other = draft.key.reversed();
    draft.trace.flags = draft.trace.flags & !TraceRow::FLAG_REPLIES | TraceRow::FLAG_REPLY;
    insert(&draft.other, &draft.trace);
    draft.other.tag = 0;
    (draft.trace.tag, draft.trace.left) = (tag, 1);
    insert(&draft.other, &draft.trace);
}

#[inline(always)]
fn insert(key: &TraceKey, row: &TraceRow) -> bool {
    maps::TRACES.insert(key, row, BPF_ANY as u64).is_ok()
}

/// Keeps the packet's first bytes, for user space. What finds no room is not captured, and traced all the same.
#[inline(always)]
fn capture(packet: Skb, facts: &Facts, row: &MatchRow, now: u64) {
    const MASK: u32 = limits::RELAY_FRAME as u32 - 1;
    let Some(record) = RECORD.get_ptr_mut(0) else {
        return;
    };
    let len = packet.frame_len();
    const MOST: u32 = limits::RELAY_FRAME as u32;
    let wanted = if row.capture < len { row.capture } else { len };
    let wanted = if wanted < MOST { wanted } else { MOST };
    let captured = (core::hint::black_box(wanted.wrapping_sub(1)) & MASK) + 1;
    if wanted == 0 || captured > len {
        return;
    }
    let vlan = packet.vlan().map_or(0, |(protocol, tci)| (protocol as u32) << 16 | tci as u32);
    let head = CaptureRow {
        time_ns: now,
        trace: row.number,
        identity: trace::identity(&packet, facts),
        len,
        captured,
        flags: row.flags,
        vlan,
    };
    // SAFETY: a per-CPU row that one record uses at a time; the length is bounded by the mask.
    unsafe {
        let start = record.cast::<u8>();
        start.cast::<CaptureRow>().write(head);
        let bytes = &mut *start.add(size_of::<CaptureRow>()).cast::<[u8; limits::RELAY_FRAME]>();
        if packet.load_head(bytes, captured) {
            let len = size_of::<CaptureRow>() as u64 + captured as u64;
            helper::bpf_ringbuf_output((&raw const CAPTURES).cast_mut().cast(), record.cast(), len, 0);
        }
    }
}

const _: () = assert!(size_of::<CaptureRow>() <= size_of::<podwire_core::abi::RelayRow>());
