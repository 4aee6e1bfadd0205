//! ICMPv6 (RFC 4443). [`super::ndp`] reads neighbour discovery, which comes inside it.
//!
//! ```text
//! 0      1      2          4                     8
//! | type | code | checksum | depends on the type | payload
//! ```
//! Big-endian. The checksum covers the IPv6 pseudo-header too. Types below 128 are errors, whose payload is the
//! start of the packet that caused them.

use super::{Layer, WireError, checksum::Sum, field};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum.
pub const CHECKSUM_OFFSET: usize = 2;
/// Offset of the four bytes that depend on the type.
pub const REST_OFFSET: usize = 4;

/// Destination unreachable.
pub const DESTINATION_UNREACHABLE: u8 = 1;
/// Packet too big.
pub const PACKET_TOO_BIG: u8 = 2;
/// Time exceeded.
pub const TIME_EXCEEDED: u8 = 3;
/// Parameter problem.
pub const PARAMETER_PROBLEM: u8 = 4;
/// Echo request.
pub const ECHO_REQUEST: u8 = 128;
/// Echo reply.
pub const ECHO_REPLY: u8 = 129;
/// Types from here on are no errors.
pub const FIRST_INFORMATIONAL: u8 = 128;

/// An ICMPv6 message, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the message at `at` of a packet that ends where `packet` ends.
    ///
    /// # Errors
    /// Fewer than 8 bytes.
    pub fn parse(packet: &'a [u8], at: usize) -> Result<Self, WireError> {
        Ok(Self { bytes: field::rest(Layer::Icmpv6, packet, at, HEADER_LEN)?, at })
    }

    /// Message type.
    pub fn kind(&self) -> u8 {
        field::byte(self.bytes, 0)
    }

    /// Code within the type.
    pub fn code(&self) -> u8 {
        field::byte(self.bytes, 1)
    }

    /// The checksum field.
    pub fn checksum(&self) -> u16 {
        field::be16(self.bytes, CHECKSUM_OFFSET)
    }

    /// Whether the checksum fits message and `pseudo`, the sum of the pseudo-header.
    pub fn checksum_holds(&self, pseudo: Sum) -> bool {
        pseudo.add_bytes(self.bytes).checksum() == 0
    }

    /// The four bytes whose meaning depends on the type.
    pub fn rest(&self) -> [u8; 4] {
        field::array(self.bytes, REST_OFFSET)
    }

    /// Identifier and sequence number of an echo request or reply.
    pub fn echo(&self) -> Option<(u16, u16)> {
        matches!(self.kind(), ECHO_REQUEST | ECHO_REPLY)
            .then(|| (field::be16(self.bytes, REST_OFFSET), field::be16(self.bytes, REST_OFFSET + 2)))
    }

    /// The MTU of the link that a packet was too big for.
    pub fn mtu(&self) -> Option<u32> {
        (self.kind() == PACKET_TOO_BIG).then(|| field::be32(self.bytes, REST_OFFSET))
    }

    /// Whether the payload is the start of the packet that caused this message.
    pub fn is_error(&self) -> bool {
        self.kind() < FIRST_INFORMATIONAL
    }

    /// Where the payload begins in the frame.
    pub fn payload_offset(&self) -> usize {
        self.at + HEADER_LEN
    }

    /// The payload, up to the packet's end.
    pub fn payload(&self) -> &'a [u8] {
        field::range(self.bytes, HEADER_LEN, self.bytes.len())
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header {
        Header { kind: self.kind(), code: self.code(), checksum: self.checksum(), rest: self.rest() }
    }
}

/// An ICMPv6 header to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Message type.
    pub kind: u8,
    /// Code within the type.
    pub code: u8,
    /// Checksum over pseudo-header, header and payload.
    pub checksum: u16,
    /// The four bytes whose meaning depends on the type.
    pub rest: [u8; 4],
}

impl Header {
    /// An echo request or reply.
    pub const fn echo(kind: u8, identifier: u16, sequence: u16) -> Self {
        let (i, s) = (identifier.to_be_bytes(), sequence.to_be_bytes());
        Self { kind, code: 0, checksum: 0, rest: [i[0], i[1], s[0], s[1]] }
    }

    /// Writes the header at the start of `out` and returns its length.
    ///
    /// # Errors
    /// No space for 8 bytes.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let (c, r) = (self.checksum.to_be_bytes(), self.rest);
        field::put(Layer::Icmpv6, out, [self.kind, self.code, c[0], c[1], r[0], r[1], r[2], r[3]])
    }
}
