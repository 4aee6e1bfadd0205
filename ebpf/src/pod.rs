//! An endpoint's hook, both directions. In: a packet. Out: the packet, untouched, and its copies; or, redirected,
//! nothing, when a tool's port has taken it.
//!
//! What the pod sent is mirrored before it goes to a tool; what the pod will receive, after it came back.

use aya_ebpf::programs::TcContext;
use podwire_core::{
    abi::{
        Action, Component, CopyRow, CopyState, Direction, Generation, Liveness, Reason, SessionKind,
        SessionRow, TripRow, limits,
    },
    stage::{
        self, Attempt, Copies, Counters, Decision, Packet, Redirect, Tables, Verdict,
        copy::{Outcome, largest_for_device},
        lowest,
    },
};

use crate::{
    global, handover, leave, live, maps, returned,
    skb::Skb,
    tables::{AS_IT_IS, Maps},
    verdict,
    watch::{self, Note, Stays},
};

#[inline(always)]
pub fn hook(ctx: &TcContext, direction: Direction) -> i32 {
    let packet = Skb::new(ctx);
    packet.pull_headers();
    #[cfg(feature = "log")]
    aya_log_ebpf::trace!(
        ctx,
        "interface {} direction {} length {}",
        packet.ifindex(),
        direction.as_str(),
        packet.frame_len()
    );
    let (verdict, next) = stages(packet, direction, packet.ifindex());
    if let Next::Leave { mirrored, is_read } = next {
        leave::go(ctx, mirrored, is_read);
        // Without the next program the host's stack has the packet, as it would have without podwire.
    }
    match verdict {
        Verdict::Taken => watch::went_on(packet),
        Verdict::Pass if matches!(direction, Direction::Egress) => watch::hand_over(packet),
        _ => {}
    }
    verdict::code(verdict)
}

/// What comes after a pod's hook.
#[derive(Clone, Copy)]
pub enum Next {
    /// Whatever else is there.
    Other,
    /// podwire's own [`leave`], which books the packet.
    Leave {
        /// Whether copies were made.
        mirrored: bool,
        /// Whether what was read of it still stands in `FACTS`: other packets passed hooks meanwhile when it was
        /// copied or tried to be redirected.
        is_read: bool,
    },
}

/// What becomes of a packet at the interface of an endpoint, and what comes next.
#[inline(always)]
pub fn stages(packet: Skb, direction: Direction, ifindex: u32) -> (Verdict, Next) {
    let beside = returned::beside(packet, direction, ifindex);
    if matches!(direction, Direction::Ingress) {
        live::begin(packet, direction, ifindex);
    }
    let mut decision = stage::pod(direction, &beside, &packet, &Maps);
    let len = packet.frame_len();
    if beside.tag.is_back() {
        packet.set_tag(beside.tag.passed());
    }
    let attempt = match direction {
        Direction::Egress => {
            // Copies are made before the tag is put on, and after it is taken off.
            mirror(packet, &decision.copies, len);
            if !beside.tag.is_back() {
                live::begin(packet, direction, ifindex);
            }
            watch::mirrored(packet, &decision.copies, ifindex);
            if let Some(reason) = decision.refused {
                watch::note(packet, Note::dropped(Component::SpoofGuard, reason, Generation(0), ifindex));
                return (stage::settle_refused(direction, len, &decision, reason, &Maps), Next::Other);
            }
            if !beside.tag.is_back() {
                let note = Note::new(Component::SpoofGuard, Action::Forwarded, Generation(0), ifindex);
                watch::note(packet, note);
            }
            let attempt = redirect(packet, direction, &decision, ifindex);
            tell(packet, &decision.redirect, decision.copies.generation, attempt, ifindex);
            attempt
        }
        Direction::Ingress => {
            let attempt = redirect(packet, direction, &decision, ifindex);
            tell(packet, &decision.redirect, decision.copies.generation, attempt, ifindex);
            let stays = match attempt {
                Attempt::None => true,
                Attempt::Taken => false,
                Attempt::Failed(_) => !decision.redirect.closed,
            };
            if stays {
                watch::mirrored(packet, &decision.copies, ifindex);
                let note = Note::new(Component::Forwarding, Action::Delivered, Generation(0), ifindex);
                decision.ended = watch::end(packet, note) == Stays::No;
                mirror(packet, &decision.copies, len);
            } else {
                decision.copies.slots = 0;
            }
            attempt
        }
    };
    let verdict = stage::settle(direction, len, &decision, attempt, &Maps);
    let next = match verdict {
        Verdict::Pass if decision.leaves => {
            let mirrored = decision.copies.slots != 0;
            let alone = !mirrored && decision.redirect.slot == 0;
            Next::Leave { mirrored, is_read: decision.is_read && alone }
        }
        _ => Next::Other,
    };
    (verdict, next)
}

