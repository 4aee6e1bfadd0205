//! VLAN tags: 802.1Q and 802.1ad (IEEE 802.1Q clause 9.6), alone or stacked.
//!
//! ```text
//! 0                            2           4
//! | priority(3) DEI(1) VID(12) | EtherType | payload
//! ```
//! Big-endian. The tag's own type (0x8100 or 0x88a8) is the EtherType field of what stands before it, so a tag is
//! read from the four bytes behind that field.

use super::{Layer, WireError, ethernet, field};

/// Bytes of a tag.
pub const TAG_LEN: usize = 4;
/// Offset of the EtherType of what follows.
pub const ETHER_TYPE_OFFSET: usize = 2;
/// Largest VLAN identifier.
pub const MAX_ID: u16 = 0x0fff;
/// Largest priority.
pub const MAX_PRIORITY: u8 = 7;
/// Drop eligible indicator in the tag control information.
pub const FLAG_DROP_ELIGIBLE: u16 = 0x1000;
/// Where the priority begins in the tag control information.
pub const PRIORITY_SHIFT: u32 = 13;

/// Whether an EtherType announces a tag.
#[inline(always)]
pub const fn is_tag(ether_type: u16) -> bool {
    matches!(ether_type, ethernet::ETHER_TYPE_VLAN | ethernet::ETHER_TYPE_QINQ)
}

/// A tag, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the tag whose control information is at `at`.
    ///
    /// # Errors
    /// Fewer than 4 bytes.
    pub fn parse(frame: &'a [u8], at: usize) -> Result<Self, WireError> {
        Ok(Self { bytes: field::rest(Layer::Vlan, frame, at, TAG_LEN)?, at })
    }

    /// Tag control information: priority, DEI and identifier.
    pub fn tci(&self) -> u16 {
        field::be16(self.bytes, 0)
    }

    /// Priority code point, 0 to 7.
    pub fn priority(&self) -> u8 {
        (self.tci() >> PRIORITY_SHIFT) as u8
    }

    /// Drop eligible indicator.
    pub fn drop_eligible(&self) -> bool {
        self.tci() & FLAG_DROP_ELIGIBLE != 0
    }

    /// VLAN identifier; 0 is a tag that carries a priority only.
    pub fn id(&self) -> u16 {
        self.tci() & MAX_ID
    }

    /// EtherType of what follows the tag.
    pub fn ether_type(&self) -> u16 {
        field::be16(self.bytes, ETHER_TYPE_OFFSET)
    }

    /// Where what follows begins in the frame.
    pub fn payload_offset(&self) -> usize {
        self.at + TAG_LEN
    }

    /// What follows the tag.
    pub fn payload(&self) -> &'a [u8] {
        field::range(self.bytes, TAG_LEN, self.bytes.len())
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header {
        Header {
            priority: self.priority(),
            drop_eligible: self.drop_eligible(),
            id: self.id(),
            ether_type: self.ether_type(),
        }
    }
}

/// Walks a stack of tags from the outermost inwards.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    frame: &'a [u8],
    ether_type: u16,
    at: usize,
}

impl<'a> Tags<'a> {
    /// The tags at `at`, behind a field that holds `ether_type`.
    pub fn new(frame: &'a [u8], ether_type: u16, at: usize) -> Self {
        Self { frame, ether_type, at }
    }

    /// EtherType behind the tags walked so far, and where what it announces begins in the frame.
    pub fn position(&self) -> (u16, usize) {
        (self.ether_type, self.at)
    }
}

impl<'a> Iterator for Tags<'a> {
    type Item = Result<View<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if !is_tag(self.ether_type) {
            return None;
        }
        let tag = View::parse(self.frame, self.at);
        match &tag {
            Ok(tag) => (self.ether_type, self.at) = (tag.ether_type(), tag.payload_offset()),
            // The walk ends with its error.
            Err(_) => self.ether_type = 0,
        }
        Some(tag)
    }
}

/// A tag to write, without the type that announces it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Priority code point, 0 to 7.
    pub priority: u8,
    /// Drop eligible indicator.
    pub drop_eligible: bool,
    /// VLAN identifier, 12 bits.
    pub id: u16,
    /// EtherType of what follows.
    pub ether_type: u16,
}

impl Header {
    /// Writes the tag at the start of `out` and returns its length.
    ///
    /// # Errors
    /// A priority or identifier that does not fit its bits; no space for 4 bytes.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        field::at_most(Layer::Vlan, 0, self.priority as usize, MAX_PRIORITY as usize)?;
        field::at_most(Layer::Vlan, 0, self.id as usize, MAX_ID as usize)?;
        let drop_eligible = if self.drop_eligible { FLAG_DROP_ELIGIBLE } else { 0 };
        let tci = (self.priority as u16) << PRIORITY_SHIFT | drop_eligible | self.id;
        let (t, e) = (tci.to_be_bytes(), self.ether_type.to_be_bytes());
        field::put(Layer::Vlan, out, [t[0], t[1], e[0], e[1]])
    }
}
