//! Whose packet it is. In: the first bytes of a frame. Out: whether it is a tunnel packet that a collector asked
//! for, or a later fragment of one.
//!
//! It looks at as little as it must: lengths and checksums are the decapsulation's to judge. A packet that this
//! function cannot read is the stack's.

use super::rows::{ConfigRow, FragmentKey, IdKey, IdKind};
use crate::wire::{erspan, ethernet, geneve, gre, ipv4, ipv6, protocol, udp, vxlan};

/// The frame. Offsets are from its Ethernet header on.
pub trait Window {
    /// `N` bytes; `None` beyond the end, or beyond what may be looked at.
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;
    /// Whether a collector asked for this identifier.
    fn wanted(&self, key: &IdKey) -> bool;
}

/// A fragment's packet: where its addresses stand, and the rest of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    addresses: usize,
    is_v6: bool,
    id: u32,
    protocol: u8,
}

impl Fragment {
    /// The key of the packet that it is a part of; `None` when it cannot be read.
    #[inline(always)]
    pub fn key<W: Window>(&self, window: &W) -> Option<FragmentKey> {
        let mut key = FragmentKey { id: self.id, protocol: self.protocol as u32, ..FragmentKey::default() };
        if self.is_v6 {
            key.source = window.read(self.addresses & FAR)?;
            key.destination = window.read((self.addresses & FAR) + 16)?;
        } else {
            let addresses = window.read::<8>(self.addresses & FAR)?;
            key.source[..4].copy_from_slice(&addresses[..4]);
            key.destination[..4].copy_from_slice(&addresses[4..]);
        }
        Some(key)
    }
}

/// Whose packet it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The stack's.
    Other,
    /// The collector's.
    Whole,
    /// The collector's, and so are those that follow with the same key.
    First(Fragment),
    /// The stack's, and so are those that follow with the same key.
    OtherFirst(Fragment),
    /// Whose its first fragment was.
    Later(Fragment),
}

/// Extension headers that are walked: more in front of a tunnel are the stack's to judge.
const EXTENSIONS: usize = 4;
/// No header before the tunnel's payload begins further in: the largest IPv4 or four short extension headers.
const FAR: usize = 511;

/// What lies behind the IP header.
struct Network {
    protocol: u8,
    offset: usize,
    /// Which fragment it is, and whether a later one.
    fragment: Option<(Fragment, bool)>,
}

/// Says whose packet it is.
#[inline(always)]
pub fn find<W: Window>(window: &W, config: &ConfigRow) -> Found {
    let Some(network) = network(window) else {
        return Found::Other;
    };
    if !matches!(network.protocol, protocol::UDP | protocol::GRE) {
        return Found::Other;
    }
    match network.fragment {
        Some((fragment, true)) => Found::Later(fragment),
        first => {
            let at = network.offset;
            let ours = match network.protocol {
                protocol::UDP => in_udp(window, config, at),
                _ => in_gre(window, config, at),
            };
            match (ours, first) {
                (Some(true), Some((fragment, _))) => Found::First(fragment),
                (Some(true), None) => Found::Whole,
                (_, Some((fragment, _))) => Found::OtherFirst(fragment),
                _ => Found::Other,
            }
        }
    }
}

#[inline(always)]
fn network<W: Window>(window: &W) -> Option<Network> {
    let mut at = ethernet::ETHER_TYPE_OFFSET;
    let mut ether_type = u16::from_be_bytes(window.read(at)?);
    for _ in 0..2 {
        if matches!(ether_type, ethernet::ETHER_TYPE_VLAN | ethernet::ETHER_TYPE_QINQ) {
            at += 4;
            ether_type = u16::from_be_bytes(window.read(at)?);
        }
    }
    match ether_type {
        ethernet::ETHER_TYPE_IPV4 => in_ipv4(window, at + 2),
        ethernet::ETHER_TYPE_IPV6 => in_ipv6(window, at + 2),
        _ => None,
    }
}

#[inline(always)]
fn in_ipv4<W: Window>(window: &W, at: usize) -> Option<Network> {
    let head = window.read::<{ ipv4::PROTOCOL_OFFSET + 1 }>(at)?;
    if head[0] >> 4 != 4 {
        return None;
    }
    let protocol = head[ipv4::PROTOCOL_OFFSET];
    let part = u16::from_be_bytes([head[ipv4::FRAGMENT_OFFSET], head[ipv4::FRAGMENT_OFFSET + 1]]);
    let offset = part & ipv4::FRAGMENT_OFFSET_MASK;
    let fragment = if offset != 0 || part & ipv4::FLAG_MORE_FRAGMENTS != 0 {
        let id = u16::from_be_bytes([head[ipv4::ID_OFFSET], head[ipv4::ID_OFFSET + 1]]) as u32;
        let addresses = at + ipv4::SOURCE_OFFSET;
        Some((Fragment { addresses, is_v6: false, id, protocol }, offset != 0))
    } else {
        None
    };
    let len = ((head[0] & 0x0f) as usize) * 4;
    Some(Network { protocol, offset: at + len, fragment })
}

