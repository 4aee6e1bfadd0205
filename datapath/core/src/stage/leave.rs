//! Stages egress and forward. In: a packet that a pod sent, or one that came by the overlay. Out: its way.
//!
//! ```text
//!  from a pod ─► route ─┬─► a pod of this node
//!                       ├─► another node, by the overlay
//!                       └─► out of the cluster ► Egress policy ─┬─► here: mark, the host translates
//!                                                               ├─► the policy's node, by the overlay
//!                                                               └─► no such node: dropped
//!  overlay ─► is the sender a node, the source its? ┬─► a pod of this node
//!                                                  ├─► out, under the name of an Egress policy: mark
//!                                                  └─► this node itself
//! ```

use super::admit::lowest;
use super::classify::Key;
use super::flow;
use super::packet::{Counters, Packet, State, Tables};
use super::parse::Facts;
use super::verdict::Verdict;
use crate::abi::{
    Direction, EgressPlace, EgressRow, EndpointRow, Entry, EntryKind, Generation, Mode, NetworkRow, Reason,
    TargetKind, TargetRow, limits,
};
use crate::wire::{ethernet, ipv4, ipv6};

/// Where a packet goes.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the host's own stack, with these bits of the Egress mark.
    Host {
        /// In place; 0 leaves the mark alone.
        mark: u32,
    },
    /// To a pod of this node.
    Pod {
        /// Absolute index into `TARGETS`.
        target: u32,
    },
    /// To another node.
    Node {
        /// Absolute index into `TARGETS`.
        target: u32,
        /// The tunnel's VNI.
        vni: u32,
    },
    /// Nowhere.
    Drop(Reason),
}

/// A way, and what led to it.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Led {
    /// Where the packet goes.
    pub way: Way,
    /// The Egress policy that says so, plus one; 0 for none.
    pub egress: u32,
}

impl Led {
    #[inline(always)]
    const fn by(policy: u32, way: Way) -> Self {
        Self { way, egress: policy + 1 }
    }
}

impl From<Way> for Led {
    #[inline(always)]
    fn from(way: Way) -> Self {
        Self { way, egress: 0 }
    }
}

/// The way of what a pod sent.
#[inline(always)]
pub fn leave<T: Tables + State + Counters>(
    ifindex: u32,
    row: &EndpointRow,
    facts: &Facts,
    len: u32,
    generation: Generation,
    tables: &T,
) -> Led {
    let Some(network) = tables.network(generation) else {
        return Way::Host { mark: 0 }.into();
    };
    let known = route(network, facts.mode, facts.destination, tables);
    if known != 0 && network.flags & NetworkRow::FLAG_NATIVE != 0 {
        let way = match tables.target(known) {
            Some(target) if target.kind == TargetKind::Pod as u32 => Way::Pod { target: known },
            Some(target) if target.kind == TargetKind::Node as u32 => {
                Way::Node { target: known, vni: network.overlay_vni }
            }
            _ => Way::Host { mark: 0 },
        };
        return way.into();
    }
    if known != 0 || matches!(facts.mode, Mode::Other) {
        return Way::Host { mark: judged(network) }.into();
    }
    out(ifindex, row, facts, len, generation, network, tables)
}

/// What says that no policy applies, where somebody wants to know.
#[inline(always)]
fn judged(network: &NetworkRow) -> u32 {
    if network.flags & NetworkRow::FLAG_JUDGED != 0 { network.judged() } else { 0 }
}

/// Out of the cluster, under the first policy that applies.
#[inline(always)]
fn out<T: Tables + State + Counters>(
    ifindex: u32,
    row: &EndpointRow,
    facts: &Facts,
    len: u32,
    generation: Generation,
    network: &NetworkRow,
    tables: &T,
) -> Led {
    let Some(ruleset) = row.egress.checked_sub(1) else {
        return Way::Host { mark: judged(network) }.into();
    };
    let slots = tables.classify(ruleset, Direction::Egress, facts);
    let answers = row.flags & EndpointRow::FLAG_ANSWERS != 0;
    if slots == 0 || answers && flow::is_answer(ifindex, facts, tables) {
        return Way::Host { mark: judged(network) }.into();
    }
    let policy = tables.ruleset(ruleset).map_or(0, |rules| rules.policies[lowest(slots)] as u32);
    // Rules name no policy without a row.
    let Some(egress) = tables.egress(generation, policy) else {
        return refused(policy, Reason::NoEgressNode, tables);
    };
    if egress.place == EgressPlace::Here as u32 {
        return mark(policy, egress, facts, len, network, tables);
    }
    if egress.place != EgressPlace::Peer as u32 || network.overlay_ifindex == 0 {
        return refused(policy, Reason::NoEgressNode, tables);
    }
    Led::by(policy, Way::Node { target: egress.target, vni: egress.id | EgressRow::ID_FLAG })
}

/// Nowhere, under a policy.
#[inline(always)]
fn refused<T: Counters>(policy: u32, reason: Reason, tables: &T) -> Led {
    tables.count_egress(policy, |row| row.dropped(reason));
    Led::by(policy, Way::Drop(reason))
}

