//! What varies per packet. Runs in BPF: constant offsets, no slices, no arithmetic that can trap.

use super::{Family, OUTER_MAX, OuterTemplate, TunnelKind};
use crate::wire::{checksum::Sum, erspan, ipv4, ipv6, udp};

/// What [`OuterTemplate::fill`] is told about a packet. Numbers in host order; plain, without hidden padding.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerPacket {
    /// ERSPAN III: when the packet was seen, in nanoseconds of any clock that the receiver is told about.
    pub timestamp_ns: u64,
    /// Bytes of the inner frame from its Ethernet header on, as it is sent (after truncation).
    pub inner_len: u32,
    /// See [`flow_hash`](super::flow_hash). Decides the UDP source port.
    pub flow_hash: u32,
    /// GRE and ERSPAN: the packet's number in its session.
    pub sequence: u32,
    /// ERSPAN III: 0 received by the mirrored port (from the pod), 1 sent by it, the numbers of
    /// [`erspan::Direction`].
    pub direction: u32,
    /// ERSPAN: not 0 when `inner_len` is less than the frame was.
    pub truncated: u32,
    /// IPv4: identification. It must not repeat within the lifetime of a fragment.
    pub ip_id: u16,
    /// ERSPAN: the inner frame's VLAN tag control information (priority, DEI, identifier), 0 for none.
    pub vlan_tci: u16,
    /// ERSPAN II: what became of that tag, the numbers of [`erspan::VlanTag`].
    pub vlan_tag: u32,
    /// Zero.
    pub pad: u32,
}

const _: () = assert!(size_of::<PerPacket>() == 40);

/// Lowest UDP source port: the dynamic range of RFC 6335, as RFC 7348 section 5 recommends.
const ENTROPY_BASE: u16 = 49152;
/// Bits of the hash that the range can carry.
const ENTROPY_BITS: u32 = 14;
/// Offset of the sequence number in GRE without and with key.
const GRE_SEQUENCE: usize = 4;
const GRE_SEQUENCE_AFTER_KEY: usize = 8;
/// Where the three bits of priority begin in a TCI.
const TCI_PRIORITY_SHIFT: u32 = 13;
/// Offset of ERSPAN behind GRE with sequence number.
const ERSPAN: usize = 8;

impl OuterTemplate {
    const FLAG_SEQUENCE_AND_KEY: u32 = Self::FLAG_SEQUENCE | Self::FLAG_KEY;

    /// Copies the headers to `out`, writes what varies, and returns their length, at most [`OUTER_MAX`].
    ///
    /// All of `out` is written, with zeros behind the headers. The copy takes the fewest instructions in BPF when
    /// `out` lies at a multiple of eight bytes and the compiler can see that. A total that does not fit 16 bits
    /// (only a super-packet, whose lengths the kernel writes when it cuts it up) is written as 0.
    #[inline(always)]
    pub fn fill(&self, packet: &PerPacket, out: &mut [u8; OUTER_MAX]) -> usize {
        *out = self.bytes;
        let len = self.overhead();
        let total = (len as u32).wrapping_add(packet.inner_len);
        if self.family == Family::V4 as u32 {
            self.fill_ipv4(packet, total, out);
            self.fill_transport::<{ ipv4::MIN_HEADER_LEN }>(packet, total, out);
        } else {
            let payload = total.wrapping_sub(ipv6::HEADER_LEN as u32);
            put_u16(out, ipv6::PAYLOAD_LENGTH_OFFSET, length(payload));
            self.fill_transport::<{ ipv6::HEADER_LEN }>(packet, total, out);
        }
        len
    }

    #[inline(always)]
    fn fill_ipv4(&self, packet: &PerPacket, total: u32, out: &mut [u8; OUTER_MAX]) {
        let total = length(total);
        let sum = Sum::ZERO.add_word(self.ip_sum as u16).add_word(total).add_word(packet.ip_id);
        put_u16(out, ipv4::TOTAL_LENGTH_OFFSET, total);
        put_u16(out, ipv4::ID_OFFSET, packet.ip_id);
        put_u16(out, ipv4::CHECKSUM_OFFSET, sum.checksum());
    }

