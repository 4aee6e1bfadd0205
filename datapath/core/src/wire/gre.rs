//! GRE (RFC 2784) with key and sequence number (RFC 2890).
//!
//! ```text
//! 0                         2               4          8     12
//! | C 0 K S reserved0 ver=0 | protocol type | checksum | key | sequence | payload
//! ```
//! Big-endian. Checksum (with two reserved bytes), key and sequence number are each four bytes and there only
//! when their flag is set. The routing flag of RFC 1701 and versions other than 0 (PPTP) make what follows
//! unreadable and are errors, as RFC 2784 section 2.3 asks; other reserved bits are ignored.

use super::{Layer, WireError, checksum, field};

/// Bytes of the header without optional fields.
pub const MIN_HEADER_LEN: usize = 4;
/// Bytes of the header with all of them.
pub const MAX_HEADER_LEN: usize = 16;
/// Offset of the protocol type.
pub const PROTOCOL_OFFSET: usize = 2;
/// Bytes of each optional field.
pub const OPTION_LEN: usize = 4;

/// Flag C: checksum present.
pub const FLAG_CHECKSUM: u16 = 0x8000;
/// Flag R of RFC 1701: routing present.
pub const FLAG_ROUTING: u16 = 0x4000;
/// Flag K: key present.
pub const FLAG_KEY: u16 = 0x2000;
/// Flag S: sequence number present.
pub const FLAG_SEQUENCE: u16 = 0x1000;
/// The version bits.
pub const VERSION_MASK: u16 = 0x0007;

/// A GRE packet, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the header at `at` of a packet that ends where `packet` ends.
    ///
    /// # Errors
    /// Fewer bytes than the flags ask for; a version other than 0; the routing flag.
    pub fn parse(packet: &'a [u8], at: usize) -> Result<Self, WireError> {
        let bytes = field::rest(Layer::Gre, packet, at, MIN_HEADER_LEN)?;
        let flags = field::be16(bytes, 0);
        let odd = flags & (FLAG_ROUTING | VERSION_MASK);
        if odd != 0 {
            return Err(WireError::unsupported(Layer::Gre, at, 0, odd as usize));
        }
        let view = Self { bytes, at };
        field::rest(Layer::Gre, packet, at, view.header_len())?;
        Ok(view)
    }

    /// The flags word.
    pub fn flags(&self) -> u16 {
        field::be16(self.bytes, 0)
    }

    /// EtherType of the payload.
    pub fn protocol(&self) -> u16 {
        field::be16(self.bytes, PROTOCOL_OFFSET)
    }

    /// The checksum over header and payload, when there is one.
    pub fn checksum(&self) -> Option<u16> {
        self.has(FLAG_CHECKSUM).then(|| field::be16(self.bytes, MIN_HEADER_LEN))
    }

    /// The key, when there is one.
    pub fn key(&self) -> Option<u32> {
        self.has(FLAG_KEY).then(|| field::be32(self.bytes, self.offset_after(FLAG_CHECKSUM)))
    }

    /// The sequence number, when there is one.
    pub fn sequence(&self) -> Option<u32> {
        self.has(FLAG_SEQUENCE).then(|| field::be32(self.bytes, self.offset_after(FLAG_CHECKSUM | FLAG_KEY)))
    }

    /// Whether the checksum fits the packet's bytes; `true` without a checksum.
    pub fn checksum_holds(&self) -> bool {
        !self.has(FLAG_CHECKSUM) || checksum::full(self.bytes) == 0
    }

    /// Bytes of the header, optional fields included.
    pub fn header_len(&self) -> usize {
        self.offset_after(FLAG_CHECKSUM | FLAG_KEY | FLAG_SEQUENCE)
    }

    /// Where the payload begins in the frame.
    pub fn payload_offset(&self) -> usize {
        self.at + self.header_len()
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        field::range(self.bytes, self.header_len(), self.bytes.len())
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header {
        Header {
            protocol: self.protocol(),
            checksum: self.checksum(),
            key: self.key(),
            sequence: self.sequence(),
        }
    }

    fn has(&self, flag: u16) -> bool {
        self.flags() & flag != 0
    }

    /// Where the field after the optional fields of `flags` begins.
    fn offset_after(&self, flags: u16) -> usize {
        MIN_HEADER_LEN + OPTION_LEN * (self.flags() & flags).count_ones() as usize
    }
}

/// A GRE header to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// EtherType of the payload.
    pub protocol: u16,
    /// Flag C and this checksum. It covers header and payload, so it is written as 0 first and then filled in
    /// with [`checksum::full`] over both.
    pub checksum: Option<u16>,
    /// Flag K and this key.
    pub key: Option<u32>,
    /// Flag S and this sequence number.
    pub sequence: Option<u32>,
}

impl Header {
    /// The flags word.
    pub const fn flags(&self) -> u16 {
        let mut flags = 0;
        if self.checksum.is_some() {
            flags |= FLAG_CHECKSUM;
        }
        if self.key.is_some() {
            flags |= FLAG_KEY;
        }
        if self.sequence.is_some() {
            flags |= FLAG_SEQUENCE;
        }
        flags
    }

    /// Writes the header at the start of `out` and returns its length.
    ///
    /// # Errors
    /// No space for the header with its optional fields.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let options = [self.checksum.map(|checksum| (checksum as u32) << 16), self.key, self.sequence];
        let mut tail = [0; MAX_HEADER_LEN - MIN_HEADER_LEN];
        let mut used = 0;
        for (slot, option) in tail.as_chunks_mut::<OPTION_LEN>().0.iter_mut().zip(options.iter().flatten()) {
            *slot = option.to_be_bytes();
            used += OPTION_LEN;
        }
        let (f, p) = (self.flags().to_be_bytes(), self.protocol.to_be_bytes());
        field::put_with(Layer::Gre, out, [f[0], f[1], p[0], p[1]], field::range(&tail, 0, used))
    }
}