/// Says what came of a redirect.
#[inline(always)]
fn tell(packet: Skb, redirect: &Redirect, generation: Generation, attempt: Attempt, ifindex: u32) {
    let (action, reason) = match attempt {
        Attempt::None => return,
        Attempt::Taken => (Action::Redirected, None),
        Attempt::Failed(reason) if redirect.closed => (Action::Dropped, Some(reason)),
        Attempt::Failed(reason) => (Action::Forwarded, Some(reason)),
    };
    let note = Note::new(Component::TrafficControl, action, generation, ifindex);
    watch::note(packet, Note { reason, policy: redirect.policy + 1, ..note });
}

/// The copies of a packet, each session once.
#[inline(always)]
fn mirror(packet: Skb, copies: &Copies, len: u32) {
    if copies.slots == 0 {
        return;
    }
    let Some(rules) = Maps.ruleset(copies.ruleset) else {
        return;
    };
    let wanted = if is_single(copies.slots) && copies.slots & rules.limited == 0 {
        // The usual case without the cost of a call.
        Maps.count_policy(rules.policies[lowest(copies.slots)] as u32, |row| row.matched(len));
        copies.slots
    } else {
        global::admit_slots(copies.slots, copies.generation.0, copies.ruleset, copies.flow_hash, len)
    };
    let snaps = wanted & rules.snaps;
    let mut clones = wanted & !snaps;
    if snaps != 0 {
        let bank_and_direction = copies.generation.bank() | copies.direction.index() << 1;
        clones |=
            global::snap_slots(packet.as_raw(), snaps, copies.ruleset, bank_and_direction, copies.flow_hash);
    }
    if clones == 0 {
        return;
    }
    if is_single(clones) && direct(packet, copies, lowest(clones), len) {
        return;
    }
    clone(packet, copies, clones, len);
}

/// Whether at most one bit is set.
#[inline(always)]
fn is_single(slots: u64) -> bool {
    slots & slots.wrapping_sub(1) == 0
}

/// A single copy that leaves by a device as it is needs no detour.
#[inline(always)]
fn direct(packet: Skb, copies: &Copies, slot: usize, len: u32) -> bool {
    let Some(rules) = Maps.ruleset(copies.ruleset) else {
        return false;
    };
    let session = rules.sessions[slot] as u32;
    let Some(row) = Maps.session(copies.generation, session) else {
        return false;
    };
    if row.kind != SessionKind::Device as u32
        || row.truncate != 0
        || !fits(packet, row, copies.network_offset)
    {
        return false;
    }
    let mark = packet.mark();
    packet.set_mark(Maps.copy_mark());
    let outcome = handover::give(packet, row.ifindex, false);
    packet.set_mark(mark);
    if let Outcome::Lost(reason) = outcome {
        Maps.count_reason(reason);
    }
    Maps.count_session(session, |counters| {
        counters.matched(len);
        counters.record(&outcome);
    });
    true
}

#[inline(always)]
fn fits(packet: Skb, row: &SessionRow, network_offset: u32) -> bool {
    // The kernel cuts super-packets up by itself.
    packet.gso_size() != 0 || packet.frame_len() <= largest_for_device(network_offset, row.mtu)
}

/// Hands one clone to the mirror program, which runs before this returns. All sessions share the clone: the
/// kernel un-shares the original's head after each, which costs more than the clone itself.
#[inline(always)]
fn clone(packet: Skb, copies: &Copies, slots: u64, len: u32) {
    if hand(packet, &copies.row(slots)).is_err() {
        global::book_lost(slots, copies.ruleset, len);
    }
}

