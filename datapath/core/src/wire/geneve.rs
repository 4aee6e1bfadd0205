//! GENEVE (RFC 8926 section 3.4).
//!
//! ```text
//! 0               1               2               4     7          8
//! | ver=0 opt len | O C reserved  | protocol type | VNI | reserved | options | payload
//! ```
//! Big-endian. The option length counts four-byte units, so at most 252 bytes of options. Each option is a
//! class (2 bytes), a type (1 byte, top bit: critical), three reserved bits with a five-bit length in four-byte
//! units, and its data. Reserved bits are written as zero and ignored when read.

use super::{Layer, Problem, WireError, field};

/// Bytes of the header without options.
pub const MIN_HEADER_LEN: usize = 8;
/// Most bytes of options.
pub const MAX_OPTIONS_LEN: usize = 63 * 4;
/// Destination port assigned by IANA.
pub const PORT: u16 = 6081;
/// Offset of the protocol type.
pub const PROTOCOL_OFFSET: usize = 2;
/// Offset of the VNI, three bytes.
pub const VNI_OFFSET: usize = 4;
/// Largest VNI.
pub const MAX_VNI: u32 = 0x00ff_ffff;
/// Flag O in byte 1: control packet.
pub const FLAG_CONTROL: u8 = 0x80;
/// Flag C in byte 1: critical options are present.
pub const FLAG_CRITICAL: u8 = 0x40;
/// Bytes of an option before its data.
pub const OPTION_HEADER_LEN: usize = 4;
/// Most bytes of data in one option.
pub const MAX_OPTION_DATA: usize = 31 * 4;

/// A GENEVE header, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the header at `at`. The options' own lengths are checked by [`Self::options`].
    ///
    /// # Errors
    /// Fewer bytes than header and options take; a version other than 0.
    pub fn parse(frame: &'a [u8], at: usize) -> Result<Self, WireError> {
        let bytes = field::rest(Layer::Geneve, frame, at, MIN_HEADER_LEN)?;
        let version = field::byte(bytes, 0) >> 6;
        if version != 0 {
            return Err(WireError::unsupported(Layer::Geneve, at, 0, version as usize));
        }
        let view = Self { bytes, at };
        field::rest(Layer::Geneve, frame, at, view.header_len())?;
        Ok(view)
    }

    /// Flag O: a control packet, not to be forwarded.
    pub fn is_control(&self) -> bool {
        field::byte(self.bytes, 1) & FLAG_CONTROL != 0
    }

    /// Flag C: some option is critical; who does not know it must drop the packet.
    pub fn has_critical_options(&self) -> bool {
        field::byte(self.bytes, 1) & FLAG_CRITICAL != 0
    }

    /// EtherType of the payload.
    pub fn protocol(&self) -> u16 {
        field::be16(self.bytes, PROTOCOL_OFFSET)
    }

    /// Virtual network identifier, 24 bits.
    pub fn vni(&self) -> u32 {
        field::be24(self.bytes, VNI_OFFSET)
    }

    /// The options, one by one; a bad one ends the list with an error.
    pub fn options(&self) -> Options<'a> {
        Options { bytes: self.option_bytes(), at: self.at + MIN_HEADER_LEN }
    }

    /// The options as they are on the wire.
    pub fn option_bytes(&self) -> &'a [u8] {
        field::range(self.bytes, MIN_HEADER_LEN, self.header_len())
    }

    /// Bytes of the header, options included.
    pub fn header_len(&self) -> usize {
        MIN_HEADER_LEN + (field::byte(self.bytes, 0) & 0x3f) as usize * 4
    }

    /// Where the payload begins in the frame.
    pub fn payload_offset(&self) -> usize {
        self.at + self.header_len()
    }

    /// What follows the options.
    pub fn payload(&self) -> &'a [u8] {
        field::range(self.bytes, self.header_len(), self.bytes.len())
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header<'a> {
        Header {
            control: self.is_control(),
            critical: self.has_critical_options(),
            protocol: self.protocol(),
            vni: self.vni(),
            options: self.option_bytes(),
        }
    }
}

/// One option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneveOption<'a> {
    /// Namespace of the type.
    pub class: u16,
    /// Type; with the top bit set the option is critical.
    pub kind: u8,
    /// Data, a multiple of four bytes, up to [`MAX_OPTION_DATA`].
    pub data: &'a [u8],
}

impl GeneveOption<'_> {
    /// Whether a receiver that does not know the option must drop the packet.
    pub const fn is_critical(&self) -> bool {
        self.kind & 0x80 != 0
    }

    /// Writes the option at the start of `out` and returns its length.
    ///
    /// # Errors
    /// Data that is too long or no multiple of four bytes; no space.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        field::at_most(Layer::Geneve, 3, self.data.len(), MAX_OPTION_DATA)?;
        field::whole_units(Layer::Geneve, 3, self.data.len(), 4)?;
        let [a, b] = self.class.to_be_bytes();
        field::put_with(Layer::Geneve, out, [a, b, self.kind, (self.data.len() / 4) as u8], self.data)
    }
}

/// Walks options. See [`View::options`].
#[derive(Clone, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<GeneveOption<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let len = OPTION_HEADER_LEN + (field::byte(self.bytes, 3) & 0x1f) as usize * 4;
        let Some((option, rest)) = self.bytes.split_at_checked(len) else {
            let had = self.bytes.len();
            self.bytes = &[];
            return Some(Err(WireError::new(Layer::Geneve, Problem::LengthTooLarge, self.at, had, len)));
        };
        self.bytes = rest;
        self.at += len;
        Some(Ok(GeneveOption {
            class: field::be16(option, 0),
            kind: field::byte(option, 2),
            data: field::range(option, OPTION_HEADER_LEN, len),
        }))
    }
}

/// A GENEVE header to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header<'a> {
    /// Flag O.
    pub control: bool,
    /// Flag C.
    pub critical: bool,
    /// EtherType of the payload.
    pub protocol: u16,
    /// Virtual network identifier, up to [`MAX_VNI`].
    pub vni: u32,
    /// Options as [`GeneveOption::write`] writes them.
    pub options: &'a [u8],
}

impl Header<'_> {
    /// Writes header and options at the start of `out` and returns their length.
    ///
    /// # Errors
    /// A VNI above 24 bits; options that are too long or no multiple of four bytes; no space.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        field::at_most(Layer::Geneve, VNI_OFFSET, self.vni as usize, MAX_VNI as usize)?;
        field::at_most(Layer::Geneve, 0, self.options.len(), MAX_OPTIONS_LEN)?;
        field::whole_units(Layer::Geneve, 0, self.options.len(), 4)?;
        let mut flags = 0;
        if self.control {
            flags |= FLAG_CONTROL;
        }
        if self.critical {
            flags |= FLAG_CRITICAL;
        }
        let p = self.protocol.to_be_bytes();
        let [_, a, b, c] = self.vni.to_be_bytes();
        let fixed = [(self.options.len() / 4) as u8, flags, p[0], p[1], a, b, c, 0];
        field::put_with(Layer::Geneve, out, fixed, self.options)
    }
}
