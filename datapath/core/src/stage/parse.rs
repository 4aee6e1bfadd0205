//! Stage parse. In: a frame. Out: [`Facts`], the fields that rules and encapsulation look at.
//!
//! Never fails: a frame that cannot be read to its transport header yields the facts up to there. What is
//! read lies within [`limits::HEADER_WINDOW`]; header chains are followed for a fixed number of steps.

use super::Packet;
use super::classify::Key;
use crate::abi::{Mode, limits};
use crate::wire::{encap, ethernet, ipv4, ipv6, protocol};

/// What is known of the transport header.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// No ports: a later fragment, a cut header, a protocol without them.
    Portless = 0,
    /// TCP, UDP, UDP-Lite, SCTP or DCCP: `source_port` and `destination_port` hold.
    Ports = 1,
    /// ICMP or ICMPv6: `source_port` holds type and code.
    Icmp = 2,
}

/// Whether a packet is a part of one: bits, so that the verifier has no values to follow.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment(pub u32);

impl Fragment {
    const MARKED: u32 = 1;
    const LATER: u32 = 2;

    /// The packet is whole.
    pub const NO: Self = Self(0);

    /// Whether the packet is a part, or has a part's mark.
    #[inline(always)]
    pub const fn is_marked(self) -> bool {
        self.0 != 0
    }

    /// Whether it is a later part, without the transport header.
    #[inline(always)]
    pub const fn is_later(self) -> bool {
        self.0 & Self::LATER != 0
    }
}

/// A packet's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// IPv4, IPv6 or neither.
    pub mode: Mode,
    /// What is known of the transport header.
    pub transport: Transport,
    /// Source address, left-aligned.
    pub source: Key,
    /// Destination address, left-aligned.
    pub destination: Key,
    /// EtherType after all VLAN tags, host order; 0 when the frame is shorter than an Ethernet header.
    pub ether_type: u16,
    /// Host order; for ICMP `type << 8 | code`.
    pub source_port: u16,
    /// Host order; 0 for ICMP.
    pub destination_port: u16,
    /// IP protocol, after IPv6 extension headers.
    pub protocol: u8,
    /// TCP flags byte, 0 without a TCP header.
    pub tcp_flags: u8,
    /// Frame bytes before the network header.
    pub network_offset: u32,
    /// Frame bytes before the transport payload; equal to `network_offset` where that is unknown.
    pub payload_offset: u32,
    /// Frame bytes before the transport header; 0 where there is none or it is not known where.
    pub transport_offset: u32,
    /// Whether it is a fragment.
    pub fragment: Fragment,
    /// The EtherType says IP, the header says otherwise.
    pub malformed: bool,
}

impl Facts {
    const fn other(ether_type: u16, network_offset: u32, malformed: bool) -> Self {
        Self {
            mode: Mode::Other,
            transport: Transport::Portless,
            source: Key::ZERO,
            destination: Key::ZERO,
            ether_type,
            source_port: 0,
            destination_port: 0,
            protocol: 0,
            tcp_flags: 0,
            network_offset,
            payload_offset: network_offset,
            transport_offset: 0,
            fragment: Fragment::NO,
            malformed,
        }
    }

    /// The facts of an answer: the sides change places.
    #[inline(always)]
    pub fn reversed(&self) -> Self {
        let mut facts = *self;
        facts.source = self.destination;
        facts.destination = self.source;
        if matches!(self.transport, Transport::Ports) {
            facts.source_port = self.destination_port;
            facts.destination_port = self.source_port;
        }
        facts
    }

    /// Nothing is known.
    pub const NONE: Self = Self::other(0, 0, false);

    /// Hash of the flow, equal for both directions; 0 for what has no addresses. Fragments of one datagram
    /// share the hash of their addresses and protocol only if all are fragments: ports are left out of it for
    /// later fragments.
    #[inline(always)]
    pub fn flow_hash(&self) -> u32 {
        match self.mode {
            Mode::Other => 0,
            Mode::V4 | Mode::V6 => encap::flow_hash(&encap::Flow {
                source: [self.source.high, self.source.low],
                destination: [self.destination.high, self.destination.low],
                source_port: if matches!(self.transport, Transport::Ports) { self.source_port } else { 0 },
                destination_port: self.destination_port,
                protocol: self.protocol,
            }),
        }
    }
}

/// Reads a frame's headers.
#[inline(always)]
pub fn parse<P: Packet>(packet: &P) -> Facts {
    let (ether_type, network_offset) = link(packet);
    let facts = match ether_type {
        ethernet::ETHER_TYPE_IPV4 => ip4(packet, network_offset),
        ethernet::ETHER_TYPE_IPV6 => ip6(packet, network_offset),
        _ => return Facts::other(ether_type, network_offset as u32, false),
    };
    facts.unwrap_or(Facts::other(ether_type, network_offset as u32, true))
}

/// EtherType after VLAN tags, and where the network header begins.
#[inline(always)]
fn link<P: Packet>(packet: &P) -> (u16, usize) {
    let Some(bytes) = packet.read::<2>(ethernet::ETHER_TYPE_OFFSET) else {
        return (0, 0);
    };
    let mut ether_type = u16::from_be_bytes(bytes);
    let mut offset = ethernet::HEADER_LEN;
    for _ in 0..limits::VLAN_TAGS {
        if !matches!(ether_type, ethernet::ETHER_TYPE_VLAN | ethernet::ETHER_TYPE_QINQ) {
            break;
        }
        let Some(tag) = packet.read::<4>(offset) else {
            break;
        };
        ether_type = u16::from_be_bytes([tag[2], tag[3]]);
        offset += 4;
    }
    (ether_type, offset)
}

