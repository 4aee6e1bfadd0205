//! SCTP (RFC 9260 section 3).
//!
//! ```text
//! 0             2                  4                  8        12
//! | source port | destination port | verification tag | CRC32c | chunks
//! chunk: type(8) flags(8) length(16), value; padded to four bytes, the length counts header and value only
//! ```
//! Big-endian, but for the CRC32c (RFC 9260 appendix A), which goes least significant byte first.

use super::{Layer, Problem, WireError, field};

/// Bytes of the common header.
pub const HEADER_LEN: usize = 12;
/// Offset of the source port.
pub const SOURCE_PORT_OFFSET: usize = 0;
/// Offset of the destination port.
pub const DESTINATION_PORT_OFFSET: usize = 2;
/// Offset of the verification tag.
pub const TAG_OFFSET: usize = 4;
/// Offset of the CRC32c.
pub const CHECKSUM_OFFSET: usize = 8;
/// Bytes of a chunk's header.
pub const CHUNK_HEADER_LEN: usize = 4;

/// An SCTP packet, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the packet at `at`, which ends where `packet` ends. Chunks are checked by [`Self::chunks`].
    ///
    /// # Errors
    /// Fewer than 12 bytes.
    pub fn parse(packet: &'a [u8], at: usize) -> Result<Self, WireError> {
        Ok(Self { bytes: field::rest(Layer::Sctp, packet, at, HEADER_LEN)?, at })
    }

    /// Source port.
    pub fn source_port(&self) -> u16 {
        field::be16(self.bytes, SOURCE_PORT_OFFSET)
    }

    /// Destination port.
    pub fn destination_port(&self) -> u16 {
        field::be16(self.bytes, DESTINATION_PORT_OFFSET)
    }

    /// Verification tag.
    pub fn tag(&self) -> u32 {
        field::be32(self.bytes, TAG_OFFSET)
    }

    /// The CRC32c field.
    pub fn checksum(&self) -> u32 {
        u32::from_le_bytes(field::array(self.bytes, CHECKSUM_OFFSET))
    }

    /// The CRC32c that the packet should carry.
    pub fn expected_checksum(&self) -> u32 {
        let before = field::range(self.bytes, 0, CHECKSUM_OFFSET);
        let after = field::range(self.bytes, HEADER_LEN, self.bytes.len());
        let crc = crc32c_update(crc32c_update(!0, before), &[0; 4]);
        !crc32c_update(crc, after)
    }

    /// Whether the CRC32c fits the packet.
    pub fn checksum_holds(&self) -> bool {
        self.checksum() == self.expected_checksum()
    }

    /// The chunks, one by one; a bad one ends the list with an error.
    pub fn chunks(&self) -> Chunks<'a> {
        Chunks { bytes: self.payload(), at: self.payload_offset() }
    }

    /// Where the chunks begin in the frame.
    pub fn payload_offset(&self) -> usize {
        self.at + HEADER_LEN
    }

    /// The chunks as they are on the wire.
    pub fn payload(&self) -> &'a [u8] {
        field::range(self.bytes, HEADER_LEN, self.bytes.len())
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header {
        Header {
            source_port: self.source_port(),
            destination_port: self.destination_port(),
            tag: self.tag(),
            checksum: self.checksum(),
        }
    }
}

/// One chunk (RFC 9260 section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Chunk type, 0 for DATA.
    pub kind: u8,
    /// Flags, by type.
    pub flags: u8,
    /// The value, without padding.
    pub value: &'a [u8],
}

/// Walks chunks. See [`View::chunks`].
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = core::mem::take(&mut self.bytes);
        let at = self.at;
        if bytes.is_empty() {
            return None;
        }
        if bytes.len() < CHUNK_HEADER_LEN {
            return Some(Err(WireError::truncated(Layer::Sctp, at, CHUNK_HEADER_LEN, bytes.len())));
        }
        let len = field::be16(bytes, 2) as usize;
        if len < CHUNK_HEADER_LEN {
            let problem = Problem::LengthTooSmall;
            return Some(Err(WireError::new(Layer::Sctp, problem, at, CHUNK_HEADER_LEN, len)));
        }
        if len > bytes.len() {
            return Some(Err(WireError::new(Layer::Sctp, Problem::LengthTooLarge, at, bytes.len(), len)));
        }
        // The last chunk's padding may be missing.
        let padded = len.next_multiple_of(4).min(bytes.len());
        self.bytes = field::range(bytes, padded, bytes.len());
        self.at = at + padded;
        Some(Ok(Chunk {
            kind: field::byte(bytes, 0),
            flags: field::byte(bytes, 1),
            value: field::range(bytes, CHUNK_HEADER_LEN, len),
        }))
    }
}

/// A common header to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Verification tag.
    pub tag: u32,
    /// CRC32c over the whole packet with zeros here; [`View::expected_checksum`] computes it.
    pub checksum: u32,
}

impl Header {
    /// Writes the header at the start of `out` and returns its length.
    ///
    /// # Errors
    /// No space for 12 bytes.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let (s, d) = (self.source_port.to_be_bytes(), self.destination_port.to_be_bytes());
        let (t, c) = (self.tag.to_be_bytes(), self.checksum.to_le_bytes());
        let bytes = [s[0], s[1], d[0], d[1], t[0], t[1], t[2], t[3], c[0], c[1], c[2], c[3]];
        field::put(Layer::Sctp, out, bytes)
    }
}

/// CRC32c (Castagnoli) of bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !crc32c_update(!0, bytes)
}

/// Bit-reversed generator polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

static CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < table.len() {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ if crc & 1 == 0 { 0 } else { POLYNOMIAL };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

fn crc32c_update(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, &byte| (crc >> 8) ^ CRC_TABLE[(crc as u8 ^ byte) as usize])
}
