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
    /// Hooks look for packets to trace: `MATCHES` has rows, or an answer is awaited.
    pub const FLAG_LIVE: u32 = 1 << 2;
    /// Some traces go on when the packet's destination or source has been translated; see [`TraceKey`].
    pub const FLAG_TRANSLATED: u32 = 1 << 3;
    /// The uplink's egress hook says what leaves by it.
    pub const FLAG_UPLINK: u32 = 1 << 4;
}

/// Key of map `TRACES`: the tag and the flow, both of which a packet must have to be traced.
///
/// Tag 0: the answer to a traced packet, which gets its tag where it is first seen. [`UNTAGGED`](Self::UNTAGGED) and an
/// identity: a packet that the host's stack has, without its tag; then destination and destination port are 0, whatever
/// they were translated to, or those of the source.
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
    /// `FLAG_…` of this type.
    pub flags: u32,
    /// The DSCP value that the packet came with, and leaves with.
    pub original: u32,
    /// Of a row whose key has tag 0: the tag to give.
    pub tag: u32,
    /// Of such a row: packets that still get it.
    pub left: u32,
    /// Zero.
    pub pad: u32,
}

impl TraceRow {
    /// The packet ends where it would be handed to a pod or leave the cluster.
    pub const FLAG_ENDS: u32 = 1 << 0;
    /// Only packets that are dropped are told.
    pub const FLAG_DROPPED_ONLY: u32 = 1 << 1;
    /// The packet is an answer.
    pub const FLAG_REPLY: u32 = 1 << 2;
    /// The answer is traced as well.
    pub const FLAG_REPLIES: u32 = 1 << 3;
    /// It goes on behind the host's stack, which may translate it.
    pub const FLAG_TRANSLATED: u32 = 1 << 4;
    /// The packet comes from another node, without its tag.
    pub const FLAG_RECEIVED: u32 = 1 << 5;
}

/// Which packets become traced: a row of map `MATCHES`. A field whose mask is 0 is any.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchRow {
    /// Packets that matched, for samples. All CPUs.
    pub seen: u64,
    /// Packets that became traced. All CPUs.
    pub taken: u64,
    /// When it ends: the monotonic clock in nanoseconds.
    pub until: u64,
    /// Source address under its mask, left-aligned, as two numbers in host order.
    pub source: [u64; 2],
    /// Its mask.
    pub source_mask: [u64; 2],
    /// Destination address under its mask.
    pub destination: [u64; 2],
    /// Its mask.
    pub destination_mask: [u64; 2],
    /// As in [`TraceKey::ports`]; of ICMP the upper half is type and code.
    pub ports: u32,
    /// Their mask.
    pub ports_mask: u32,
    /// 4 or 6; 0 for either.
    pub family: u32,
    /// IP protocol; [`MatchRow::ANY_PROTOCOL`].
    pub protocol: u32,
    /// TCP flags under their mask.
    pub tcp_flags: u32,
    /// Their mask.
    pub tcp_flags_mask: u32,
    /// The trace's number.
    pub number: u32,
    /// Flags of its [`TraceRow`].
    pub flags: u32,
    /// The tag.
    pub tag: u32,
    /// The tag for packets whose own DSCP value is `tag`.
    pub spare: u32,
    /// The most packets that become traced.
    pub count: u32,
    /// One of so many; not 0.
    pub sampling: u32,
    /// Bytes of each packet that are captured.
    pub capture: u32,
    /// Time to live or hop limit; 0 for any.
    pub ttl: u32,
    /// IPv4's total length, IPv6's payload length; 0 for any.
    pub length: u32,
    /// IPv4's flags, the three bits beside the fragment offset, under their mask.
    pub ip_flags: u32,
    /// Their mask.
    pub ip_flags_mask: u32,
    /// Identifier and sequence number of an ICMP echo under their mask.
    pub echo: u32,
    /// Their mask.
    pub echo_mask: u32,
    /// Flows that it has rows for, about.
    pub flows: u32,
}

impl MatchRow {
    /// Any protocol.
    pub const ANY_PROTOCOL: u32 = 256;
}

/// Rows of `MATCHES` that are for one place: a value of map `MATCH_BLOCKS`, whose key is [`MatchBlock::of_hook`] or
/// [`MatchBlock::of_tag`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchBlock {
    /// The first row.
    pub base: u32,
    /// How many.
    pub len: u32,
}

impl MatchBlock {
    /// Key of what passes a pod's hook.
    #[inline(always)]
    pub const fn of_hook(ifindex: u32, direction: super::Direction) -> u32 {
        ifindex << 1 | direction.index()
    }

    /// Key of what another node traces already and sends with its tag.
    #[inline(always)]
    pub const fn of_tag(tag: u32) -> u32 {
        1 << 31 | tag
    }
}

/// A packet that became traced, as it was: the head of a record of ring `CAPTURES`; its first bytes follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureRow {
    /// The monotonic clock in nanoseconds.
    pub time_ns: u64,
    /// The trace's number.
    pub trace: u32,
    /// See [`ObservationRow::identity`].
    pub identity: u32,
    /// Length of the frame in bytes.
    pub len: u32,
    /// How many of them follow.
    pub captured: u32,
    /// `FLAG_…` of [`TraceRow`].
    pub flags: u32,
    /// The tag that the kernel keeps beside the frame: protocol in the upper half, TCI in the lower; 0 for none.
    pub vlan: u32,
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
    /// Tells the packets of a trace apart: of what no hop and no translation changes.
    pub identity: u32,
    /// [`TraceRow::FLAG_REPLY`], [`ObservationRow::FLAG_LAST`].
    pub flags: u32,
    /// Zero.
    pub pad: u32,
}

/// Where the kernel has what is asked of a packet that its own stack drops: row 0 of map `KERNEL`. Offsets in bytes, from
/// the kernel's BTF; 0 in `usable` where that is not known.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelRow {
    /// Not 0 when the rest holds.
    pub usable: u32,
    /// `sk_buff.head`.
    pub head: u32,
    /// `sk_buff.network_header`.
    pub network_header: u32,
    /// `sk_buff.mark`.
    pub mark: u32,
    /// `sk_buff.len`.
    pub len: u32,
    /// `sk_buff.dev`.
    pub dev: u32,
    /// `net_device.ifindex`.
    pub ifindex: u32,
    /// `net_device.nd_net`.
    pub nd_net: u32,
    /// `net.ns.inum`.
    pub inum: u32,
    /// The number of this node's network namespace.
    pub netns: u32,
    /// Reasons of drops that are podwire's own doing: `SKB_DROP_REASON_TC_INGRESS` and `…_EGRESS`.
    pub own: [u32; 2],
}

impl ObservationRow {
    /// Of `reason`: the rest is the kernel's `enum skb_drop_reason`, not [`super::Reason`].
    pub const KERNEL_REASON: u32 = 1 << 31;
    /// The packet has lost its tag, or ended: this node says no more of it.
    pub const FLAG_LAST: u32 = 1 << 16;
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
