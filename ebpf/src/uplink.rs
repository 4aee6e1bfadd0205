//! Where tunnelled packets come back from a tool. In: a packet on the uplink. Out: untouched, unless it came by
//! a return port's tunnel; then its inner frame, back at the pod's hook where it left.

use aya_ebpf::programs::TcContext;
use podwire_core::{
    abi::{Action, Component, Reason, SegmentMark},
    stage::{self, Arrival, Counters, Packet, Tables, arrival},
    wire::ethernet,
};

use crate::{
    global, leave, returned, segment,
    skb::Skb,
    tables::Maps,
    verdict,
    watch::{self, Note, Stays},
};

/// `BPF_F_ADJ_ROOM_DECAP_L3_IPV4` and `…_IPV6`, from Linux 6.3 on.
const INNER_IPV4: u64 = 1 << 7;
const INNER_IPV6: u64 = 1 << 8;

#[inline(always)]
pub fn hook(ctx: &TcContext) -> i32 {
    let frame = Skb::new(ctx);
    frame.pull_headers();
    let code = global::arrive_frame(frame.as_raw());
    if code == global::NOT_OURS { verdict::NEXT } else { code }
}

/// What leaves by the uplink, while somebody traces where the CNI forwards: the last that this node sees of it.
#[inline(always)]
pub fn leaving(ctx: &TcContext) -> i32 {
    let packet = Skb::new(ctx);
    if !watch::is_on(false) {
        return verdict::NEXT;
    }
    packet.pull_headers();
    if !watch::is_traced(packet) {
        return verdict::NEXT;
    }
    let (generation, facts) = (Maps.generation(), packet.facts());
    let out = stage::leave::goes_out(&facts, generation, &Maps);
    let action = if out { Action::ForwardedOutOfNetwork } else { Action::Forwarded };
    let note = Note::new(Component::Forwarding, action, generation, packet.ifindex());
    if !out {
        let number = stage::leave::towards(&facts, generation, &Maps);
        watch::restore(packet, Note { number, ..note });
        return verdict::NEXT;
    }
    match watch::end(packet, note) {
        Stays::Yes => verdict::NEXT,
        Stays::No => leave::ended(Reason::TraceEnded).1,
    }
}

/// `None` when the packet is no business of ours.
#[inline(always)]
pub fn arrive(frame: Skb) -> Option<i32> {
    let (returns, inner_offset) = tunnel(&arrival(&frame)?)?;
    if frame.gso_size() != 0 {
        // A super-packet of a neighbour on this machine: its outer headers are of all segments together.
        if let podwire_core::stage::copy::Outcome::Lost(reason) =
            segment::cut_up(frame, SegmentMark::RETURNING)
        {
            Maps.count_reason(reason);
        }
        return Some(verdict::DROP);
    }
    if !unwrap(frame, inner_offset) {
        Maps.count_reason(Reason::DecapsulationRefused);
        return Some(verdict::DROP);
    }
    frame.pull_headers();
    Some(returned::back(frame, returns, verdict::DROP))
}

/// The return port behind a tunnel, and where the inner frame begins.
#[inline(always)]
fn tunnel(arrival: &Arrival) -> Option<(u32, u32)> {
    if arrival.inner_offset != 0
        && let Some(returns) = Maps.return_tunnel(&arrival.key)
    {
        return Some((returns, arrival.inner_offset));
    }
    if arrival.geneve_offset != 0
        && let Some(returns) = Maps.return_tunnel(&arrival.as_geneve())
    {
        return Some((returns, arrival.geneve_offset));
    }
    None
}

/// Removes everything before the inner frame: what stands between the two Ethernet headers goes, and the outer
/// one is overwritten with the inner.
#[inline(always)]
fn unwrap(frame: Skb, inner_offset: u32) -> bool {
    if frame.vlan().is_some() && !frame.pop_vlan() {
        return false;
    }
    let Some(link) = frame.load::<{ ethernet::HEADER_LEN }>(inner_offset) else {
        return false;
    };
    let flags = match u16::from_be_bytes([link[12], link[13]]) {
        ethernet::ETHER_TYPE_IPV4 => INNER_IPV4,
        ethernet::ETHER_TYPE_IPV6 => INNER_IPV6,
        _ => 0,
    };
    if !(frame.remove_room(inner_offset, flags) || flags != 0 && frame.remove_room(inner_offset, 0)) {
        return false;
    }
    frame.store_link(&link)
}
