//! A session: where copies or redirected packets go, how they are dressed, and how many of them there may be.

use crate::wire::encap::OuterTemplate;

/// What a session's target is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// The slot is free.
    Free = 0,
    /// Frames leave by a device as they are.
    Device = 1,
    /// Frames leave inside a tunnel, by the kernel's route to the remote address.
    Tunnel = 2,
    /// Frames are read by the agent, in pieces through the ring `FRAMES`.
    Reader = 3,
}

/// One session in one bank.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionRow {
    /// [`SessionKind`] as a number.
    pub kind: u32,
    /// [`SessionKind::Device`]: the interface index, 0 while the device does not exist.
    pub ifindex: u32,
    /// [`SessionKind::Device`]: its MTU in bytes of the network layer.
    pub mtu: u32,
    /// `FLAG_…` of this type.
    pub flags: u32,
    /// Bytes of each frame that are sent, 0 for all.
    pub truncate: u32,
    /// One in so many is sent, 0 and 1 for all.
    pub sampling: u32,
    /// Nanoseconds between two frames at the highest rate, 0 for no limit.
    pub interval: u64,
    /// Nanoseconds by which frames may come early: what a burst is allowed.
    pub burst: u64,
    /// [`SessionKind::Tunnel`]: the outer headers from the outer IP header on.
    pub template: OuterTemplate,
}

impl SessionRow {
    /// Samples are whole flows, not packets.
    pub const FLAG_BY_FLOW: u32 = 1 << 0;
    /// A frame that does not fit its path is sent in fragments.
    pub const FLAG_FRAGMENT: u32 = 1 << 1;
    /// A frame that does not fit its path is dropped.
    pub const FLAG_DROP: u32 = 1 << 2;
    /// Frames go through the device that cuts super-packets up and completes checksums.
    pub const FLAG_SEGMENT: u32 = 1 << 3;

    /// A free slot.
    pub const FREE: Self = Self {
        kind: SessionKind::Free as u32,
        ifindex: 0,
        mtu: 0,
        flags: 0,
        truncate: 0,
        sampling: 0,
        interval: 0,
        burst: 0,
        template: OuterTemplate::EMPTY,
    };

    /// Whether a flag is set.
    #[inline(always)]
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// Whether a session's target takes frames, by session; not banked: it follows the target, not the policies.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveRow {
    /// When the datapath may try a dead target again, by the kernel's monotonic clock in nanoseconds.
    pub probe_at: u64,
    /// [`Liveness`] as a number.
    pub state: u32,
    /// Zero.
    pub pad: u32,
}

/// What is known of a target.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Nothing bad; the kernel's answer decides for each packet.
    Live = 0,
    /// The device is gone, down, or without a carrier.
    Dead = 1,
    /// Nothing came back for longer than the health check allows; now and then a packet's copy is tried.
    Silent = 2,
}
