//! Where pods' packets go: other pods, other nodes, out of the cluster.

use super::Reason;

/// The network in one bank: row `bank` of map `NETWORK`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkRow {
    /// `FLAG_…` of this type.
    pub flags: u32,
    /// The overlay device, 0 when there is none.
    pub overlay_ifindex: u32,
    /// The largest IP packet that goes through the overlay, in bytes.
    pub overlay_mtu: u32,
    /// VNI of what is for pods.
    pub overlay_vni: u32,
    /// The bits of `skb->mark` that name an Egress address.
    pub egress_mark: u32,
    /// Trie ([`super::Entry`]) of IPv4 destinations; rows are absolute indexes into `TARGETS`, 0 for none.
    pub routes_v4: u32,
    /// The same for IPv6.
    pub routes_v6: u32,
    /// Zero.
    pub pad: u32,
}

/// MAC address of the overlay device of every node; locally administered.
pub const OVERLAY_MAC: [u8; 6] = [0x02, 0x70, 0x77, 0, 0, 1];

impl NetworkRow {
    /// podwire forwards.
    pub const FLAG_NATIVE: u32 = 1 << 0;
    /// What leaves the cluster under no Egress policy carries a mark that says so.
    pub const FLAG_JUDGED: u32 = 1 << 1;

    /// The mark of a packet that no Egress policy applies to: all bits.
    #[inline(always)]
    pub const fn judged(&self) -> u32 {
        self.egress_mark
    }

    /// The mark of an Egress address by its number.
    #[inline(always)]
    pub const fn mark_of(&self, number: u32) -> u32 {
        number << self.egress_mark.trailing_zeros() & self.egress_mark
    }

    /// Whether the policy of a packet is known: it has been looked at.
    #[inline(always)]
    pub const fn is_marked(&self, mark: u32) -> bool {
        mark & self.egress_mark != 0
    }
}

/// A destination in one bank.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetRow {
    /// [`TargetKind`].
    pub kind: u32,
    /// Of a pod: host side of its interface. Of a node: a number that its targets share.
    pub ifindex: u32,
    /// The largest IP packet for it, in bytes.
    pub mtu: u32,
    /// `FLAG_…` of this type.
    pub flags: u32,
    /// Of a pod: its MAC address.
    pub mac: [u8; 6],
    /// Of a pod: the MAC address of its interface's host side, which is its gateway's.
    pub gateway: [u8; 6],
    /// Of a node: its end of the overlay, as [`super::TunnelKey::remote`].
    pub remote: [u8; 16],
    /// Of a node: 4 or 6, which says how much of `remote` counts.
    pub family: u32,
}

impl TargetRow {
    /// A pod's interface is one end of a veth pair whose other end is in another network namespace.
    pub const FLAG_PEER: u32 = 1 << 0;
    /// Stages have to look at what the pod receives.
    pub const FLAG_STAGES: u32 = 1 << 1;
    /// Of a node: the destination is one of its pods, not the node itself.
    pub const FLAG_PODS: u32 = 1 << 2;
}

/// What a destination is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// None, or this node itself.
    None = 0,
    /// A pod of this node.
    Pod = 1,
    /// Another node.
    Node = 2,
}

/// An Egress policy in one bank.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressRow {
    /// Hash of the policy's name: an agent that starts again finds its numbers by it. 0 for a free number.
    pub name_hash: u64,
    /// Nanoseconds per 2 to the power of [`EgressRow::PACE_SHIFT`] bytes at its rate, 0 for no limit.
    pub pace: u64,
    /// How much may leave at once, in nanoseconds of its rate.
    pub burst: u64,
    /// [`EgressPlace`].
    pub place: u32,
    /// What other nodes know it by: see [`EgressRow::ID_FLAG`].
    pub id: u32,
    /// At [`EgressPlace::Peer`]: absolute index into `TARGETS`.
    pub target: u32,
    /// How many addresses it has, IPv4 and IPv6.
    pub counts: [u32; 2],
    /// Zero.
    pub pad: u32,
    /// Numbers of its addresses, IPv4 and IPv6.
    pub numbers: [[u16; EgressRow::ADDRESSES]; 2],
}

