//! IPv4 (RFC 791, RFC 2474 for DSCP, RFC 3168 for ECN).
//!
//! ```text
//! 0           1       2              4    6                8     9          10         12       16            20
//! | ver=4 IHL | DS(6) ECN(2) | total | id | flags, offset | TTL | protocol | checksum | source | destination | options
//! ```
//! Big-endian. IHL counts four-byte units; the fragment offset counts eight-byte units.

use super::{Layer, Problem, WireError, checksum, field};

/// Bytes of the header without options.
pub const MIN_HEADER_LEN: usize = 20;
/// Most bytes of options.
pub const MAX_OPTIONS_LEN: usize = 40;
/// Offset of the DS field with DSCP and ECN.
pub const TOS_OFFSET: usize = 1;
/// Offset of the total length.
pub const TOTAL_LENGTH_OFFSET: usize = 2;
/// Offset of the identification.
pub const ID_OFFSET: usize = 4;
/// Offset of flags and fragment offset.
pub const FRAGMENT_OFFSET: usize = 6;
/// Offset of the time to live.
pub const TTL_OFFSET: usize = 8;
/// Offset of the protocol.
pub const PROTOCOL_OFFSET: usize = 9;
/// Offset of the header checksum.
pub const CHECKSUM_OFFSET: usize = 10;
/// Offset of the source address.
pub const SOURCE_OFFSET: usize = 12;
/// Offset of the destination address.
pub const DESTINATION_OFFSET: usize = 16;

/// Flag "don't fragment" in the word at [`FRAGMENT_OFFSET`].
pub const FLAG_DONT_FRAGMENT: u16 = 0x4000;
/// Flag "more fragments" in the word at [`FRAGMENT_OFFSET`].
pub const FLAG_MORE_FRAGMENTS: u16 = 0x2000;
/// The fragment offset in the word at [`FRAGMENT_OFFSET`], in units of eight bytes.
pub const FRAGMENT_OFFSET_MASK: u16 = 0x1fff;

/// An IPv4 packet, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The frame up to this packet's end.
    frame: &'a [u8],
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the packet at `at`. Bytes after the total length are cut off. Total length 0, which the kernel
    /// gives to super-packets that do not fit the field, means all bytes up to the end of `frame`.
    /// The checksum is not looked at: see [`Self::checksum_holds`].
    ///
    /// # Errors
    /// A version other than 4; a header length below 20; a total length below the header length; fewer bytes
    /// than the total length.
    pub fn parse(frame: &'a [u8], at: usize) -> Result<Self, WireError> {
        let bytes = field::rest(Layer::Ipv4, frame, at, MIN_HEADER_LEN)?;
        let version = field::byte(bytes, 0) >> 4;
        if version != 4 {
            return Err(WireError::unsupported(Layer::Ipv4, at, 4, version as usize));
        }
        let view = Self { frame, bytes, at };
        let header_len = view.header_len();
        if header_len < MIN_HEADER_LEN {
            return Err(WireError::new(Layer::Ipv4, Problem::LengthTooSmall, at, MIN_HEADER_LEN, header_len));
        }
        field::rest(Layer::Ipv4, frame, at, header_len)?;
        let total = match view.total_length() {
            0 => bytes.len(),
            total => total as usize,
        };
        if total < header_len {
            let offset = at + TOTAL_LENGTH_OFFSET;
            return Err(WireError::new(Layer::Ipv4, Problem::LengthTooSmall, offset, header_len, total));
        }
        field::rest(Layer::Ipv4, frame, at, total)?;
        Ok(Self { frame: field::range(frame, 0, at + total), bytes: field::range(bytes, 0, total), at })
    }

    /// Bytes of the header, options included.
    pub fn header_len(&self) -> usize {
        (field::byte(self.bytes, 0) & 0x0f) as usize * 4
    }

    /// DSCP and ECN, once called type of service.
    pub fn tos(&self) -> u8 {
        field::byte(self.bytes, TOS_OFFSET)
    }

    /// The total length field, in bytes.
    pub fn total_length(&self) -> u16 {
        field::be16(self.bytes, TOTAL_LENGTH_OFFSET)
    }

    /// Identification.
    pub fn id(&self) -> u16 {
        field::be16(self.bytes, ID_OFFSET)
    }

    /// Flag "don't fragment".
    pub fn dont_fragment(&self) -> bool {
        self.fragment_word() & FLAG_DONT_FRAGMENT != 0
    }

    /// Flag "more fragments".
    pub fn more_fragments(&self) -> bool {
        self.fragment_word() & FLAG_MORE_FRAGMENTS != 0
    }

    /// Where this fragment's payload belongs in the datagram, in bytes.
    pub fn fragment_offset(&self) -> usize {
        (self.fragment_word() & FRAGMENT_OFFSET_MASK) as usize * 8
    }

    /// Whether this is part of a datagram only.
    pub fn is_fragment(&self) -> bool {
        self.fragment_word() & (FLAG_MORE_FRAGMENTS | FRAGMENT_OFFSET_MASK) != 0
    }

    /// Time to live.
    pub fn ttl(&self) -> u8 {
        field::byte(self.bytes, TTL_OFFSET)
    }

    /// Protocol of the payload.
    pub fn protocol(&self) -> u8 {
        field::byte(self.bytes, PROTOCOL_OFFSET)
    }

    /// Header checksum.
    pub fn checksum(&self) -> u16 {
        field::be16(self.bytes, CHECKSUM_OFFSET)
    }

    /// Whether the header checksum fits the header.
    pub fn checksum_holds(&self) -> bool {
        checksum::full(field::range(self.bytes, 0, self.header_len())) == 0
    }

    /// Source address.
    pub fn source(&self) -> [u8; 4] {
        field::array(self.bytes, SOURCE_OFFSET)
    }

    /// Destination address.
    pub fn destination(&self) -> [u8; 4] {
        field::array(self.bytes, DESTINATION_OFFSET)
    }

    /// The options, one by one; a bad one ends the list with an error.
    pub fn options(&self) -> Options<'a> {
        Options { bytes: self.option_bytes(), at: self.at + MIN_HEADER_LEN }
    }

    /// The options as they are on the wire, padding included.
    pub fn option_bytes(&self) -> &'a [u8] {
        field::range(self.bytes, MIN_HEADER_LEN, self.header_len())
    }

    /// Where the payload begins in the frame.
    pub fn payload_offset(&self) -> usize {
        self.at + self.header_len()
    }

    /// The payload, up to the total length.
    pub fn payload(&self) -> &'a [u8] {
        field::range(self.bytes, self.header_len(), self.bytes.len())
    }

    /// The frame up to the end of this packet: what readers of the next layer take, so that they never read
    /// padding and their offsets still count from the start of the frame.
    pub fn frame(&self) -> &'a [u8] {
        self.frame
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header<'a> {
        Header {
            tos: self.tos(),
            total_length: self.total_length(),
            id: self.id(),
            dont_fragment: self.dont_fragment(),
            more_fragments: self.more_fragments(),
            fragment_offset: self.fragment_word() & FRAGMENT_OFFSET_MASK,
            ttl: self.ttl(),
            protocol: self.protocol(),
            source: self.source(),
            destination: self.destination(),
            options: self.option_bytes(),
        }
    }

    fn fragment_word(&self) -> u16 {
        field::be16(self.bytes, FRAGMENT_OFFSET)
    }
}

