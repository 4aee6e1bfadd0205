//! Where a pod's packet goes, as a program of its own. In: what the pod's hook let pass. Out: the answer to its
//! question, the packet at another pod's interface or in the overlay, or on its way to the host's stack with the
//! mark of an Egress address.

use aya_ebpf::programs::TcContext;
use podwire_core::{
    abi::{Action, Component, DeliveryRow, Direction, EgressRow, Generation, NetworkRow, Reason, TargetRow},
    stage::{
        Counters, Facts, Own, Packet, Tables, Verdict,
        answer::{self, ARP_LEN, NEIGHBOUR_LEN},
        leave::{self, Led, Way},
    },
};

use crate::{
    maps::{self, ANSWER, DELIVER, LEAVE},
    overlay,
    skb::Skb,
    tables::Maps,
    verdict,
    watch::{self, Note, Stays},
};

/// On to this program. Comes back when there is none.
#[inline(always)]
pub fn go(ctx: &TcContext, mirrored: bool, is_read: bool) {
    if let Some(row) = maps::DELIVERY.get_ptr_mut(0) {
        let flags = (mirrored as u32 * DeliveryRow::MIRRORED) | (is_read as u32 * DeliveryRow::READ);
        // SAFETY: a per-CPU row that the next program reads at once.
        unsafe { *row = DeliveryRow { ifindex: 0, flags } };
    }
    // SAFETY: the context is the program's own.
    unsafe { maps::STAGES.tail_call(ctx, LEAVE) };
}

#[inline(always)]
pub fn hook(ctx: &TcContext) -> i32 {
    let packet = Skb::new(ctx);
    packet.pull_headers();
    let flags = maps::DELIVERY.get(0).map_or(0, |row| row.flags);
    let mirrored = flags & DeliveryRow::MIRRORED != 0;
    let generation = Maps.generation();
    let len = packet.frame_len();
    let Some(slot) = Maps.endpoint_slot(packet.ifindex()) else {
        return verdict::NEXT;
    };
    let Some(row) = Maps.endpoint(generation, slot) else {
        return verdict::NEXT;
    };
    let Some(facts) = packet.facts_in_place(flags & DeliveryRow::READ != 0) else {
        return verdict::NEXT;
    };
    let Some(network) = Maps.network(generation) else {
        return verdict::NEXT;
    };
    let native = network.flags & NetworkRow::FLAG_NATIVE != 0;
    let own = Own { macs: row.macs, v4: row.sources_v4, v6: row.sources_v6 };
    let asked = if native { answer::question(&packet, facts, &own, &Maps) } else { None };
    let (outcome, code) = match asked {
        Some(_) => {
            Maps.count_endpoint(slot, Direction::Egress, |row| row.record(len, Verdict::Taken, mirrored));
            // SAFETY: the context is the program's own.
            unsafe { maps::STAGES.tail_call(ctx, ANSWER) };
            return verdict::DROP;
        }
        None => {
            let led = leave::leave(packet.ifindex(), row, facts, len, generation, &Maps);
            let here = Place { generation, ifindex: packet.ifindex() };
            tell_policy(packet, &led, network, here);
            let done = match led.way {
                Way::Host { mark } => match tell_host(packet, network, here) {
                    Stays::Yes => (Verdict::Pass, to_host(packet, network, mark)),
                    Stays::No => ended(Reason::TraceEnded),
                },
                Way::Pod { target } => match Maps.target(target) {
                    Some(target) if leave::may_hop(&packet, facts, packet.gso_size(), target.mtu) => {
                        match hop_to_pod(packet, target) {
                            None => {
                                Maps.count_endpoint(slot, Direction::Egress, |row| {
                                    row.record(len, Verdict::Taken, mirrored);
                                });
                                return to_pod(ctx, target);
                            }
                            Some(reason) => ended(reason),
                        }
                    }
                    _ => {
                        tell_obstacle(packet, here);
                        (Verdict::Pass, verdict::NEXT)
                    }
                },
                Way::Node { target, vni } => to_node(packet, facts, network, target, vni, here),
                Way::Drop(reason) => refused(packet, reason, Component::Egress, here),
            };
            leave::book(&led, len, done.0, &Maps);
            done
        }
    };
    Maps.count_endpoint(slot, Direction::Egress, |row| row.record(len, outcome, mirrored));
    code
}