impl EgressRow {
    /// Addresses of one family that a policy can have.
    pub const ADDRESSES: usize = 16;
    /// 64 KiB: a whole number of nanoseconds is within a thousandth of every rate up to 500 Gbit/s.
    pub const PACE_SHIFT: u32 = 16;
    /// VNIs with this bit name an Egress policy; the others are the overlay's.
    pub const ID_FLAG: u32 = 1 << 23;
}

impl Default for EgressRow {
    fn default() -> Self {
        Self {
            name_hash: 0,
            pace: 0,
            burst: 0,
            place: EgressPlace::Nowhere as u32,
            id: 0,
            target: 0,
            counts: [0; 2],
            pad: 0,
            numbers: [[0; Self::ADDRESSES]; 2],
        }
    }
}

/// An Egress address by its number: an agent that starts again keeps the numbers, which are on packets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressRow {
    /// As [`super::TunnelKey::remote`].
    pub bytes: [u8; 16],
    /// 4 or 6; 0 for a free number.
    pub family: u32,
}

/// Where an Egress policy's addresses are.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressPlace {
    /// On no known node: packets are dropped.
    Nowhere = 0,
    /// On this node.
    Here = 1,
    /// On another node.
    Peer = 2,
}

/// What an Egress policy did on this node. Per CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressCounters {
    /// Packets that were marked for one of its addresses.
    pub marked_packets: u64,
    /// Their bytes.
    pub marked_bytes: u64,
    /// Packets sent on to its node.
    pub forwarded_packets: u64,
    /// Their bytes.
    pub forwarded_bytes: u64,
    /// Packets dropped, by [`EgressCounters::REASONS`].
    pub dropped_packets: [u64; EgressCounters::REASONS.len()],
}

impl EgressCounters {
    /// Why a policy's packets are dropped.
    pub const REASONS: [Reason; 6] = [
        Reason::NoEgressNode,
        Reason::RateExceeded,
        Reason::EgressUnknown,
        Reason::NoRoute,
        Reason::TooBig,
        Reason::EncapsulationRefused,
    ];

    /// Books a packet for one of the policy's addresses.
    #[inline(always)]
    pub fn marked(&mut self, len: u32) {
        self.marked_packets = self.marked_packets.wrapping_add(1);
        self.marked_bytes = self.marked_bytes.wrapping_add(len as u64);
    }

    /// Books a packet for the policy's node.
    #[inline(always)]
    pub fn forwarded(&mut self, len: u32) {
        self.forwarded_packets = self.forwarded_packets.wrapping_add(1);
        self.forwarded_bytes = self.forwarded_bytes.wrapping_add(len as u64);
    }

    /// Books a dropped packet.
    #[inline(always)]
    pub fn dropped(&mut self, reason: Reason) {
        let place = match reason {
            Reason::NoEgressNode => 0,
            Reason::RateExceeded => 1,
            Reason::EgressUnknown => 2,
            Reason::NoRoute => 3,
            Reason::TooBig => 4,
            Reason::EncapsulationRefused => 5,
            _ => return,
        };
        self.dropped_packets[place] = self.dropped_packets[place].wrapping_add(1);
    }
}

/// What became of the packets of the overlay in one direction: `received = passed + redirected + dropped`.
pub type OverlayCounters = super::EndpointCounters;

/// The packet at hand on its way to a pod of this node: row 0 of the per-CPU map `DELIVERY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryRow {
    /// Host side of the pod's interface.
    pub ifindex: u32,
    /// On its way to a pod: [`TargetRow::flags`]. On its way from the pod's hook: flags of this type.
    pub flags: u32,
}

impl DeliveryRow {
    /// Copies were made at the pod's hook.
    pub const MIRRORED: u32 = 1 << 0;
    /// Row 0 of `FACTS` is about this packet.
    pub const READ: u32 = 1 << 1;
}

#[cfg(test)]
mod tests {
    use super::EgressCounters;

    #[test]
    fn each_reason_has_its_place() {
        for (place, reason) in EgressCounters::REASONS.into_iter().enumerate() {
            let mut counters = EgressCounters::default();
            counters.dropped(reason);
            assert_eq!(counters.dropped_packets.iter().position(|count| *count == 1), Some(place));
        }
    }
}
