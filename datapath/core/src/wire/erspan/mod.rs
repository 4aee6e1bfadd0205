//! ERSPAN (draft-foschiano-erspan): the header between GRE and a mirrored Ethernet frame.
//!
//! Type II ([`ii`], section 4.2) comes with GRE protocol 0x88BE, type III ([`iii`], section 4.3) with 0x22EB,
//! both with the GRE sequence number. Type I is 0x88BE without a sequence number and has no ERSPAN header at
//! all: GRE alone tells it apart.
//!
//! The first four bytes are the same in both types but for the version and the meaning of two bits:
//!
//! ```text
//! 0                        2
//! | version(4) | VLAN(12)  | COS(3) | En or BSO(2) | T(1) | session(10) |
//! ```

pub mod ii;
pub mod iii;

/// Largest session identifier, 10 bits.
pub const MAX_SESSION: u16 = 0x03ff;
/// Largest VLAN identifier, 12 bits.
pub const MAX_VLAN: u16 = 0x0fff;
/// Largest class of service, 3 bits.
pub const MAX_COS: u8 = 7;
/// The bits of byte 2 in which class of service, En or BSO and T lie.
pub(crate) const COS_SHIFT: u32 = 5;
/// En (type II) or BSO (type III) in byte 2.
pub(crate) const ENCAPSULATION_SHIFT: u32 = 3;
/// T in byte 2: the frame was cut.
pub const FLAG_TRUNCATED: u8 = 0x04;

/// What became of the mirrored frame's VLAN tag: field En of type II.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VlanTag {
    /// The frame had none.
    #[default]
    None = 0,
    /// It was an ISL tag.
    Isl = 1,
    /// It was an 802.1Q tag, which the frame no longer carries.
    Removed = 2,
    /// The frame still carries it.
    InFrame = 3,
}

impl VlanTag {
    /// From the lowest two bits.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::None,
            1 => Self::Isl,
            2 => Self::Removed,
            _ => Self::InFrame,
        }
    }
}

/// Direction of the mirrored frame at the mirrored port: field D of type III.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received by the port.
    #[default]
    Ingress = 0,
    /// Sent by the port.
    Egress = 1,
}

/// The four bytes that both types begin with.
#[derive(Clone, Copy)]
struct Start {
    version: u8,
    vlan: u16,
    cos: u8,
    /// En of type II, BSO of type III.
    two_bits: u8,
    truncated: bool,
    session: u16,
}

impl Start {
    fn bytes(self) -> Result<[u8; 4], super::WireError> {
        use super::{Layer, field};
        field::at_most(Layer::Erspan, 0, self.vlan as usize, MAX_VLAN as usize)?;
        field::at_most(Layer::Erspan, 2, self.cos as usize, MAX_COS as usize)?;
        field::at_most(Layer::Erspan, 2, self.session as usize, MAX_SESSION as usize)?;
        let [vlan_high, vlan_low] = self.vlan.to_be_bytes();
        let [session_high, session_low] = self.session.to_be_bytes();
        let truncated = if self.truncated { FLAG_TRUNCATED } else { 0 };
        let flags = self.cos << COS_SHIFT | (self.two_bits & 3) << ENCAPSULATION_SHIFT | truncated;
        Ok([self.version << 4 | vlan_high, vlan_low, flags | session_high, session_low])
    }
}

/// Getters of the common start, for both views.
macro_rules! start_getters {
    () => {
        /// VLAN identifier of the mirrored frame, 12 bits; 0 for none.
        pub fn vlan(&self) -> u16 {
            field::be16(self.bytes, 0) & super::MAX_VLAN
        }

        /// Class of service of the mirrored frame, 0 to 7.
        pub fn cos(&self) -> u8 {
            field::byte(self.bytes, 2) >> super::COS_SHIFT
        }

        /// T: the mirrored frame was cut to fit.
        pub fn is_truncated(&self) -> bool {
            field::byte(self.bytes, 2) & super::FLAG_TRUNCATED != 0
        }

        /// Session identifier, 10 bits.
        pub fn session(&self) -> u16 {
            field::be16(self.bytes, 2) & super::MAX_SESSION
        }

        /// Where the mirrored Ethernet frame begins in the frame.
        pub fn payload_offset(&self) -> usize {
            self.at + self.header_len()
        }

        /// The mirrored Ethernet frame.
        pub fn payload(&self) -> &'a [u8] {
            field::range(self.bytes, self.header_len(), self.bytes.len())
        }
    };
}
use start_getters;
