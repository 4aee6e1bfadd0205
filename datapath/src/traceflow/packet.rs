//! A packet to inject. In: what it shall look like. Out: the frame, right in each length and checksum.

use std::net::IpAddr;

use etherparse::{
    Icmpv4Type, Icmpv6Type, IpDscp, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions,
    Ipv6FlowLabel, Ipv6Header, PacketBuilder, PacketBuilderStep, TcpHeader,
};
use podwire_core::wire::sctp;

use crate::error::{Error, ErrorKind};
use crate::observe::Flow;

/// A packet in a pod's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source MAC address.
    pub source_mac: [u8; 6],
    /// Destination MAC address.
    pub destination_mac: [u8; 6],
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// IPv4's "don't fragment"; IPv6 has no other way.
    pub dont_fragment: bool,
    /// IPv4's identification, or IPv6's flow label.
    pub identification: u16,
    /// What it carries.
    pub transport: Transport,
    /// Bytes of payload behind the transport header.
    pub payload: u16,
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
        /// The flags byte.
        flags: u8,
        /// Sequence number.
        sequence: u32,
    },
    /// UDP.
    Udp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
    },
    /// SCTP: an INIT chunk.
    Sctp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
    },
    /// ICMP, or ICMPv6 with IPv6.
    Icmp {
        /// Type; `None` for an echo request.
        kind: Option<u8>,
        /// Code.
        code: u8,
        /// Identifier.
        id: u16,
        /// Sequence number.
        sequence: u16,
    },
    /// Another protocol, with the payload as its content.
    Other {
        /// IP protocol.
        protocol: u8,
    },
}

impl Transport {
    /// IP protocol.
    pub const fn protocol(&self, v6: bool) -> u8 {
        match self {
            Self::Tcp { .. } => IpNumber::TCP.0,
            Self::Udp { .. } => IpNumber::UDP.0,
            Self::Sctp { .. } => IpNumber::SCTP.0,
            Self::Icmp { .. } if v6 => IpNumber::IPV6_ICMP.0,
            Self::Icmp { .. } => IpNumber::ICMP.0,
            Self::Other { protocol } => *protocol,
        }
    }

    const fn ports(&self) -> (u16, u16) {
        match *self {
            Self::Tcp { source, destination, .. }
            | Self::Udp { source, destination }
            | Self::Sctp { source, destination } => (source, destination),
            _ => (0, 0),
        }
    }
}

impl Packet {
    /// Its flow.
    pub fn flow(&self) -> Flow {
        let (source_port, destination_port) = self.transport.ports();
        Flow {
            source: self.source,
            destination: self.destination,
            protocol: self.transport.protocol(self.source.is_ipv6()),
            source_port,
            destination_port,
        }
    }

    /// The Ethernet frame, with this DSCP value.
    ///
    /// # Errors
    /// `Invalid` for addresses of two families, a DSCP value above 63, more payload than an IP packet holds.
    pub fn frame(&self, dscp: u8) -> Result<Vec<u8>, Error> {
        let step = PacketBuilder::ethernet2(self.source_mac, self.destination_mac).ip(self.ip(dscp)?);
        // What cannot be told from padding would not be seen to be changed.
        let payload: Vec<u8> = (0..self.payload).map(|at| b'a' + (at % 26) as u8).collect();
        let mut frame = Vec::with_capacity(128 + payload.len());
        let v6 = self.source.is_ipv6();
        let written = match self.transport {
            Transport::Tcp { source, destination, flags, sequence } => {
                step.tcp_header(tcp(source, destination, flags, sequence)).write_to_vec(&mut frame, &payload)
            }
            Transport::Udp { source, destination } => {
                step.udp(source, destination).write_to_vec(&mut frame, &payload)
            }
            Transport::Icmp { kind, code, id, sequence } => {
                icmp(step, v6, kind, code, [id, sequence], &payload, &mut frame)
            }
            Transport::Sctp { source, destination } => {
                let bytes = init(source, destination, &payload)?;
                step.write_to_vec(&mut frame, IpNumber::SCTP, &bytes)
            }
            Transport::Other { protocol } => step.write_to_vec(&mut frame, IpNumber(protocol), &payload),
        };
        written.map_err(|error| invalid(&error.to_string()))?;
        Ok(frame)
    }

    fn ip(&self, dscp: u8) -> Result<IpHeaders, Error> {
        let value = IpDscp::try_new(dscp).map_err(|error| invalid(&error.to_string()))?;
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = Ipv4Header {
                    dscp: value,
                    time_to_live: self.ttl,
                    dont_fragment: self.dont_fragment,
                    identification: self.identification,
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Ipv4Header::default()
                };
                Ok(IpHeaders::Ipv4(header, Ipv4Extensions::default()))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = Ipv6Header {
                    traffic_class: dscp << 2,
                    flow_label: Ipv6FlowLabel::try_new(self.identification.into()).unwrap_or_default(),
                    hop_limit: self.ttl,
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Ipv6Header::default()
                };
                Ok(IpHeaders::Ipv6(header, Ipv6Extensions::default()))
            }
            _ => Err(invalid("its addresses are of two families")),
        }
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("a packet to inject: {what}"))
}

fn tcp(source: u16, destination: u16, flags: u8, sequence: u32) -> TcpHeader {
    let mut header = TcpHeader::new(source, destination, sequence, WINDOW);
    let bits = [
        &mut header.fin,
        &mut header.syn,
        &mut header.rst,
        &mut header.psh,
        &mut header.ack,
        &mut header.urg,
        &mut header.ece,
        &mut header.cwr,
    ];
    for (number, bit) in bits.into_iter().enumerate() {
        *bit = flags >> number & 1 != 0;
    }
    header
}