/// One option (RFC 791 section 3.1). "No operation" has no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Option<'a> {
    /// The type byte with copied flag, class and number.
    pub kind: u8,
    /// What follows type and length.
    pub data: &'a [u8],
}

/// Walks options up to "end of options". See [`View::options`].
#[derive(Clone, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Option type "end of options".
pub const OPTION_END: u8 = 0;
/// Option type "no operation".
pub const OPTION_NOP: u8 = 1;

impl<'a> Iterator for Options<'a> {
    type Item = Result<Ipv4Option<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        field::next_option(Layer::Ipv4, &mut self.bytes, &mut self.at)
            .map(|option| option.map(|(kind, data)| Ipv4Option { kind, data }))
    }
}

/// An IPv4 header to write; its checksum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// DSCP and ECN.
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_length: u16,
    /// Identification.
    pub id: u16,
    /// Flag "don't fragment".
    pub dont_fragment: bool,
    /// Flag "more fragments".
    pub more_fragments: bool,
    /// Fragment offset in units of eight bytes, 13 bits.
    pub fragment_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
    /// Options, a multiple of four bytes up to [`MAX_OPTIONS_LEN`].
    pub options: &'a [u8],
}

impl Default for Header<'_> {
    /// All zero but for the time to live, 64.
    fn default() -> Self {
        Self {
            tos: 0,
            total_length: 0,
            id: 0,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: 0,
            source: [0; 4],
            destination: [0; 4],
            options: &[],
        }
    }
}

impl Header<'_> {
    /// Bytes of the header, options included.
    pub const fn len(&self) -> usize {
        MIN_HEADER_LEN + self.options.len()
    }

    /// Never: a header has at least 20 bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes header and options at the start of `out` and returns their length.
    ///
    /// # Errors
    /// A fragment offset above 13 bits; options that are too long or no multiple of four bytes; no space.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mask = FRAGMENT_OFFSET_MASK as usize;
        field::at_most(Layer::Ipv4, FRAGMENT_OFFSET, self.fragment_offset as usize, mask)?;
        field::at_most(Layer::Ipv4, 0, self.options.len(), MAX_OPTIONS_LEN)?;
        field::whole_units(Layer::Ipv4, 0, self.options.len(), 4)?;
        let mut fragment = self.fragment_offset;
        if self.dont_fragment {
            fragment |= FLAG_DONT_FRAGMENT;
        }
        if self.more_fragments {
            fragment |= FLAG_MORE_FRAGMENTS;
        }
        let first = 0x40 | (self.len() / 4) as u8;
        let (l, i, f) = (self.total_length.to_be_bytes(), self.id.to_be_bytes(), fragment.to_be_bytes());
        let (s, d) = (self.source, self.destination);
        let mut fixed = [
            first,
            self.tos,
            l[0],
            l[1],
            i[0],
            i[1],
            f[0],
            f[1],
            self.ttl,
            self.protocol,
            0,
            0,
            s[0],
            s[1],
            s[2],
            s[3],
            d[0],
            d[1],
            d[2],
            d[3],
        ];
        let sum = checksum::Sum::ZERO.add_bytes(&fixed).add_bytes(self.options);
        [fixed[CHECKSUM_OFFSET], fixed[CHECKSUM_OFFSET + 1]] = sum.checksum().to_be_bytes();
        field::put_with(Layer::Ipv4, out, fixed, self.options)
    }
}
