//! The packet of a trace: what one that is made has, or what a live one must have.

mod read;

use std::net::IpAddr;

use podwire_core::wire::protocol;

pub(super) use read::{Written, read, settle};

use crate::compile::TcpFlags;

/// What a packet has. Protocol, family, TTL and transport of one that is made are always there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracePacket {
    /// IPv4 or IPv6.
    pub family: Option<TraceFamily>,
    /// Source address; that of the source unless written.
    pub source_ip: Option<IpAddr>,
    /// Destination address; that of the destination unless written.
    pub destination_ip: Option<IpAddr>,
    /// Bytes of the IPv4 packet, or of what follows the IPv6 header.
    pub length: Option<u16>,
    /// Bytes behind the transport header.
    pub payload_length: Option<u16>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Time to live, or hop limit.
    pub ttl: Option<u8>,
    /// The three bits beside the fragment offset, IPv4 only: 2 is "don't fragment".
    pub ip_flags: Option<u8>,
    /// The transport header.
    pub transport: Option<TraceTransport>,
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TraceFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A transport header; `None` is anything, or a default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceTransport {
    /// TCP.
    Tcp {
        /// Its ports.
        ports: TracePorts,
        /// Its flags; when the packet is made it has those of `value`.
        flags: Option<TcpFlags>,
    },
    /// UDP.
    Udp(TracePorts),
    /// SCTP.
    Sctp(TracePorts),
    /// ICMP or ICMPv6.
    Icmp(TraceIcmp),
}

/// Ports; an unwritten source is chosen at random when the packet is made, an unwritten destination is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracePorts {
    /// Source port.
    pub source: Option<u16>,
    /// Destination port.
    pub destination: Option<u16>,
}

/// ICMP fields; a packet that is made is an echo request unless `kind` is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceIcmp {
    /// The type.
    pub kind: Option<u8>,
    /// The code.
    pub code: Option<u8>,
    /// Identifier of an echo.
    pub id: Option<u16>,
    /// Sequence number of an echo.
    pub sequence: Option<u16>,
}

impl TraceFamily {
    /// That of an address.
    pub const fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// `IPv4` or `IPv6`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    const fn icmp(self) -> u8 {
        match self {
            Self::V4 => protocol::ICMP,
            Self::V6 => protocol::ICMPV6,
        }
    }
}

impl TraceTransport {
    /// Its protocol number, in a family.
    pub const fn protocol(&self, family: TraceFamily) -> u8 {
        match self {
            Self::Tcp { .. } => protocol::TCP,
            Self::Udp(_) => protocol::UDP,
            Self::Sctp(_) => protocol::SCTP,
            Self::Icmp(_) => family.icmp(),
        }
    }

    /// The field that it is read from.
    const fn field(&self) -> &'static str {
        match self {
            Self::Tcp { .. } => "tcp",
            Self::Udp(_) => "udp",
            Self::Sctp(_) => "sctp",
            Self::Icmp(_) => "icmp",
        }
    }

    /// An empty one of a protocol that packets are made of.
    fn empty(number: u8) -> Option<Self> {
        Some(match number {
            protocol::TCP => Self::Tcp { ports: TracePorts::default(), flags: None },
            protocol::UDP => Self::Udp(TracePorts::default()),
            protocol::SCTP => Self::Sctp(TracePorts::default()),
            protocol::ICMP | protocol::ICMPV6 => Self::Icmp(TraceIcmp::default()),
            _ => return None,
        })
    }
}
