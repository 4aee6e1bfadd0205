//! Which trace a packet belongs to. In: the packet and its [`Facts`]. Out: the key to look it up by, and what of it
//! an observation tells.
//!
//! A traced packet has the trace's tag, a DSCP value, and its flow. Foreign traffic with the same DSCP is not
//! traced.

use super::Packet;
use super::parse::{Facts, Transport};
use crate::abi::{Mode, TraceKey};
use crate::wire::{ipv4, ipv6};

/// The largest DSCP value; 0 is no tag.
pub const LARGEST_TAG: u8 = 63;

/// The DSCP value (RFC 2474 section 3), 0 for what is not IP.
#[inline(always)]
pub fn tag<P: Packet>(packet: &P, facts: &Facts) -> u8 {
    let at = facts.network_offset as usize;
    match facts.mode {
        Mode::V4 => packet.read::<1>(at + 1).map_or(0, |[tos]| tos >> 2),
        // Traffic class: the four bits after the version and the next four.
        Mode::V6 => packet.read::<2>(at).map_or(0, |[high, low]| (high & 0x0f) << 2 | low >> 6),
        Mode::Other => 0,
    }
}

/// Time to live or hop limit, 0 for what is not IP.
#[inline(always)]
pub fn hops<P: Packet>(packet: &P, facts: &Facts) -> u8 {
    let at = facts.network_offset as usize;
    let read = match facts.mode {
        Mode::V4 => packet.read::<1>(at + ipv4::TTL_OFFSET),
        Mode::V6 => packet.read::<1>(at + ipv6::HOP_LIMIT_OFFSET),
        Mode::Other => None,
    };
    read.map_or(0, |[hops]| hops)
}

/// 4, 6, or 0 for what is not IP.
#[inline(always)]
pub const fn family(facts: &Facts) -> u32 {
    match facts.mode {
        Mode::V4 => 4,
        Mode::V6 => 6,
        Mode::Other => 0,
    }
}

/// Source port in the upper half, destination port in the lower; 0 for what has none.
#[inline(always)]
pub const fn ports(facts: &Facts) -> u32 {
    match facts.transport {
        Transport::Ports => (facts.source_port as u32) << 16 | facts.destination_port as u32,
        _ => 0,
    }
}

/// The key of a packet with this tag.
#[inline(always)]
pub const fn key(facts: &Facts, tag: u8) -> TraceKey {
    TraceKey {
        source: [facts.source.high, facts.source.low],
        destination: [facts.destination.high, facts.destination.low],
        ports: ports(facts),
        protocol: facts.protocol as u32,
        tag: tag as u32,
        family: family(facts),
    }
}
