//! Neighbour discovery (RFC 4861 section 4), the ICMPv6 types 133 to 137. [`option`] has the options.
//!
//! ```text
//! 0               4                                8
//! router solicitation      | reserved                           | options
//! router advertisement     | hop limit, M O flags, lifetime(16) | reachable(32), retransmit(32) | options
//! neighbour solicitation   | reserved                           | target(128) | options
//! neighbour advertisement  | R S O flags                        | target(128) | options
//! redirect                 | reserved                           | target(128), destination(128) | options
//! ```
//! Big-endian; type, code and checksum of ICMPv6 are the first four bytes of each. Reserved bits are written as
//! zero and ignored when read. The rules of RFC 4861 section 7.1 on hop limit and addresses are not this reader's.

pub mod option;

use super::{Layer, WireError, field, icmpv6};

/// Router solicitation.
pub const ROUTER_SOLICITATION: u8 = 133;
/// Router advertisement.
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// Neighbour solicitation.
pub const NEIGHBOUR_SOLICITATION: u8 = 135;
/// Neighbour advertisement.
pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Redirect.
pub const REDIRECT: u8 = 137;

/// Offset of the target address in the messages that have one.
pub const TARGET_OFFSET: usize = 8;
/// Offset of the destination address in a redirect.
pub const DESTINATION_OFFSET: usize = 24;
/// Managed configuration, in byte 5 of a router advertisement.
pub const FLAG_MANAGED: u8 = 0x80;
/// Other configuration, in byte 5 of a router advertisement.
pub const FLAG_OTHER: u8 = 0x40;
/// The sender is a router, in byte 4 of a neighbour advertisement.
pub const FLAG_ROUTER: u8 = 0x80;
/// It answers a solicitation, in byte 4 of a neighbour advertisement.
pub const FLAG_SOLICITED: u8 = 0x40;
/// It overrides what is cached, in byte 4 of a neighbour advertisement.
pub const FLAG_OVERRIDE: u8 = 0x20;

/// Bytes of the longest message without options.
const MAX_FIXED_LEN: usize = 40;

/// A message's fields, read or to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Type 133.
    RouterSolicitation,
    /// Type 134.
    RouterAdvertisement {
        /// Hop limit that hosts should use, 0 for no say.
        hop_limit: u8,
        /// [`FLAG_MANAGED`], [`FLAG_OTHER`] and bits of later RFCs.
        flags: u8,
        /// Seconds for which the sender is a default router, 0 for not at all.
        router_lifetime: u16,
        /// Milliseconds for which a confirmed neighbour is reachable, 0 for no say.
        reachable_time: u32,
        /// Milliseconds between solicitations, 0 for no say.
        retransmit_timer: u32,
    },
    /// Type 135.
    NeighbourSolicitation {
        /// Whose link-layer address is asked for.
        target: [u8; 16],
    },
    /// Type 136.
    NeighbourAdvertisement {
        /// [`FLAG_ROUTER`], [`FLAG_SOLICITED`], [`FLAG_OVERRIDE`].
        flags: u8,
        /// Whose link-layer address is told.
        target: [u8; 16],
    },
    /// Type 137.
    Redirect {
        /// The better first hop.
        target: [u8; 16],
        /// The destination that it is better for.
        destination: [u8; 16],
    },
}

impl Message {
    /// The ICMPv6 type.
    pub const fn kind(&self) -> u8 {
        match self {
            Self::RouterSolicitation => ROUTER_SOLICITATION,
            Self::RouterAdvertisement { .. } => ROUTER_ADVERTISEMENT,
            Self::NeighbourSolicitation { .. } => NEIGHBOUR_SOLICITATION,
            Self::NeighbourAdvertisement { .. } => NEIGHBOUR_ADVERTISEMENT,
            Self::Redirect { .. } => REDIRECT,
        }
    }
}

/// A neighbour discovery message, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    at: usize,
    fixed_len: usize,
}

