//! What the stages need from the outside: a packet to read and tables to look things up in.

use super::classify::Key;
use crate::abi::{
    ChunkRow, Direction, EndpointCounters, Entry, Generation, PrefixRow, Reason, RulesetRow, SessionCounters,
    SessionRow, SpanRow,
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
}

/// The tables, read-only. Every index may be out of range: then there is no row.
pub trait Tables {
    /// The generation in force. Read once per packet.
    fn generation(&self) -> Generation;
    /// `skb->mark` of copies.
    fn copy_mark(&self) -> u32;
    /// Slot of the endpoint behind a host-side interface.
    fn endpoint_slot(&self, ifindex: u32) -> Option<u32>;
    /// Absolute index of the rule set of an endpoint and direction, `None` when no rule applies.
    fn endpoint_ruleset(&self, generation: Generation, slot: u32, direction: Direction) -> Option<u32>;
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
    /// A session.
    fn session(&self, generation: Generation, session: u32) -> Option<&SessionRow>;
}

/// The counters. A row that does not exist swallows its count, as a BPF map lookup out of range does.
pub trait Counters {
    /// Changes the counters of an endpoint and direction.
    fn count_endpoint(&self, slot: u32, direction: Direction, change: impl FnOnce(&mut EndpointCounters));
    /// Changes the counters of a session.
    fn count_session(&self, session: u32, change: impl FnOnce(&mut SessionCounters));
    /// Adds a packet to a reason.
    fn count_reason(&self, reason: Reason);
}