    /// `AT`: where UDP or GRE begins.
    #[inline(always)]
    fn fill_transport<const AT: usize>(&self, packet: &PerPacket, total: u32, out: &mut [u8; OUTER_MAX]) {
        const { assert!(AT + ERSPAN + erspan::iii::MIN_HEADER_LEN <= OUTER_MAX) };
        match self.kind() {
            Some(TunnelKind::Vxlan | TunnelKind::Geneve) => {
                put_u16(out, AT + udp::SOURCE_PORT_OFFSET, entropy_port(packet.flow_hash));
                put_u16(out, AT + udp::LENGTH_OFFSET, length(total.wrapping_sub(AT as u32)));
            }
            Some(TunnelKind::Gre) => match self.flags & Self::FLAG_SEQUENCE_AND_KEY {
                Self::FLAG_SEQUENCE => put_u32(out, AT + GRE_SEQUENCE, packet.sequence),
                Self::FLAG_SEQUENCE_AND_KEY => put_u32(out, AT + GRE_SEQUENCE_AFTER_KEY, packet.sequence),
                _ => {}
            },
            Some(TunnelKind::ErspanII) => {
                put_u32(out, AT + GRE_SEQUENCE, packet.sequence);
                fill_erspan(packet, packet.vlan_tag, out, AT + ERSPAN);
            }
            Some(TunnelKind::ErspanIII) => {
                put_u32(out, AT + GRE_SEQUENCE, packet.sequence);
                fill_erspan(packet, 0, out, AT + ERSPAN);
                put_u32(out, AT + ERSPAN + erspan::iii::TIMESTAMP_OFFSET, self.timestamp(packet));
                if self.flags & Self::FLAG_FIXED_DIRECTION == 0 && packet.direction & 1 != 0 {
                    out[AT + ERSPAN + erspan::iii::FLAGS_OFFSET + 1] |= erspan::iii::FLAG_DIRECTION as u8;
                }
            }
            None => {}
        }
    }

    /// The packet's time in the unit that the template announces. Divisions by constants only.
    #[inline(always)]
    const fn timestamp(&self, packet: &PerPacket) -> u32 {
        if self.flags & Self::FLAG_FINE_TIMESTAMP == 0 {
            (packet.timestamp_ns / 100_000) as u32
        } else {
            (packet.timestamp_ns / 100) as u32
        }
    }
}

/// VLAN, class of service, En and T, into the zeros that the template has there. `two_bits`: En of type II.
#[inline(always)]
fn fill_erspan(packet: &PerPacket, two_bits: u32, out: &mut [u8; OUTER_MAX], at: usize) {
    let [vlan_high, vlan_low] = (packet.vlan_tci & erspan::MAX_VLAN).to_be_bytes();
    let cos = (packet.vlan_tci >> TCI_PRIORITY_SHIFT) as u8;
    let truncated = if packet.truncated == 0 { 0 } else { erspan::FLAG_TRUNCATED };
    out[at] |= vlan_high;
    out[at + 1] |= vlan_low;
    out[at + 2] |=
        cos << erspan::COS_SHIFT | ((two_bits & 3) as u8) << erspan::ENCAPSULATION_SHIFT | truncated;
}

/// A length as its 16-bit field, 0 when it does not fit.
#[inline(always)]
const fn length(bytes: u32) -> u16 {
    if bytes > u16::MAX as u32 { 0 } else { bytes as u16 }
}

/// The UDP source port of a flow, 49152 to 65535.
#[inline(always)]
const fn entropy_port(flow_hash: u32) -> u16 {
    ENTROPY_BASE | (flow_hash >> (u32::BITS - ENTROPY_BITS)) as u16
}

#[inline(always)]
fn put_u16(out: &mut [u8; OUTER_MAX], at: usize, value: u16) {
    // As a whole array, so that it becomes one store where the alignment is known.
    out[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline(always)]
fn put_u32(out: &mut [u8; OUTER_MAX], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
