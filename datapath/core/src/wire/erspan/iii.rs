//! ERSPAN type III (draft-foschiano-erspan section 4.3).
//!
//! ```text
//! 0             2                               4           8         10
//! | ver=2 VLAN  | COS(3) BSO(2) T(1) session(10) | timestamp | SGT(16) | P FT(5) HwID(6) D Gra(2) O |
//! 12            with O set
//! | platform ID(6) and 58 bits that depend on it | Ethernet frame
//! ```
//! Big-endian. The timestamp's unit is that of field Gra.

use super::{Direction, Start};
use crate::wire::{Layer, WireError, field};

/// Bytes of the header without platform-specific subheader.
pub const MIN_HEADER_LEN: usize = 12;
/// Bytes of the platform-specific subheader.
pub const SUBHEADER_LEN: usize = 8;
/// The version field.
pub const VERSION: u8 = 2;
/// Offset of the timestamp.
pub const TIMESTAMP_OFFSET: usize = 4;
/// Offset of the security group tag.
pub const SGT_OFFSET: usize = 8;
/// Offset of the word with P, FT, hardware ID, D, Gra and O.
pub const FLAGS_OFFSET: usize = 10;
/// Frame type of Ethernet; IP packets without an Ethernet header have 2.
pub const FRAME_TYPE_ETHERNET: u8 = 0;
/// Largest frame type, 5 bits.
pub const MAX_FRAME_TYPE: u8 = 0x1f;
/// Largest hardware identifier, 6 bits.
pub const MAX_HARDWARE_ID: u8 = 0x3f;
/// P in the flags word: the payload is an Ethernet frame.
pub const FLAG_ETHERNET: u16 = 0x8000;
/// D in the flags word.
pub const FLAG_DIRECTION: u16 = 0x0008;
/// O in the flags word: the subheader is there.
pub const FLAG_SUBHEADER: u16 = 0x0001;
const FRAME_TYPE_SHIFT: u32 = 10;
const HARDWARE_ID_SHIFT: u32 = 4;
const GRANULARITY_SHIFT: u32 = 1;

/// Unit of the timestamp: field Gra.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// 100 microseconds; wraps after five days.
    #[default]
    HundredMicroseconds = 0,
    /// 100 nanoseconds; wraps after seven minutes.
    HundredNanoseconds = 1,
    /// IEEE 1588: nanoseconds here, seconds in the subheader.
    Ieee1588 = 2,
    /// Set by the user of the sender.
    Custom = 3,
}

impl Granularity {
    /// From the lowest two bits.
    pub const fn from_bits(bits: u16) -> Self {
        match bits & 3 {
            0 => Self::HundredMicroseconds,
            1 => Self::HundredNanoseconds,
            2 => Self::Ieee1588,
            _ => Self::Custom,
        }
    }
}

/// State of the mirrored frame: field BSO.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Integrity {
    /// Good, or not known.
    #[default]
    Good = 0,
    /// Shorter than a frame may be.
    Short = 1,
    /// Longer than a frame may be.
    Oversized = 2,
    /// With a checksum or alignment error.
    Bad = 3,
}

impl Integrity {
    /// From the lowest two bits.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Good,
            1 => Self::Short,
            2 => Self::Oversized,
            _ => Self::Bad,
        }
    }
}

