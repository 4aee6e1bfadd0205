//! Tries over left-aligned keys. In: a field's values in pieces, each with its row. Out: nodes, prefixes and
//! the entry to begin at.
//!
//! A part of the keys with one row becomes that row at once; a part in which one prefix differs from the rest
//! becomes a prefix comparison; anything else becomes a node with a part per value of the next byte. Equal
//! nodes and prefixes stand once per image, whatever the rule set.

use std::collections::HashMap;
use std::hash::Hash;

use podwire_core::abi::{Entry, NodeRow, PrefixRow};

use super::error::{CompileError, Table, fits};
use super::rows::RowId;

/// Keys from `start` up to the next piece, and the row that they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u128,
    pub(super) row: RowId,
}

/// All nodes and prefixes of an image. Rows in them are [`RowId`]s.
#[derive(Default)]
pub(super) struct Tries {
    nodes: Interned<NodeRow>,
    prefixes: Interned<PrefixRow>,
}

/// A part of the keys: all that begin with the same `depth` bytes.
#[derive(Clone, Copy)]
struct Block {
    first: u128,
    depth: u32,
}

impl Block {
    /// The bits that differ within the block.
    fn free(self) -> u128 {
        u128::MAX.checked_shr(8 * self.depth).unwrap_or(0)
    }

    fn last(self) -> u128 {
        self.first | self.free()
    }

    fn child(self, byte: u8) -> Self {
        Self { first: self.first | u128::from(byte) << (120 - 8 * self.depth), depth: self.depth + 1 }
    }
}

impl Tries {
    /// Builds the trie of `pieces`: sorted, the first from 0 on, neighbours with different rows, and bounds
    /// at whole values of a field of at most sixteen bytes.
    ///
    /// # Errors
    /// [`Table::Nodes`], [`Table::Prefixes`].
    pub(super) fn root(&mut self, pieces: &[Piece], endpoint: u32) -> Result<Entry, CompileError> {
        self.entry(pieces, Block { first: 0, depth: 0 }, endpoint)
    }

    /// `pieces` are those that have keys in the block.
    fn entry(&mut self, pieces: &[Piece], block: Block, endpoint: u32) -> Result<Entry, CompileError> {
        if let [piece] = pieces {
            return Ok(Entry::row(piece.row.0));
        }
        if let Some(prefix) = single_prefix(pieces, block) {
            return Ok(Entry::prefix(self.prefixes.index(prefix, Table::Prefixes, endpoint)?));
        }
        let mut node: NodeRow = [0; 256];
        let mut rest = pieces;
        for byte in 0..=u8::MAX {
            let child = block.child(byte);
            let end = rest.iter().position(|piece| piece.start > child.last()).unwrap_or(rest.len());
            node[usize::from(byte)] = self.entry(&rest[..end], child, endpoint)?.0;
            // The last piece goes on in the next block unless the next one starts right there.
            let next = child.last().wrapping_add(1);
            let whole = rest.get(end).is_some_and(|piece| piece.start == next);
            rest = &rest[if whole { end } else { end - 1 }..];
        }
        Ok(Entry::node(self.nodes.index(node, Table::Nodes, endpoint)?))
    }

    /// The tables.
    pub(super) fn into_rows(self) -> (Vec<NodeRow>, Vec<PrefixRow>) {
        (self.nodes.into_rows(), self.prefixes.into_rows())
    }
}

/// The comparison that tells the pieces of a block apart, if one prefix does.
fn single_prefix(pieces: &[Piece], block: Block) -> Option<PrefixRow> {
    let (first, last, hit, miss) = match *pieces {
        [one, two] if is_prefix(two.start, block.last()) => (two.start, block.last(), two.row, one.row),
        [one, two] => (block.first, two.start - 1, one.row, two.row),
        [one, two, three] if one.row == three.row => (two.start, three.start - 1, two.row, one.row),
        _ => return None,
    };
    if !is_prefix(first, last) {
        return None;
    }
    // The bytes that led to the block need no comparison: without them, equal tails are equal rows.
    let mask = block.free() & !(first ^ last);
    let value = first & mask;
    Some(PrefixRow {
        high: (value >> 64) as u64,
        low: value as u64,
        mask_high: (mask >> 64) as u64,
        mask_low: mask as u64,
        hit: hit.0,
        miss: miss.0,
    })
}

/// Whether the keys from `first` to `last` are all that begin with some bits.
fn is_prefix(first: u128, last: u128) -> bool {
    let free = first ^ last;
    first & free == 0 && free & free.wrapping_add(1) == 0
}

/// Values by number, each once.
struct Interned<T> {
    numbers: HashMap<T, u32>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> Interned<T> {
    fn index(&mut self, value: T, table: Table, endpoint: u32) -> Result<u32, CompileError> {
        let next = self.numbers.len();
        let number = *self.numbers.entry(value).or_insert(next as u32);
        fits(table, self.numbers.len(), Some(endpoint))?;
        Ok(number)
    }

    fn into_rows(self) -> Vec<T> {
        let mut rows: Vec<_> = self.numbers.into_iter().collect();
        rows.sort_unstable_by_key(|&(_, number)| number);
        rows.into_iter().map(|(value, _)| value).collect()
    }
}

#[cfg(test)]
mod tests {
    use podwire_core::abi::EntryKind;

    use super::{Piece, RowId, Tries, is_prefix};

    fn pieces(pieces: &[(u128, u32)]) -> Vec<Piece> {
        pieces.iter().map(|&(start, row)| Piece { start, row: RowId(row) }).collect()
    }

    #[test]
    fn prefixes_are_recognised() {
        assert!(is_prefix(0, u128::MAX));
        assert!(is_prefix(8, 15));
        assert!(is_prefix(7, 7));
        assert!(!is_prefix(8, 14));
        assert!(!is_prefix(4, 11));
    }

    #[test]
    fn one_prefix_needs_no_node() {
        let mut tries = Tries::default();
        let start = 10 << 120;
        let root = tries.root(&pieces(&[(0, 1), (start, 2), (start + (1 << 120), 1)]), 0).unwrap();
        assert_eq!(root.kind(), EntryKind::Prefix);
        let (nodes, prefixes) = tries.into_rows();
        assert!(nodes.is_empty());
        assert_eq!((prefixes[0].high, prefixes[0].mask_high), (10 << 56, 0xff << 56));
        assert_eq!((prefixes[0].hit, prefixes[0].miss), (2, 1));
    }

    #[test]
    fn equal_tails_below_different_bytes_are_one_node() {
        let mut tries = Tries::default();
        let port = |protocol: u128, port: u128| (protocol << 16 | port) << 104;
        let mut list = vec![(0, 0)];
        for protocol in [6, 17] {
            for number in [80, 443, 444] {
                list.push((port(protocol, number), number as u32));
                if number != 443 {
                    list.push((port(protocol, number + 1), 0));
                }
            }
        }
        tries.root(&pieces(&list), 0).unwrap();
        let (nodes, prefixes) = tries.into_rows();
        assert_eq!((nodes.len(), prefixes.len()), (3, 1));
    }
}
