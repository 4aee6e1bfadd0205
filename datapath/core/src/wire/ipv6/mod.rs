//! IPv6 (RFC 8200): the fixed header. [`extension`] has the headers between it and the upper layer.
//!
//! ```text
//! 0                                        4                6             7           8        24            40
//! | ver=6 traffic class(8) flow label(20) | payload length | next header | hop limit | source | destination |
//! ```
//! Big-endian. The payload length does not count the fixed header.

pub mod extension;

use super::{Layer, WireError, field, protocol};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;
/// Offset of the payload length.
pub const PAYLOAD_LENGTH_OFFSET: usize = 4;
/// Offset of the next header's number.
pub const NEXT_HEADER_OFFSET: usize = 6;
/// Offset of the hop limit.
pub const HOP_LIMIT_OFFSET: usize = 7;
/// Offset of the source address.
pub const SOURCE_OFFSET: usize = 8;
/// Offset of the destination address.
pub const DESTINATION_OFFSET: usize = 24;
/// Largest flow label, 20 bits.
pub const MAX_FLOW_LABEL: u32 = 0x000f_ffff;
/// The fragment offset in its word of the fragment header; as it stands it counts bytes.
pub const FRAGMENT_OFFSET_MASK: u16 = 0xfff8;

/// An IPv6 packet, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The frame up to this packet's end.
    frame: &'a [u8],
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the packet at `at`. Bytes after the payload length are cut off. Payload length 0 with a next
    /// header (jumbograms of RFC 2675, super-packets of the kernel) means all bytes up to the end of `frame`.
    ///
    /// # Errors
    /// A version other than 6; fewer bytes than 40 and the payload length.
    pub fn parse(frame: &'a [u8], at: usize) -> Result<Self, WireError> {
        let bytes = field::rest(Layer::Ipv6, frame, at, HEADER_LEN)?;
        let version = field::byte(bytes, 0) >> 4;
        if version != 6 {
            return Err(WireError::unsupported(Layer::Ipv6, at, 6, version as usize));
        }
        let view = Self { frame, bytes, at };
        let len = match view.payload_length() {
            0 if view.next_header() != protocol::NO_NEXT_HEADER => bytes.len(),
            payload => HEADER_LEN + payload as usize,
        };
        field::rest(Layer::Ipv6, frame, at, len)?;
        Ok(Self { frame: field::range(frame, 0, at + len), bytes: field::range(bytes, 0, len), at })
    }

    /// Traffic class: DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        (field::be16(self.bytes, 0) >> 4) as u8
    }

    /// Flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        field::be32(self.bytes, 0) & MAX_FLOW_LABEL
    }

    /// The payload length field, in bytes.
    pub fn payload_length(&self) -> u16 {
        field::be16(self.bytes, PAYLOAD_LENGTH_OFFSET)
    }

    /// Number of the first extension header or of the upper layer.
    pub fn next_header(&self) -> u8 {
        field::byte(self.bytes, NEXT_HEADER_OFFSET)
    }

    /// Hop limit.
    pub fn hop_limit(&self) -> u8 {
        field::byte(self.bytes, HOP_LIMIT_OFFSET)
    }

    /// Source address.
    pub fn source(&self) -> [u8; 16] {
        field::array(self.bytes, SOURCE_OFFSET)
    }

    /// Destination address.
    pub fn destination(&self) -> [u8; 16] {
        field::array(self.bytes, DESTINATION_OFFSET)
    }

    /// Where the payload, extension headers included, begins in the frame.
    pub fn payload_offset(&self) -> usize {
        self.at + HEADER_LEN
    }

    /// The payload, extension headers included, up to the payload length.
    pub fn payload(&self) -> &'a [u8] {
        field::range(self.bytes, HEADER_LEN, self.bytes.len())
    }

    /// The frame up to the end of this packet: what readers of the next layer take, so that they never read
    /// padding and their offsets still count from the start of the frame.
    pub fn frame(&self) -> &'a [u8] {
        self.frame
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header {
        Header {
            traffic_class: self.traffic_class(),
            flow_label: self.flow_label(),
            payload_length: self.payload_length(),
            next_header: self.next_header(),
            hop_limit: self.hop_limit(),
            source: self.source(),
            destination: self.destination(),
        }
    }
}

/// A fixed IPv6 header to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes that follow the fixed header.
    pub payload_length: u16,
    /// Number of what follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
}

impl Default for Header {
    /// All zero but for the hop limit, 64, and no next header.
    fn default() -> Self {
        Self {
            traffic_class: 0,
            flow_label: 0,
            payload_length: 0,
            next_header: protocol::NO_NEXT_HEADER,
            hop_limit: 64,
            source: [0; 16],
            destination: [0; 16],
        }
    }
}

impl Header {
    /// Writes the header at the start of `out` and returns its length.
    ///
    /// # Errors
    /// A flow label above 20 bits; no space for 40 bytes.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        field::at_most(Layer::Ipv6, 0, self.flow_label as usize, MAX_FLOW_LABEL as usize)?;
        let word = 6 << 28 | (self.traffic_class as u32) << 20 | self.flow_label;
        let mut bytes = [0; HEADER_LEN];
        let (start, addresses) = bytes.split_at_mut(SOURCE_OFFSET);
        let (w, l) = (word.to_be_bytes(), self.payload_length.to_be_bytes());
        start.copy_from_slice(&[w[0], w[1], w[2], w[3], l[0], l[1], self.next_header, self.hop_limit]);
        let (source, destination) = addresses.split_at_mut(self.source.len());
        source.copy_from_slice(&self.source);
        destination.copy_from_slice(&self.destination);
        field::put(Layer::Ipv6, out, bytes)
    }
}