/// A type III header, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the header at `at`.
    ///
    /// # Errors
    /// Fewer than 12 bytes, or 20 with flag O; a version other than 2.
    pub fn parse(frame: &'a [u8], at: usize) -> Result<Self, WireError> {
        let bytes = field::rest(Layer::Erspan, frame, at, MIN_HEADER_LEN)?;
        let version = field::byte(bytes, 0) >> 4;
        if version != VERSION {
            return Err(WireError::unsupported(Layer::Erspan, at, VERSION as usize, version as usize));
        }
        let view = Self { bytes, at };
        field::rest(Layer::Erspan, frame, at, view.header_len())?;
        Ok(view)
    }

    super::start_getters!();

    /// BSO: state of the mirrored frame.
    pub fn integrity(&self) -> Integrity {
        Integrity::from_bits(field::byte(self.bytes, 2) >> super::ENCAPSULATION_SHIFT)
    }

    /// Time at which the frame was mirrored, in units of [`Self::granularity`].
    pub fn timestamp(&self) -> u32 {
        field::be32(self.bytes, TIMESTAMP_OFFSET)
    }

    /// Security group tag.
    pub fn sgt(&self) -> u16 {
        field::be16(self.bytes, SGT_OFFSET)
    }

    /// P: the payload is an Ethernet frame (with or without its checksum).
    pub fn is_ethernet(&self) -> bool {
        self.flags() & FLAG_ETHERNET != 0
    }

    /// FT: frame type, 0 for Ethernet, 2 for IP.
    pub fn frame_type(&self) -> u8 {
        (self.flags() >> FRAME_TYPE_SHIFT) as u8 & MAX_FRAME_TYPE
    }

    /// Identifier of the mirroring engine within its system, 6 bits.
    pub fn hardware_id(&self) -> u8 {
        (self.flags() >> HARDWARE_ID_SHIFT) as u8 & MAX_HARDWARE_ID
    }

    /// D: direction of the frame.
    pub fn direction(&self) -> Direction {
        if self.flags() & FLAG_DIRECTION == 0 { Direction::Ingress } else { Direction::Egress }
    }

    /// Gra: unit of the timestamp.
    pub fn granularity(&self) -> Granularity {
        Granularity::from_bits(self.flags() >> GRANULARITY_SHIFT)
    }

    /// The platform-specific subheader, when flag O is set.
    pub fn subheader(&self) -> Option<[u8; SUBHEADER_LEN]> {
        (self.flags() & FLAG_SUBHEADER != 0).then(|| field::array(self.bytes, MIN_HEADER_LEN))
    }

    /// Bytes of the header, subheader included.
    pub fn header_len(&self) -> usize {
        if self.flags() & FLAG_SUBHEADER == 0 { MIN_HEADER_LEN } else { MIN_HEADER_LEN + SUBHEADER_LEN }
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header {
        Header {
            vlan: self.vlan(),
            cos: self.cos(),
            integrity: self.integrity(),
            truncated: self.is_truncated(),
            session: self.session(),
            timestamp: self.timestamp(),
            sgt: self.sgt(),
            ethernet: self.is_ethernet(),
            frame_type: self.frame_type(),
            hardware_id: self.hardware_id(),
            direction: self.direction(),
            granularity: self.granularity(),
            subheader: self.subheader(),
        }
    }

    fn flags(&self) -> u16 {
        field::be16(self.bytes, FLAGS_OFFSET)
    }
}

/// A type III header to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// VLAN identifier of the mirrored frame, 12 bits; 0 for none.
    pub vlan: u16,
    /// Class of service, 0 to 7.
    pub cos: u8,
    /// BSO.
    pub integrity: Integrity,
    /// T.
    pub truncated: bool,
    /// Session identifier, 10 bits.
    pub session: u16,
    /// In units of `granularity`.
    pub timestamp: u32,
    /// Security group tag.
    pub sgt: u16,
    /// P.
    pub ethernet: bool,
    /// FT, 5 bits.
    pub frame_type: u8,
    /// Hardware identifier, 6 bits.
    pub hardware_id: u8,
    /// D.
    pub direction: Direction,
    /// Gra.
    pub granularity: Granularity,
    /// Flag O and this subheader.
    pub subheader: Option<[u8; SUBHEADER_LEN]>,
}

impl Header {
    /// Writes the header at the start of `out` and returns its length.
    ///
    /// # Errors
    /// A value that does not fit its bits; no space.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let check =
            |value: u8, max: u8| field::at_most(Layer::Erspan, FLAGS_OFFSET, value as usize, max as usize);
        check(self.frame_type, MAX_FRAME_TYPE)?;
        check(self.hardware_id, MAX_HARDWARE_ID)?;
        let start = Start {
            version: VERSION,
            vlan: self.vlan,
            cos: self.cos,
            two_bits: self.integrity as u8,
            truncated: self.truncated,
            session: self.session,
        };
        let [a, b, c, d] = start.bytes()?;
        let [e, f, g, h] = self.timestamp.to_be_bytes();
        let [i, j] = self.sgt.to_be_bytes();
        let [k, l] = self.flags().to_be_bytes();
        let subheader = self.subheader.as_ref().map_or(&[][..], |bytes| bytes);
        field::put_with(Layer::Erspan, out, [a, b, c, d, e, f, g, h, i, j, k, l], subheader)
    }

    fn flags(&self) -> u16 {
        let mut flags = (self.frame_type as u16) << FRAME_TYPE_SHIFT
            | (self.hardware_id as u16) << HARDWARE_ID_SHIFT
            | (self.granularity as u16) << GRANULARITY_SHIFT;
        if self.ethernet {
            flags |= FLAG_ETHERNET;
        }
        if self.direction == Direction::Egress {
            flags |= FLAG_DIRECTION;
        }
        if self.subheader.is_some() {
            flags |= FLAG_SUBHEADER;
        }
        flags
    }
}
