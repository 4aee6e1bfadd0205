//! Checksums of a whole packet. In: a frame and where its IP header begins. Out: whether they hold.

use super::{Layer, Problem, WireError, checksum, icmp, ip, ipv4, protocol, sctp, tcp, udp};

/// What a check of the transport checksum came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verified {
    /// It holds.
    Holds,
    /// UDP without a checksum.
    NotComputed,
    /// Nothing to say: a fragment, a source route still to be followed (the pseudo-header has another destination
    /// then), or a protocol that is not TCP, UDP, SCTP, ICMP or ICMPv6.
    CannotTell,
}

/// Checks the IPv4 header's checksum and the transport layer's. `ether_type` announces what is at `at`; for
/// what is not IP there is nothing to say.
///
/// Packets on their way to a device with checksum offload carry unfinished checksums and fail.
///
/// # Errors
/// `Problem::Checksum` with the layer and the offset of the field; any error of the readers.
pub fn checksums(ether_type: u16, frame: &[u8], at: usize) -> Result<Verified, WireError> {
    let Some(ip) = ip::View::parse(ether_type, frame, at)? else {
        return Ok(Verified::CannotTell);
    };
    if let ip::View::V4(ip) = &ip {
        ipv4_header(ip, at)?;
    }
    let transport = ip.transport()?;
    if transport.fragment.is_some() || is_source_routed(&ip)? {
        return Ok(Verified::CannotTell);
    }
    let (packet, at) = (transport.frame, transport.offset);
    let bytes = packet.get(at..).unwrap_or_default();
    let pseudo = ip.pseudo_header(transport.protocol, bytes.len());
    match (transport.protocol, &ip) {
        (protocol::TCP, _) => {
            tcp::View::parse(packet, at)?;
            holds(Layer::Tcp, at + tcp::CHECKSUM_OFFSET, pseudo.add_bytes(bytes), packet)
        }
        (protocol::UDP, _) => {
            let udp = udp::View::parse(packet, at)?;
            if udp.checksum() == 0 {
                return Ok(Verified::NotComputed);
            }
            let pseudo = ip.pseudo_header(transport.protocol, udp.bytes().len());
            holds(Layer::Udp, at + udp::CHECKSUM_OFFSET, pseudo.add_bytes(udp.bytes()), packet)
        }
        (protocol::ICMP, ip::View::V4(_)) => {
            icmp::View::parse(packet, at)?;
            let sum = checksum::Sum::ZERO.add_bytes(bytes);
            holds(Layer::Icmp, at + icmp::CHECKSUM_OFFSET, sum, packet)
        }
        (protocol::ICMPV6, ip::View::V6(_)) => {
            super::icmpv6::View::parse(packet, at)?;
            holds(Layer::Icmpv6, at + super::icmpv6::CHECKSUM_OFFSET, pseudo.add_bytes(bytes), packet)
        }
        (protocol::SCTP, _) => {
            let sctp = sctp::View::parse(packet, at)?;
            if sctp.checksum_holds() {
                return Ok(Verified::Holds);
            }
            let (needed, had) = (sctp.expected_checksum() as usize, sctp.checksum() as usize);
            let offset = at + sctp::CHECKSUM_OFFSET;
            Err(WireError::new(Layer::Sctp, Problem::Checksum, offset, needed, had))
        }
        _ => Ok(Verified::CannotTell),
    }
}

/// Checks the header checksum of the IPv4 packet at `at`.
///
/// # Errors
/// It does not hold.
pub fn ipv4_header(ip: &ipv4::View<'_>, at: usize) -> Result<(), WireError> {
    let header = ip.frame().get(at..ip.payload_offset()).unwrap_or_default();
    field_holds(Layer::Ipv4, at + ipv4::CHECKSUM_OFFSET, checksum::full(header), ip.checksum())
}

/// Whether a checksum field at `offset` that holds `had` is right; `all` is the checksum over everything that it
/// covers, the field itself included.
pub(super) const fn field_holds(layer: Layer, offset: usize, all: u16, had: u16) -> Result<(), WireError> {
    if all == 0 {
        return Ok(());
    }
    // Bytes that are all zero, the field included, are the one sum that a difference gets wrong.
    let needed = if all == u16::MAX { all } else { checksum::update(all, had, 0) };
    Err(WireError::new(layer, Problem::Checksum, offset, needed as usize, had as usize))
}

fn holds(layer: Layer, offset: usize, sum: checksum::Sum, packet: &[u8]) -> Result<Verified, WireError> {
    field_holds(layer, offset, sum.checksum(), super::field::be16(packet, offset)).map(|()| Verified::Holds)
}

/// Whether addresses on the wire differ from those of the pseudo-header (RFC 791 section 3.1, RFC 8200
/// section 8.1).
fn is_source_routed(ip: &ip::View<'_>) -> Result<bool, WireError> {
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    match ip {
        ip::View::V4(ip) => {
            for option in ip.options() {
                if matches!(option?.kind, LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE) {
                    return Ok(true);
                }
            }
        }
        ip::View::V6(ip) => {
            for extension in ip.extensions() {
                if extension?.segments_left().is_some_and(|left| left > 0) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}
