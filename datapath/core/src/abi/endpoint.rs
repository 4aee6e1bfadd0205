//! What the datapath knows of an endpoint.

/// Direction of a packet relative to the pod, as in a TrafficControl.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Towards the pod: the host-side interface's egress hook.
    Ingress = 0,
    /// From the pod: the host-side interface's ingress hook.
    Egress = 1,
}

impl Direction {
    /// Both directions, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The number as stored in maps.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// The direction of a number as stored in maps.
    #[inline(always)]
    pub const fn from_index(index: u32) -> Self {
        if index == Self::Ingress as u32 { Self::Ingress } else { Self::Egress }
    }

    /// The other one.
    #[inline(always)]
    pub const fn reverse(self) -> Self {
        match self {
            Self::Ingress => Self::Egress,
            Self::Egress => Self::Ingress,
        }
    }

    /// The word that users read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Egress => "Egress",
        }
    }
}

impl EndpointRow {
    /// At least one policy looks at who opened a connection.
    pub const FLAG_STATEFUL: u32 = 1 << 0;
    /// Packets with a foreign source are counted.
    pub const FLAG_OBSERVE: u32 = 1 << 1;
    /// Packets with a foreign source are dropped.
    pub const FLAG_ENFORCE: u32 = 1 << 2;
    /// What the pod sends is led to where it goes: by the overlay, to another pod, with an Egress mark.
    pub const FLAG_LEAVES: u32 = 1 << 3;
    /// An Egress policy's node is another one: answers of connections that were opened from outside of the cluster
    /// leave by this node, as the questions came.
    pub const FLAG_ANSWERS: u32 = 1 << 4;

    /// Whether sources are looked at.
    #[inline(always)]
    pub const fn is_guarded(&self) -> bool {
        self.flags & (Self::FLAG_OBSERVE | Self::FLAG_ENFORCE) != 0
    }
}

/// One endpoint in one bank.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointRow {
    /// Absolute index into `RULESETS` plus one, by [`Direction`]; 0: no rule applies. Both number their slots
    /// alike.
    pub rulesets: [u32; 2],
    /// `FLAG_…` of this type.
    pub flags: u32,
    /// Trie ([`super::Entry`]) of its MAC addresses; any row but the empty one says that one is its own.
    pub macs: u32,
    /// The same for IPv4 source addresses.
    pub sources_v4: u32,
    /// The same for IPv6 source addresses, link-local ones included.
    pub sources_v6: u32,
    /// Absolute index into `RULESETS` plus one of its Egress policies, in the order of their priority; 0: none.
    pub egress: u32,
    /// MAC address of the interface's host side: the pod's gateway.
    pub gateway: [u8; 6],
    /// Zero.
    pub pad: [u8; 2],
}
