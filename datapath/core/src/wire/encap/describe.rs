//! What a user says about a tunnel.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::erspan::{Direction, iii::Granularity};

/// A tunnel and its own parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tunnel {
    /// VXLAN.
    Vxlan {
        /// Network identifier, 24 bits.
        vni: u32,
        /// UDP destination port; [`crate::wire::vxlan::PORT`] by custom.
        port: u16,
    },
    /// GENEVE with an Ethernet payload and no options.
    Geneve {
        /// Network identifier, 24 bits.
        vni: u32,
        /// UDP destination port; [`crate::wire::geneve::PORT`] by custom.
        port: u16,
    },
    /// GRE with an Ethernet payload.
    Gre {
        /// The key, all 32 bits; `None` for a header without one.
        key: Option<u32>,
        /// Whether packets are numbered.
        sequence: bool,
    },
    /// ERSPAN type II.
    ErspanII {
        /// Session identifier, 10 bits.
        session: u16,
        /// Index of the mirrored port, 20 bits.
        index: u32,
    },
    /// ERSPAN type III, without platform-specific subheader.
    ErspanIII {
        /// Session identifier, 10 bits.
        session: u16,
        /// Hardware identifier, 6 bits.
        hardware_id: u8,
        /// Security group tag.
        sgt: u16,
        /// The direction that all packets get, or `None` for each packet's own.
        direction: Option<Direction>,
        /// Unit of the timestamp; only the two fixed units are accepted.
        granularity: Granularity,
    },
}

/// The tunnel's ends. Local is this node, remote the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OuterAddresses {
    /// Over IPv4.
    V4 {
        /// Source of the outer header.
        local: Ipv4Addr,
        /// Destination of the outer header.
        remote: Ipv4Addr,
    },
    /// Over IPv6.
    V6 {
        /// Source of the outer header.
        local: Ipv6Addr,
        /// Destination of the outer header.
        remote: Ipv6Addr,
    },
}

impl OuterAddresses {
    /// The two ends, or `None` when their families differ.
    pub const fn new(local: IpAddr, remote: IpAddr) -> Option<Self> {
        match (local, remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => Some(Self::V4 { local, remote }),
            (IpAddr::V6(local), IpAddr::V6(remote)) => Some(Self::V6 { local, remote }),
            _ => None,
        }
    }

    /// Source of the outer header.
    pub const fn local(self) -> IpAddr {
        match self {
            Self::V4 { local, .. } => IpAddr::V4(local),
            Self::V6 { local, .. } => IpAddr::V6(local),
        }
    }

    /// Destination of the outer header.
    pub const fn remote(self) -> IpAddr {
        match self {
            Self::V4 { remote, .. } => IpAddr::V4(remote),
            Self::V6 { remote, .. } => IpAddr::V6(remote),
        }
    }
}

/// All that the outer headers depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Encapsulation {
    /// The tunnel's ends.
    pub addresses: OuterAddresses,
    /// The tunnel.
    pub tunnel: Tunnel,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// DSCP and ECN of the outer header, as one byte.
    pub tos: u8,
    /// IPv4's flag "don't fragment"; without meaning over IPv6.
    pub dont_fragment: bool,
}

impl Encapsulation {
    /// With time to live 64, best effort, and fragments allowed.
    pub const fn new(addresses: OuterAddresses, tunnel: Tunnel) -> Self {
        Self { addresses, tunnel, ttl: 64, tos: 0, dont_fragment: false }
    }
}