impl<'a> View<'a> {
    /// Reads the ICMPv6 message at `at` of a packet that ends where `packet` ends. Options are checked by
    /// [`Self::options`].
    ///
    /// # Errors
    /// Fewer bytes than the message takes; an ICMPv6 type that is not one of the five.
    pub fn parse(packet: &'a [u8], at: usize) -> Result<Self, WireError> {
        let kind = field::byte(field::rest(Layer::Ndp, packet, at, icmpv6::HEADER_LEN)?, 0);
        let fixed_len = fixed_len(kind).ok_or_else(|| {
            WireError::unsupported(Layer::Ndp, at, ROUTER_SOLICITATION as usize, kind as usize)
        })?;
        Ok(Self { bytes: field::rest(Layer::Ndp, packet, at, fixed_len)?, at, fixed_len })
    }

    /// The message's fields.
    pub fn message(&self) -> Message {
        let target = field::array(self.bytes, TARGET_OFFSET);
        match field::byte(self.bytes, 0) {
            ROUTER_ADVERTISEMENT => Message::RouterAdvertisement {
                hop_limit: field::byte(self.bytes, 4),
                flags: field::byte(self.bytes, 5),
                router_lifetime: field::be16(self.bytes, 6),
                reachable_time: field::be32(self.bytes, 8),
                retransmit_timer: field::be32(self.bytes, 12),
            },
            NEIGHBOUR_SOLICITATION => Message::NeighbourSolicitation { target },
            NEIGHBOUR_ADVERTISEMENT => {
                Message::NeighbourAdvertisement { flags: field::byte(self.bytes, 4), target }
            }
            REDIRECT => {
                Message::Redirect { target, destination: field::array(self.bytes, DESTINATION_OFFSET) }
            }
            _ => Message::RouterSolicitation,
        }
    }

    /// The ICMPv6 checksum field.
    pub fn checksum(&self) -> u16 {
        field::be16(self.bytes, icmpv6::CHECKSUM_OFFSET)
    }

    /// The options, one by one; a bad one ends the list with an error.
    pub fn options(&self) -> option::Options<'a> {
        option::Options::new(self.option_bytes(), self.at + self.fixed_len)
    }

    /// The options as they are on the wire.
    pub fn option_bytes(&self) -> &'a [u8] {
        field::range(self.bytes, self.fixed_len, self.bytes.len())
    }

    /// The fields as a [`Header`].
    pub fn header(&self) -> Header<'a> {
        Header { message: self.message(), checksum: self.checksum(), options: self.option_bytes() }
    }
}

/// Bytes of a message without options.
const fn fixed_len(kind: u8) -> Option<usize> {
    match kind {
        ROUTER_SOLICITATION => Some(8),
        ROUTER_ADVERTISEMENT => Some(16),
        NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => Some(24),
        REDIRECT => Some(MAX_FIXED_LEN),
        _ => None,
    }
}

/// A neighbour discovery message to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The message's fields.
    pub message: Message,
    /// ICMPv6 checksum over pseudo-header, message and options.
    pub checksum: u16,
    /// Options as [`option::NdpOption::write`] writes them.
    pub options: &'a [u8],
}

impl Header<'_> {
    /// Writes message and options at the start of `out` and returns their length.
    ///
    /// # Errors
    /// No space.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut fixed = [0; MAX_FIXED_LEN];
        let len = fixed_len(self.message.kind()).unwrap_or(MAX_FIXED_LEN);
        let (start, body) = fixed.split_at_mut(icmpv6::HEADER_LEN);
        let (target_space, destination_space) = body.split_at_mut(16);
        let mut rest = [0; 4];
        match self.message {
            Message::RouterSolicitation => {}
            Message::RouterAdvertisement {
                hop_limit,
                flags,
                router_lifetime,
                reachable_time,
                retransmit_timer,
            } => {
                let [high, low] = router_lifetime.to_be_bytes();
                rest = [hop_limit, flags, high, low];
                let timers = (reachable_time as u64) << 32 | retransmit_timer as u64;
                field::put(Layer::Ndp, target_space, timers.to_be_bytes())?;
            }
            Message::NeighbourSolicitation { target } => target_space.copy_from_slice(&target),
            Message::NeighbourAdvertisement { flags, target } => {
                rest = [flags, 0, 0, 0];
                target_space.copy_from_slice(&target);
            }
            Message::Redirect { target, destination } => {
                target_space.copy_from_slice(&target);
                destination_space.copy_from_slice(&destination);
            }
        }
        icmpv6::Header { kind: self.message.kind(), code: 0, checksum: self.checksum, rest }.write(start)?;
        field::put_slices(Layer::Ndp, out, field::range(&fixed, 0, len), self.options)
    }
}