#[inline(always)]
fn ip4<P: Packet>(packet: &P, offset: usize) -> Option<Facts> {
    let header = packet.read::<{ ipv4::MIN_HEADER_LEN }>(offset)?;
    let header_len = ((header[0] & 0x0f) as usize) * 4;
    if header[0] >> 4 != 4 || header_len < ipv4::MIN_HEADER_LEN {
        return None;
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    let mut facts = Facts {
        mode: Mode::V4,
        source: Key::from_v4([header[12], header[13], header[14], header[15]]),
        destination: Key::from_v4([header[16], header[17], header[18], header[19]]),
        protocol: header[9],
        ..Facts::other(ethernet::ETHER_TYPE_IPV4, offset as u32, false)
    };
    let part = fragment & ipv4::FRAGMENT_OFFSET_MASK;
    let marked = (fragment & (ipv4::FLAG_MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET_MASK) != 0) as u32;
    let later = (part != 0) as u32 * Fragment::LATER;
    facts.fragment = Fragment(packet.opaque((marked * Fragment::MARKED) | later));
    transport(packet, &mut facts, offset + header_len);
    Some(facts)
}

#[inline(always)]
fn ip6<P: Packet>(packet: &P, offset: usize) -> Option<Facts> {
    let start = packet.read::<8>(offset)?;
    if start[0] >> 4 != 6 {
        return None;
    }
    let source = packet.read::<16>(offset + 8)?;
    let destination = packet.read::<16>(offset + 24)?;
    let mut facts = Facts {
        mode: Mode::V6,
        source: Key::from_v6(source),
        destination: Key::from_v6(destination),
        protocol: start[6],
        ..Facts::other(ethernet::ETHER_TYPE_IPV6, offset as u32, false)
    };
    let next = extensions(packet, &mut facts, offset + ipv6::HEADER_LEN);
    if next != 0 {
        transport(packet, &mut facts, next);
    }
    Some(facts)
}

/// Follows extension headers. Returns where the upper layer begins, 0 when it is not found. The protocol becomes
/// the upper layer's number, or that of the header at which the walk ended.
#[inline(always)]
fn extensions<P: Packet>(packet: &P, facts: &mut Facts, mut offset: usize) -> usize {
    let mut marks = packet.opaque(0);
    for _ in 0..limits::EXTENSION_HEADERS {
        let fragment = facts.protocol == protocol::FRAGMENT;
        let len_unit = match facts.protocol {
            protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::DESTINATION_OPTIONS
            | protocol::MOBILITY
            | protocol::HIP
            | protocol::SHIM6 => 8,
            protocol::FRAGMENT => 0,
            protocol::AUTHENTICATION => 4,
            _ => {
                facts.fragment = Fragment(marks);
                return offset;
            }
        };
        let Some(header) = packet.read::<8>(offset) else {
            return 0;
        };
        facts.protocol = header[0];
        offset += match len_unit {
            // RFC 4302 counts in 4-byte units minus two, the others in 8-byte units minus one.
            4 => (header[1] as usize + 2) * 4,
            8 => (header[1] as usize + 1) * 8,
            _ => 8,
        };
        if fragment {
            let part = u16::from_be_bytes([header[2], header[3]]) & ipv6::FRAGMENT_OFFSET_MASK;
            if part != 0 {
                facts.fragment = Fragment(Fragment::MARKED | Fragment::LATER);
                return 0;
            }
            marks = packet.opaque(Fragment::MARKED);
        }
    }
    0
}

#[inline(always)]
fn transport<P: Packet>(packet: &P, facts: &mut Facts, offset: usize) {
    if facts.fragment.is_later() {
        return;
    }
    facts.transport_offset = offset as u32;
    match facts.protocol {
        protocol::TCP => {
            let Some(header) = packet.read::<14>(offset) else {
                return;
            };
            ports(facts, [header[0], header[1], header[2], header[3]]);
            facts.tcp_flags = header[13];
            facts.payload_offset = (offset + ((header[12] >> 4) as usize) * 4) as u32;
        }
        protocol::UDP | protocol::UDP_LITE | protocol::SCTP | protocol::DCCP => {
            let Some(header) = packet.read::<8>(offset) else {
                return;
            };
            ports(facts, [header[0], header[1], header[2], header[3]]);
            facts.payload_offset = (offset + 8) as u32;
        }
        protocol::ICMP | protocol::ICMPV6 => {
            let Some(header) = packet.read::<2>(offset) else {
                return;
            };
            facts.transport = Transport::Icmp;
            facts.source_port = u16::from_be_bytes(header);
        }
        _ => {}
    }
}

#[inline(always)]
fn ports(facts: &mut Facts, bytes: [u8; 4]) {
    facts.transport = Transport::Ports;
    facts.source_port = u16::from_be_bytes([bytes[0], bytes[1]]);
    facts.destination_port = u16::from_be_bytes([bytes[2], bytes[3]]);
}
