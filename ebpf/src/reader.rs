//! The way to the reader of captured frames. In: a frame and a session. Out: the frame, as far as it is wanted, in the
//! ring `FRAMES`, in one piece or several.
//!
//! A ring of its own: a flood of captured frames takes nothing from the user-space encapsulator's.

use aya_ebpf::{bindings::BPF_RB_AVAIL_DATA, helpers::generated as helper};
use podwire_core::{
    abi::{Generation, Reason, RelayRow, SessionRow, limits},
    stage::{Counters, Packet, State, Tables, copy::Outcome},
};

use crate::{
    maps::{FRAMES, RECORD, Record},
    relay::{FRAME_MASK, HEAD, RING_HEAD},
    skb::Skb,
    tables::Maps,
};

/// The reader is woken by the piece that makes this many bytes wait, and by no other.
const WAKE_AT: u64 = 1 << 17;
const PIECE: u32 = limits::RELAY_FRAME as u32;
const LARGEST: u32 = limits::FRAME_PIECES * PIECE;

/// Hands the frame over and books what became of it. Nobody reads: it is lost, never cloned.
#[inline(always)]
pub fn hand(frame: Skb, session: u32, bank_and_direction: u32) {
    let now = Maps.now();
    let bank = bank_and_direction & 1;
    let outcome = match Maps.session(Generation(bank as u64), session) {
        None => Outcome::Lost(Reason::SessionMissing),
        Some(_) if !Maps.reader_is_alive(now) => Outcome::Lost(Reason::ReaderMissing),
        Some(row) if write(frame, row, session, bank_and_direction, now) => Outcome::Handed,
        Some(_) => Outcome::Lost(Reason::RingFull),
    };
    if let Outcome::Lost(reason) = outcome {
        Maps.count_reason(reason);
    }
    let len = frame.frame_len();
    Maps.count_session(session, |counters| {
        counters.matched(len);
        counters.record(&outcome);
    });
}

/// Writes all pieces; `false` when the ring has no room for all. Pieces without the rest are the reader's to forget.
#[inline(always)]
fn write(frame: Skb, row: &SessionRow, session: u32, bank_and_direction: u32, now: u64) -> bool {
    let Some(record) = RECORD.get_ptr_mut(0) else {
        return false;
    };
    let original = frame.frame_len();
    let wanted = if row.truncate != 0 && row.truncate < original { row.truncate } else { original };
    let whole = if wanted > LARGEST { LARGEST } else { wanted };
    let mut waiting = waiting();
    let pieces = (whole / PIECE + 1) as u64;
    if waiting + pieces * (RING_HEAD + HEAD as u64) + whole as u64 > limits::FRAMES_RING as u64 {
        return false;
    }
    let vlan = frame.vlan().map_or(0, |(protocol, tci)| (protocol as u32) << 16 | tci as u32);
    // SAFETY: a per-CPU row that only one record uses at a time.
    unsafe {
        (*record).head = RelayRow {
            timestamp_ns: Maps.wall_clock(now),
            session,
            sequence: Maps.next_sequence(session),
            direction: bank_and_direction >> 1 & 1,
            flow_hash: 0,
            captured: 0,
            original,
            vlan,
            bank: bank_and_direction & 1,
            offset: 0,
            whole,
        };
    }
    let mut offset = 0;
    for _ in 0..limits::FRAME_PIECES {
        if offset >= whole {
            break;
        }
        // SAFETY: as above.
        match unsafe { piece(frame, record, offset, whole - offset, waiting) } {
            0 => return false,
            written => waiting += written,
        }
        offset += PIECE;
    }
    true
}

/// Writes the piece from `offset` on, of what is `left`; returns the bytes that it takes in the ring, 0 when it has no
/// room.
///
/// # Safety
/// `record` must be the row of `RECORD` with its head filled.
#[inline(always)]
unsafe fn piece(frame: Skb, record: *mut Record, offset: u32, left: u32, waiting: u64) -> u64 {
    let len = if left > PIECE { PIECE } else { left };
    let captured = (core::hint::black_box(len.wrapping_sub(1)) & FRAME_MASK) + 1;
    let size = HEAD as u64 + captured as u64;
    let flags = if waiting < WAKE_AT && waiting + RING_HEAD + size >= WAKE_AT {
        aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP
    } else {
        aya_ebpf::bindings::BPF_RB_NO_WAKEUP
    };
    // SAFETY: the caller's promise; the length is bounded by the mask, and the row is longer than the longest record.
    unsafe {
        (*record).head.captured = captured;
        (*record).head.offset = offset;
        if !frame.load_part(offset, &mut (*record).frame, captured) {
            return 0;
        }
        let ring = (&raw const FRAMES).cast_mut().cast();
        match helper::bpf_ringbuf_output(ring, record.cast(), size, flags as u64) {
            0 => RING_HEAD + size,
            _ => 0,
        }
    }
}

/// Bytes that wait in the ring.
#[inline(always)]
fn waiting() -> u64 {
    // SAFETY: the map is a ring buffer.
    unsafe { helper::bpf_ringbuf_query((&raw const FRAMES).cast_mut().cast(), BPF_RB_AVAIL_DATA as u64) }
}
