//! Which trace a packet belongs to. In: the packet and its [`Facts`]. Out: the key to look it up by, and what of it
//! an observation tells.
//!
//! A traced packet has the trace's tag, a DSCP value, and its flow. Foreign traffic with the same DSCP is not
//! traced.

use super::Packet;
use super::parse::{Facts, Transport};
use crate::abi::{MatchRow, Mode, TraceKey};
use crate::wire::{ipv4, ipv6, protocol};

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

impl TraceKey {
    /// The key of the answer.
    #[inline(always)]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            ports: self.ports.rotate_left(16),
            ..*self
        }
    }

    /// The same flow with another tag.
    #[inline(always)]
    pub const fn tagged(&self, tag: u32) -> Self {
        Self { tag, ..*self }
    }

    /// [`tag`](Self::tag) of a packet without a tag, beside its identity: where the host's stack has it.
    pub const UNTAGGED: u32 = 1 << 31;

    /// The key of a packet of the flow that is known by its [`identity`].
    #[inline(always)]
    pub const fn untagged(&self, identity: u32) -> Self {
        self.tagged(identity | Self::UNTAGGED)
    }

    /// Whatever the destination is translated to.
    #[inline(always)]
    pub const fn to_any(&self) -> Self {
        Self { destination: [0; 2], ports: self.ports & 0xffff_0000, ..*self }
    }

    /// Whatever the source is translated to.
    #[inline(always)]
    pub const fn from_any(&self) -> Self {
        Self { source: [0; 2], ports: self.ports & 0x0000_ffff, ..*self }
    }
}

/// What rows are compared with, read once for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    ports: u32,
    hops: u32,
    length: u32,
    ip_flags: u32,
    echo: u32,
}

impl Shape {
    /// Of a packet.
    #[inline(always)]
    pub fn of<P: Packet>(packet: &P, facts: &Facts) -> Self {
        let network = facts.network_offset as usize;
        let v4 = matches!(facts.mode, Mode::V4);
        let length_at = if v4 { ipv4::TOTAL_LENGTH_OFFSET } else { ipv6::PAYLOAD_LENGTH_OFFSET };
        let flags = if v4 { packet.read::<1>(network + ipv4::FRAGMENT_OFFSET) } else { None };
        let ports = match facts.transport {
            Transport::Portless => 0,
            Transport::Icmp | Transport::Ports => {
                (facts.source_port as u32) << 16 | facts.destination_port as u32
            }
        };
        let echo = match facts.transport {
            Transport::Icmp => packet.read::<4>(packet.opaque(facts.transport_offset) as usize + 4),
            _ => None,
        };
        Self {
            ports,
            hops: hops(packet, facts) as u32,
            length: packet.read::<2>(network + length_at).map_or(0, u16::from_be_bytes) as u32,
            ip_flags: flags.map_or(0, |[byte]| byte >> 5) as u32,
            echo: echo.map_or(0, u32::from_be_bytes),
        }
    }
}

/// Whether a packet is one of those that become traced.
#[inline(always)]
pub const fn matches(row: &MatchRow, facts: &Facts, shape: &Shape) -> bool {
    // Differences are gathered, so that the verifier has one branch to follow.
    let mut differs = (facts.source.high & row.source_mask[0]) ^ row.source[0];
    differs |= (facts.source.low & row.source_mask[1]) ^ row.source[1];
    differs |= (facts.destination.high & row.destination_mask[0]) ^ row.destination[0];
    differs |= (facts.destination.low & row.destination_mask[1]) ^ row.destination[1];
    differs |= ((shape.ports & row.ports_mask) ^ row.ports) as u64;
    differs |= ((facts.tcp_flags as u32 & row.tcp_flags_mask) ^ row.tcp_flags) as u64;
    differs |= ((shape.ip_flags & row.ip_flags_mask) ^ row.ip_flags) as u64;
    differs |= ((shape.echo & row.echo_mask) ^ row.echo) as u64;
    differs |= other_than(family(facts), row.family);
    differs |= other_than(shape.hops, row.ttl);
    differs |= other_than(shape.length, row.length);
    if row.protocol != MatchRow::ANY_PROTOCOL {
        differs |= (facts.protocol as u32 ^ row.protocol) as u64;
    }
    differs == 0
}

/// Not 0 when a number is another one than is wanted; 0 wants any.
#[inline(always)]
const fn other_than(number: u32, wanted: u32) -> u64 {
    if wanted == 0 { 0 } else { (number ^ wanted) as u64 }
}

