//! The private mirror device's egress hook. In: a clone and its `CopyRow`. Out: one dressed copy per session,
//! handed to the device that the kernel's routes name.
//!
//! The clone is this program's own: whatever happens here, the original has gone on. The agent's own frames enter the
//! way of packets here as well.

use aya_ebpf::programs::TcContext;
use podwire_core::{
    abi::{
        CopyRow, CopyState, Direction, Generation, INJECTED, Reason, SegmentMark, SessionKind, SessionRow,
        limits,
    },
    stage::{
        Counters, Packet, Tables,
        copy::{Outcome, largest_for_device},
        lowest,
    },
};

use crate::{
    handover::{self, Job},
    maps, segment,
    skb::{Fit, Skb},
    tables::Maps,
    verdict::{self, DROP},
};

#[inline(always)]
pub fn hook(ctx: &TcContext) -> i32 {
    let frame = Skb::new(ctx);
    let Some(copy) = take() else {
        if frame.mark() == INJECTED {
            return inject(frame);
        }
        Maps.count_reason(Reason::Stray);
        return DROP;
    };
    let Some(ruleset) = Maps.ruleset(copy.ruleset) else {
        return DROP;
    };
    let mut rest = copy.slots;
    let mut last = 0u16;
    for _ in 0..limits::RULESET_POLICIES {
        if rest == 0 {
            break;
        }
        let slot = lowest(rest);
        rest &= rest.wrapping_sub(1);
        last = ruleset.sessions[slot];
        if rest != 0 {
            fan_out(frame, &CopyRow { slots: 1 << slot, ..copy }, last as u32);
        }
    }
    deliver(frame, &copy, last as u32)
}

/// A frame that the agent made, on its way to a pod's hook as if the pod had sent it.
#[inline(always)]
fn inject(frame: Skb) -> i32 {
    let ifindex = frame.priority();
    frame.set_mark(0);
    frame.set_priority(0);
    verdict::to_hook(ifindex, Direction::Egress)
}

/// Takes the row that the pod's hook left for this copy.
#[inline(always)]
fn take() -> Option<CopyRow> {
    let row = maps::COPY.get_ptr_mut(0)?;
    // SAFETY: a per-CPU row; the hand-over that filled it waits for this program.
    let copy = unsafe { core::ptr::read_volatile(row) };
    if copy.state != CopyState::Pending as u32 {
        return None;
    }
    // SAFETY: as above.
    unsafe { (*row).state = CopyState::Idle as u32 };
    Some(copy)
}

/// One more clone for all sessions but the last, through this same program.
#[inline(always)]
fn fan_out(frame: Skb, copy: &CopyRow, session: u32) {
    let len = frame.frame_len();
    let Some(row) = maps::COPY.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: as in `take`; this program is done with the row.
    unsafe { *row = CopyRow { state: CopyState::Pending as u32, ..*copy } };
    let _ = frame.clone_redirect(frame.ifindex());
    // SAFETY: as above.
    let state = unsafe { core::ptr::read_volatile(&raw const (*row).state) };
    if state == CopyState::Pending as u32 {
        // SAFETY: as above.
        unsafe { (*row).state = CopyState::Idle as u32 };
        Maps.count_reason(Reason::MirrorDeviceLost);
        Maps.count_session(session, |row| {
            row.matched(len);
            row.lost(Reason::MirrorDeviceLost);
        });
    }
}

/// Sends the frame itself to one session and books what became of it.
#[inline(always)]
fn deliver(frame: Skb, copy: &CopyRow, session: u32) -> i32 {
    let len = frame.frame_len();
    let mut job = Job { copy: *copy, number: 0, session, truncated: 0 };
    Maps.count_session(session, |row| {
        row.matched(len);
        job.number = row.matched_packets;
    });
    let outcome = match Maps.session(Generation(copy.generation), session) {
        Some(row) if !truncate(frame, copy, row, &mut job) => Outcome::Lost(Reason::TooBig),
        Some(row) if row.kind == SessionKind::Device as u32 => device(frame, copy, row, &mut job),
        Some(row) if row.has(SessionRow::FLAG_SEGMENT) && copy.redirect == 0 => {
            handover::shrink_segments(frame, row.template.overhead() as u32);
            segment::cut_up(frame, SegmentMark::copy(session, copy.direction, job.truncated != 0))
        }
        Some(_) => return handover::order(frame, &job),
        None => Outcome::Lost(Reason::SessionMissing),
    };
    handover::book(copy, session, &outcome);
    DROP
}

/// Cuts the frame to the session's length; a redirected packet stays whole.
#[inline(always)]
fn truncate(frame: Skb, copy: &CopyRow, row: &SessionRow, job: &mut Job) -> bool {
    if row.truncate == 0 || copy.redirect != 0 || frame.frame_len() <= row.truncate {
        return true;
    }
    job.truncated = 1;
    frame.truncate(row.truncate)
}

/// To a device, as it is.
#[inline(always)]
fn device(frame: Skb, copy: &CopyRow, row: &SessionRow, job: &mut Job) -> Outcome {
    match frame.check_mtu(row.ifindex) {
        Fit::Fits => {}
        Fit::DeviceMissing => return Outcome::Lost(Reason::DeviceMissing),
        Fit::TooBig { mtu } => {
            let largest = largest_for_device(copy.network_offset, mtu);
            if frame.frame_len() > largest {
                job.truncated = 1;
                if row.has(SessionRow::FLAG_DROP) || !frame.truncate(largest) {
                    return Outcome::Lost(Reason::TooBig);
                }
            }
        }
    }
    frame.set_mark(Maps.copy_mark());
    handover::give(frame, row.ifindex, job.truncated != 0)
}
