//! A mirror session: where copies go and how they are dressed.

use crate::wire::encap::OuterTemplate;

/// What a session's target is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// The slot is free.
    Free = 0,
    /// Copies leave by a device as they are.
    Device = 1,
    /// Copies leave inside a tunnel, by the kernel's route to the remote address.
    Tunnel = 2,
}

/// One session in one bank.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionRow {
    /// [`SessionKind`] as a number.
    pub kind: u32,
    /// [`SessionKind::Device`]: the interface index, 0 while the device does not exist.
    pub ifindex: u32,
    /// [`SessionKind::Tunnel`]: the outer headers from the outer IP header on.
    pub template: OuterTemplate,
}
