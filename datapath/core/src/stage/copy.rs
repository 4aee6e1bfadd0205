//! Stage copy, on the private mirror device. In: a copy, its [`CopyRow`] and a session. Out: how it is dressed
//! and whether it fits.
//!
//! The arithmetic and the bookkeeping stand here; the BPF program and the reference model only carry it out.

use crate::abi::{CopyRow, Direction, Reason, SessionCounters};
use crate::wire::{
    encap::{OuterTemplate, PerPacket, TunnelKind},
    erspan, ethernet, protocol,
};

/// A VLAN tag in bytes.
pub const VLAN_TAG_LEN: u32 = 4;
/// Longest inner link header: two tags in the frame and one beside it.
pub const MAX_LINK_LEN: usize = ethernet::HEADER_LEN + 3 * VLAN_TAG_LEN as usize;
/// Largest IP packet.
const MAX_TOTAL_LEN: u32 = u16::MAX as u32;

/// Sizes of a copy before it is dressed, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The inner frame with every VLAN tag in it.
    pub inner_len: u32,
    /// Its link header with every VLAN tag in it.
    pub link_len: u32,
    /// VLAN tags, in the frame and beside it.
    pub tags: u32,
    /// Payload per segment of a super-packet, 0 otherwise.
    pub gso_size: u32,
}

impl Shape {
    /// `frame_len` as the kernel counts it, without a tag that it keeps `beside` the frame.
    ///
    /// `None` when the frame has more tags than are followed: it cannot be rebuilt.
    #[inline(always)]
    pub fn new(copy: &CopyRow, frame_len: u32, beside: bool, gso_size: u32) -> Option<Self> {
        let ether_type = copy.ether_type as u16;
        if matches!(ether_type, ethernet::ETHER_TYPE_VLAN | ethernet::ETHER_TYPE_QINQ) {
            return None;
        }
        let (link_len, in_frame) = match copy.network_offset {
            14 => (14, 0),
            18 => (18, 1),
            22 => (22, 2),
            _ => return None,
        };
        let extra = if beside { VLAN_TAG_LEN } else { 0 };
        Some(Self {
            inner_len: frame_len.wrapping_add(extra),
            link_len: link_len + extra,
            tags: in_frame + beside as u32,
            gso_size,
        })
    }

    /// Bytes that are inserted: outer headers and a new inner link header.
    #[inline(always)]
    pub fn growth(&self, template: &OuterTemplate) -> u32 {
        template.overhead() as u32 + self.link_len
    }

    /// Length of the IP packet that reaches the wire, of one segment for a super-packet. TCP's segments shrink
    /// by the growth, so that they fit wherever the original's fitted; other super-packets keep their segment
    /// size, which is a datagram's.
    #[inline(always)]
    pub fn wire_len(&self, copy: &CopyRow, template: &OuterTemplate) -> u32 {
        if self.gso_size == 0 {
            return self.inner_len.wrapping_add(template.overhead() as u32);
        }
        let segment = copy.payload_offset.wrapping_sub(copy.network_offset).wrapping_add(self.gso_size);
        if is_tcp(copy) { segment } else { segment.wrapping_add(self.growth(template)) }
    }

    /// Whether the outer lengths cannot be written, whatever the path carries.
    #[inline(always)]
    pub fn exceeds_ip(&self, template: &OuterTemplate) -> bool {
        self.inner_len.wrapping_add(template.overhead() as u32) > MAX_TOTAL_LEN
    }

    /// The shape cut to a path's MTU, `None` when not even the link header fits.
    #[inline(always)]
    pub fn cut(&self, template: &OuterTemplate, mtu: u32) -> Option<Self> {
        let inner_len = mtu.checked_sub(template.overhead() as u32)?;
        if inner_len <= self.link_len || inner_len >= self.inner_len {
            return None;
        }
        Some(Self { inner_len, gso_size: 0, ..*self })
    }

