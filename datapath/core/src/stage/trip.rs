//! Stage return. In: a packet on a return port. Out: the hook where it left, with what the stack had kept for it.
//!
//! What a tool sends back is bytes: mark, priority and the interface are gone. They are kept by flow while the
//! packet is away.

use super::packet::{Counters, Packet, State, Tables};
use super::parse::{Facts, Transport};
use super::tag::Tag;
use crate::abi::{Direction, Liveness, Mode, Reason, TripKey, TripRow};

/// Protocol number of what is not IP.
const NOT_IP: u32 = 256;

/// The key of a frame that is not IP.
#[inline(always)]
pub const fn link_trip_key(source: [u8; 6], destination: [u8; 6], ether_type: u16, returns: u32) -> TripKey {
    TripKey {
        source: [left_aligned(source), 0],
        destination: [left_aligned(destination), 0],
        ports: ether_type as u32,
        protocol: NOT_IP,
        returns,
        pad: 0,
    }
}

#[inline(always)]
const fn left_aligned(m: [u8; 6]) -> u64 {
    u64::from_be_bytes([m[0], m[1], m[2], m[3], m[4], m[5], 0, 0])
}

/// What becomes of a packet on a return port.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// Back to the hook of this interface and direction.
    Back {
        /// The endpoint's interface.
        ifindex: u32,
        /// Which of its hooks.
        direction: Direction,
        /// `skb->mark` as it was.
        mark: u32,
        /// `skb->priority` as it was.
        priority: u32,
        /// For `skb->tc_index`.
        tag: Tag,
        /// The policy that sent it away.
        policy: u32,
    },
    /// It ends here.
    Drop(Reason),
}

/// The key of a packet's flow on its way to a return port.
#[inline(always)]
pub fn trip_key<P: Packet>(packet: &P, facts: &Facts, returns: u32) -> TripKey {
    if matches!(facts.mode, Mode::Other) {
        let macs = packet.read::<12>(0).unwrap_or([0; 12]);
        let mac = |m: usize| [macs[m], macs[m + 1], macs[m + 2], macs[m + 3], macs[m + 4], macs[m + 5]];
        return link_trip_key(mac(6), mac(0), facts.ether_type, returns);
    }
    let ports = if matches!(facts.transport, Transport::Ports) {
        (facts.source_port as u32) << 16 | facts.destination_port as u32
    } else {
        0
    };
    TripKey {
        source: [facts.source.high, facts.source.low],
        destination: [facts.destination.high, facts.destination.low],
        ports,
        protocol: facts.protocol as u32,
        returns,
        pad: 0,
    }
}

/// Finds where a packet belongs that came by return port `returns`.
#[inline(always)]
pub fn returned<P: Packet, T: Tables + State + Counters>(returns: u32, packet: &P, tables: &T) -> Returned {
    let facts = packet.facts();
    let Some(trip) = tables.trip(&trip_key(packet, &facts, returns)) else {
        return dropped(Reason::ReturnUnknown, tables);
    };
    if trip.ifindex == TripRow::PROBE {
        tables.count_policy(trip.policy, |row| row.probes_returned = row.probes_returned.wrapping_add(1));
        return dropped(Reason::ProbeReturned, tables);
    }
    if tables.endpoint_slot(trip.ifindex).is_none() {
        return dropped(Reason::EndpointMissing, tables);
    }
    if tables.live(trip.session) == Liveness::Silent as u32 && tables.take_probe(trip.session) {
        tables.count_policy(trip.policy, |row| row.probes_returned = row.probes_returned.wrapping_add(1));
        return dropped(Reason::ProbeReturned, tables);
    }
    let len = packet.frame_len();
    tables.count_policy(trip.policy, |row| {
        row.returned_packets = row.returned_packets.wrapping_add(1);
        row.returned_bytes = row.returned_bytes.wrapping_add(len as u64);
    });
    Returned::Back {
        ifindex: trip.ifindex,
        direction: Direction::from_index(trip.direction),
        mark: trip.mark,
        priority: trip.priority,
        tag: Tag::back(trip.session),
        policy: trip.policy,
    }
}

#[inline(always)]
fn dropped<T: Counters>(reason: Reason, tables: &T) -> Returned {
    tables.count_reason(reason);
    Returned::Drop(reason)
}
