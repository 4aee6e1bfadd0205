//! What the stages need from the outside: a packet to read and tables to look things up in.

use super::classify::Key;
use super::flow::Opener;
use super::parse::Facts;
use crate::abi::{
    ChunkRow, Direction, EgressCounters, EgressRow, EndpointCounters, EndpointRow, Entry, FlowKey, FlowRow,
    Generation, GuardCounters, NetworkRow, PolicyCounters, PolicyRow, PrefixRow, Reason, RulesetRow,
    SessionCounters, SessionRow, SpanRow, TargetRow, TripKey, TripRow, limits,
};

/// A frame from its Ethernet header on.
///
/// A VLAN tag that the kernel keeps beside the frame is not part of it.
pub trait Packet {
    /// Length of the frame in bytes, whatever part of it can be read.
    fn frame_len(&self) -> u32;

    /// `N` bytes at `offset`, or `None` where the frame ends before, or beyond
    /// [`crate::abi::limits::HEADER_WINDOW`].
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;

    /// Whether the kernel keeps a VLAN tag beside the frame.
    #[inline(always)]
    fn has_tag_beside(&self) -> bool {
        false
    }

    /// The same number. Kernel side the verifier no longer knows it, so that it need not follow each of its values
    /// through a loop of headers.
    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        number
    }

    /// What the packet is; see [`super::parse`]. Kernel side a function of its own, which the verifier looks at
    /// once.
    #[inline(always)]
    fn facts(&self) -> Facts
    where
        Self: Sized,
    {
        super::parse(self)
    }

    /// Why the packet of an endpoint is to be dropped; see [`super::judge`]. Kernel side a function of its own as
    /// well.
    #[inline(always)]
    fn judge<T: Tables + Counters>(
        &self,
        generation: Generation,
        slot: u32,
        facts: &Facts,
        tables: &T,
    ) -> Option<Reason>
    where
        Self: Sized,
    {
        super::judge(slot, tables.endpoint(generation, slot)?, self, facts, tables)
    }
}

/// A frame in memory.
impl Packet for &[u8] {
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        self.len() as u32
    }

    #[inline(always)]
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let end = offset.checked_add(N).filter(|end| *end <= limits::HEADER_WINDOW)?;
        self.get(offset..end)?.try_into().ok()
    }
}

/// The tables, read-only. Every index may be out of range: then there is no row.
pub trait Tables {
    /// The generation in force. Read once per packet.
    fn generation(&self) -> Generation;
    /// `skb->mark` of copies.
    fn copy_mark(&self) -> u32;
    /// Slot of the endpoint behind a host-side interface.
    fn endpoint_slot(&self, ifindex: u32) -> Option<u32>;
    /// An endpoint.
    fn endpoint(&self, generation: Generation, slot: u32) -> Option<&EndpointRow>;
    /// A rule set by absolute index.
    fn ruleset(&self, index: u32) -> Option<&RulesetRow>;
    /// Entry `byte` of a trie node.
    fn node(&self, index: u32, byte: u8) -> Option<Entry>;
    /// A prefix row.
    fn prefix(&self, index: u32) -> Option<&PrefixRow>;
    /// 512 rule bits.
    fn chunk(&self, index: u32) -> Option<&ChunkRow>;
    /// The session slots of a chunk's words.
    fn span(&self, index: u32) -> Option<&SpanRow>;
    /// Walks a trie; see [`super::lookup`]. Kernel side this is a function of its own, so that the verifier
    /// looks at it once and not per field.
    #[inline(always)]
    fn walk(&self, root: Entry, key: Key) -> Entry
    where
        Self: Sized,
    {
        super::lookup(self, root, key)
    }
    /// The slots of a rule set that match; see [`super::classify`]. Kernel side a function of its own as well.
    #[inline(always)]
    fn classify(&self, ruleset: u32, direction: Direction, facts: &Facts) -> u64
    where
        Self: Sized,
    {
        super::classify(self, ruleset, direction, facts)
    }
    /// A policy.
    fn policy(&self, generation: Generation, policy: u32) -> Option<&PolicyRow>;
    /// A session.
    fn session(&self, generation: Generation, session: u32) -> Option<&SessionRow>;
    /// The network.
    fn network(&self, generation: Generation) -> Option<&NetworkRow>;
    /// A destination by absolute index.
    fn target(&self, index: u32) -> Option<&TargetRow>;
    /// An Egress policy.
    fn egress(&self, generation: Generation, policy: u32) -> Option<&EgressRow>;
    /// The Egress policy that other nodes know by this number.
    fn egress_id(&self, id: u32) -> Option<u32>;
    /// What is known of a session's target: [`crate::abi::Liveness`] as a number.
    fn live(&self, session: u32) -> u32;
}

/// What packets change.
pub trait State {
    /// The monotonic clock in nanoseconds.
    fn now(&self) -> u64;
    /// A connection.
    fn flow(&self, key: &FlowKey) -> Option<FlowRow>;
    /// Writes a connection that is there.
    fn touch_flow(&self, key: &FlowKey, row: &FlowRow);
    /// Writes a connection; `false` when there is no room for a new one.
    fn open_flow(&self, key: &FlowKey, row: &FlowRow) -> bool;
    /// Who opened the connection of a packet; see [`super::opener`]. Kernel side a function of its own: keys take
    /// stack.
    #[inline(always)]
    fn opener(&self, direction: Direction, ifindex: u32, facts: &Facts) -> Option<Opener>
    where
        Self: Sized + Counters,
    {
        super::opener(direction, ifindex, facts, self)
    }
    /// A flow that is away.
    fn trip(&self, key: &TripKey) -> Option<TripRow>;
    /// Takes the one outstanding probe of a session whose target counts as dead; `false` when there is none.
    fn take_probe(&self, session: u32) -> bool;
    /// Whether a frame of a session, or, from [`limits::SESSIONS`] on, of an Egress policy is due: frames are `interval` nanoseconds apart, and may come early by
    /// `burst`.
    fn pace(&self, session: u32, interval: u64, burst: u64, now: u64) -> bool;
}

/// The counters. A row that does not exist swallows its count, as a BPF map lookup out of range does.
pub trait Counters {
    /// Changes the counters of an endpoint and direction.
    fn count_endpoint(&self, slot: u32, direction: Direction, change: impl FnOnce(&mut EndpointCounters));
    /// Changes what the guard counts of an endpoint.
    fn count_guard(&self, slot: u32, change: impl FnOnce(&mut GuardCounters));
    /// Changes the counters of an Egress policy.
    fn count_egress(&self, policy: u32, change: impl FnOnce(&mut EgressCounters));
    /// Changes the counters of a session.
    fn count_session(&self, session: u32, change: impl FnOnce(&mut SessionCounters));
    /// Changes the counters of a policy.
    fn count_policy(&self, policy: u32, change: impl FnOnce(&mut PolicyCounters));
    /// Adds a packet to a reason.
    fn count_reason(&self, reason: Reason);
}