/// A usual TCP window, in bytes.
const WINDOW: u16 = 64240;

fn icmp(
    step: PacketBuilderStep<IpHeaders>,
    v6: bool,
    kind: Option<u8>,
    code: u8,
    [id, sequence]: [u16; 2],
    payload: &[u8],
    frame: &mut Vec<u8>,
) -> Result<(), etherparse::err::packet::BuildVecWriteError> {
    let ([a, b], [c, d]) = (id.to_be_bytes(), sequence.to_be_bytes());
    match (v6, kind) {
        (true, None) => step.icmpv6_echo_request(id, sequence).write_to_vec(frame, payload),
        (false, None) => step.icmpv4_echo_request(id, sequence).write_to_vec(frame, payload),
        (true, Some(type_u8)) => step
            .icmpv6(Icmpv6Type::Unknown { type_u8, code_u8: code, bytes5to8: [a, b, c, d] })
            .write_to_vec(frame, payload),
        (false, Some(type_u8)) => step
            .icmpv4(Icmpv4Type::Unknown { type_u8, code_u8: code, bytes5to8: [a, b, c, d] })
            .write_to_vec(frame, payload),
    }
}

/// An SCTP packet with an INIT chunk (RFC 9260 section 3.3.2) and, in a parameter of its own, the payload.
fn init(source: u16, destination: u16, payload: &[u8]) -> Result<Vec<u8>, Error> {
    const INIT: u8 = 1;
    /// To be skipped by who does not know it (RFC 9260 section 3.2.1).
    const PARAMETER: u16 = 0x8000 | 0x3fff;
    let parameter = if payload.is_empty() { 0 } else { 4 + payload.len() };
    let len = u16::try_from(20 + parameter).map_err(|_| invalid("its payload is too long"))?;
    let mut bytes = vec![0; sctp::HEADER_LEN];
    bytes.extend([INIT, 0]);
    bytes.extend(len.to_be_bytes());
    // Initiate tag, window, streams out and in, first number.
    bytes.extend([0x70, 0x6f, 0x64, 0x77, 0, 0, 0xfa, 0xf0, 0, 1, 0, 1, 0, 0, 0, 1]);
    if parameter != 0 {
        bytes.extend(PARAMETER.to_be_bytes());
        bytes.extend(((4 + payload.len()) as u16).to_be_bytes());
        bytes.extend(payload);
    }
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let mut header = sctp::Header { source_port: source, destination_port: destination, tag: 0, checksum: 0 };
    let short = |_| invalid("its SCTP header does not fit");
    header.write(&mut bytes).map_err(short)?;
    header.checksum = sctp::View::parse(&bytes, 0).map_err(short)?.expected_checksum();
    header.write(&mut bytes).map_err(short)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a test fails by panicking")]

    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use podwire_core::wire::verify::Verified;

    use super::*;

    fn packet(v6: bool, transport: Transport) -> Packet {
        let address = |last| -> IpAddr {
            if v6 { [0xfd00, 0, 0, 0, 0, 0, 0, last].into() } else { [10, 0, 0, last as u8].into() }
        };
        Packet {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            source: address(1),
            destination: address(2),
            ttl: 17,
            dont_fragment: true,
            identification: 77,
            transport,
            payload: 33,
        }
    }

    #[test]
    fn what_is_built_is_what_was_asked_for() {
        let transports = [
            Transport::Tcp { source: 1000, destination: 80, flags: 0x12, sequence: 5 },
            Transport::Udp { source: 1000, destination: 80 },
            Transport::Sctp { source: 1000, destination: 80 },
            Transport::Icmp { kind: None, code: 0, id: 7, sequence: 8 },
            Transport::Icmp { kind: Some(13), code: 1, id: 7, sequence: 8 },
            Transport::Other { protocol: 47 },
        ];
        for (v6, transport) in transports.into_iter().flat_map(|each| [(false, each), (true, each)]) {
            let packet = packet(v6, transport);
            let frame = packet.frame(21).expect("valid");
            let sliced = SlicedPacket::from_ethernet(&frame).expect("readable");
            match sliced.net.expect("IP") {
                NetSlice::Ipv4(ip) => {
                    let header = ip.header().to_header();
                    assert_eq!((header.dscp.value(), header.time_to_live), (21, 17));
                    assert!(header.dont_fragment && header.header_checksum == header.calc_header_checksum());
                    assert_eq!(header.protocol.0, transport.protocol(false));
                }
                NetSlice::Ipv6(ip) => {
                    assert_eq!((ip.header().traffic_class(), ip.header().hop_limit()), (84, 17));
                    assert_eq!(ip.header().next_header().0, transport.protocol(true));
                }
                other => panic!("{other:?}"),
            }
            if let Some(TransportSlice::Tcp(tcp)) = sliced.transport {
                assert!(tcp.syn() && tcp.ack() && !tcp.fin() && !tcp.cwr());
            }
            let ether_type = if v6 { 0x86dd } else { 0x0800 };
            let verified = podwire_core::wire::verify::checksums(ether_type, &frame, 14);
            let expected = if transport.protocol(v6) == 47 { Verified::CannotTell } else { Verified::Holds };
            assert_eq!(verified, Ok(expected), "{transport:?}");
        }
    }

    #[test]
    fn two_families_are_refused() {
        let packet =
            Packet { destination: [10, 0, 0, 1].into(), ..packet(true, Transport::Other { protocol: 1 }) };
        let error = packet.frame(0).expect_err("two families");
        assert_eq!(error.to_string(), "a packet to inject: its addresses are of two families");
    }
}