/// Books what became of a packet that [`leave`] sends to an Egress policy's node. What the host's stack was left to
/// answer is neither sent nor dropped.
#[inline(always)]
pub fn book<T: Counters>(led: &Led, len: u32, verdict: Verdict, tables: &T) {
    let (Some(policy), Way::Node { .. }) = (led.egress.checked_sub(1), led.way) else {
        return;
    };
    match verdict {
        Verdict::Taken => tables.count_egress(policy, |row| row.forwarded(len)),
        Verdict::Drop(reason) => tables.count_egress(policy, |row| row.dropped(reason)),
        Verdict::Pass => {}
    }
}

/// With the mark of one of the policy's addresses: always the same one for a source.
#[inline(always)]
fn mark<T: Tables + State + Counters>(
    policy: u32,
    egress: &EgressRow,
    facts: &Facts,
    len: u32,
    network: &NetworkRow,
    tables: &T,
) -> Led {
    let (count, numbers) = if matches!(facts.mode, Mode::V6) {
        (egress.counts[1], &egress.numbers[1])
    } else {
        (egress.counts[0], &egress.numbers[0])
    };
    if count == 0 {
        return Led::by(policy, Way::Host { mark: judged(network) });
    }
    if egress.pace != 0 {
        let cost = egress.pace.wrapping_mul(len as u64) >> EgressRow::PACE_SHIFT;
        if !tables.pace(limits::SESSIONS + policy, cost, egress.burst, tables.now()) {
            return refused(policy, Reason::RateExceeded, tables);
        }
    }
    // The compiler knows the bound from the count; the verifier does not.
    let choice = core::hint::black_box(spread(facts.source) % count) as usize & (EgressRow::ADDRESSES - 1);
    let number = numbers[choice] as u32;
    tables.count_egress(policy, |row| row.marked(len));
    Led::by(policy, Way::Host { mark: network.mark_of(number) })
}

