//! Decapsulation. In: a frame from its outer Ethernet header on. Out: where the mirrored frame lies in it and what
//! the tunnel says about it, or why there is none.
//!
//! Known are VXLAN and GENEVE by UDP port, GRE with an Ethernet payload, and ERSPAN I, II and III; over IPv4 and
//! IPv6, behind VLAN tags and IPv6 extension headers. Fragments are not put together: they are named as such.

use core::{fmt, ops::Range};

use super::{
    Layer, WireError, checksum,
    encap::OuterAddresses,
    erspan::{ii, iii},
    ethernet, geneve, gre, ip, protocol, udp, verify, vxlan,
};

/// What a receiver listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver<'a> {
    /// UDP destination ports of VXLAN.
    pub vxlan_ports: &'a [u16],
    /// UDP destination ports of GENEVE.
    pub geneve_ports: &'a [u16],
    /// Whether UDP and GRE checksums are verified where there are any. Off by default: on a virtual link they are
    /// often unfinished. The IPv4 header's is always verified.
    pub verify: bool,
}

impl Default for Receiver<'_> {
    fn default() -> Self {
        Self { vxlan_ports: &[vxlan::PORT], geneve_ports: &[geneve::PORT], verify: false }
    }
}

/// What the tunnel header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// VXLAN.
    Vxlan {
        /// Network identifier.
        vni: u32,
    },
    /// GENEVE.
    Geneve {
        /// Network identifier.
        vni: u32,
        /// Where the options lie in the frame.
        options: Range<usize>,
    },
    /// GRE with an Ethernet payload.
    Gre {
        /// The key, when there is one.
        key: Option<u32>,
        /// The packet's number, when there is one.
        sequence: Option<u32>,
    },
    /// ERSPAN type I: no header of its own.
    ErspanI,
    /// ERSPAN type II.
    ErspanII {
        /// The packet's number in its session.
        sequence: u32,
        /// The header's fields.
        header: ii::Header,
    },
    /// ERSPAN type III.
    ErspanIII {
        /// The packet's number in its session; the draft demands it, some senders leave it out.
        sequence: Option<u32>,
        /// The header's fields.
        header: iii::Header,
    },
}

/// A frame that came through a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decapsulated {
    /// The tunnel's ends: `local` is the sender, `remote` this receiver.
    pub outer: OuterAddresses,
    /// What the tunnel header says.
    pub metadata: Metadata,
    /// Where the inner frame, from its Ethernet header on, lies in the outer one.
    pub inner: Range<usize>,
}

/// Why a frame holds no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecapError {
    /// It is something else: not IP, another protocol or port, GRE with another payload.
    NotATunnel,
    /// It is a fragment of an IP packet, of a tunnel or not.
    OuterFragment(ip::Fragment),
    /// It is a GENEVE control packet, which carries no frame (RFC 8926 section 3.4).
    Control,
    /// GENEVE with an option that must be understood and is not (RFC 8926 section 3.5).
    CriticalOption {
        /// The option's class.
        class: u16,
        /// The option's type.
        kind: u8,
    },
    /// It is ERSPAN III with something else than an Ethernet frame (draft-foschiano-erspan section 4.3).
    FrameType(u8),
    /// It is a tunnel, or its way there, whose bytes cannot be read.
    Wire(WireError),
}

impl From<WireError> for DecapError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl fmt::Display for DecapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotATunnel => f.write_str("not a tunnel packet"),
            Self::OuterFragment(part) => {
                write!(f, "fragment of outer IP packet {:#x}, from byte {}", part.id, part.offset)
            }
            Self::Control => f.write_str("GENEVE control packet"),
            Self::CriticalOption { class, kind } => {
                write!(f, "GENEVE critical option {class:#06x}/{kind:#04x} is not known")
            }
            Self::FrameType(kind) => write!(f, "ERSPAN III frame type {kind} is not Ethernet"),
            Self::Wire(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for DecapError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Wire(error) => Some(error),
            _ => None,
        }
    }
}

