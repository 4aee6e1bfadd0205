//! The pieces of one datagram.

use super::packet::{Head, Id, NextHeader, Part};

/// Fragments of a datagram, at most: 65535 bytes over links of the least MTU of IPv6 are 54.
const MAX_PIECES: usize = 256;

/// What the books of a piece cost besides its bytes.
const COST: usize = 64;

pub(super) struct Datagram {
    pub(super) id: Id,
    pub(super) since: u64,
    /// By place, never overlapping.
    pieces: Vec<Piece>,
    bytes: usize,
    /// The datagram's length, known from its last fragment.
    total: Option<usize>,
    /// Headers of the fragment at place 0.
    head: Option<OwnHead>,
    /// Set when it was given up: what still comes of it is refused as well, for the same reason.
    refused: Option<Refusal>,
}

struct Piece {
    offset: usize,
    data: Box<[u8]>,
}

struct OwnHead {
    bytes: Box<[u8]>,
    at: usize,
    next: Option<NextHeader>,
}

#[derive(Clone, Copy)]
enum Refusal {
    Overlap,
    Malformed,
}

/// What became of a fragment.
pub(super) enum Taken {
    Waits,
    Duplicate,
    Overlap,
    Malformed,
    /// The whole frame.
    Whole(Vec<u8>),
}

impl Datagram {
    pub(super) fn new(id: Id, since: u64) -> Self {
        Self { id, since, pieces: Vec::new(), bytes: COST, total: None, head: None, refused: None }
    }

    /// Fragments in hand.
    pub(super) fn fragments(&self) -> u64 {
        self.pieces.len() as u64
    }

    /// Bytes in hand.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn take(&mut self, part: &Part<'_>) -> Taken {
        match self.refused {
            Some(Refusal::Overlap) => return Taken::Overlap,
            Some(Refusal::Malformed) => return Taken::Malformed,
            None => {}
        }
        let end = part.offset + part.data.len();
        let whole_units = part.data.len() % 8 == 0;
        let beyond = self.total.is_some_and(|total| end > total || !part.more && end != total);
        let before = !part.more && self.pieces.last().is_some_and(|last| last.offset + last.data.len() > end);
        if part.data.is_empty()
            || part.more && !whole_units
            || end > part.head.room()
            || beyond
            || before
            || self.pieces.len() >= MAX_PIECES
        {
            return self.refuse(Refusal::Malformed);
        }
        let at = self.pieces.partition_point(|piece| piece.offset < part.offset);
        if let Some(same) = self.pieces.get(at)
            && same.offset == part.offset
            && *same.data == *part.data
        {
            return Taken::Duplicate;
        }
        let after = at.checked_sub(1).and_then(|at| self.pieces.get(at));
        let overlaps_before = after.is_some_and(|piece| piece.offset + piece.data.len() > part.offset);
        let overlaps_next = self.pieces.get(at).is_some_and(|piece| piece.offset < end);
        if overlaps_before || overlaps_next {
            return self.refuse(Refusal::Overlap);
        }
        self.insert(at, part);
        let have: usize = self.pieces.iter().map(|piece| piece.data.len()).sum();
        match (self.total, &self.head) {
            (Some(total), Some(head)) if have == total => {
                let head = Head { bytes: &head.bytes, at: head.at, next: head.next };
                if total > head.room() {
                    return self.refuse(Refusal::Malformed);
                }
                let mut whole = head.before(total);
                self.pieces.iter().for_each(|piece| whole.extend_from_slice(&piece.data));
                Taken::Whole(whole)
            }
            _ => Taken::Waits,
        }
    }

    fn insert(&mut self, at: usize, part: &Part<'_>) {
        if part.offset == 0 {
            let Head { bytes, at, next } = part.head;
            self.bytes += bytes.len();
            self.head = Some(OwnHead { bytes: bytes.into(), at, next });
        }
        if !part.more {
            self.total = Some(part.offset + part.data.len());
        }
        self.bytes += COST + part.data.len();
        self.pieces.insert(at, Piece { offset: part.offset, data: part.data.into() });
    }

    fn refuse(&mut self, why: Refusal) -> Taken {
        self.refused = Some(why);
        (self.pieces, self.head, self.bytes) = (Vec::new(), None, COST);
        match why {
            Refusal::Overlap => Taken::Overlap,
            Refusal::Malformed => Taken::Malformed,
        }
    }
}