#[inline(always)]
fn in_ipv6<W: Window>(window: &W, at: usize) -> Option<Network> {
    let next = window.read::<1>(at + ipv6::NEXT_HEADER_OFFSET)?[0];
    let mut protocol = next;
    let mut offset = at + ipv6::HEADER_LEN;
    let mut fragment = None;
    for _ in 0..EXTENSIONS {
        match protocol {
            protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS => {
                let head = window.read::<2>(offset & FAR)?;
                protocol = head[0];
                offset += (head[1] as usize + 1) * 8;
                if offset > FAR {
                    return None;
                }
            }
            protocol::FRAGMENT => {
                let head = window.read::<8>(offset & FAR)?;
                protocol = head[0];
                offset += 8;
                let part = u16::from_be_bytes([head[2], head[3]]);
                let id = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
                let addresses = at + ipv6::SOURCE_OFFSET;
                let later = part & ipv6::FRAGMENT_OFFSET_MASK != 0;
                // A packet in one fragment is a whole one (RFC 6946).
                if later || part & ipv6::extension::FLAG_MORE_FRAGMENTS != 0 {
                    fragment = Some((Fragment { addresses, is_v6: true, id, protocol }, later));
                }
                if later {
                    break;
                }
            }
            _ => break,
        }
    }
    Some(Network { protocol, offset, fragment })
}

/// Whether a UDP datagram is asked for.
#[inline(always)]
fn in_udp<W: Window>(window: &W, config: &ConfigRow, at: usize) -> Option<bool> {
    let at = at & FAR;
    let port = u16::from_be_bytes(window.read(at + udp::DESTINATION_PORT_OFFSET)?);
    if port == 0 {
        return None;
    }
    let known = has(&config.vxlan_ports, port)
        || has(&config.geneve_ports, port) && {
            let payload = window.read(at + udp::HEADER_LEN + geneve::PROTOCOL_OFFSET)?;
            u16::from_be_bytes(payload) == ethernet::ETHER_TYPE_TEB
        };
    if !known || config.by_id & IdKind::Vni.bit() == 0 {
        return Some(known);
    }
    // Both have the identifier at the same place.
    const _: () = assert!(vxlan::VNI_OFFSET == geneve::VNI_OFFSET);
    let [high, middle, low] = window.read(at + udp::HEADER_LEN + vxlan::VNI_OFFSET)?;
    let id = u32::from_be_bytes([0, high, middle, low]);
    Some(window.wanted(&IdKey { kind: IdKind::Vni as u32, id }))
}

/// Most collectors have one port, which is the first.
#[inline(always)]
fn has(ports: &[u16; ConfigRow::PORTS], port: u16) -> bool {
    ports[0] == port || ports[1] == port || ports[2] == port || ports[3] == port
}

/// Whether a GRE packet is asked for.
#[inline(always)]
fn in_gre<W: Window>(window: &W, config: &ConfigRow, at: usize) -> Option<bool> {
    let at = at & FAR;
    let head = window.read::<4>(at)?;
    let flags = u16::from_be_bytes([head[0], head[1]]);
    let payload = u16::from_be_bytes([head[2], head[3]]);
    let mut behind = at + gre::MIN_HEADER_LEN;
    if flags & gre::FLAG_CHECKSUM != 0 {
        behind += gre::OPTION_LEN;
    }
    match payload {
        ethernet::ETHER_TYPE_TEB if config.formats & ConfigRow::FORMAT_GRE != 0 => {
            if config.by_id & IdKind::Key.bit() == 0 {
                return Some(true);
            }
            // Without a key it is not one of those that were asked for by key.
            if flags & gre::FLAG_KEY == 0 {
                return Some(false);
            }
            let id = u32::from_be_bytes(window.read(behind)?);
            Some(window.wanted(&IdKey { kind: IdKind::Key as u32, id }))
        }
        ethernet::ETHER_TYPE_ERSPAN_II | ethernet::ETHER_TYPE_ERSPAN_III
            if config.formats & ConfigRow::FORMAT_ERSPAN != 0 =>
        {
            if config.by_id & IdKind::Session.bit() == 0 {
                return Some(true);
            }
            // Type I has neither number nor session.
            if payload == ethernet::ETHER_TYPE_ERSPAN_II && flags & gre::FLAG_SEQUENCE == 0 {
                return Some(false);
            }
            if flags & gre::FLAG_KEY != 0 {
                behind += gre::OPTION_LEN;
            }
            if flags & gre::FLAG_SEQUENCE != 0 {
                behind += gre::OPTION_LEN;
            }
            let word = u16::from_be_bytes(window.read(behind + 2)?);
            let id = (word & erspan::MAX_SESSION) as u32;
            Some(window.wanted(&IdKey { kind: IdKind::Session as u32, id }))
        }
        _ => Some(false),
    }
}
