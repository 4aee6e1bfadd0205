//! Stage spoofguard. In: what a pod sent. Out: why it is not the pod's to send, if it is not.
//!
//! | frame | must be the pod's own |
//! |---|---|
//! | any | source MAC address |
//! | IPv4 | source address; 0.0.0.0 for DHCP clients |
//! | IPv6 | source address; :: for duplicate address detection and for multicast reports |
//! | ARP | sender's MAC and IPv4 address; 0.0.0.0 in a probe for an own address |
//! | neighbour solicitation | source address, link-layer option; the target, when the source is :: |
//! | neighbour advertisement | source address, target, link-layer option |
//! | router solicitation | source address, link-layer option |
//!
//! Nobody's: router advertisements and redirects (RFC 6105), DHCP servers' answers (RFC 7610), neighbour discovery
//! in fragments (RFC 6980), frames that are none of IPv4, IPv6 and ARP, and headers that cannot be read as far as
//! they would have to be. VLAN tags and extension headers are followed as everywhere ([`super::parse`]), so what
//! stands behind them is judged alike.

use super::classify::Key;
use super::packet::{Counters, Packet, Tables};
use super::parse::{Facts, Transport};
use crate::abi::{EndpointRow, Entry, EntryKind, Mode, Reason, limits};
use crate::wire::{arp, ethernet, icmpv6, ipv4, ipv6, ndp, protocol, udp};

/// The addresses that are an endpoint's own: tries, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// See [`crate::abi::EndpointRow::macs`].
    pub macs: u32,
    /// See [`crate::abi::EndpointRow::sources_v4`].
    pub v4: u32,
    /// See [`crate::abi::EndpointRow::sources_v6`].
    pub v6: u32,
}

/// What offsets within the window of headers fit.
const OFFSET_MASK: u32 = 2 * limits::HEADER_WINDOW as u32 - 1;
const _: () = assert!(limits::HEADER_WINDOW.is_power_of_two());
/// Ports of DHCP (RFC 2131) and DHCPv6 (RFC 8415).
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const DHCPV6_SERVER: u16 = 547;
/// Options of a neighbour discovery message that are followed.
const OPTIONS: usize = 6;
/// Unit of an option's length.
const OPTION_UNIT: usize = 8;
/// ICMPv6 types of multicast listener reports (RFC 2710, RFC 3810).
const LISTENER_REPORT: u8 = 131;
const LISTENER_DONE: u8 = 132;
const LISTENER_REPORT_V2: u8 = 143;
/// Hardware and protocol type and lengths of ARP for IPv4 over Ethernet.
const ARP_ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Judges a frame that a pod sent.
#[inline(always)]
pub fn guard<P: Packet, T: Tables>(packet: &P, facts: &Facts, own: &Own, tables: &T) -> Option<Reason> {
    let Some(source) = packet.read::<6>(ethernet::SOURCE_OFFSET) else {
        return Some(Reason::Unreadable);
    };
    if !is_own(tables, own.macs, Key::from_mac(source)) {
        return Some(Reason::SpoofedMac);
    }
    match facts.mode {
        Mode::V4 => v4(packet, facts, own, tables),
        Mode::V6 => v6(packet, facts, own, tables),
        Mode::Other if facts.malformed => Some(Reason::Unreadable),
        Mode::Other if facts.ether_type == ethernet::ETHER_TYPE_ARP => {
            arp(packet, offset(facts.network_offset), own, tables)
        }
        Mode::Other => Some(Reason::EtherTypeRefused),
    }
}

/// An offset with the bound that it has in any case, for the verifier.
#[inline(always)]
const fn offset(stored: u32) -> usize {
    (stored & OFFSET_MASK) as usize
}

/// Books what the guard says of a packet. Returns the reason when it is to be dropped.
#[inline(always)]
pub fn judge<P: Packet, T: Tables + Counters>(
    slot: u32,
    row: &EndpointRow,
    packet: &P,
    facts: &Facts,
    tables: &T,
) -> Option<Reason> {
    let own = Own { macs: row.macs, v4: row.sources_v4, v6: row.sources_v6 };
    let reason = guard(packet, facts, &own, tables)?;
    let enforced = row.flags & EndpointRow::FLAG_ENFORCE != 0;
    tables.count_guard(slot, |row| row.record(reason, enforced));
    if enforced { Some(reason) } else { None }
}

