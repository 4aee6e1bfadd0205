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
    /// Which of the rule set's sessions want a copy, by slot.
    pub sessions: u64,
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
}
