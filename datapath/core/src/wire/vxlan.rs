//! VXLAN (RFC 7348 section 5).
//!
//! ```text
//! 0       1          4     7          8
//! | flags | reserved | VNI | reserved | Ethernet frame
//! ```
//! Big-endian. Flag I (0x08) says that the VNI is valid. Reserved bits are written as zero and ignored when
//! read, as section 5 asks.

use super::{Layer, WireError, field};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Destination port assigned by IANA.
pub const PORT: u16 = 4789;
/// Offset of the VNI, three bytes.
pub const VNI_OFFSET: usize = 4;
/// Largest VNI.
pub const MAX_VNI: u32 = 0x00ff_ffff;
/// Flag I: the VNI is valid.
pub const FLAG_VNI: u8 = 0x08;

/// A VXLAN header, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the header at `at`.
    ///
    /// # Errors
    /// Fewer than 8 bytes; flag I not set.
    pub fn parse(frame: &'a [u8], at: usize) -> Result<Self, WireError> {
        let bytes = field::rest(Layer::Vxlan, frame, at, HEADER_LEN)?;
        let flags = field::byte(bytes, 0);
        if flags & FLAG_VNI == 0 {
            return Err(WireError::unsupported(Layer::Vxlan, at, FLAG_VNI as usize, flags as usize));
        }
        Ok(Self { bytes, at })
    }

    /// The flags byte.
    pub fn flags(&self) -> u8 {
        field::byte(self.bytes, 0)
    }

    /// VXLAN network identifier, 24 bits.
    pub fn vni(&self) -> u32 {
        field::be24(self.bytes, VNI_OFFSET)
    }

    /// Where the inner Ethernet frame begins in the frame.
    pub fn payload_offset(&self) -> usize {
        self.at + HEADER_LEN
    }

    /// The inner Ethernet frame.
    pub fn payload(&self) -> &'a [u8] {
        field::range(self.bytes, HEADER_LEN, self.bytes.len())
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header {
        Header { vni: self.vni() }
    }
}

/// A VXLAN header to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// VXLAN network identifier, up to [`MAX_VNI`].
    pub vni: u32,
}

impl Header {
    /// Writes the header at the start of `out` and returns its length.
    ///
    /// # Errors
    /// A VNI above 24 bits; no space for 8 bytes.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        field::at_most(Layer::Vxlan, VNI_OFFSET, self.vni as usize, MAX_VNI as usize)?;
        let [_, a, b, c] = self.vni.to_be_bytes();
        field::put(Layer::Vxlan, out, [FLAG_VNI, 0, 0, 0, a, b, c, 0])
    }
}