/// Spreads sources over a policy's addresses, alike on all nodes.
#[inline(always)]
pub const fn spread(source: Key) -> u32 {
    let mixed = (source.high ^ source.low.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

/// The sender of a tunnel's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// As [`crate::abi::TargetRow::remote`].
    pub address: [u8; 16],
    /// Whether four bytes of it count.
    pub v4: bool,
}

impl Remote {
    /// Whether it is a node's end of the overlay.
    #[inline(always)]
    const fn is_of(&self, target: &TargetRow) -> bool {
        let (ours, theirs) = (u128::from_ne_bytes(self.address), u128::from_ne_bytes(target.remote));
        target.family == (if self.v4 { 4 } else { 6 }) && ours == theirs
    }

    #[inline(always)]
    const fn mode(&self) -> Mode {
        if self.v4 { Mode::V4 } else { Mode::V6 }
    }

    #[inline(always)]
    const fn key(&self) -> Key {
        let a = &self.address;
        if self.v4 { Key::from_v4([a[0], a[1], a[2], a[3]]) } else { Key::from_v6(*a) }
    }
}

/// The way of what came by the overlay: from the node at `remote`, with this VNI.
#[inline(always)]
pub fn arrive<T: Tables + State + Counters>(
    facts: &Facts,
    len: u32,
    vni: u32,
    remote: &Remote,
    generation: Generation,
    tables: &T,
) -> Led {
    let Some(network) = tables.network(generation) else {
        return Way::Drop(Reason::TunnelUnknown).into();
    };
    let source = route(network, facts.mode, facts.source, tables);
    let from = if source == 0 { None } else { tables.target(source) };
    // The usual case without a second look at the tables.
    if !from.is_some_and(|target| target.kind == TargetKind::Node as u32 && remote.is_of(target))
        && let Some(reason) = stranger(network, from, remote, tables)
    {
        return Way::Drop(reason).into();
    }
    if matches!(facts.mode, Mode::Other) {
        let reason = if facts.malformed { Reason::Malformed } else { Reason::NoRoute };
        return Way::Drop(reason).into();
    }
    let known = route(network, facts.mode, facts.destination, tables);
    if vni & EgressRow::ID_FLAG != 0 {
        let Some(policy) = tables.egress_id(vni & !EgressRow::ID_FLAG) else {
            return Way::Drop(Reason::EgressUnknown).into();
        };
        if known != 0 {
            return refused(policy, Reason::NoRoute, tables);
        }
        return match tables.egress(generation, policy) {
            Some(egress) if egress.place == EgressPlace::Here as u32 => {
                mark(policy, egress, facts, len, network, tables)
            }
            // It has moved on, and whoever sent this does not know yet.
            _ => refused(policy, Reason::EgressUnknown, tables),
        };
    }
    if vni != network.overlay_vni || network.flags & NetworkRow::FLAG_NATIVE == 0 {
        return Way::Drop(Reason::TunnelUnknown).into();
    }
    let way = match tables.target(known) {
        Some(target) if target.kind == TargetKind::Pod as u32 => Way::Pod { target: known },
        Some(target) if known != 0 && target.kind == TargetKind::None as u32 => Way::Host { mark: 0 },
        _ => Way::Drop(Reason::NoRoute),
    };
    way.into()
}

/// Why a packet by the overlay is not what its sender may send. `from`: where its source is.
#[inline(always)]
fn stranger<T: Tables>(
    network: &NetworkRow,
    from: Option<&TargetRow>,
    remote: &Remote,
    tables: &T,
) -> Option<Reason> {
    let itself = |target: &&TargetRow| {
        target.kind == TargetKind::Node as u32 && target.flags & TargetRow::FLAG_PODS == 0
    };
    // A pod can build such a packet, too, but has only its own address for it.
    let Some(sender) = tables.target(route(network, remote.mode(), remote.key(), tables)).filter(itself)
    else {
        return Some(Reason::TunnelUnknown);
    };
    // What is not of the cluster came to that node from outside: an answer to what left there.
    let target = from?;
    let of_sender = target.kind == TargetKind::Node as u32 && target.ifindex == sender.ifindex;
    if of_sender { None } else { Some(Reason::OverlaySpoofed) }
}

/// The node that a packet of the host's own stack is for, as an absolute index into `TARGETS`; 0 for none.
#[inline(always)]
pub fn towards<T: Tables>(facts: &Facts, generation: Generation, tables: &T) -> u32 {
    let Some(network) = tables.network(generation) else {
        return 0;
    };
    let known = route(network, facts.mode, facts.destination, tables);
    match tables.target(known) {
        Some(target) if target.kind == TargetKind::Node as u32 => known,
        _ => 0,
    }
}

/// Whether a packet comes from within the cluster.
#[inline(always)]
pub(super) fn is_inside<T: Tables>(facts: &Facts, generation: Generation, tables: &T) -> bool {
    match tables.network(generation) {
        Some(network) => route(network, facts.mode, facts.source, tables) != 0,
        None => true,
    }
}

/// Whether a packet goes out of the cluster.
#[inline(always)]
pub fn goes_out<T: Tables>(facts: &Facts, generation: Generation, tables: &T) -> bool {
    match tables.network(generation) {
        Some(network) => route(network, facts.mode, facts.destination, tables) == 0,
        None => false,
    }
}

/// The absolute index into `TARGETS` that an address leads to; 0 for none.
#[inline(always)]
fn route<T: Tables>(network: &NetworkRow, mode: Mode, address: Key, tables: &T) -> u32 {
    let root = match mode {
        Mode::V4 => network.routes_v4,
        Mode::V6 => network.routes_v6,
        Mode::Other => return 0,
    };
    let entry = tables.walk(Entry(root), address);
    if matches!(entry.kind(), EntryKind::Row) { entry.index() } else { 0 }
}

/// Whether podwire itself may take a packet one hop further: its time to live is not up, and it fits. The host's
/// stack sends the errors for those that may not.
#[inline(always)]
pub fn may_hop<P: Packet>(packet: &P, facts: &Facts, gso_size: u32, mtu: u32) -> bool {
    // Tags stay on their link.
    if facts.network_offset != ethernet::HEADER_LEN as u32 || packet.has_tag_beside() {
        return false;
    }
    let len = if gso_size == 0 {
        packet.frame_len().wrapping_sub(facts.network_offset)
    } else {
        facts.payload_offset.wrapping_sub(facts.network_offset).wrapping_add(gso_size)
    };
    !is_spent(packet, facts) && len <= mtu
}

/// Why the host's stack will not send a packet on that [`may_hop`] refuses; `None` where it may: by a tagged link, or
/// in fragments.
#[inline(always)]
pub fn obstacle<P: Packet>(packet: &P, facts: &Facts) -> Option<Reason> {
    if facts.network_offset != ethernet::HEADER_LEN as u32 {
        return None;
    }
    if is_spent(packet, facts) {
        return Some(Reason::TtlExceeded);
    }
    let whole = match facts.mode {
        Mode::V4 => packet
            .read::<2>(ethernet::HEADER_LEN + ipv4::FRAGMENT_OFFSET)
            .is_some_and(|bytes| u16::from_be_bytes(bytes) & ipv4::FLAG_DONT_FRAGMENT != 0),
        _ => true,
    };
    whole.then_some(Reason::TooBig)
}

/// Whether a frame without tags may not take another hop.
#[inline(always)]
pub fn is_spent<P: Packet>(packet: &P, facts: &Facts) -> bool {
    let hops = match facts.mode {
        Mode::V4 => packet.read::<1>(ethernet::HEADER_LEN + ipv4::TTL_OFFSET),
        Mode::V6 => packet.read::<1>(ethernet::HEADER_LEN + ipv6::HOP_LIMIT_OFFSET),
        Mode::Other => None,
    };
    hops.is_none_or(|[hops]| hops <= 1)
}
