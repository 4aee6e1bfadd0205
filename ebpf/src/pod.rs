//! An endpoint's hook, both directions. In: a packet. Out: the packet, untouched, and at most one clone of it
//! to the private mirror device.

use aya_ebpf::programs::TcContext;
use podwire_core::{
    abi::{CopyState, Direction, Reason, limits},
    stage::{self, Copies, Counters, Packet, Tables},
};

use crate::{maps, skb::Skb, tables::Maps, verdict};

#[inline(always)]
pub fn hook(ctx: &TcContext, direction: Direction) -> i32 {
    let packet = Skb::new(ctx);
    packet.pull_headers();
    let decision = stage::pod(direction, packet.ifindex(), packet.mark(), &packet, &Maps);
    #[cfg(feature = "log")]
    aya_log_ebpf::trace!(
        ctx,
        "interface {} direction {} length {} sessions {:x}",
        packet.ifindex(),
        direction.as_str(),
        packet.frame_len(),
        decision.copies.sessions
    );
    if decision.copies.sessions != 0 {
        clone(packet, &decision.copies);
    }
    verdict::code(decision.verdict)
}

/// Hands one clone to the mirror program, which runs before this returns. All sessions share the clone: the
/// kernel un-shares the original's head after each, which costs more than the clone itself.
#[inline(always)]
fn clone(packet: Skb, copies: &Copies) {
    let len = packet.frame_len();
    let mirror_ifindex = maps::CONFIG.get(0).map_or(0, |row| row.mirror_ifindex);
    let Some(row) = maps::COPY.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: a per-CPU row, used by one hand-over at a time: a nested one is over before the next begins.
    unsafe { *row = copies.row() };
    // What the hand-over returns does not say whether the mirror program ran; the row's state does.
    let _ = packet.clone_redirect(mirror_ifindex);
    // SAFETY: as above; volatile because the mirror program has changed it meanwhile.
    let state = unsafe { core::ptr::read_volatile(&raw const (*row).state) };
    if state == CopyState::Pending as u32 {
        // SAFETY: as above.
        unsafe { (*row).state = CopyState::Idle as u32 };
        lost(copies, len);
    }
}

/// Books copies that never reached the mirror program.
#[inline(always)]
fn lost(copies: &Copies, len: u32) {
    Maps.count_reason(Reason::MirrorDeviceLost);
    for slot in 0..limits::RULESET_SESSIONS {
        if copies.sessions >> slot & 1 != 0 {
            let Some(ruleset) = Maps.ruleset(copies.ruleset) else {
                return;
            };
            Maps.count_session(ruleset.sessions[slot] as u32, |row| {
                row.matched(len);
                row.lost(Reason::MirrorDeviceLost);
            });
        }
    }
}
