//! Outer headers, ready but for what varies per packet.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Encapsulation, OuterAddresses, Tunnel};
use crate::wire::{
    Layer, WireError,
    checksum::Sum,
    erspan::{self, Direction, iii::Granularity},
    ethernet, geneve, gre, ipv4, ipv6, protocol, udp, vxlan,
};

/// Room for the longest outer headers, in bytes.
pub const OUTER_MAX: usize = 96;

/// A tunnel's kind, as a number in maps.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TunnelKind {
    /// VXLAN.
    Vxlan = 1,
    /// GENEVE.
    Geneve = 2,
    /// GRE with an Ethernet payload.
    Gre = 3,
    /// ERSPAN type II.
    ErspanII = 4,
    /// ERSPAN type III.
    ErspanIII = 5,
}

impl TunnelKind {
    /// Whether the tunnel runs over UDP; the others run over GRE.
    #[inline(always)]
    pub const fn is_udp(self) -> bool {
        matches!(self, Self::Vxlan | Self::Geneve)
    }
}

/// The outer header's family, as a number in maps.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4 = 4,
    /// IPv6.
    V6 = 6,
}

/// The outer headers of a session, from the outer IP header through the tunnel header, and what
/// [`fill`](OuterTemplate::fill) needs to know of them. Part of a map row: no hidden padding, host order but for
/// `bytes`. All zero is a template of length 0.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterTemplate {
    /// The headers, `len` bytes of them, with zeros for what varies and at the end.
    pub bytes: [u8; OUTER_MAX],
    /// Bytes of the headers.
    pub len: u32,
    /// A [`TunnelKind`].
    pub kind: u32,
    /// A [`Family`].
    pub family: u32,
    /// `FLAG_…` of this type.
    pub flags: u32,
    /// Folded sum of the IPv4 header with zeros for total length, identification and checksum; 0 for IPv6.
    pub ip_sum: u32,
    /// Where UDP or GRE begins.
    pub transport_offset: u16,
    /// Where VXLAN, GENEVE or ERSPAN begins; for plain GRE, where the frame begins.
    pub tunnel_offset: u16,
}

const _: () = assert!(size_of::<OuterTemplate>() == OUTER_MAX + 24);
const _: () = assert!(
    ipv6::HEADER_LEN + gre::MAX_HEADER_LEN + erspan::iii::MIN_HEADER_LEN + erspan::iii::SUBHEADER_LEN
        <= OUTER_MAX
);

impl Default for OuterTemplate {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl OuterTemplate {
    /// No headers at all.
    pub const EMPTY: Self = Self {
        bytes: [0; OUTER_MAX],
        len: 0,
        kind: 0,
        family: 0,
        flags: 0,
        ip_sum: 0,
        transport_offset: 0,
        tunnel_offset: 0,
    };

    /// The GRE header has a key.
    pub const FLAG_KEY: u32 = 1 << 0;
    /// The GRE header has a sequence number.
    pub const FLAG_SEQUENCE: u32 = 1 << 1;
    /// ERSPAN III: the direction is in the template; a packet's own is not looked at.
    pub const FLAG_FIXED_DIRECTION: u32 = 1 << 2;
    /// ERSPAN III: the timestamp counts 100 nanoseconds, not 100 microseconds.
    pub const FLAG_FINE_TIMESTAMP: u32 = 1 << 3;

