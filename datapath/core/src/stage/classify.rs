//! Stage classify. In: a packet's [`Facts`] and a rule set. Out: the policies whose rules match, by slot.
//!
//! Array loads only: one trie walk per field that the rules look at, then one AND per 64 rules. No loop over
//! rules, no hash, and the same cost whichever rule matches.

use super::packet::Tables;
use super::parse::{Facts, Transport};
use crate::abi::{CHUNK_WORDS, ChunkRow, Direction, Entry, EntryKind, Mode, ModeRow, RulesetRow, limits};

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

    /// A MAC address.
    #[inline(always)]
    pub const fn from_mac(b: [u8; 6]) -> Self {
        Self { high: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], 0, 0]), low: 0 }
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

/// Policy slots, a bit each, whose rules match a packet with these `facts`.
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
            source: tables.walk(Entry(row.modes[2].source), Key::from_ether_type(facts.ether_type)),
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
        remote: tables.walk(Entry(mode.remote), remote),
        local: tables.walk(Entry(mode.local), local),
        source: Entry::ANY,
        destination: Entry::ANY,
        tcp_flags: Entry::ANY,
    };
    if matches!(facts.transport, Transport::Portless) {
        rows.source = tables.walk(Entry(mode.portless), Key::from_byte(facts.protocol));
        return rows;
    }
    rows.source = tables.walk(Entry(mode.source), Key::from_port(facts.protocol, facts.source_port));
    rows.destination =
        tables.walk(Entry(mode.destination), Key::from_port(facts.protocol, facts.destination_port));
    rows.tcp_flags = tables.walk(Entry(mode.tcp_flags), Key::from_byte(facts.tcp_flags));
    rows
}

/// ANDs the rows chunk by chunk; a word that keeps a bit names its policy slot.
///
/// A field that is not looked at takes part with the base row, which changes nothing: a load is cheaper than
/// what the verifier pays for five more branches in each round.
#[inline(always)]
fn intersect<T: Tables>(tables: &T, ruleset: &RulesetRow, rows: &Rows) -> u64 {
    let base = rows.base.index();
    let starts = Starts {
        remote: start(rows.remote, base),
        local: start(rows.local, base),
        source: start(rows.source, base),
        destination: start(rows.destination, base),
        tcp_flags: start(rows.tcp_flags, base),
    };
    let mut slots = 0u64;
    for step in 0..limits::RULESET_CHUNKS {
        if step >= ruleset.chunks {
            break;
        }
        let (Some(base), Some(span)) =
            (tables.chunk(base.wrapping_add(step)), tables.span(ruleset.spans.wrapping_add(step)))
        else {
            break;
        };
        let Some(bits) = starts.and(tables, step, base) else {
            break;
        };
        for word in 0..CHUNK_WORDS {
            if bits[word] != 0 {
                slots |= 1 << (span[word] & 63);
            }
        }
    }
    slots
}

/// Where a field's row begins.
#[inline(always)]
fn start(row: Entry, base: u32) -> u32 {
    if matches!(row.kind(), EntryKind::Any) { base } else { row.index() }
}

/// First chunks of the rows to AND.
struct Starts {
    remote: u32,
    local: u32,
    source: u32,
    destination: u32,
    tcp_flags: u32,
}

impl Starts {
    #[inline(always)]
    fn and<T: Tables>(&self, tables: &T, step: u32, base: &ChunkRow) -> Option<ChunkRow> {
        let remote = tables.chunk(self.remote.wrapping_add(step))?;
        let local = tables.chunk(self.local.wrapping_add(step))?;
        let source = tables.chunk(self.source.wrapping_add(step))?;
        let destination = tables.chunk(self.destination.wrapping_add(step))?;
        let tcp_flags = tables.chunk(self.tcp_flags.wrapping_add(step))?;
        let mut bits = *base;
        for word in 0..CHUNK_WORDS {
            bits[word] &= remote[word] & local[word] & source[word] & destination[word] & tcp_flags[word];
        }
        Some(bits)
    }
}