/// To another node, or to the host's stack, which tells the sender why it goes no further.
#[inline(always)]
fn to_node(
    packet: Skb,
    facts: &Facts,
    network: &NetworkRow,
    target: u32,
    vni: u32,
    here: Place,
) -> (Verdict, i32) {
    let fits = leave::may_hop(&packet, facts, packet.gso_size(), network.overlay_mtu);
    match Maps.target(target) {
        Some(row) if fits && network.overlay_ifindex != 0 => {
            let tag = watch::tag_of(packet);
            match overlay::send(packet, network, row, vni, tag) {
                Ok(code) => {
                    let note =
                        Note::new(Component::Forwarding, Action::Forwarded, here.generation, here.ifindex);
                    watch::restore(packet, Note { number: target, ..note });
                    (Verdict::Taken, code)
                }
                Err(reason) => refused(packet, reason, Component::Forwarding, here),
            }
        }
        // The host's stack knows no way to a policy's node: it would send the packet with another address.
        _ if vni & EgressRow::ID_FLAG != 0 && !leave::is_spent(&packet, facts) => {
            refused(packet, Reason::TooBig, Component::Forwarding, here)
        }
        _ => {
            tell_obstacle(packet, here);
            (Verdict::Pass, verdict::NEXT)
        }
    }
}

#[inline(always)]
fn refused(packet: Skb, reason: Reason, component: Component, here: Place) -> (Verdict, i32) {
    watch::note(packet, Note::dropped(component, reason, here.generation, here.ifindex));
    Maps.count_reason(reason);
    (Verdict::Drop(reason), verdict::DROP)
}

/// Where and when a packet is looked at.
#[derive(Clone, Copy)]
pub struct Place {
    pub generation: Generation,
    pub ifindex: u32,
}

/// Says under which Egress policy a packet leaves.
#[inline(always)]
pub fn tell_policy(packet: Skb, led: &Led, network: &NetworkRow, here: Place) {
    if led.egress == 0 {
        return;
    }
    let (action, number) = match led.way {
        Way::Host { mark } if mark != 0 && mark != network.judged() => (Action::MarkedForSnat, mark),
        Way::Node { target, .. } => (Action::ForwardedToEgressNode, target),
        _ => return,
    };
    let note = Note::new(Component::Egress, action, here.generation, here.ifindex);
    watch::note(packet, Note { policy: led.egress, number, ..note });
}

/// Says that the host's stack has a packet. Where podwire forwards, or nothing looks at the uplink, that is the last it
/// sees of it.
#[inline(always)]
pub fn tell_host(packet: Skb, network: &NetworkRow, here: Place) -> Stays {
    if !watch::is_on(false) {
        return Stays::Yes;
    }
    let native = network.flags & NetworkRow::FLAG_NATIVE != 0;
    let out = leave::goes_out(&packet.facts(), here.generation, &Maps);
    let action = if out { Action::ForwardedOutOfNetwork } else { Action::Forwarded };
    let note = Note::new(Component::Forwarding, action, here.generation, here.ifindex);
    if native || out && !watch::has_uplink() {
        return watch::end(packet, note);
    }
    if !out {
        watch::note(packet, note);
    }
    watch::hand_over(packet);
    Stays::Yes
}

/// The end of a packet, booked by its reason.
#[inline(always)]
pub fn ended(reason: Reason) -> (Verdict, i32) {
    Maps.count_reason(reason);
    (Verdict::Drop(reason), verdict::DROP)
}

/// Says what becomes of a packet that podwire itself may not send on.
#[inline(always)]
pub fn tell_obstacle(packet: Skb, here: Place) {
    if !watch::is_on(true) {
        return;
    }
    let note = match leave::obstacle(&packet, &packet.facts()) {
        Some(reason) => Note::dropped(Component::Forwarding, reason, here.generation, here.ifindex),
        None => Note::new(Component::Forwarding, Action::Forwarded, here.generation, here.ifindex),
    };
    watch::restore(packet, note);
}

