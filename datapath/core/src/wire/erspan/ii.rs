//! ERSPAN type II (draft-foschiano-erspan section 4.2).
//!
//! ```text
//! 0             2                              4
//! | ver=1 VLAN  | COS(3) En(2) T(1) session(10) | reserved(12) index(20) | Ethernet frame
//! ```
//! Big-endian. Reserved bits are written as zero and ignored when read.

use super::{Start, VlanTag};
use crate::wire::{Layer, WireError, field};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// The version field.
pub const VERSION: u8 = 1;
/// Offset of the word that holds the index.
pub const INDEX_OFFSET: usize = 4;
/// Largest index, 20 bits.
pub const MAX_INDEX: u32 = 0x000f_ffff;

/// A type II header, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the header at `at`.
    ///
    /// # Errors
    /// Fewer than 8 bytes; a version other than 1.
    pub fn parse(frame: &'a [u8], at: usize) -> Result<Self, WireError> {
        let bytes = field::rest(Layer::Erspan, frame, at, HEADER_LEN)?;
        let version = field::byte(bytes, 0) >> 4;
        if version != VERSION {
            return Err(WireError::unsupported(Layer::Erspan, at, VERSION as usize, version as usize));
        }
        Ok(Self { bytes, at })
    }

    super::start_getters!();

    /// En: what became of the frame's VLAN tag.
    pub fn vlan_tag(&self) -> VlanTag {
        VlanTag::from_bits(field::byte(self.bytes, 2) >> super::ENCAPSULATION_SHIFT)
    }

    /// Index of the mirrored port, 20 bits, in the sender's own numbering.
    pub fn index(&self) -> u32 {
        field::be32(self.bytes, INDEX_OFFSET) & MAX_INDEX
    }

    /// Bytes of the header.
    pub fn header_len(&self) -> usize {
        HEADER_LEN
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header {
        Header {
            vlan: self.vlan(),
            cos: self.cos(),
            vlan_tag: self.vlan_tag(),
            truncated: self.is_truncated(),
            session: self.session(),
            index: self.index(),
        }
    }
}

/// A type II header to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// VLAN identifier of the mirrored frame, 12 bits; 0 for none.
    pub vlan: u16,
    /// Class of service, 0 to 7.
    pub cos: u8,
    /// En.
    pub vlan_tag: VlanTag,
    /// T.
    pub truncated: bool,
    /// Session identifier, 10 bits.
    pub session: u16,
    /// Index of the mirrored port, 20 bits.
    pub index: u32,
}

impl Header {
    /// Writes the header at the start of `out` and returns its length.
    ///
    /// # Errors
    /// A value that does not fit its bits; no space for 8 bytes.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        field::at_most(Layer::Erspan, INDEX_OFFSET, self.index as usize, MAX_INDEX as usize)?;
        let start = Start {
            version: VERSION,
            vlan: self.vlan,
            cos: self.cos,
            two_bits: self.vlan_tag as u8,
            truncated: self.truncated,
            session: self.session,
        };
        let [a, b, c, d] = start.bytes()?;
        let [e, f, g, h] = self.index.to_be_bytes();
        field::put(Layer::Erspan, out, [a, b, c, d, e, f, g, h])
    }
}
