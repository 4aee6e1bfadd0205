//! The private mirror device's egress hook. In: a clone and its `CopyRow`. Out: one dressed copy per session,
//! handed to the device that the kernel's routes name.
//!
//! The clone is this program's own: whatever happens here, the original has gone on.

use aya_ebpf::programs::TcContext;
use podwire_core::{
    abi::{CopyRow, CopyState, Generation, Reason, SessionKind, SessionRow, limits},
    stage::{
        Counters, Packet, Tables,
        copy::{Outcome, largest_for_device},
    },
};

use crate::{
    handover, maps,
    skb::{Fit, Skb},
    tables::Maps,
    verdict::DROP,
};

#[inline(always)]
pub fn hook(ctx: &TcContext) -> i32 {
    let frame = Skb::new(ctx);
    let Some(copy) = take() else {
        Maps.count_reason(Reason::Stray);
        return DROP;
    };
    let Some(ruleset) = Maps.ruleset(copy.ruleset) else {
        return DROP;
    };
    let mut rest = copy.sessions;
    let mut last = 0u16;
    for slot in 0..limits::RULESET_SESSIONS {
        let bit = 1u64 << slot;
        if rest & bit == 0 {
            continue;
        }
        rest &= !bit;
        last = ruleset.sessions[slot];
        if rest == 0 {
            break;
        }
        fan_out(frame, &CopyRow { sessions: bit, ..copy }, last as u32);
    }
    deliver(frame, &copy, last as u32)
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
    let mut number = 0;
    Maps.count_session(session, |row| {
        row.matched(len);
        number = row.matched_packets;
    });
    let (outcome, code) = match Maps.session(Generation(copy.generation), session) {
        Some(row) if row.kind == SessionKind::Device as u32 => (device(frame, copy, row), DROP),
        Some(row) if row.kind == SessionKind::Tunnel as u32 => handover::tunnel(frame, copy, row, number),
        _ => (Outcome::Lost(Reason::SessionMissing), DROP),
    };
    if let Outcome::Lost(reason) = outcome {
        Maps.count_reason(reason);
    }
    Maps.count_session(session, |row| row.record(&outcome));
    code
}

/// To a device, as it is.
#[inline(always)]
fn device(frame: Skb, copy: &CopyRow, row: &SessionRow) -> Outcome {
    let mut truncated = false;
    match frame.check_mtu(row.ifindex) {
        Fit::Fits => {}
        Fit::DeviceMissing => return Outcome::Lost(Reason::DeviceMissing),
        Fit::TooBig { mtu } => {
            let largest = largest_for_device(copy, mtu);
            truncated = frame.frame_len() > largest;
            if truncated && !frame.truncate(largest) {
                return Outcome::Lost(Reason::TooBig);
            }
        }
    }
    frame.set_mark(Maps.copy_mark());
    handover::give(frame, row.ifindex, truncated)
}