/// One clone through the private mirror device. An error: it was lost before the mirror program ran, or the
/// mirror program says so of a redirected packet.
#[inline(always)]
fn hand(packet: Skb, copy: &CopyRow) -> Result<(), u32> {
    let mirror_ifindex = maps::CONFIG.get(0).map_or(0, |row| row.mirror_ifindex);
    let Some(row) = maps::COPY.get_ptr_mut(0) else {
        return Err(Reason::MirrorDeviceLost as u32 + 1);
    };
    // SAFETY: a per-CPU row, used by one hand-over at a time: a nested one is over before the next begins.
    unsafe { *row = *copy };
    // What the hand-over returns does not say whether the mirror program ran; the row's state does.
    let _ = packet.clone_redirect(mirror_ifindex);
    // SAFETY: as above; volatile because the mirror program has changed it meanwhile.
    let (state, failure) = unsafe {
        (
            core::ptr::read_volatile(&raw const (*row).state),
            core::ptr::read_volatile(&raw const (*row).failure),
        )
    };
    if state == CopyState::Pending as u32 {
        // SAFETY: as above.
        unsafe { (*row).state = CopyState::Idle as u32 };
        return Err(Reason::MirrorDeviceLost as u32 + 1);
    }
    if copy.redirect != 0 && failure != 0 { Err(failure) } else { Ok(()) }
}

/// Tries to give the packet to the tool that the policy names. Its clone goes: only the kernel's answer to that
/// is certain for this very packet, and as long as it is not given, the original is still here.
#[inline(always)]
fn redirect(packet: Skb, direction: Direction, decision: &Decision, ifindex: u32) -> Attempt {
    let redirect = &decision.redirect;
    if redirect.slot == 0 {
        return Attempt::None;
    }
    let live = Maps.live(redirect.session);
    let silent = live == Liveness::Silent as u32;
    if live == Liveness::Dead as u32 || silent && !Maps.probe_is_due(redirect.session) {
        return Attempt::Failed(Reason::TargetDead);
    }
    let who = redirect.policy << 9 | redirect.session << 1 | direction.index();
    // Read again: a copy may have passed other hooks of podwire meanwhile.
    global::parse_frame(packet.as_raw());
    global::remember_trip(packet.as_raw(), ifindex, who, redirect.returns);
    let attempt = match give(packet, decision) {
        Ok(()) => Attempt::Taken,
        Err(reason) => Attempt::Failed(reason),
    };
    if silent {
        Maps.count_policy(redirect.policy, |row| row.probes = row.probes.wrapping_add(1));
        return Attempt::Failed(Reason::TargetDead);
    }
    attempt
}

/// Remembers where a packet left; a function of its own, for its stack. `who`: policy, session and direction.
#[inline(always)]
pub fn remember(packet: Skb, ifindex: u32, who: u32, returns: u32) {
    let Some(facts) = maps::FACTS.get(AS_IT_IS) else {
        return;
    };
    let key = stage::trip_key(&packet, facts, returns);
    Maps.set_trip(
        &key,
        &TripRow {
            ifindex,
            direction: who & 1,
            mark: packet.mark(),
            priority: packet.priority(),
            policy: who >> 9,
            session: who >> 1 & 0xff,
        },
    );
}

const _: () = assert!(limits::SESSIONS <= 256);

/// Gives a clone to the tool's port.
#[inline(always)]
fn give(packet: Skb, decision: &Decision) -> Result<(), Reason> {
    let (copies, session) = (&decision.copies, decision.redirect.session);
    let Some(row) = Maps.session(copies.generation, session) else {
        return Err(Reason::SessionMissing);
    };
    if row.kind == SessionKind::Device as u32 {
        let outcome = if fits(packet, row, copies.network_offset) {
            handover::give(packet, row.ifindex, false)
        } else {
            Outcome::Lost(Reason::TooBig)
        };
        Maps.count_session(session, |counters| {
            counters.matched(packet.frame_len());
            counters.record(&outcome);
        });
        return match outcome {
            Outcome::Lost(reason) => Err(reason),
            _ => Ok(()),
        };
    }
    let copy = CopyRow { redirect: 1, ..copies.row(decision.redirect.slot) };
    hand(packet, &copy).map_err(|stored| {
        stored.checked_sub(1).and_then(Reason::from_number).unwrap_or(Reason::EncapsulationRefused)
    })
}