/// A number that tells packets of a flow apart, of what no hop and no translation changes: TCP's sequence number, an
/// echo's identifier and number, the length and the first bytes of a datagram; with IPv4 the identification as well.
#[inline(always)]
pub fn identity<P: Packet>(packet: &P, facts: &Facts) -> u32 {
    let network = facts.network_offset as usize;
    let number = match facts.mode {
        Mode::V4 => packet.read::<2>(network + ipv4::ID_OFFSET).map_or(0, u16::from_be_bytes),
        _ => 0,
    };
    // The verifier would follow what each protocol's place means for what was read before.
    let at = packet.opaque(facts.transport_offset) as usize;
    let place = match facts.protocol {
        protocol::TCP | protocol::ICMP | protocol::ICMPV6 => at + 4,
        _ => at + 8,
    };
    let own = packet.read::<4>(packet.opaque(place as u32) as usize).map_or(0, u32::from_be_bytes);
    let len = match facts.protocol {
        protocol::UDP => packet.read::<2>(at + 4).map_or(0, u16::from_be_bytes),
        _ => 0,
    };
    own ^ (number ^ len) as u32 ^ (number as u32) << 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::parse;

    /// An Ethernet frame with a datagram from 10.0.0.5:1000 to 10.0.1.6:53.
    fn datagram() -> [u8; 46] {
        let mut frame = [0; 46];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..34]
            .copy_from_slice(&[0x45, 0x54, 0, 32, 0, 7, 0, 0, 64, 17, 0, 0, 10, 0, 0, 5, 10, 0, 1, 6]);
        frame[34..46].copy_from_slice(&[0x03, 0xe8, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]);
        frame
    }

    fn any() -> MatchRow {
        MatchRow { protocol: MatchRow::ANY_PROTOCOL, sampling: 1, ..MatchRow::default() }
    }

    #[test]
    fn every_field_of_a_row_can_refuse() {
        let frame = datagram();
        let facts = parse(&&frame[..]);
        let (ten, six) = (u64::from(0x0a00_0000u32) << 32, u64::from(0x0a00_0106u32) << 32);
        let own = MatchRow {
            source: [ten, 0],
            source_mask: [0xff << 56, 0],
            destination: [six, 0],
            destination_mask: [u64::MAX << 32, 0],
            ports: 53,
            ports_mask: 0xffff,
            family: 4,
            protocol: 17,
            ttl: 64,
            length: 32,
            ip_flags: 0,
            ip_flags_mask: 7,
            ..any()
        };
        let shape = Shape::of(&&frame[..], &facts);
        assert!(matches(&any(), &facts, &shape) && matches(&own, &facts, &shape));
        let strangers = [
            MatchRow { source: [ten + (1 << 56), 0], ..own },
            MatchRow { destination: [six + (1 << 32), 0], ..own },
            MatchRow { ports: 54, ..own },
            MatchRow { ports: 1001 << 16, ports_mask: 0xffff_0000, ..own },
            MatchRow { family: 6, ..own },
            MatchRow { protocol: 6, ..own },
            MatchRow { tcp_flags: 2, tcp_flags_mask: 2, ..own },
            MatchRow { ttl: 63, ..own },
            MatchRow { length: 33, ..own },
            MatchRow { ip_flags: 2, ..own },
            MatchRow { echo: 7, echo_mask: 7, ..own },
        ];
        for row in strangers {
            assert!(!matches(&row, &facts, &shape), "{row:?}");
        }
    }

    #[test]
    fn the_identity_is_of_what_stays() {
        let frame = datagram();
        let mut translated = frame;
        // Time to live, checksum, both addresses, both ports, DSCP.
        for at in [15, 22, 24, 26, 30, 34, 36, 40] {
            translated[at] ^= 1;
        }
        let of = |frame: &[u8]| identity(&frame, &parse(&frame));
        assert_eq!(of(&frame), of(&translated));
        let mut next = frame;
        next[19] += 1;
        assert_ne!(of(&frame), of(&next));
    }

    #[test]
    fn keys_turn_around_and_forget_a_side() {
        let key = key(&parse(&&datagram()[..]), 21);
        assert_eq!((key.tag, key.ports), (21, 1000 << 16 | 53));
        assert_eq!(key.reversed().ports, 53 << 16 | 1000);
        assert_eq!(key.reversed().reversed(), key);
        assert_eq!((key.to_any().destination, key.to_any().ports), ([0; 2], 1000 << 16));
        assert_eq!((key.from_any().source, key.from_any().ports), ([0; 2], 53));
    }
}