    /// Builds the headers.
    ///
    /// # Errors
    /// A parameter that does not fit its field (`ValueTooLarge`; `offset` is that of the field in its own
    /// header); a granularity that needs a platform subheader or has no fixed unit (`Unsupported`).
    pub fn new(description: &Encapsulation) -> Result<Self, WireError> {
        let mut template = Self::EMPTY;
        let (family, ip_len) = match description.addresses {
            OuterAddresses::V4 { .. } => (Family::V4, ipv4::MIN_HEADER_LEN),
            OuterAddresses::V6 { .. } => (Family::V6, ipv6::HEADER_LEN),
        };
        let (kind, protocol) = match description.tunnel {
            Tunnel::Vxlan { .. } => (TunnelKind::Vxlan, protocol::UDP),
            Tunnel::Geneve { .. } => (TunnelKind::Geneve, protocol::UDP),
            Tunnel::Gre { .. } => (TunnelKind::Gre, protocol::GRE),
            Tunnel::ErspanII { .. } => (TunnelKind::ErspanII, protocol::GRE),
            Tunnel::ErspanIII { .. } => (TunnelKind::ErspanIII, protocol::GRE),
        };
        let (ip, rest) = template.bytes.split_at_mut(ip_len);
        write_ip(description, protocol, ip)?;
        if family == Family::V4 {
            template.ip_sum = ip_sum(ip);
        }
        let (transport_len, tunnel_len) = write_tunnel(&description.tunnel, rest)?;
        template.kind = kind as u32;
        template.family = family as u32;
        template.flags = flags(&description.tunnel);
        template.transport_offset = ip_len as u16;
        template.tunnel_offset = (ip_len + transport_len) as u16;
        template.len = (ip_len + transport_len + tunnel_len) as u32;
        Ok(template)
    }

    /// Bytes that encapsulation adds between the outer and the inner Ethernet header; never above [`OUTER_MAX`].
    #[inline(always)]
    pub const fn overhead(&self) -> usize {
        // The verifier does not know what is in a map.
        if self.len as usize > OUTER_MAX { OUTER_MAX } else { self.len as usize }
    }

    /// EtherType of the outer IP header.
    #[inline(always)]
    pub const fn ether_type(&self) -> u16 {
        if self.family == Family::V4 as u32 { ethernet::ETHER_TYPE_IPV4 } else { ethernet::ETHER_TYPE_IPV6 }
    }

    /// The tunnel's kind; `None` when the number is not one.
    #[inline(always)]
    pub const fn kind(&self) -> Option<TunnelKind> {
        match self.kind {
            1 => Some(TunnelKind::Vxlan),
            2 => Some(TunnelKind::Geneve),
            3 => Some(TunnelKind::Gre),
            4 => Some(TunnelKind::ErspanII),
            5 => Some(TunnelKind::ErspanIII),
            _ => None,
        }
    }

    /// Source and destination of an IPv4 outer header, for a route lookup.
    #[inline(always)]
    pub const fn addresses_v4(&self) -> ([u8; 4], [u8; 4]) {
        let b = &self.bytes;
        ([b[12], b[13], b[14], b[15]], [b[16], b[17], b[18], b[19]])
    }

    /// Source and destination of an IPv6 outer header, for a route lookup.
    #[inline(always)]
    pub const fn addresses_v6(&self) -> ([u8; 16], [u8; 16]) {
        const fn at(b: &[u8; OUTER_MAX], i: usize) -> [u8; 16] {
            [
                b[i],
                b[i + 1],
                b[i + 2],
                b[i + 3],
                b[i + 4],
                b[i + 5],
                b[i + 6],
                b[i + 7],
                b[i + 8],
                b[i + 9],
                b[i + 10],
                b[i + 11],
                b[i + 12],
                b[i + 13],
                b[i + 14],
                b[i + 15],
            ]
        }
        (at(&self.bytes, ipv6::SOURCE_OFFSET), at(&self.bytes, ipv6::DESTINATION_OFFSET))
    }

