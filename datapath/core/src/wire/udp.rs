//! UDP (RFC 768).
//!
//! ```text
//! 0             2                  4        6          8
//! | source port | destination port | length | checksum | payload
//! ```
//! Big-endian. The length counts the header. Checksum 0: none was computed; IPv6 allows that for tunnels only
//! (RFC 6935, RFC 6936).

use super::{Layer, Problem, WireError, field};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Offset of the source port.
pub const SOURCE_PORT_OFFSET: usize = 0;
/// Offset of the destination port.
pub const DESTINATION_PORT_OFFSET: usize = 2;
/// Offset of the length.
pub const LENGTH_OFFSET: usize = 4;
/// Offset of the checksum.
pub const CHECKSUM_OFFSET: usize = 6;

/// A UDP datagram, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The frame up to this datagram's end.
    frame: &'a [u8],
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the datagram at `at`. Length 0 (RFC 2675, and super-packets whose length the kernel has not
    /// filled in) means all bytes up to the end of `packet`.
    ///
    /// # Errors
    /// Fewer than 8 bytes; a length below 8 or beyond the end of `packet`.
    pub fn parse(packet: &'a [u8], at: usize) -> Result<Self, WireError> {
        let bytes = field::rest(Layer::Udp, packet, at, HEADER_LEN)?;
        let len = match field::be16(bytes, LENGTH_OFFSET) {
            0 => bytes.len(),
            len => len as usize,
        };
        if len < HEADER_LEN {
            let offset = at + LENGTH_OFFSET;
            return Err(WireError::new(Layer::Udp, Problem::LengthTooSmall, offset, HEADER_LEN, len));
        }
        if len > bytes.len() {
            return Err(WireError::truncated(Layer::Udp, at, len, bytes.len()));
        }
        Ok(Self { frame: field::range(packet, 0, at + len), bytes: field::range(bytes, 0, len), at })
    }

    /// Source port.
    pub fn source_port(&self) -> u16 {
        field::be16(self.bytes, SOURCE_PORT_OFFSET)
    }

    /// Destination port.
    pub fn destination_port(&self) -> u16 {
        field::be16(self.bytes, DESTINATION_PORT_OFFSET)
    }

    /// The length field, in bytes, header included.
    pub fn length(&self) -> u16 {
        field::be16(self.bytes, LENGTH_OFFSET)
    }

    /// The checksum field, 0 for none.
    pub fn checksum(&self) -> u16 {
        field::be16(self.bytes, CHECKSUM_OFFSET)
    }

    /// Where the payload begins in the frame.
    pub fn payload_offset(&self) -> usize {
        self.at + HEADER_LEN
    }

    /// The payload, up to the datagram's length.
    pub fn payload(&self) -> &'a [u8] {
        field::range(self.bytes, HEADER_LEN, self.bytes.len())
    }

    /// The frame up to the end of this datagram, for readers of the next layer.
    pub fn frame(&self) -> &'a [u8] {
        self.frame
    }

    /// The datagram's bytes, header included.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header {
        Header {
            source_port: self.source_port(),
            destination_port: self.destination_port(),
            length: self.length(),
            checksum: self.checksum(),
        }
    }
}

/// A UDP header to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Bytes of header and payload.
    pub length: u16,
    /// The checksum; 0 for none.
    pub checksum: u16,
}

impl Header {
    /// Writes the header at the start of `out` and returns its length.
    ///
    /// # Errors
    /// No space for 8 bytes.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let (s, d) = (self.source_port.to_be_bytes(), self.destination_port.to_be_bytes());
        let (l, c) = (self.length.to_be_bytes(), self.checksum.to_be_bytes());
        field::put(Layer::Udp, out, [s[0], s[1], d[0], d[1], l[0], l[1], c[0], c[1]])
    }
}
