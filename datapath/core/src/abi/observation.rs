//! What is said of a packet that somebody watches: which traces there are, and what each stage did.

/// A stage, in the words that users read.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// Whether a pod sent in its own name.
    SpoofGuard = 1,
    /// Mirrors and redirects.
    TrafficControl = 2,
    /// With which address a packet leaves the cluster.
    Egress = 3,
    /// Where it goes.
    Forwarding = 4,
}

impl Component {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::SpoofGuard, Self::TrafficControl, Self::Egress, Self::Forwarding];

    /// The word that users read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SpoofGuard => "SpoofGuard",
            Self::TrafficControl => "TrafficControl",
            Self::Egress => "Egress",
            Self::Forwarding => "Forwarding",
        }
    }

    /// The component of a number as stored in a record.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|component| *component as u32 == number)
    }
}

/// What a stage did with a packet.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Let it go on; from Forwarding: sent it to another node.
    Forwarded = 1,
    /// Ended it, for a reason.
    Dropped = 2,
    /// Sent a copy.
    Mirrored = 3,
    /// Gave it to a tool.
    Redirected = 4,
    /// Took it back from a tool.
    Returned = 5,
    /// Marked it for one of an Egress policy's addresses of this node.
    MarkedForSnat = 6,
    /// Sent it on to the node of an Egress policy.
    ForwardedToEgressNode = 7,
    /// Took it out of the overlay.
    Received = 8,
    /// Gave it to a pod.
    Delivered = 9,
    /// Let it leave the cluster by the host's stack.
    ForwardedOutOfNetwork = 10,
}

impl Action {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Forwarded,
        Self::Dropped,
        Self::Mirrored,
        Self::Redirected,
        Self::Returned,
        Self::MarkedForSnat,
        Self::ForwardedToEgressNode,
        Self::Received,
        Self::Delivered,
        Self::ForwardedOutOfNetwork,
    ];

    /// The word that users read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forwarded => "Forwarded",
            Self::Dropped => "Dropped",
            Self::Mirrored => "Mirrored",
            Self::Redirected => "Redirected",
            Self::Returned => "Returned",
            Self::MarkedForSnat => "MarkedForSNAT",
            Self::ForwardedToEgressNode => "ForwardedToEgressNode",
            Self::Received => "Received",
            Self::Delivered => "Delivered",
            Self::ForwardedOutOfNetwork => "ForwardedOutOfNetwork",
        }
    }

    /// The action of a number as stored in a record.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|action| *action as u32 == number)
    }
}

/// Which ring an observation goes to. Each has its own, so that a flood of the one cannot starve the other.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Of traced packets.
    Traces = 0,
    /// Of packets that nobody traces and that were dropped: some of them.
    Drops = 1,
}

impl Class {
    /// Both, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Traces, Self::Drops];
}

/// What is watched: row 0 of map `WATCH`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchRow {
    /// `FLAG_…` of this type; 0: nothing, and no stage does anything for it.
    pub flags: u32,
    /// The most observations of [`Class::Drops`] in a tenth of a second, on each CPU.
    pub drops: u32,
}

impl WatchRow {
    /// `TRACES` may have rows.
    pub const FLAG_TRACES: u32 = 1 << 0;
    /// Somebody wants to see drops.
    pub const FLAG_DROPS: u32 = 1 << 1;
}

/// Key of map `TRACES`: the tag and the flow, both of which a packet must have to be traced.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TraceKey {
    /// Source address, left-aligned, as two numbers in host order.
    pub source: [u64; 2],
    /// Destination address.
    pub destination: [u64; 2],
    /// Source port in the upper half, destination port in the lower; 0 for what has no ports.
    pub ports: u32,
    /// IP protocol, after IPv6 extension headers.
    pub protocol: u32,
    /// The DSCP value, 1 to 63.
    pub tag: u32,
    /// 4 or 6.
    pub family: u32,
}

/// A trace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceRow {
    /// When it ends by itself, whatever became of who began it: the monotonic clock in nanoseconds.
    pub until: u64,
    /// Its number; not 0.
    pub number: u32,
    /// Zero.
    pub pad: u32,
}

/// What a stage did with a packet: a record of the rings `OBSERVATIONS` and `DROPS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservationRow {
    /// The monotonic clock in nanoseconds.
    pub time_ns: u64,
    /// Counts the observations of this class on this CPU, those included that were lost: a gap shows.
    pub sequence: u64,
    /// How many of this class were lost on this CPU so far.
    pub lost: u64,
    /// Hash of the name of the policy that it is about, 0 for none.
    pub policy: u64,
    /// The packet's source address, left-aligned, as two numbers in host order.
    pub source: [u64; 2],
    /// Its destination address.
    pub destination: [u64; 2],
    /// Where the tunnel ends, or the Egress address: the bytes of [`super::TunnelKey::remote`], four to a word.
    pub address: [u32; 4],
    /// 4 or 6, of `address`; 0 when there is none.
    pub address_family: u32,
    /// 4 or 6, of the packet; 0 for what is not IP.
    pub family: u32,
    /// The packet's ports as in [`TraceKey::ports`].
    pub ports: u32,
    /// Its IP protocol; its EtherType for what is not IP.
    pub protocol: u32,
    /// The trace's number, 0 for none.
    pub trace: u32,
    /// The CPU.
    pub cpu: u32,
    /// [`Component`] as a number.
    pub component: u32,
    /// [`Action`] as a number.
    pub action: u32,
    /// [`super::Reason`] as a number, plus one; 0 for none.
    pub reason: u32,
    /// The interface of the endpoint that it is about, or the one where the packet was seen.
    pub ifindex: u32,
    /// Length of the frame in bytes.
    pub len: u32,
    /// Destination MAC address of the frame, as the stage left it.
    pub mac: [u8; 6],
    /// Time to live or hop limit, as the stage left it.
    pub ttl: u8,
    /// DSCP value.
    pub tag: u8,
    /// Zero.
    pub pad: u32,
}

/// How many observations of a class there were: row [`Class`] of the per-CPU map `OBSERVATION_COUNTERS`.
///
/// `generated = suppressed + lost + those in the ring`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservationCounters {
    /// All.
    pub generated: u64,
    /// Left out because there were more than [`WatchRow::drops`].
    pub suppressed: u64,
    /// Lost because the ring was full.
    pub lost: u64,
    /// The tenth of a second that is being counted, since the machine started.
    pub window: u64,
    /// Observations in it.
    pub in_window: u64,
}
