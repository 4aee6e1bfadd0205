//! Stage answer. In: a pod's question for the MAC address behind an address that is not its own. Out: the answer,
//! in the gateway's name.
//!
//! Whatever a pod takes for its neighbour, its gateway or all of a subnet, is behind the host side of its interface.
//! A question that tests whether its own address is free stays without an answer (RFC 5227, RFC 4862).

use super::classify::Key;
use super::guard::{Own, is_own};
use super::packet::{Packet, Tables};
use super::parse::{Facts, Transport};
use crate::abi::Mode;
use crate::wire::{arp, ethernet, ipv6, ndp, protocol};

/// Bytes of an ARP answer's frame.
pub const ARP_LEN: usize = ethernet::HEADER_LEN + arp::LEN;
/// Bytes of a neighbour advertisement's frame, with one option.
pub const NEIGHBOUR_LEN: usize = NDP_AT + NDP_LEN;
const IP_AT: usize = ethernet::HEADER_LEN;
const NDP_AT: usize = IP_AT + ipv6::HEADER_LEN;
/// Type to reserved, target, target link-layer address.
const NDP_LEN: usize = 8 + 16 + 8;
const HOP_LIMIT: u8 = 255;
/// Offset of the operation's low byte in an ARP frame.
const OPERATION: usize = ethernet::HEADER_LEN + arp::OPERATION_OFFSET + 1;

/// A question that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// By ARP.
    Arp,
    /// By neighbour discovery.
    Neighbour,
}

/// Whether a frame asks for somebody else's MAC address.
#[inline(always)]
pub fn question<P: Packet, T: Tables>(packet: &P, facts: &Facts, own: &Own, tables: &T) -> Option<Question> {
    if facts.network_offset as usize != IP_AT {
        return None;
    }
    match facts.mode {
        Mode::Other if facts.ether_type == ethernet::ETHER_TYPE_ARP => {
            let message = packet.read::<{ arp::LEN }>(IP_AT)?;
            let target = [message[24], message[25], message[26], message[27]];
            let sender = [message[14], message[15], message[16], message[17]];
            let asks = message[arp::OPERATION_OFFSET + 1] == arp::REQUEST as u8 && message[6] == 0;
            let probes = u32::from_be_bytes(sender) == 0;
            (asks && !probes && !is_own(tables, own.v4, Key::from_v4(target))).then_some(Question::Arp)
        }
        Mode::V6 if facts.protocol == protocol::ICMPV6 && matches!(facts.transport, Transport::Icmp) => {
            let asks = facts.source_port == (ndp::NEIGHBOUR_SOLICITATION as u16) << 8
                && facts.transport_offset as usize == NDP_AT;
            let probes = facts.source.high == 0 && facts.source.low == 0;
            let target = packet.read::<16>(NDP_AT + ndp::TARGET_OFFSET)?;
            (asks && !probes && !is_own(tables, own.v6, Key::from_v6(target))).then_some(Question::Neighbour)
        }
        _ => None,
    }
}

/// Makes the answer of an ARP request's frame.
#[inline(always)]
pub fn answer_arp(frame: &mut [u8; ARP_LEN], gateway: &[u8; 6]) {
    let (asker, sender, target) = (field::<6>(frame, 6), field::<10>(frame, 22), field::<4>(frame, 38));
    put(frame, 0, &asker);
    put(frame, 6, gateway);
    frame[OPERATION] = arp::REPLY as u8;
    put(frame, 22, gateway);
    put(frame, 28, &target);
    put(frame, 32, &sender);
}

/// Makes the advertisement of a solicitation's first bytes.
#[inline(always)]
pub fn answer_neighbour(frame: &mut [u8; NEIGHBOUR_LEN], gateway: &[u8; 6]) {
    let (asker, target) = (field::<16>(frame, IP_AT + ipv6::SOURCE_OFFSET), field::<16>(frame, NDP_AT + 8));
    let asker_mac = field::<6>(frame, 6);
    put(frame, 0, &asker_mac);
    put(frame, 6, gateway);
    put(frame, IP_AT + ipv6::PAYLOAD_LENGTH_OFFSET, &(NDP_LEN as u16).to_be_bytes());
    frame[IP_AT + ipv6::HOP_LIMIT_OFFSET] = HOP_LIMIT;
    put(frame, IP_AT + ipv6::SOURCE_OFFSET, &target);
    put(frame, IP_AT + ipv6::DESTINATION_OFFSET, &asker);
    let flags = ndp::FLAG_ROUTER | ndp::FLAG_SOLICITED | ndp::FLAG_OVERRIDE;
    put(frame, NDP_AT, &[ndp::NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0]);
    put(frame, NDP_AT + 24, &[ndp::option::TARGET_LINK_LAYER, 1]);
    put(frame, NDP_AT + 26, gateway);
    let sum = checksum(frame);
    put(frame, NDP_AT + 2, &sum.to_be_bytes());
}

/// The ICMPv6 checksum (RFC 4443 section 2.3) of a message of [`NDP_LEN`] bytes whose checksum field is zero.
#[inline(always)]
fn checksum(frame: &[u8; NEIGHBOUR_LEN]) -> u16 {
    let mut sum = NDP_LEN as u32 + protocol::ICMPV6 as u32;
    for half in 0..(NEIGHBOUR_LEN - IP_AT - ipv6::SOURCE_OFFSET) / 2 {
        // Unrolled, it would take stack that BPF does not have.
        let at = core::hint::black_box(IP_AT + ipv6::SOURCE_OFFSET + 2 * half);
        let byte = |at: usize| frame.get(at).map_or(0, |byte| *byte as u32);
        sum += byte(at) << 8 | byte(at + 1);
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[inline(always)]
fn field<const N: usize>(frame: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = frame[at + index];
    }
    bytes
}

#[inline(always)]
fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    for (index, byte) in bytes.iter().enumerate() {
        frame[at + index] = *byte;
    }
}
