//! Compiled rules of one endpoint and direction.
//!
//! A rule is one bit. Per packet field there is a trie that maps the field's value to a row of bits: the rules
//! that this value satisfies. The rows of all fields are ANDed, 512 bits at a time; what remains are the rules
//! that match. Bits are grouped by policy in whole words, so "which policies apply" is one test per word.

use super::limits;

/// What a packet is, for the choice of tries.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// IPv4 whose header could be read.
    V4 = 0,
    /// IPv6 whose header could be read.
    V6 = 1,
    /// Everything else, by its EtherType.
    Other = 2,
}

/// Tag of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Absolute index of the row's first chunk in `CHUNKS`.
    Row,
    /// Absolute index of the next node in `NODES`; the next byte of the key selects its entry.
    Node,
    /// Absolute index into `PREFIXES`.
    Prefix,
    /// The field is not looked at.
    Any,
}

/// An edge of a trie: two bits of kind, thirty bits of index.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry(pub u32);

impl Entry {
    /// The field is not looked at: every rule is satisfied.
    pub const ANY: Self = Self(3 << 30);
    /// No rule is satisfied: the empty row. Chunks 0 to [`limits::RULESET_CHUNKS`] - 1 are zero for ever and
    /// belong to no bank.
    pub const NONE: Self = Self::row(0);

    const INDEX: u32 = (1 << 30) - 1;

    /// An entry that ends at a row.
    pub const fn row(index: u32) -> Self {
        Self(index & Self::INDEX)
    }

    /// An entry that goes on at a node.
    pub const fn node(index: u32) -> Self {
        Self(1 << 30 | index & Self::INDEX)
    }

    /// An entry that ends at a prefix comparison.
    pub const fn prefix(index: u32) -> Self {
        Self(2 << 30 | index & Self::INDEX)
    }

    /// What the index means.
    #[inline(always)]
    pub const fn kind(self) -> EntryKind {
        match self.0 >> 30 {
            0 => EntryKind::Row,
            1 => EntryKind::Node,
            2 => EntryKind::Prefix,
            _ => EntryKind::Any,
        }
    }

    /// The index into the map that the kind names.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self.0 & Self::INDEX
    }
}

/// The tries of one [`Mode`]: an [`Entry`] each, as a number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModeRow {
    /// The rules that can match this kind of packet at all: always a row, the start of the AND.
    pub base: u32,
    /// Key: address of the other side, from its first byte on.
    pub remote: u32,
    /// Key: address of the pod's side.
    pub local: u32,
    /// Key: protocol, then source port; for ICMP and ICMPv6 protocol, type, code. In [`Mode::Other`]:
    /// EtherType.
    pub source: u32,
    /// Key: protocol, then destination port.
    pub destination: u32,
    /// Key: protocol. Instead of `source` and `destination`, for packets whose ports cannot be read: later
    /// fragments, cut headers, protocols without ports.
    pub portless: u32,
    /// Key: the TCP flags byte (RFC 9293, CWR to FIN).
    pub tcp_flags: u32,
}

impl ModeRow {
    /// No rule matches.
    pub const NONE: Self = Self {
        base: Entry::NONE.0,
        remote: Entry::ANY.0,
        local: Entry::ANY.0,
        source: Entry::ANY.0,
        destination: Entry::ANY.0,
        portless: Entry::ANY.0,
        tcp_flags: Entry::ANY.0,
    };
}

/// One rule set.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RulesetRow {
    /// Tries by [`Mode`].
    pub modes: [ModeRow; 3],
    /// Chunks per row of bits, at most [`limits::RULESET_CHUNKS`].
    pub chunks: u32,
    /// Absolute index of the first [`SpanRow`]; one per chunk.
    pub spans: u32,
    /// Zero.
    pub pad: u32,
    /// Slots whose policy redirects; the lowest one that matches applies. The others mirror.
    pub redirects: u64,
    /// Slots whose policy looks at who opened the connection.
    pub stateful: u64,
    /// Slots whose session has a rate limit or takes samples.
    pub limited: u64,
    /// Slots whose session takes snapshots.
    pub snaps: u64,
    /// Of those, slots whose frames the agent reads itself.
    pub readers: u64,
    /// Slots with the same session, by slot: a packet goes to each session once.
    pub shares: [u64; limits::RULESET_POLICIES],
    /// Policy of each slot.
    pub policies: [u16; limits::RULESET_POLICIES],
    /// Session of each slot.
    pub sessions: [u16; limits::RULESET_POLICIES],
}

impl Default for RulesetRow {
    fn default() -> Self {
        Self {
            modes: [ModeRow::NONE; 3],
            chunks: 0,
            spans: 0,
            pad: 0,
            redirects: 0,
            stateful: 0,
            limited: 0,
            snaps: 0,
            readers: 0,
            shares: [0; limits::RULESET_POLICIES],
            policies: [0; limits::RULESET_POLICIES],
            sessions: [0; limits::RULESET_POLICIES],
        }
    }
}

/// A trie node: an [`Entry`] per value of one byte.
pub type NodeRow = [u32; 256];

/// A trie tail with a single prefix below it: the key is compared under a mask.
///
/// Keys are left-aligned in 128 bits: `high` holds the first eight bytes as a big-endian number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrefixRow {
    /// First eight bytes of the prefix.
    pub high: u64,
    /// Last eight bytes of the prefix.
    pub low: u64,
    /// Mask of `high`.
    pub mask_high: u64,
    /// Mask of `low`.
    pub mask_low: u64,
    /// Row index when the key lies in the prefix.
    pub hit: u32,
    /// Row index otherwise.
    pub miss: u32,
}

/// Words of a chunk.
pub const CHUNK_WORDS: usize = 8;

/// 512 rule bits.
pub type ChunkRow = [u64; CHUNK_WORDS];

/// The policy slot of each word of a chunk.
pub type SpanRow = [u8; CHUNK_WORDS];