/// On to the host's stack.
#[inline(always)]
pub fn to_host(packet: Skb, network: &NetworkRow, mark: u32) -> i32 {
    if mark != 0 {
        packet.set_mark(packet.mark() & !network.egress_mark | mark);
    }
    verdict::NEXT
}

/// One hop further, to a pod of this node. Why it ends here, if it does.
#[inline(always)]
pub fn hop_to_pod(packet: Skb, target: &TargetRow) -> Option<Reason> {
    if !packet.next_hop(&target.mac, &target.gateway) {
        return Some(Reason::Malformed);
    }
    packet.set_mark(0);
    if target.flags & TargetRow::FLAG_STAGES != 0 {
        return None;
    }
    let note = Note::new(Component::Forwarding, Action::Delivered, Generation(0), target.ifindex);
    match watch::end(packet, note) {
        Stays::Yes => None,
        Stays::No => Some(Reason::TraceEnded),
    }
}

/// To the interface of a pod of this node.
#[inline(always)]
pub fn to_pod(ctx: &TcContext, target: &TargetRow) -> i32 {
    if target.flags & TargetRow::FLAG_PEER == 0 {
        // The hook at the interface's egress has its stages.
        return verdict::to_hook(target.ifindex, Direction::Ingress);
    }
    if target.flags & TargetRow::FLAG_STAGES != 0 {
        if let Some(row) = maps::DELIVERY.get_ptr_mut(0) {
            // SAFETY: a per-CPU row that the next program reads at once.
            unsafe { *row = DeliveryRow { ifindex: target.ifindex, flags: target.flags } };
        }
        // SAFETY: the context is the program's own.
        unsafe { maps::STAGES.tail_call(ctx, DELIVER) };
        return verdict::to_hook(target.ifindex, Direction::Ingress);
    }
    verdict::to_peer(target.ifindex)
}

/// Answers for the gateway, as a program of its own.
#[inline(always)]
pub fn reply(ctx: &TcContext) -> i32 {
    let packet = Skb::new(ctx);
    let ifindex = packet.ifindex();
    let gateway = Maps
        .endpoint_slot(ifindex)
        .and_then(|slot| Maps.endpoint(Maps.generation(), slot))
        .map_or([0; 6], |row| row.gateway);
    let done = if packet.is_v6() {
        let fits = packet.frame_len() == NEIGHBOUR_LEN as u32 || packet.truncate(NEIGHBOUR_LEN as u32);
        fits && rewrite::<NEIGHBOUR_LEN>(packet, |frame| answer::answer_neighbour(frame, &gateway))
    } else {
        rewrite::<ARP_LEN>(packet, |frame| answer::answer_arp(frame, &gateway))
    };
    if done { verdict::to_hook(ifindex, Direction::Ingress) } else { verdict::DROP }
}

/// Changes the first bytes of a frame, in a per-CPU row: the stack has no room for them.
#[inline(always)]
fn rewrite<const N: usize>(packet: Skb, change: impl FnOnce(&mut [u8; N])) -> bool {
    const { assert!(N <= maps::HEADERS_LEN) };
    let Some(row) = maps::HEADERS.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: the row is this program's on this CPU, and longer than the array.
    let frame = unsafe { &mut *row.cast::<[u8; N]>() };
    // SAFETY: the length is the array's.
    if !unsafe { packet.load_head(frame, N as u32) } {
        return false;
    }
    change(frame);
    // SAFETY: as above.
    unsafe { packet.store(frame, N as u32) }
}

/// The stages of a pod that gets a packet from podwire, as a program of its own.
#[inline(always)]
pub fn deliver(ctx: &TcContext) -> i32 {
    let packet = Skb::new(ctx);
    packet.pull_headers();
    let Some(row) = maps::DELIVERY.get(0).copied() else {
        return verdict::DROP;
    };
    match crate::pod::stages(packet, Direction::Ingress, row.ifindex).0 {
        Verdict::Pass => verdict::to_peer(row.ifindex),
        other => {
            if matches!(other, Verdict::Taken) {
                watch::went_on(packet);
            }
            verdict::code(other)
        }
    }
}
