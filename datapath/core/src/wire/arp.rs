//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! ```text
//! 0           2              4   5   6           8            14          18           24          28
//! | hardware=1 | proto=0x0800 | 6 | 4 | operation | sender MAC | sender IP | target MAC | target IP |
//! ```
//! Big-endian.

use super::{Layer, WireError, ethernet, field};

/// Bytes of the message.
pub const LEN: usize = 28;
/// Hardware type Ethernet.
pub const HARDWARE_ETHERNET: u16 = 1;
/// Offset of the operation.
pub const OPERATION_OFFSET: usize = 6;
/// Offset of the sender's MAC address.
pub const SENDER_MAC_OFFSET: usize = 8;
/// Offset of the sender's IPv4 address.
pub const SENDER_IP_OFFSET: usize = 14;
/// Offset of the target's MAC address.
pub const TARGET_MAC_OFFSET: usize = 18;
/// Offset of the target's IPv4 address.
pub const TARGET_IP_OFFSET: usize = 24;

/// Operation "request".
pub const REQUEST: u16 = 1;
/// Operation "reply".
pub const REPLY: u16 = 2;

/// Hardware type, protocol type and the two address lengths of IPv4 over Ethernet, as one number.
const ETHERNET_IPV4: u64 =
    (HARDWARE_ETHERNET as u64) << 32 | (ethernet::ETHER_TYPE_IPV4 as u64) << 16 | 0x0604;

/// An ARP message, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the message at `at`.
    ///
    /// # Errors
    /// Fewer than 28 bytes; not IPv4 over Ethernet (`needed` and `had` are then the first six bytes as a number).
    pub fn parse(frame: &'a [u8], at: usize) -> Result<Self, WireError> {
        let bytes = field::rest(Layer::Arp, frame, at, LEN)?;
        let kind = (field::be32(bytes, 0) as u64) << 16 | field::be16(bytes, 4) as u64;
        if kind != ETHERNET_IPV4 {
            return Err(WireError::unsupported(Layer::Arp, at, ETHERNET_IPV4 as usize, kind as usize));
        }
        Ok(Self { bytes: field::range(bytes, 0, LEN) })
    }

    /// [`REQUEST`], [`REPLY`] or another number.
    pub fn operation(&self) -> u16 {
        field::be16(self.bytes, OPERATION_OFFSET)
    }

    /// MAC address of the sender.
    pub fn sender_mac(&self) -> [u8; 6] {
        field::array(self.bytes, SENDER_MAC_OFFSET)
    }

    /// IPv4 address of the sender.
    pub fn sender_ip(&self) -> [u8; 4] {
        field::array(self.bytes, SENDER_IP_OFFSET)
    }

    /// MAC address of the target.
    pub fn target_mac(&self) -> [u8; 6] {
        field::array(self.bytes, TARGET_MAC_OFFSET)
    }

    /// IPv4 address of the target.
    pub fn target_ip(&self) -> [u8; 4] {
        field::array(self.bytes, TARGET_IP_OFFSET)
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header {
        Header {
            operation: self.operation(),
            sender_mac: self.sender_mac(),
            sender_ip: self.sender_ip(),
            target_mac: self.target_mac(),
            target_ip: self.target_ip(),
        }
    }
}

/// An ARP message to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`REQUEST`], [`REPLY`] or another number.
    pub operation: u16,
    /// MAC address of the sender.
    pub sender_mac: [u8; 6],
    /// IPv4 address of the sender.
    pub sender_ip: [u8; 4],
    /// MAC address of the target.
    pub target_mac: [u8; 6],
    /// IPv4 address of the target.
    pub target_ip: [u8; 4],
}

impl Header {
    /// Writes the message at the start of `out` and returns its length.
    ///
    /// # Errors
    /// No space for 28 bytes.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let [_, _, h0, h1, p0, p1, hardware_len, protocol_len] = ETHERNET_IPV4.to_be_bytes();
        let o = self.operation.to_be_bytes();
        let (sm, si, tm, ti) = (self.sender_mac, self.sender_ip, self.target_mac, self.target_ip);
        #[rustfmt::skip]
        let bytes: [u8; LEN] = [
            h0, h1, p0, p1, hardware_len, protocol_len, o[0], o[1],
            sm[0], sm[1], sm[2], sm[3], sm[4], sm[5], si[0], si[1], si[2], si[3],
            tm[0], tm[1], tm[2], tm[3], tm[4], tm[5], ti[0], ti[1], ti[2], ti[3],
        ];
        field::put(Layer::Arp, out, bytes)
    }
}
