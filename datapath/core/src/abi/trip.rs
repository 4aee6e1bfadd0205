//! What is kept of packets while they are away: through a tool, or through the stack as part of a connection.

/// Key of LRU map `TRIPS`: a flow on its way to a return port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TripKey {
    /// Source address, left-aligned, as two numbers in host order; the source MAC of what is not IP.
    pub source: [u64; 2],
    /// Destination address; the destination MAC of what is not IP.
    pub destination: [u64; 2],
    /// Source port in the upper half, destination port in the lower; the EtherType of what is not IP.
    pub ports: u32,
    /// IP protocol; 256 for what is not IP.
    pub protocol: u32,
    /// Number of the return port: a hash of what it is.
    pub returns: u32,
    /// Zero.
    pub pad: u32,
}

/// What the stack kept for the packet, and where it belongs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TripRow {
    /// The endpoint's interface, or [`TripRow::PROBE`].
    pub ifindex: u32,
    /// [`super::Direction`] as a number.
    pub direction: u32,
    /// `skb->mark`.
    pub mark: u32,
    /// `skb->priority`.
    pub priority: u32,
    /// The policy.
    pub policy: u32,
    /// The tool's session.
    pub session: u32,
}

impl TripRow {
    /// The frame is no pod's: it was sent to see whether the tool lives.
    pub const PROBE: u32 = 0;
}

/// Key of map `FLOWS`: a connection of an endpoint, as seen by its pod.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The pod's address, left-aligned.
    pub local: [u64; 2],
    /// The other side's.
    pub remote: [u64; 2],
    /// The pod's port in the upper half, the other side's in the lower.
    pub ports: u32,
    /// IP protocol.
    pub protocol: u32,
    /// The endpoint's interface.
    pub ifindex: u32,
    /// Zero.
    pub pad: u32,
}

/// A connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowRow {
    /// When a packet was last seen, by the kernel's monotonic clock in nanoseconds; a second late at most.
    pub seen: u64,
    /// [`super::Direction`] of its first packet, as a number; with [`FlowRow::GUESSED`] where that was not seen.
    pub opener: u32,
    /// TCP flags of all packets so far.
    pub tcp_flags: u32,
}

/// Key of map `RETURN_TUNNELS`: a tunnel by which redirected packets come back.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TunnelKey {
    /// Source of the outer header: an IPv4 address in its first four bytes, the rest zero.
    pub remote: [u8; 16],
    /// Outer family, 4 or 6.
    pub family: u32,
    /// `crate::wire::encap::TunnelKind` as a number.
    pub kind: u32,
    /// VNI or key; 0 for a GRE header without one.
    pub id: u32,
    /// UDP destination port; for GRE 1 with a key and 0 without.
    pub port: u32,
}

impl FlowRow {
    /// Who opened the connection was told from an answer.
    pub const GUESSED: u32 = 2;
}

/// The head of a record for the user-space encapsulator, or for the reader of captured frames; the frame, or a piece
/// of it, follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayRow {
    /// When the packet was seen, as the clock of the node had it, in nanoseconds.
    pub timestamp_ns: u64,
    /// The session.
    pub session: u32,
    /// Its number in the session.
    pub sequence: u32,
    /// [`super::Direction`] as a number.
    pub direction: u32,
    /// See `crate::wire::encap::flow_hash`.
    pub flow_hash: u32,
    /// Bytes that follow.
    pub captured: u32,
    /// Bytes that the frame had.
    pub original: u32,
    /// The tag that the kernel keeps beside the frame: protocol in the upper half, TCI in the lower; 0 for none.
    pub vlan: u32,
    /// The generation's bank.
    pub bank: u32,
    /// Where the bytes stand in the frame: not 0 for later pieces of a captured frame.
    pub offset: u32,
    /// Bytes of the frame that are taken, in all pieces.
    pub whole: u32,
}
