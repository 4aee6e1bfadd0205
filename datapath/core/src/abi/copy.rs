//! What the pod's hook tells the private mirror device's program about the copy it is about to hand over.

/// Whether a [`CopyRow`] waits to be taken.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// Nothing is on its way.
    Idle = 0,
    /// A copy was handed over and not taken yet. Still so after the hand-over: the copy was lost before it
    /// reached the mirror program.
    Pending = 1,
}

/// Row 0 of per-CPU map `COPY`. The clone is handed over synchronously on one CPU, so a per-CPU row is enough
/// and the packet's own mark stays as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyRow {
    /// Which of the rule set's slots want a copy; each session once.
    pub slots: u64,
    /// The generation that the packet runs under.
    pub generation: u64,
    /// [`CopyState`] as a number.
    pub state: u32,
    /// Absolute index into `RULESETS`.
    pub ruleset: u32,
    /// [`super::Direction`] as a number.
    pub direction: u32,
    /// Symmetric hash of the inner flow; 0 for what has no addresses.
    pub flow_hash: u32,
    /// Frame bytes before the network header, VLAN tags inside the frame included.
    pub network_offset: u32,
    /// Frame bytes before the transport payload; equal to `network_offset` where that is unknown.
    pub payload_offset: u32,
    /// EtherType after all VLAN tags, host order.
    pub ether_type: u32,
    /// IP protocol after IPv6 extension headers, 0 for what is not IP.
    pub protocol: u32,
    /// Not 0 for a redirected packet: it is neither cut nor counted as a copy.
    pub redirect: u32,
    /// What became of a redirected packet: [`super::Reason`] plus one when it was lost, 0 when it was taken.
    pub failure: u32,
}

/// `skb->mark` of a frame on the private mirror device that is to enter at a pod's hook as if the pod had sent it; its
/// `skb->priority` is the hook's interface.
pub const INJECTED: u32 = 0x7079_0001;

/// `skb->mark` of a frame on the device that cuts super-packets up. It stays with each piece.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMark(pub u32);

impl SegmentMark {
    const OURS: u32 = 0x7078_0000;
    const KIND: u32 = 0xffff_0000;
    const ARRIVAL: u32 = 1 << 15;
    const TRUNCATED: u32 = 1 << 14;
    const DIRECTION: u32 = 1 << 13;
    const SESSION: u32 = 0xff;

    /// A tunnelled packet that came back: it goes on as one that has just arrived.
    pub const RETURNING: Self = Self(Self::OURS | Self::ARRIVAL);

    /// A copy for a session.
    #[inline(always)]
    pub const fn copy(session: u32, direction: u32, truncated: bool) -> Self {
        let direction = if direction == 0 { 0 } else { Self::DIRECTION };
        let truncated = if truncated { Self::TRUNCATED } else { 0 };
        Self(Self::OURS | truncated | direction | session & Self::SESSION)
    }

    /// Whether it is one at all.
    #[inline(always)]
    pub const fn is_ours(self) -> bool {
        self.0 & Self::KIND == Self::OURS
    }

    /// Whether it is [`Self::RETURNING`].
    #[inline(always)]
    pub const fn is_arrival(self) -> bool {
        self.0 & Self::ARRIVAL != 0
    }

    /// Whether the copy was cut before.
    #[inline(always)]
    pub const fn is_truncated(self) -> bool {
        self.0 & Self::TRUNCATED != 0
    }

    /// [`super::Direction`] as a number.
    #[inline(always)]
    pub const fn direction(self) -> u32 {
        (self.0 & Self::DIRECTION != 0) as u32
    }

    /// The session.
    #[inline(always)]
    pub const fn session(self) -> u32 {
        self.0 & Self::SESSION
    }
}
