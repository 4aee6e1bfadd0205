//! What a packet carries between hooks of one node: which tool it has been through.
//!
//! It travels in `skb->tc_index`, which nothing else in the kernel uses for packets on their way, which bridges
//! and routers leave alone, and which never reaches the wire. A veth pair leaves it alone as well: a pod that may set up
//! filters can write it. The packet's mark ends at the border of the pod's namespace, so at the hook where pods'
//! packets come in a tag counts only together with a mark ([`RETURNING`] if the packet had none).

use crate::abi::Direction;

/// Mark of what comes back from a tool to the hook where a pod sent it without a mark; the hook takes it off.
pub const RETURNING: u32 = 0x7000_0000;

/// A tag, 16 bits. Any value that is not ours says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag(pub u32);

impl Tag {
    const OURS: u32 = 0x7000;
    const KIND: u32 = 0xf000;
    const BACK: u32 = 0x0100;
    const SESSION: u32 = 0x00ff;

    /// On its way from the tool back to the hook where it left.
    #[inline(always)]
    pub const fn back(session: u32) -> Self {
        Self(Self::OURS | Self::BACK | session & Self::SESSION)
    }

    /// Whether a hook believes a tag, beside a packet with this mark. One that is not ours says nothing to believe.
    #[inline(always)]
    pub const fn is_believed(self, direction: Direction, mark: u32) -> bool {
        let ours = self.0 & Self::KIND == Self::OURS;
        !ours || matches!(direction, Direction::Ingress) || self.is_back() && mark != 0
    }

    /// Past that hook.
    #[inline(always)]
    pub const fn passed(self) -> Self {
        Self(self.0 & !Self::BACK)
    }

    /// Whether the packet comes from the tool.
    #[inline(always)]
    pub const fn is_back(self) -> bool {
        self.0 & (Self::KIND | Self::BACK) == Self::OURS | Self::BACK
    }

    /// Whether the packet has been through the tool of this session.
    #[inline(always)]
    pub const fn has_passed(self, session: u32) -> bool {
        self.0 & (Self::KIND | Self::SESSION) == Self::OURS | session & Self::SESSION
    }
}

const _: () = assert!(crate::abi::limits::SESSIONS <= Tag::SESSION + 1);
