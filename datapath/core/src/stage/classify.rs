//! Stage classify. In: a packet's [`Facts`] and a rule set. Out: the sessions whose rules match.
//!
//! Array loads only: one trie walk per field that the rules look at, then one AND per 64 rules. No loop over
//! rules, no hash, and the same cost whichever rule matches.

use super::parse::{Facts, Transport};
use super::packet::Tables;
use crate::abi::{CHUNK_WORDS, Direction, Entry, EntryKind, Mode, ModeRow, RulesetRow, limits};

/// A trie key: up to sixteen bytes, left-aligned, as two big-endian numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    /// The first eight bytes.
    pub high: u64,
    /// The last eight bytes.
    pub low: u64,
}

impl Key {
    /// All zero.
    pub const ZERO: Self = Self { high: 0, low: 0 };

    /// An IPv4 address in network order.
    #[inline(always)]
    pub const fn from_v4(bytes: [u8; 4]) -> Self {
        Self { high: (u32::from_be_bytes(bytes) as u64) << 32, low: 0 }
    }

    /// An IPv6 address in network order.
    #[inline(always)]
    pub const fn from_v6(b: [u8; 16]) -> Self {
        Self {
            high: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            low: u64::from_be_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
        }
    }

    /// Protocol and port (or ICMP type and code).
    #[inline(always)]
    pub const fn from_port(protocol: u8, port: u16) -> Self {
        Self { high: (protocol as u64) << 56 | (port as u64) << 40, low: 0 }
    }

    /// A single byte: protocol or TCP flags.
    #[inline(always)]
    pub const fn from_byte(byte: u8) -> Self {
        Self { high: (byte as u64) << 56, low: 0 }
    }

    /// An EtherType.
    #[inline(always)]
    pub const fn from_ether_type(ether_type: u16) -> Self {
        Self { high: (ether_type as u64) << 48, low: 0 }
    }
}

/// Longest key in bytes; a walk takes one step per byte and one to end.
const STEPS: usize = 17;

/// Walks a trie from `root` and returns the row that `key` leads to. Broken tables lead to the empty row.
#[inline(always)]
pub fn lookup<T: Tables>(tables: &T, root: Entry, key: Key) -> Entry {
    let mut entry = root;
    let mut rest = key;
    for _ in 0..STEPS {
        match entry.kind() {
            EntryKind::Row | EntryKind::Any => return entry,
            EntryKind::Node => {
                let Some(next) = tables.node(entry.index(), (rest.high >> 56) as u8) else {
                    return Entry::NONE;
                };
                entry = next;
                rest = Key { high: rest.high << 8 | rest.low >> 56, low: rest.low << 8 };
            }
            EntryKind::Prefix => {
                let Some(prefix) = tables.prefix(entry.index()) else {
                    return Entry::NONE;
                };
                let high = (key.high ^ prefix.high) & prefix.mask_high;
                let low = (key.low ^ prefix.low) & prefix.mask_low;
                return Entry::row(if high | low == 0 { prefix.hit } else { prefix.miss });
            }
        }
    }
    Entry::NONE
}

/// The rows of a packet's fields.
struct Rows {
    base: Entry,
    remote: Entry,
    local: Entry,
    source: Entry,
    destination: Entry,
    tcp_flags: Entry,
}

/// Session slots, a bit each, whose rules match a packet with these `facts`.
#[inline(always)]
pub fn classify<T: Tables>(tables: &T, ruleset: u32, direction: Direction, facts: &Facts) -> u64 {
    let Some(row) = tables.ruleset(ruleset) else {
        return 0;
    };
    let rows = match facts.mode {
        Mode::V4 => rows(tables, &row.modes[0], direction, facts),
        Mode::V6 => rows(tables, &row.modes[1], direction, facts),
        Mode::Other => Rows {
            base: Entry(row.modes[2].base),
            remote: Entry::ANY,
            local: Entry::ANY,
            source: lookup(tables, Entry(row.modes[2].source), Key::from_ether_type(facts.ether_type)),
            destination: Entry::ANY,
            tcp_flags: Entry::ANY,
        },
    };
    intersect(tables, row, &rows)
}

#[inline(always)]
fn rows<T: Tables>(tables: &T, mode: &ModeRow, direction: Direction, facts: &Facts) -> Rows {
    let (remote, local) = match direction {
        Direction::Ingress => (facts.source, facts.destination),
        Direction::Egress => (facts.destination, facts.source),
    };
    let mut rows = Rows {
        base: Entry(mode.base),
        remote: lookup(tables, Entry(mode.remote), remote),
        local: lookup(tables, Entry(mode.local), local),
        source: Entry::ANY,
        destination: Entry::ANY,
        tcp_flags: Entry::ANY,
    };
    if matches!(facts.transport, Transport::Portless) {
        rows.source = lookup(tables, Entry(mode.portless), Key::from_byte(facts.protocol));
        return rows;
    }
    rows.source =
        lookup(tables, Entry(mode.source), Key::from_port(facts.protocol, facts.source_port));
    rows.destination =
        lookup(tables, Entry(mode.destination), Key::from_port(facts.protocol, facts.destination_port));
    rows.tcp_flags = lookup(tables, Entry(mode.tcp_flags), Key::from_byte(facts.tcp_flags));
    rows
}

/// ANDs the rows chunk by chunk; a word that keeps a bit names its session slot.
#[inline(always)]
fn intersect<T: Tables>(tables: &T, ruleset: &RulesetRow, rows: &Rows) -> u64 {
    let mut sessions = 0u64;
    for step in 0..limits::RULESET_CHUNKS {
        if step >= ruleset.chunks {
            break;
        }
        let Some(base) = tables.chunk(rows.base.index().wrapping_add(step)) else {
            break;
        };
        let mut bits = *base;
        and(tables, rows.remote, step, &mut bits);
        and(tables, rows.local, step, &mut bits);
        and(tables, rows.source, step, &mut bits);
        and(tables, rows.destination, step, &mut bits);
        and(tables, rows.tcp_flags, step, &mut bits);
        let Some(span) = tables.span(ruleset.spans.wrapping_add(step)) else {
            break;
        };
        for word in 0..CHUNK_WORDS {
            if bits[word] != 0 {
                sessions |= 1 << (span[word] & 63);
            }
        }
    }
    sessions
}

#[inline(always)]
fn and<T: Tables>(tables: &T, row: Entry, step: u32, bits: &mut [u64; CHUNK_WORDS]) {
    if matches!(row.kind(), EntryKind::Any) {
        return;
    }
    let Some(chunk) = tables.chunk(row.index().wrapping_add(step)) else {
        *bits = [0; CHUNK_WORDS];
        return;
    };
    for word in 0..CHUNK_WORDS {
        bits[word] &= chunk[word];
    }
}