    /// The tunnel's remote end.
    pub fn remote(&self) -> IpAddr {
        if self.family == Family::V4 as u32 {
            IpAddr::V4(Ipv4Addr::from(self.addresses_v4().1))
        } else {
            IpAddr::V6(Ipv6Addr::from(self.addresses_v6().1))
        }
    }
}

fn write_ip(description: &Encapsulation, protocol: u8, out: &mut [u8]) -> Result<usize, WireError> {
    match description.addresses {
        OuterAddresses::V4 { local, remote } => ipv4::Header {
            tos: description.tos,
            dont_fragment: description.dont_fragment,
            ttl: description.ttl,
            protocol,
            source: local.octets(),
            destination: remote.octets(),
            ..ipv4::Header::default()
        }
        .write(out),
        OuterAddresses::V6 { local, remote } => ipv6::Header {
            traffic_class: description.tos,
            flow_label: 0,
            payload_length: 0,
            next_header: protocol,
            hop_limit: description.ttl,
            source: local.octets(),
            destination: remote.octets(),
        }
        .write(out),
    }
}

/// Zeros the checksum of an IPv4 header and returns the sum of the rest.
fn ip_sum(header: &mut [u8]) -> u32 {
    if let Some(checksum) = header.get_mut(ipv4::CHECKSUM_OFFSET..ipv4::CHECKSUM_OFFSET + 2) {
        checksum.fill(0);
    }
    u32::from(Sum::ZERO.add_bytes(header).folded())
}

/// Writes UDP or GRE and the tunnel header; returns the bytes of each.
fn write_tunnel(tunnel: &Tunnel, out: &mut [u8]) -> Result<(usize, usize), WireError> {
    let transport_len = match *tunnel {
        Tunnel::Vxlan { port, .. } | Tunnel::Geneve { port, .. } => {
            udp::Header { destination_port: port, ..udp::Header::default() }.write(out)?
        }
        Tunnel::Gre { key, sequence } => gre::Header {
            protocol: ethernet::ETHER_TYPE_TEB,
            checksum: None,
            key,
            sequence: sequence.then_some(0),
        }
        .write(out)?,
        Tunnel::ErspanII { .. } => write_erspan_gre(ethernet::ETHER_TYPE_ERSPAN_II, out)?,
        Tunnel::ErspanIII { .. } => write_erspan_gre(ethernet::ETHER_TYPE_ERSPAN_III, out)?,
    };
    let rest = out.get_mut(transport_len..).unwrap_or_default();
    let tunnel_len = match *tunnel {
        Tunnel::Vxlan { vni, .. } => vxlan::Header { vni }.write(rest)?,
        Tunnel::Geneve { vni, .. } => {
            geneve::Header { protocol: ethernet::ETHER_TYPE_TEB, vni, ..geneve::Header::default() }
                .write(rest)?
        }
        Tunnel::Gre { .. } => 0,
        Tunnel::ErspanII { session, index } => {
            erspan::ii::Header { session, index, ..erspan::ii::Header::default() }.write(rest)?
        }
        Tunnel::ErspanIII { session, hardware_id, sgt, direction, granularity } => {
            if !matches!(granularity, Granularity::HundredMicroseconds | Granularity::HundredNanoseconds) {
                let (needed, had) = (Granularity::HundredMicroseconds as usize, granularity as usize);
                return Err(WireError::unsupported(Layer::Erspan, erspan::iii::FLAGS_OFFSET, needed, had));
            }
            erspan::iii::Header {
                session,
                hardware_id,
                sgt,
                direction: direction.unwrap_or_default(),
                granularity,
                ethernet: true,
                ..erspan::iii::Header::default()
            }
            .write(rest)?
        }
    };
    Ok((transport_len, tunnel_len))
}

fn write_erspan_gre(protocol: u16, out: &mut [u8]) -> Result<usize, WireError> {
    gre::Header { protocol, sequence: Some(0), ..gre::Header::default() }.write(out)
}

const fn flags(tunnel: &Tunnel) -> u32 {
    let mut flags = 0;
    match *tunnel {
        Tunnel::Vxlan { .. } | Tunnel::Geneve { .. } => {}
        Tunnel::Gre { key, sequence } => {
            if key.is_some() {
                flags |= OuterTemplate::FLAG_KEY;
            }
            if sequence {
                flags |= OuterTemplate::FLAG_SEQUENCE;
            }
        }
        Tunnel::ErspanII { .. } => flags |= OuterTemplate::FLAG_SEQUENCE,
        Tunnel::ErspanIII { direction, granularity, .. } => {
            flags |= OuterTemplate::FLAG_SEQUENCE;
            if direction.is_some() {
                flags |= OuterTemplate::FLAG_FIXED_DIRECTION;
            }
            if matches!(granularity, Granularity::HundredNanoseconds) {
                flags |= OuterTemplate::FLAG_FINE_TIMESTAMP;
            }
        }
    }
    flags
}

// `Direction` travels as a number in `PerPacket`; the two must not drift apart.
const _: () = assert!(Direction::Ingress as u32 == 0 && Direction::Egress as u32 == 1);
