//! Options of neighbour discovery (RFC 4861 section 4.6).
//!
//! ```text
//! 0      1                  2
//! | type | length in 8 bytes | data
//! ```
//! Big-endian. The length counts type and length too; 0 is an error and the whole message is to be dropped.

use crate::wire::{Layer, Problem, WireError, field};

/// Link-layer address of the sender.
pub const SOURCE_LINK_LAYER: u8 = 1;
/// Link-layer address of the target.
pub const TARGET_LINK_LAYER: u8 = 2;
/// A prefix of the link.
pub const PREFIX_INFORMATION: u8 = 3;
/// The start of the packet that caused a redirect.
pub const REDIRECTED_HEADER: u8 = 4;
/// MTU of the link.
pub const MTU: u8 = 5;
/// Unit of the length, in bytes.
pub const UNIT: usize = 8;
/// Flag of a prefix: addresses in it are on this link.
pub const FLAG_ON_LINK: u8 = 0x80;
/// Flag of a prefix: hosts make addresses in it by themselves.
pub const FLAG_AUTONOMOUS: u8 = 0x40;

/// One option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdpOption<'a> {
    /// The type byte.
    pub kind: u8,
    /// What follows type and length: with those two bytes a multiple of eight bytes.
    pub data: &'a [u8],
}

/// A prefix of the link: the data of [`PREFIX_INFORMATION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Leading bits of `prefix` that hold, 0 to 128.
    pub len: u8,
    /// [`FLAG_ON_LINK`], [`FLAG_AUTONOMOUS`].
    pub flags: u8,
    /// Seconds for which the prefix is on the link, all ones for ever.
    pub valid_lifetime: u32,
    /// Seconds for which addresses made from it are preferred, all ones for ever.
    pub preferred_lifetime: u32,
    /// The prefix.
    pub prefix: [u8; 16],
}

impl Prefix {
    /// Bytes of the option's data.
    pub const DATA_LEN: usize = 30;

    /// The option's data.
    pub fn data(&self) -> [u8; Self::DATA_LEN] {
        let mut data = [0; Self::DATA_LEN];
        let (start, prefix) = data.split_at_mut(14);
        let (v, p) = (self.valid_lifetime.to_be_bytes(), self.preferred_lifetime.to_be_bytes());
        start.copy_from_slice(&[
            self.len, self.flags, v[0], v[1], v[2], v[3], p[0], p[1], p[2], p[3], 0, 0, 0, 0,
        ]);
        prefix.copy_from_slice(&self.prefix);
        data
    }
}

impl NdpOption<'_> {
    /// The MAC address of a source or target link-layer address option on Ethernet (RFC 2464 section 6).
    pub fn mac(&self) -> Option<[u8; 6]> {
        match self.kind {
            SOURCE_LINK_LAYER | TARGET_LINK_LAYER => self.data.try_into().ok(),
            _ => None,
        }
    }

    /// The prefix of a prefix information option.
    pub fn prefix(&self) -> Option<Prefix> {
        (self.kind == PREFIX_INFORMATION && self.data.len() == Prefix::DATA_LEN).then(|| Prefix {
            len: field::byte(self.data, 0),
            flags: field::byte(self.data, 1),
            valid_lifetime: field::be32(self.data, 2),
            preferred_lifetime: field::be32(self.data, 6),
            prefix: field::array(self.data, 14),
        })
    }

    /// The MTU of an MTU option, in bytes.
    pub fn mtu(&self) -> Option<u32> {
        (self.kind == MTU && self.data.len() == 6).then(|| field::be32(self.data, 2))
    }

    /// Writes the option at the start of `out` and returns its length.
    ///
    /// # Errors
    /// Data that is too long or, with type and length, no multiple of eight bytes; no space.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let len = 2 + self.data.len();
        field::whole_units(Layer::Ndp, 1, len, UNIT)?;
        field::at_most(Layer::Ndp, 1, len, u8::MAX as usize * UNIT)?;
        field::put_with(Layer::Ndp, out, [self.kind, (len / UNIT) as u8], self.data)
    }
}

/// Walks options. See [`super::View::options`].
#[derive(Clone, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Options<'a> {
    pub(super) const fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<NdpOption<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = core::mem::take(&mut self.bytes);
        if bytes.is_empty() {
            return None;
        }
        let len = field::byte(bytes, 1) as usize * UNIT;
        if len == 0 {
            let problem = Problem::LengthTooSmall;
            return Some(Err(WireError::new(Layer::Ndp, problem, self.at, UNIT, len)));
        }
        let Some((option, rest)) = bytes.split_at_checked(len) else {
            let problem = Problem::LengthTooLarge;
            return Some(Err(WireError::new(Layer::Ndp, problem, self.at, bytes.len(), len)));
        };
        self.bytes = rest;
        self.at += len;
        Some(Ok(NdpOption { kind: field::byte(option, 0), data: field::range(option, 2, len) }))
    }
}
