//! The way to the user-space encapsulator. In: a frame and a session. Out: a record in the ring.
//!
//! For snapshots (a truncated copy without a clone) and for frames that have to be sent in fragments. While
//! nobody reads the ring, callers do without: the datapath must not need the agent.

use aya_ebpf::{bindings::BPF_RB_AVAIL_DATA, helpers::generated as helper};
use podwire_core::{
    abi::{RelayRow, SessionRow, limits},
    stage::{Copies, Counters, Packet, State, Tables, copy, lowest},
};

use crate::{
    maps::{RECORD, RELAY, Record},
    skb::Skb,
    tables::Maps,
};

/// The reader is woken by the record that makes this many bytes wait, and by no other: waking costs more than the
/// record. It looks by itself every few milliseconds.
const WAKE_AT: u64 = 1 << 16;
pub const HEAD: usize = size_of::<RelayRow>();
/// A record's head in the ring, and what its length is rounded to.
pub const RING_HEAD: u64 = 16;
/// Masks that bound lengths; the verifier wants to see them.
pub const FRAME_MASK: u32 = limits::RELAY_FRAME as u32 - 1;
const _: () = assert!(limits::RELAY_FRAME.is_power_of_two());

/// What a record says of its frame.
pub struct About {
    pub session: u32,
    pub bank: u32,
    pub direction: u32,
    pub flow_hash: u32,
    /// Bytes to take.
    pub captured: u32,
    /// The monotonic clock.
    pub now: u64,
}

/// Takes snapshots for these slots. Returns the slots that have to be cloned, because nobody reads the ring.
#[inline(always)]
pub fn snap(frame: Skb, copies: &Copies, slots: u64) -> u64 {
    let now = Maps.now();
    if !Maps.relay_is_alive(now) {
        return slots;
    }
    let Some(rules) = Maps.ruleset(copies.ruleset) else {
        return 0;
    };
    let len = frame.frame_len();
    let mut rest = slots;
    for _ in 0..limits::RULESET_POLICIES {
        if rest == 0 {
            break;
        }
        let slot = lowest(rest);
        rest &= rest.wrapping_sub(1);
        let session = rules.sessions[slot] as u32;
        let Some(row) = Maps.session(copies.generation, session) else {
            continue;
        };
        let captured = if row.truncate < len { row.truncate } else { len };
        let about = About {
            session,
            bank: copies.generation.bank(),
            direction: copies.direction.index(),
            flow_hash: copies.flow_hash,
            captured,
            now,
        };
        let outcome = match record(frame, row, &about) {
            true => copy::Outcome::Handed,
            false => copy::Outcome::Lost(podwire_core::abi::Reason::RingFull),
        };
        if let copy::Outcome::Lost(reason) = outcome {
            Maps.count_reason(reason);
        }
        Maps.count_session(session, |counters| {
            counters.matched(len);
            counters.record(&outcome);
        });
    }
    0
}

/// Writes one record; `false` when the ring is full or the frame is longer than a record can be.
#[inline(always)]
pub fn record(frame: Skb, row: &SessionRow, about: &About) -> bool {
    if about.captured == 0 || about.captured > FRAME_MASK {
        return false;
    }
    let captured = (core::hint::black_box(about.captured - 1) & FRAME_MASK) + 1;
    let Some(record) = RECORD.get_ptr_mut(0) else {
        return false;
    };
    let waiting = waiting();
    if waiting + RING_HEAD + (HEAD as u64) + captured as u64 > limits::RELAY_RING as u64 {
        return false;
    }
    // The number is taken when there is room, so that it is not taken for nothing.
    let sequence = if copy::is_numbered(&row.template) { Maps.next_sequence(about.session) } else { 0 };
    let vlan = frame.vlan().map_or(0, |(protocol, tci)| (protocol as u32) << 16 | tci as u32);
    // SAFETY: a per-CPU row that only one record uses at a time; the length is bounded by the mask.
    unsafe {
        (*record).head = RelayRow {
            timestamp_ns: Maps.wall_clock(about.now),
            session: about.session,
            sequence,
            direction: about.direction,
            flow_hash: about.flow_hash,
            captured,
            original: frame.frame_len(),
            vlan,
            bank: about.bank,
            offset: 0,
            whole: captured,
        };
        if !frame.load_head(&mut (*record).frame, captured) {
            return false;
        }
        output(record, captured, waiting)
    }
}

/// Bytes that wait in the ring.
#[inline(always)]
fn waiting() -> u64 {
    // SAFETY: the map is a ring buffer.
    unsafe { helper::bpf_ringbuf_query((&raw const RELAY).cast_mut().cast(), BPF_RB_AVAIL_DATA as u64) }
}

/// # Safety
/// `record` must hold `captured` bytes of frame, at most [`FRAME_MASK`].
#[inline(always)]
unsafe fn output(record: *mut Record, captured: u32, waiting: u64) -> bool {
    let more = RING_HEAD + HEAD as u64 + captured as u64;
    let flags = if waiting < WAKE_AT && waiting + more >= WAKE_AT {
        aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP
    } else {
        aya_ebpf::bindings::BPF_RB_NO_WAKEUP
    };
    // SAFETY: the caller's promise; the row is longer than the longest record.
    unsafe {
        helper::bpf_ringbuf_output(
            (&raw const RELAY).cast_mut().cast(),
            record.cast(),
            HEAD as u64 + captured as u64,
            flags as u64,
        ) == 0
    }
}
