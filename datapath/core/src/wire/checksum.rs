//! The internet checksum: in full (RFC 1071), by difference (RFC 1624), and over pseudo-headers.
//!
//! In: bytes in network order. Out: checksums in host order, to be written big-endian.

/// A running ones' complement sum of 16-bit words, not yet complemented.
///
/// More than 16 GiB must be added before it could overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// Adds bytes. An odd last byte counts as the high half of a word, so only the last call may have an odd
    /// number of bytes.
    #[must_use]
    pub fn add_bytes(self, bytes: &[u8]) -> Self {
        let mut sum = self.0;
        let (quads, tail) = bytes.as_chunks::<4>();
        for quad in quads {
            sum = sum.wrapping_add(u32::from_be_bytes(*quad) as u64);
        }
        let (pairs, odd) = tail.as_chunks::<2>();
        for pair in pairs {
            sum = sum.wrapping_add(u16::from_be_bytes(*pair) as u64);
        }
        if let [last] = odd {
            sum = sum.wrapping_add((*last as u64) << 8);
        }
        Self(sum)
    }

    /// Adds a word in host order.
    #[inline(always)]
    #[must_use]
    pub const fn add_word(self, word: u16) -> Self {
        Self(self.0.wrapping_add(word as u64))
    }

    /// The sum with its carries folded back in, 0 to 0xffff.
    #[inline(always)]
    pub const fn folded(self) -> u16 {
        let mut sum = (self.0 & 0xffff_ffff).wrapping_add(self.0 >> 32);
        sum = (sum & 0xffff).wrapping_add(sum >> 16);
        sum = (sum & 0xffff).wrapping_add(sum >> 16);
        sum = (sum & 0xffff).wrapping_add(sum >> 16);
        sum as u16
    }

    /// The checksum: the complement of the folded sum.
    #[inline(always)]
    pub const fn checksum(self) -> u16 {
        !self.folded()
    }
}

/// Checksum of bytes whose checksum field is zero (RFC 1071). Over bytes that hold a right checksum it is 0.
pub fn full(bytes: &[u8]) -> u16 {
    Sum::ZERO.add_bytes(bytes).checksum()
}

/// The checksum after one 16-bit word changed from `old` to `new`: RFC 1624 equation 3,
/// `HC' = ~(~HC + ~m + m')`.
#[inline(always)]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::ZERO.add_word(!checksum).add_word(!old).add_word(new).checksum()
}

/// [`update`] for a 32-bit field that begins at an even offset.
#[inline(always)]
pub const fn update_32(checksum: u16, old: u32, new: u32) -> u16 {
    let high = update(checksum, (old >> 16) as u16, (new >> 16) as u16);
    update(high, old as u16, new as u16)
}

/// Sum of the IPv4 pseudo-header (RFC 9293 section 3.1). `len`: bytes of the upper layer.
pub fn pseudo_v4(source: [u8; 4], destination: [u8; 4], protocol: u8, len: u16) -> Sum {
    Sum::ZERO.add_bytes(&source).add_bytes(&destination).add_word(protocol as u16).add_word(len)
}

/// Sum of the IPv6 pseudo-header (RFC 8200 section 8.1). `len`: bytes of the upper layer.
pub fn pseudo_v6(source: [u8; 16], destination: [u8; 16], protocol: u8, len: u32) -> Sum {
    Sum::ZERO
        .add_bytes(&source)
        .add_bytes(&destination)
        .add_word((len >> 16) as u16)
        .add_word(len as u16)
        .add_word(protocol as u16)
}
