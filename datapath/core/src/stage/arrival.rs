//! Stage arrival. In: a packet from another node. Out: the tunnel that it came by, when it is one of VXLAN,
//! GENEVE or GRE with an Ethernet frame inside.

use super::packet::Packet;
use super::parse::{Facts, Transport};
use crate::abi::{Mode, TunnelKey};
use crate::wire::{encap::TunnelKind, ethernet, protocol};

/// A tunnelled packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// By which tunnel. For UDP the kind is VXLAN's; see [`Arrival::as_geneve`].
    pub key: TunnelKey,
    /// Frame bytes before the inner frame; for UDP as VXLAN has it.
    pub inner_offset: u32,
    /// The same for GENEVE, 0 when it cannot be that.
    pub geneve_offset: u32,
}

impl Arrival {
    /// The key, should the UDP port be GENEVE's.
    #[inline(always)]
    pub const fn as_geneve(&self) -> TunnelKey {
        TunnelKey { kind: TunnelKind::Geneve as u32, ..self.key }
    }
}

/// VXLAN's flag "the VNI is valid" (RFC 7348 section 5).
const VNI_VALID: u8 = 0x08;
const TUNNEL_LEN: u32 = 8;

/// Reads the outer headers; `None` for everything that is no such tunnel's, fragments included.
#[inline(always)]
pub fn arrival<P: Packet>(packet: &P) -> Option<Arrival> {
    let facts = packet.facts();
    if matches!(facts.mode, Mode::Other) {
        return None;
    }
    if facts.protocol == protocol::UDP && matches!(facts.transport, Transport::Ports) {
        return udp(packet, &facts);
    }
    if facts.protocol == protocol::GRE { gre(packet, &facts) } else { None }
}

#[inline(always)]
fn udp<P: Packet>(packet: &P, facts: &Facts) -> Option<Arrival> {
    let head = packet.read::<8>(facts.payload_offset as usize)?;
    let key = TunnelKey {
        remote: remote(facts),
        family: family(facts),
        kind: TunnelKind::Vxlan as u32,
        id: u32::from_be_bytes([0, head[4], head[5], head[6]]),
        port: facts.destination_port as u32,
    };
    let inner_offset = facts.payload_offset + TUNNEL_LEN;
    let ethernet_inside = u16::from_be_bytes([head[2], head[3]]) == ethernet::ETHER_TYPE_TEB;
    let geneve_offset =
        if head[0] >> 6 == 0 && ethernet_inside { inner_offset + (head[0] & 0x3f) as u32 * 4 } else { 0 };
    let inner_offset = if head[0] & VNI_VALID != 0 { inner_offset } else { 0 };
    Some(Arrival { key, inner_offset, geneve_offset })
}

/// GRE (RFC 2784, RFC 2890): flags, protocol, then checksum, key and sequence number where the flags say so.
#[inline(always)]
fn gre<P: Packet>(packet: &P, facts: &Facts) -> Option<Arrival> {
    let at = gre_offset(packet, facts)?;
    let head = packet.read::<4>(at as usize)?;
    if u16::from_be_bytes([head[2], head[3]]) != ethernet::ETHER_TYPE_TEB || head[1] & 7 != 0 {
        return None;
    }
    let mut end = at + 4;
    if head[0] & 0x80 != 0 {
        end += 4;
    }
    let mut key = 0;
    let keyed = head[0] & 0x20 != 0;
    if keyed {
        key = u32::from_be_bytes(packet.read::<4>(end as usize)?);
        end += 4;
    }
    if head[0] & 0x10 != 0 {
        end += 4;
    }
    let key = TunnelKey {
        remote: remote(facts),
        family: family(facts),
        kind: TunnelKind::Gre as u32,
        id: key,
        port: keyed as u32,
    };
    Some(Arrival { key, inner_offset: end, geneve_offset: 0 })
}

/// Where GRE begins: behind an IPv4 header with its options, or right behind an IPv6 header. Not in fragments.
#[inline(always)]
fn gre_offset<P: Packet>(packet: &P, facts: &Facts) -> Option<u32> {
    let at = facts.network_offset;
    let head = packet.read::<8>(at as usize)?;
    match facts.mode {
        Mode::V4 if u16::from_be_bytes([head[6], head[7]]) & 0x3fff == 0 => {
            Some(at + (head[0] & 0x0f) as u32 * 4)
        }
        Mode::V6 if head[6] == protocol::GRE => Some(at + 40),
        _ => None,
    }
}

#[inline(always)]
const fn family(facts: &Facts) -> u32 {
    if matches!(facts.mode, Mode::V4) { 4 } else { 6 }
}

#[inline(always)]
fn remote(facts: &Facts) -> [u8; 16] {
    let (high, low) = (facts.source.high.to_be_bytes(), facts.source.low.to_be_bytes());
    [
        high[0], high[1], high[2], high[3], high[4], high[5], high[6], high[7], low[0], low[1], low[2],
        low[3], low[4], low[5], low[6], low[7],
    ]
}