/// Whether a trie says that the key is one of the pod's own.
#[inline(always)]
pub(super) fn is_own<T: Tables>(tables: &T, root: u32, key: Key) -> bool {
    let entry = tables.walk(Entry(root), key);
    matches!(entry.kind(), EntryKind::Any) || entry.index() != Entry::NONE.index()
}

#[inline(always)]
fn v4<P: Packet, T: Tables>(packet: &P, facts: &Facts, own: &Own, tables: &T) -> Option<Reason> {
    if !is_own(tables, own.v4, facts.source) {
        let client = is_udp(facts, DHCP_CLIENT)
            && facts.destination_port == DHCP_SERVER
            && !facts.fragment.is_marked();
        if facts.source.high != 0 || !client {
            return Some(Reason::SpoofedIp);
        }
    }
    let end = end(packet, facts, ipv4::TOTAL_LENGTH_OFFSET, 0);
    server(facts, DHCP_SERVER, end)
}

/// Where a packet ends by its own word, in frame bytes. What stands behind that is the link's padding, or a decoy.
#[inline(always)]
fn end<P: Packet>(packet: &P, facts: &Facts, length_at: usize, before: usize) -> usize {
    let network = offset(facts.network_offset);
    // Super-packets beyond 64 KiB have no length in their header, and the kernel takes an IPv6 packet without one
    // up to the frame's end.
    match packet.read::<2>(network + length_at).map(u16::from_be_bytes) {
        None | Some(0) => packet.frame_len() as usize,
        Some(len) => network + before + len as usize,
    }
}

/// Whether the headers that were read lie within the packet.
#[inline(always)]
fn is_within(facts: &Facts, len: usize, end: usize) -> bool {
    facts.transport_offset != 0 && facts.transport_offset as usize + len <= end
}

/// What DHCP servers send. The first fragment of a datagram has its ports.
#[inline(always)]
fn server(facts: &Facts, port: u16, end: usize) -> Option<Reason> {
    if facts.protocol != protocol::UDP || facts.fragment.is_later() {
        return None;
    }
    if !is_within(facts, udp::HEADER_LEN, end) {
        return Some(Reason::Unreadable);
    }
    match facts.transport {
        Transport::Ports if facts.source_port == port => Some(Reason::DhcpServer),
        Transport::Ports => None,
        Transport::Portless | Transport::Icmp => Some(Reason::Unreadable),
    }
}

#[inline(always)]
fn is_udp(facts: &Facts, source_port: u16) -> bool {
    facts.protocol == protocol::UDP
        && matches!(facts.transport, Transport::Ports)
        && facts.source_port == source_port
}

#[inline(always)]
fn v6<P: Packet, T: Tables>(packet: &P, facts: &Facts, own: &Own, tables: &T) -> Option<Reason> {
    let unspecified = facts.source.high == 0 && facts.source.low == 0;
    if !unspecified && !is_own(tables, own.v6, facts.source) {
        return Some(Reason::SpoofedIp);
    }
    if facts.fragment.is_later() {
        return if unspecified { Some(Reason::SpoofedIp) } else { None };
    }
    // The headers that say what it is are all in the first fragment (RFC 7112), and in what is read.
    let end = end(packet, facts, ipv6::PAYLOAD_LENGTH_OFFSET, ipv6::HEADER_LEN);
    if !is_within(facts, 0, end) {
        return Some(Reason::Unreadable);
    }
    if facts.protocol == protocol::ICMPV6 {
        return icmpv6(packet, facts, unspecified, own, tables, end);
    }
    if unspecified { Some(Reason::SpoofedIp) } else { server(facts, DHCPV6_SERVER, end) }
}

