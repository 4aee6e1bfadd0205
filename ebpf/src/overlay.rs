//! The overlay, both ways. In: packets that came from other nodes, and packets that go there. Out: each at its pod,
//! in the host's stack, or in the tunnel to its node.

use aya_ebpf::programs::TcContext;
use podwire_core::{
    abi::{Action, Component, Direction, NetworkRow, OVERLAY_MAC, Reason, TargetRow},
    stage::{
        Counters, Packet, Tables, Verdict,
        leave::{self, Way},
    },
};

use crate::{
    leave::{self as way, Place},
    live, maps,
    skb::{Skb, Tunnel},
    tables::Maps,
    verdict,
    watch::{self, Note, Stays},
};

/// Who frames in the overlay are from: the kernel takes one from its own address for a loop (`vxlan_set_mac`).
const SENDER: [u8; 6] = [0x02, 0x70, 0x77, 0, 0, 2];
/// Rows of `OVERLAY_COUNTERS`.
const OUT_OF: u32 = 0;
const INTO: u32 = 1;

/// Sends a pod's packet to a node, a traced one with its tag; the program's return code.
#[inline(always)]
pub fn send(packet: Skb, network: &NetworkRow, target: &TargetRow, vni: u32, tag: u8) -> Result<i32, Reason> {
    let ready = packet.next_hop(&OVERLAY_MAC, &SENDER) && packet.set_tunnel(target, vni, tag);
    if !ready {
        return Err(Reason::EncapsulationRefused);
    }
    packet.set_mark(packet.mark() & !network.egress_mark);
    Ok(verdict::to_hook(network.overlay_ifindex, Direction::Ingress))
}

/// What came from another node.
#[inline(always)]
pub fn arrived(ctx: &TcContext) -> i32 {
    let packet = Skb::new(ctx);
    packet.pull_headers();
    let generation = Maps.generation();
    let len = packet.frame_len();
    let Some(network) = Maps.network(generation) else {
        return verdict::NEXT;
    };
    let here = Place { generation, ifindex: packet.ifindex() };
    let tunnel = packet.tunnel();
    live::resume(packet, tunnel.map_or(0, |tunnel| tunnel.tag));
    watch::note(packet, Note::new(Component::Forwarding, Action::Received, generation, here.ifindex));
    let Some(facts) = packet.facts_in_place(false) else {
        return verdict::NEXT;
    };
    let led = match tunnel {
        Some(Tunnel { vni, remote, .. }) => leave::arrive(facts, len, vni, &remote, generation, &Maps),
        None => Way::Drop(Reason::TunnelUnknown).into(),
    };
    way::tell_policy(packet, &led, network, here);
    match led.way {
        Way::Host { mark } => {
            let (verdict, code) = match way::tell_host(packet, network, here) {
                Stays::Yes => (Verdict::Pass, way::to_host(packet, network, mark)),
                Stays::No => way::ended(Reason::TraceEnded),
            };
            book(OUT_OF, len, verdict);
            code
        }
        Way::Pod { target } => match Maps.target(target) {
            Some(target) if leave::may_hop(&packet, facts, packet.gso_size(), target.mtu) => {
                match way::hop_to_pod(packet, target) {
                    None => {
                        book(OUT_OF, len, Verdict::Taken);
                        way::to_pod(ctx, target)
                    }
                    Some(reason) => {
                        let (verdict, code) = way::ended(reason);
                        book(OUT_OF, len, verdict);
                        code
                    }
                }
            }
            _ => {
                way::tell_obstacle(packet, here);
                book(OUT_OF, len, Verdict::Pass);
                verdict::NEXT
            }
        },
        Way::Node { .. } => {
            book(OUT_OF, len, Verdict::Pass);
            verdict::NEXT
        }
        Way::Drop(reason) => {
            let component = if led.egress == 0 { Component::Forwarding } else { Component::Egress };
            watch::note(packet, Note::dropped(component, reason, generation, here.ifindex));
            Maps.count_reason(reason);
            book(OUT_OF, len, Verdict::Drop(reason));
            verdict::DROP
        }
    }
}

/// What goes to another node: that of pods knows its tunnel, that of the host's stack does not yet.
#[inline(always)]
pub fn entering(ctx: &TcContext) -> i32 {
    let packet = Skb::new(ctx);
    let len = packet.frame_len();
    if packet.has_tunnel() {
        book(INTO, len, Verdict::Pass);
        return verdict::NEXT;
    }
    packet.pull_headers();
    let generation = Maps.generation();
    let target = leave::towards(&packet.facts(), generation, &Maps);
    let vni = Maps.network(generation).map_or(0, |network| network.overlay_vni);
    let tag = watch::tag_of(packet);
    match Maps.target(target) {
        Some(row)
            if target != 0
                && packet.store_macs(&OVERLAY_MAC, &SENDER)
                && packet.set_tunnel(row, vni, tag) =>
        {
            let note = Note::new(Component::Forwarding, Action::Forwarded, generation, packet.ifindex());
            watch::restore(packet, Note { number: target, ..note });
            book(INTO, len, Verdict::Pass);
            verdict::NEXT
        }
        _ => {
            let note = Note::dropped(Component::Forwarding, Reason::NoRoute, generation, packet.ifindex());
            watch::note(packet, note);
            Maps.count_reason(Reason::NoRoute);
            book(INTO, len, Verdict::Drop(Reason::NoRoute));
            verdict::DROP
        }
    }
}

#[inline(always)]
fn book(row: u32, len: u32, verdict: Verdict) {
    if let Some(row) = maps::OVERLAY_COUNTERS.get_ptr_mut(row) {
        // SAFETY: a per-CPU row; the program is not interrupted by another one on this CPU's hook.
        unsafe { (*row).record(len, verdict, false) };
    }
}
