//! Ethernet II (IEEE 802.3 clause 3.2.6).
//!
//! ```text
//! 0            6            12          14
//! | destination | source    | EtherType | payload
//! ```
//! Big-endian. Frames whose type field is below [`MIN_ETHER_TYPE`] hold a length there (802.3 with LLC); they
//! are read as they are, with that number as their type.

use super::{Layer, WireError, field, vlan};

/// Bytes of the header.
pub const HEADER_LEN: usize = 14;
/// Offset of the destination address.
pub const DESTINATION_OFFSET: usize = 0;
/// Offset of the source address.
pub const SOURCE_OFFSET: usize = 6;
/// Offset of the EtherType.
pub const ETHER_TYPE_OFFSET: usize = 12;

/// Below it the type field is a length.
pub const MIN_ETHER_TYPE: u16 = 0x0600;
/// IPv4.
pub const ETHER_TYPE_IPV4: u16 = 0x0800;
/// ARP.
pub const ETHER_TYPE_ARP: u16 = 0x0806;
/// IPv6.
pub const ETHER_TYPE_IPV6: u16 = 0x86dd;
/// 802.1Q customer tag.
pub const ETHER_TYPE_VLAN: u16 = 0x8100;
/// 802.1ad service tag.
pub const ETHER_TYPE_QINQ: u16 = 0x88a8;
/// Transparent Ethernet bridging: an Ethernet frame inside GRE or GENEVE.
pub const ETHER_TYPE_TEB: u16 = 0x6558;
/// ERSPAN type I (no ERSPAN header) and type II inside GRE.
pub const ETHER_TYPE_ERSPAN_II: u16 = 0x88be;
/// ERSPAN type III inside GRE.
pub const ETHER_TYPE_ERSPAN_III: u16 = 0x22eb;

/// An Ethernet header, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    frame: &'a [u8],
    bytes: &'a [u8],
    at: usize,
}

impl<'a> View<'a> {
    /// Reads the header at `at`.
    ///
    /// # Errors
    /// Fewer than 14 bytes.
    pub fn parse(frame: &'a [u8], at: usize) -> Result<Self, WireError> {
        Ok(Self { frame, bytes: field::rest(Layer::Ethernet, frame, at, HEADER_LEN)?, at })
    }

    /// Destination MAC address.
    pub fn destination(&self) -> [u8; 6] {
        field::array(self.bytes, DESTINATION_OFFSET)
    }

    /// Source MAC address.
    pub fn source(&self) -> [u8; 6] {
        field::array(self.bytes, SOURCE_OFFSET)
    }

    /// The type field: an EtherType, or a length when below [`MIN_ETHER_TYPE`].
    pub fn ether_type(&self) -> u16 {
        field::be16(self.bytes, ETHER_TYPE_OFFSET)
    }

    /// The VLAN tags, outermost first; one that is cut short ends the walk with an error.
    pub fn tags(&self) -> vlan::Tags<'a> {
        vlan::Tags::new(self.frame, self.ether_type(), self.payload_offset())
    }

    /// EtherType behind all VLAN tags, and where what it announces begins in the frame.
    ///
    /// # Errors
    /// A tag that is cut short.
    pub fn network(&self) -> Result<(u16, usize), WireError> {
        let mut tags = self.tags();
        for tag in &mut tags {
            tag?;
        }
        Ok(tags.position())
    }

    /// Where the payload begins in the frame.
    pub fn payload_offset(&self) -> usize {
        self.at + HEADER_LEN
    }

    /// What follows the header, VLAN tags and padding included.
    pub fn payload(&self) -> &'a [u8] {
        field::range(self.bytes, HEADER_LEN, self.bytes.len())
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header {
        Header { destination: self.destination(), source: self.source(), ether_type: self.ether_type() }
    }
}

/// An Ethernet header to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Destination MAC address.
    pub destination: [u8; 6],
    /// Source MAC address.
    pub source: [u8; 6],
    /// EtherType of what follows.
    pub ether_type: u16,
}

impl Header {
    /// The header's bytes.
    #[inline(always)]
    pub const fn bytes(&self) -> [u8; HEADER_LEN] {
        let (d, s, t) = (self.destination, self.source, self.ether_type.to_be_bytes());
        [d[0], d[1], d[2], d[3], d[4], d[5], s[0], s[1], s[2], s[3], s[4], s[5], t[0], t[1]]
    }

    /// Writes the header at the start of `out` and returns its length.
    ///
    /// # Errors
    /// No space for 14 bytes.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        field::put(Layer::Ethernet, out, self.bytes())
    }
}
