//! TCP (RFC 9293 section 3.1).
//!
//! ```text
//! 0             2                  4          8                12          13      14       16         18       20
//! | source port | destination port | sequence | acknowledgment | offset(4) | flags | window | checksum | urgent | options
//! ```
//! Big-endian. The data offset counts four-byte units.

use super::{Layer, Problem, WireError, field};

/// Bytes of the header without options.
pub const MIN_HEADER_LEN: usize = 20;
/// Most bytes of options.
pub const MAX_OPTIONS_LEN: usize = 40;
/// Offset of the source port.
pub const SOURCE_PORT_OFFSET: usize = 0;
/// Offset of the destination port.
pub const DESTINATION_PORT_OFFSET: usize = 2;
/// Offset of the sequence number.
pub const SEQUENCE_OFFSET: usize = 4;
/// Offset of the acknowledgment number.
pub const ACKNOWLEDGMENT_OFFSET: usize = 8;
/// Offset of the byte whose upper half is the data offset.
pub const DATA_OFFSET_OFFSET: usize = 12;
/// Offset of the flags.
pub const FLAGS_OFFSET: usize = 13;
/// Offset of the window.
pub const WINDOW_OFFSET: usize = 14;
/// Offset of the checksum.
pub const CHECKSUM_OFFSET: usize = 16;
/// Offset of the urgent pointer.
pub const URGENT_OFFSET: usize = 18;

/// No more data from the sender.
pub const FLAG_FIN: u8 = 0x01;
/// Synchronise sequence numbers.
pub const FLAG_SYN: u8 = 0x02;
/// Reset the connection.
pub const FLAG_RST: u8 = 0x04;
/// Push.
pub const FLAG_PSH: u8 = 0x08;
/// The acknowledgment number holds.
pub const FLAG_ACK: u8 = 0x10;
/// The urgent pointer holds.
pub const FLAG_URG: u8 = 0x20;
/// ECN echo (RFC 3168).
pub const FLAG_ECE: u8 = 0x40;
/// Congestion window reduced (RFC 3168).
pub const FLAG_CWR: u8 = 0x80;

/// A TCP segment, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the segment at `at` of a packet that ends where `packet` ends.
    ///
    /// # Errors
    /// Fewer bytes than the header takes; a data offset below 20 bytes.
    pub fn parse(packet: &'a [u8], at: usize) -> Result<Self, WireError> {
        let view = Self { bytes: field::rest(Layer::Tcp, packet, at, MIN_HEADER_LEN)?, at };
        let len = view.header_len();
        if len < MIN_HEADER_LEN {
            let offset = at + DATA_OFFSET_OFFSET;
            return Err(WireError::new(Layer::Tcp, Problem::LengthTooSmall, offset, MIN_HEADER_LEN, len));
        }
        field::rest(Layer::Tcp, packet, at, len)?;
        Ok(view)
    }

    /// Source port.
    pub fn source_port(&self) -> u16 {
        field::be16(self.bytes, SOURCE_PORT_OFFSET)
    }

    /// Destination port.
    pub fn destination_port(&self) -> u16 {
        field::be16(self.bytes, DESTINATION_PORT_OFFSET)
    }

    /// Sequence number.
    pub fn sequence(&self) -> u32 {
        field::be32(self.bytes, SEQUENCE_OFFSET)
    }

    /// Acknowledgment number; holds with [`FLAG_ACK`].
    pub fn acknowledgment(&self) -> u32 {
        field::be32(self.bytes, ACKNOWLEDGMENT_OFFSET)
    }

    /// The flags byte.
    pub fn flags(&self) -> u8 {
        field::byte(self.bytes, FLAGS_OFFSET)
    }

    /// Window, not scaled.
    pub fn window(&self) -> u16 {
        field::be16(self.bytes, WINDOW_OFFSET)
    }

    /// The checksum field.
    pub fn checksum(&self) -> u16 {
        field::be16(self.bytes, CHECKSUM_OFFSET)
    }

    /// Urgent pointer; holds with [`FLAG_URG`].
    pub fn urgent(&self) -> u16 {
        field::be16(self.bytes, URGENT_OFFSET)
    }

    /// Bytes of the header, options included.
    pub fn header_len(&self) -> usize {
        (field::byte(self.bytes, DATA_OFFSET_OFFSET) >> 4) as usize * 4
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

    /// The payload, up to the packet's end.
    pub fn payload(&self) -> &'a [u8] {
        field::range(self.bytes, self.header_len(), self.bytes.len())
    }

    /// The segment's bytes, header included.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header<'a> {
        Header {
            source_port: self.source_port(),
            destination_port: self.destination_port(),
            sequence: self.sequence(),
            acknowledgment: self.acknowledgment(),
            flags: self.flags(),
            window: self.window(),
            checksum: self.checksum(),
            urgent: self.urgent(),
            options: self.option_bytes(),
        }
    }
}

/// One option (RFC 9293 section 3.1). "No operation" has no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOption<'a> {
    /// The kind byte.
    pub kind: u8,
    /// What follows kind and length.
    pub data: &'a [u8],
}

/// Walks options up to "end of options". See [`View::options`].
#[derive(Clone, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<TcpOption<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        field::next_option(Layer::Tcp, &mut self.bytes, &mut self.at)
            .map(|option| option.map(|(kind, data)| TcpOption { kind, data }))
    }
}

/// A TCP header to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header<'a> {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub acknowledgment: u32,
    /// The flags byte.
    pub flags: u8,
    /// Window, not scaled.
    pub window: u16,
    /// The checksum, over pseudo-header, header and payload.
    pub checksum: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options, a multiple of four bytes up to [`MAX_OPTIONS_LEN`].
    pub options: &'a [u8],
}

impl Header<'_> {
    /// Writes header and options at the start of `out` and returns their length.
    ///
    /// # Errors
    /// Options that are too long or no multiple of four bytes; no space.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        field::at_most(Layer::Tcp, DATA_OFFSET_OFFSET, self.options.len(), MAX_OPTIONS_LEN)?;
        field::whole_units(Layer::Tcp, DATA_OFFSET_OFFSET, self.options.len(), 4)?;
        let offset = ((MIN_HEADER_LEN + self.options.len()) / 4) as u8;
        let (s, d) = (self.source_port.to_be_bytes(), self.destination_port.to_be_bytes());
        let (q, a) = (self.sequence.to_be_bytes(), self.acknowledgment.to_be_bytes());
        let (w, c, u) = (self.window.to_be_bytes(), self.checksum.to_be_bytes(), self.urgent.to_be_bytes());
        #[rustfmt::skip]
        let fixed: [u8; MIN_HEADER_LEN] = [
            s[0], s[1], d[0], d[1], q[0], q[1], q[2], q[3], a[0], a[1], a[2], a[3],
            offset << 4, self.flags, w[0], w[1], c[0], c[1], u[0], u[1],
        ];
        field::put_with(Layer::Tcp, out, fixed, self.options)
    }
}