#[inline(always)]
fn icmpv6<P: Packet, T: Tables>(
    packet: &P,
    facts: &Facts,
    unspecified: bool,
    own: &Own,
    tables: &T,
    end: usize,
) -> Option<Reason> {
    if !matches!(facts.transport, Transport::Icmp) || !is_within(facts, icmpv6::HEADER_LEN, end) {
        return Some(Reason::Unreadable);
    }
    let kind = (facts.source_port >> 8) as u8;
    match kind {
        ndp::ROUTER_ADVERTISEMENT | ndp::REDIRECT => return Some(Reason::RouterMessage),
        ndp::ROUTER_SOLICITATION | ndp::NEIGHBOUR_SOLICITATION | ndp::NEIGHBOUR_ADVERTISEMENT => {}
        LISTENER_REPORT | LISTENER_DONE | LISTENER_REPORT_V2 => return None,
        _ if unspecified => return Some(Reason::SpoofedIp),
        _ => return None,
    }
    if facts.fragment.is_marked() {
        return Some(Reason::SpoofedNdp);
    }
    let Some(options) = target(packet, facts, kind, unspecified, own, tables) else {
        return Some(Reason::SpoofedNdp);
    };
    link_layer(packet, options, end, own, tables)
}

/// Looks at the target of the three messages that hosts send. Returns where their options begin, `None` when the
/// target is not the pod's to speak for, or is not there.
#[inline(always)]
fn target<P: Packet, T: Tables>(
    packet: &P,
    facts: &Facts,
    kind: u8,
    unspecified: bool,
    own: &Own,
    tables: &T,
) -> Option<usize> {
    let options = offset(facts.transport_offset) + ndp::TARGET_OFFSET;
    if kind == ndp::ROUTER_SOLICITATION {
        return Some(options);
    }
    let target = packet.read::<16>(options)?;
    let speaks_for_it = kind == ndp::NEIGHBOUR_ADVERTISEMENT || unspecified;
    (!speaks_for_it || is_own(tables, own.v6, Key::from_v6(target))).then_some(options + 16)
}

/// The link-layer addresses among the options.
#[inline(always)]
fn link_layer<P: Packet, T: Tables>(
    packet: &P,
    mut at: usize,
    end: usize,
    own: &Own,
    tables: &T,
) -> Option<Reason> {
    for _ in 0..OPTIONS {
        if at >= end {
            return None;
        }
        let Some(option) = packet.read::<8>(at) else {
            return Some(Reason::Unreadable);
        };
        let mac = [option[2], option[3], option[4], option[5], option[6], option[7]];
        if matches!(option[0], ndp::option::SOURCE_LINK_LAYER | ndp::option::TARGET_LINK_LAYER)
            && !is_own(tables, own.macs, Key::from_mac(mac))
        {
            return Some(Reason::SpoofedNdp);
        }
        // A length of zero would have no end; receivers drop such a message too (RFC 4861 section 4.6).
        if option[1] == 0 {
            return Some(Reason::SpoofedNdp);
        }
        at += option[1] as usize * OPTION_UNIT;
    }
    if at >= end { None } else { Some(Reason::Unreadable) }
}

#[inline(always)]
fn arp<P: Packet, T: Tables>(packet: &P, at: usize, own: &Own, tables: &T) -> Option<Reason> {
    let Some(message) = packet.read::<{ arp::LEN }>(at) else {
        return Some(Reason::Unreadable);
    };
    let operation = u16::from_be_bytes([message[6], message[7]]);
    let kind = [message[0], message[1], message[2], message[3], message[4], message[5]];
    if kind != ARP_ETHERNET_IPV4 || !matches!(operation, arp::REQUEST | arp::REPLY) {
        return Some(Reason::SpoofedArp);
    }
    let mac = [message[8], message[9], message[10], message[11], message[12], message[13]];
    let sender = [message[14], message[15], message[16], message[17]];
    let target = [message[24], message[25], message[26], message[27]];
    // A probe asks whether anybody has the address that it is for (RFC 5227 section 2.1.1).
    let probe = matches!(operation, arp::REQUEST) && u32::from_be_bytes(sender) == 0;
    let address = if probe { target } else { sender };
    let is_its_own =
        is_own(tables, own.macs, Key::from_mac(mac)) && is_own(tables, own.v4, Key::from_v4(address));
    if is_its_own { None } else { Some(Reason::SpoofedArp) }
}
