//! The device that cuts super-packets up: its far end. In: frames that the kernel has cut to size, checksums
//! complete. Out: each, dressed and numbered, to its session's target.
//!
//! The near end has neither segmentation nor checksum offload, so the kernel does both before the frame
//! crosses. What a piece needs to know travels in its mark.

use aya_ebpf::programs::TcContext;
use podwire_core::{
    abi::{CopyRow, Direction, Reason, SegmentMark},
    stage::{Copies, Counters, Packet, Tables, copy::Outcome},
};

use crate::{
    global,
    handover::{self, Job},
    maps,
    skb::Skb,
    tables::Maps,
    verdict::DROP,
};

/// Sends a frame to the near end. It is taken, or it is lost and the caller books it.
#[inline(always)]
pub fn cut_up(frame: Skb, mark: SegmentMark) -> Outcome {
    let ifindex = maps::CONFIG.get(0).map_or(0, |row| row.segment_ifindex);
    frame.set_mark(mark.0);
    match frame.clone_redirect(ifindex) {
        Ok(()) => Outcome::Handed,
        Err(_) => Outcome::Lost(Reason::MirrorDeviceLost),
    }
}

#[inline(always)]
pub fn hook(ctx: &TcContext) -> i32 {
    let frame = Skb::new(ctx);
    frame.pull_headers();
    let mark = SegmentMark(frame.mark());
    if !mark.is_ours() {
        Maps.count_reason(Reason::Stray);
        return DROP;
    }
    frame.set_mark(0);
    if mark.is_arrival() {
        let code = global::arrive_frame(frame.as_raw());
        return if code == global::NOT_OURS { DROP } else { code };
    }
    let session = mark.session();
    let mut job = Job { copy: copy(frame, mark), number: 0, session, truncated: mark.is_truncated() as u32 };
    Maps.count_session(session, |row| {
        row.taken_packets = row.taken_packets.wrapping_add(1);
        job.number = row.taken_packets;
    });
    handover::order(frame, &job)
}

/// What the pod's hook would say of the piece.
#[inline(always)]
fn copy(frame: Skb, mark: SegmentMark) -> CopyRow {
    let facts = frame.facts();
    let copies = Copies {
        slots: 0,
        ruleset: 0,
        generation: Maps.generation(),
        direction: Direction::from_index(mark.direction()),
        flow_hash: facts.flow_hash(),
        network_offset: facts.network_offset,
        payload_offset: facts.payload_offset,
        ether_type: facts.ether_type,
        protocol: facts.protocol,
    };
    copies.row(0)
}
