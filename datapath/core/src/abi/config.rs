//! The one word that says which bank of the tables is in force.

/// Row 0 of map `CONFIG`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigRow {
    /// The generation in force, host order; see [`Generation`]. Zero: nothing was ever applied.
    pub generation: u64,
    /// [`super::ABI_VERSION`] of the writer.
    pub abi_version: u32,
    /// Interface index of the private mirror device's clone side, 0 when there is none.
    pub mirror_ifindex: u32,
    /// Interface index of the device that cuts super-packets up, 0 when there is none.
    pub segment_ifindex: u32,
    /// `skb->mark` that copies carry, so that a copy is never copied again.
    pub copy_mark: u32,
    /// [`super::layout::HASH`] of the writer: a second guard, should the version have been forgotten.
    pub layout_hash: u32,
    /// Zero.
    pub pad: u32,
}

/// A generation of the tables. Its lowest bit names the bank; each apply adds one.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

impl Generation {
    /// The bank that this generation lives in, 0 or 1.
    #[inline(always)]
    pub const fn bank(self) -> u32 {
        (self.0 & 1) as u32
    }

    /// The generation that the next apply builds, in the other bank.
    #[inline(always)]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}