    /// What the template is told about the copy.
    #[inline(always)]
    pub fn per_packet(&self, copy: &CopyRow, stamp: &Stamp) -> PerPacket {
        PerPacket {
            timestamp_ns: stamp.time_ns,
            inner_len: self.inner_len,
            flow_hash: copy.flow_hash,
            sequence: stamp.sequence,
            direction: erspan_direction(copy.direction),
            truncated: stamp.truncated as u32,
            ip_id: stamp.ip_id,
            vlan_tci: stamp.vlan_tci,
            vlan_tag: if self.tags == 0 {
                erspan::VlanTag::None as u32
            } else {
                erspan::VlanTag::InFrame as u32
            },
            pad: 0,
        }
    }
}

/// What is said of one packet and cannot be read from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// When it was seen, in nanoseconds of the node's clock.
    pub time_ns: u64,
    /// Its number in the session.
    pub sequence: u32,
    /// Identification of the outer IPv4 header.
    pub ip_id: u16,
    /// Control information of its outermost VLAN tag, 0 for none.
    pub vlan_tci: u16,
    /// It was cut.
    pub truncated: bool,
}

/// ERSPAN's direction bit: 0 for what the mirrored port received, which is what the pod sent.
#[inline(always)]
pub const fn erspan_direction(direction: u32) -> u32 {
    if direction == Direction::Egress as u32 {
        erspan::Direction::Ingress as u32
    } else {
        erspan::Direction::Egress as u32
    }
}

/// Whether a session's packets are numbered.
#[inline(always)]
pub const fn is_numbered(template: &OuterTemplate) -> bool {
    template.flags & OuterTemplate::FLAG_SEQUENCE != 0
}

/// Whether a session's packets carry the time.
#[inline(always)]
pub const fn is_timed(template: &OuterTemplate) -> bool {
    template.kind == TunnelKind::ErspanIII as u32
}

/// Length of the largest frame that a device with this MTU takes: a tag in the frame does not count, a second one
/// does (`is_skb_forwardable` of the kernel).
#[inline(always)]
pub fn largest_for_device(network_offset: u32, mtu: u32) -> u32 {
    let link_len = network_offset.min(ethernet::HEADER_LEN as u32 + VLAN_TAG_LEN);
    mtu.wrapping_add(link_len)
}

/// Whether the copy's super-packet is TCP's.
#[inline(always)]
pub fn is_tcp(copy: &CopyRow) -> bool {
    copy.protocol == protocol::TCP as u32
}

/// What became of a copy.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device took `bytes`.
    Sent {
        /// Length of the frame.
        bytes: u32,
        /// It was cut to fit.
        truncated: bool,
    },
    /// The kernel keeps it until it knows the next hop.
    Queued {
        /// It was cut to fit.
        truncated: bool,
    },
    /// It went on inside podwire: to be cut up, or to user space.
    Handed,
    /// It is gone.
    Lost(Reason),
}

impl SessionCounters {
    /// Books a copy that was wanted of a frame of `len` bytes.
    #[inline(always)]
    pub fn matched(&mut self, len: u32) {
        self.matched_packets = self.matched_packets.wrapping_add(1);
        self.matched_bytes = self.matched_bytes.wrapping_add(len as u64);
    }

    /// Books a loss.
    #[inline(always)]
    pub fn lost(&mut self, reason: Reason) {
        if let Some(count) = self.lost_packets.get_mut(core::hint::black_box(reason.index())) {
            *count = count.wrapping_add(1);
        }
    }

    /// Books what became of a copy.
    #[inline(always)]
    pub fn record(&mut self, outcome: &Outcome) {
        let truncated = match *outcome {
            Outcome::Sent { bytes, truncated } => {
                self.sent_packets = self.sent_packets.wrapping_add(1);
                self.sent_bytes = self.sent_bytes.wrapping_add(bytes as u64);
                truncated
            }
            Outcome::Queued { truncated } => {
                self.queued_packets = self.queued_packets.wrapping_add(1);
                truncated
            }
            Outcome::Handed => {
                self.handed_packets = self.handed_packets.wrapping_add(1);
                false
            }
            Outcome::Lost(reason) => {
                self.lost(reason);
                false
            }
        };
        if truncated {
            self.truncated_packets = self.truncated_packets.wrapping_add(1);
        }
    }
}