/// Finds the frame inside a tunnel packet.
///
/// # Errors
/// See [`DecapError`]. The inner frame must have at least an Ethernet header.
pub fn decapsulate(frame: &[u8], receiver: &Receiver<'_>) -> Result<Decapsulated, DecapError> {
    let (ether_type, at) = ethernet::View::parse(frame, 0)?.network()?;
    let Some(ip) = ip::View::parse(ether_type, frame, at)? else {
        return Err(DecapError::NotATunnel);
    };
    if let ip::View::V4(ip) = &ip {
        verify::ipv4_header(ip, at)?;
    }
    let transport = ip.transport()?;
    if !matches!(transport.protocol, protocol::UDP | protocol::GRE) {
        return Err(DecapError::NotATunnel);
    }
    if let Some(part) = transport.fragment {
        return Err(DecapError::OuterFragment(part));
    }
    let (metadata, inner) = match transport.protocol {
        protocol::UDP => in_udp(&ip, &transport, receiver)?,
        _ => in_gre(&transport, receiver)?,
    };
    // A frame without its Ethernet header is none.
    ethernet::View::parse(transport.frame.get(..inner.end).unwrap_or_default(), inner.start)?;
    Ok(Decapsulated { outer: addresses(&ip), metadata, inner })
}

fn addresses(ip: &ip::View<'_>) -> OuterAddresses {
    match ip {
        ip::View::V4(ip) => OuterAddresses::V4 { local: ip.source().into(), remote: ip.destination().into() },
        ip::View::V6(ip) => OuterAddresses::V6 { local: ip.source().into(), remote: ip.destination().into() },
    }
}

fn in_udp(
    ip: &ip::View<'_>,
    transport: &ip::Transport<'_>,
    receiver: &Receiver<'_>,
) -> Result<(Metadata, Range<usize>), DecapError> {
    let udp = udp::View::parse(transport.frame, transport.offset)?;
    let (port, frame, at) = (udp.destination_port(), udp.frame(), udp.payload_offset());
    let is_vxlan = receiver.vxlan_ports.contains(&port);
    if !is_vxlan && !receiver.geneve_ports.contains(&port) {
        return Err(DecapError::NotATunnel);
    }
    if receiver.verify && udp.checksum() != 0 {
        let sum = ip.pseudo_header(protocol::UDP, udp.bytes().len()).add_bytes(udp.bytes());
        verify::field_holds(
            Layer::Udp,
            transport.offset + udp::CHECKSUM_OFFSET,
            sum.checksum(),
            udp.checksum(),
        )?;
    }
    if is_vxlan {
        let vxlan = vxlan::View::parse(frame, at)?;
        return Ok((Metadata::Vxlan { vni: vxlan.vni() }, vxlan.payload_offset()..frame.len()));
    }
    let geneve = geneve::View::parse(frame, at)?;
    if geneve.is_control() {
        return Err(DecapError::Control);
    }
    for option in geneve.options() {
        let option = option?;
        if option.is_critical() {
            return Err(DecapError::CriticalOption { class: option.class, kind: option.kind });
        }
    }
    if geneve.protocol() != ethernet::ETHER_TYPE_TEB {
        return Err(DecapError::NotATunnel);
    }
    let options = at + geneve::MIN_HEADER_LEN..geneve.payload_offset();
    Ok((Metadata::Geneve { vni: geneve.vni(), options }, geneve.payload_offset()..frame.len()))
}

fn in_gre(
    transport: &ip::Transport<'_>,
    receiver: &Receiver<'_>,
) -> Result<(Metadata, Range<usize>), DecapError> {
    let (frame, at) = (transport.frame, transport.offset);
    let gre = gre::View::parse(frame, at)?;
    if let (true, Some(had)) = (receiver.verify, gre.checksum()) {
        let all = checksum::full(frame.get(at..).unwrap_or_default());
        verify::field_holds(Layer::Gre, at + gre::MIN_HEADER_LEN, all, had)?;
    }
    let behind = gre.payload_offset();
    Ok(match (gre.protocol(), gre.sequence()) {
        (ethernet::ETHER_TYPE_TEB, sequence) => {
            (Metadata::Gre { key: gre.key(), sequence }, behind..frame.len())
        }
        (ethernet::ETHER_TYPE_ERSPAN_II, None) => (Metadata::ErspanI, behind..frame.len()),
        (ethernet::ETHER_TYPE_ERSPAN_II, Some(sequence)) => {
            let view = ii::View::parse(frame, behind)?;
            let metadata = Metadata::ErspanII { sequence, header: view.header() };
            (metadata, view.payload_offset()..frame.len())
        }
        (ethernet::ETHER_TYPE_ERSPAN_III, sequence) => {
            let view = iii::View::parse(frame, behind)?;
            if view.frame_type() != iii::FRAME_TYPE_ETHERNET {
                return Err(DecapError::FrameType(view.frame_type()));
            }
            let metadata = Metadata::ErspanIII { sequence, header: view.header() };
            (metadata, view.payload_offset()..frame.len())
        }
        _ => return Err(DecapError::NotATunnel),
    })
}
