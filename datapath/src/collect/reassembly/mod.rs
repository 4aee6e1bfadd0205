//! Outer IP packets that came in fragments. In: frames that hold one. Out: the frame that would have come if the
//! packet had not been cut.
//!
//! Bounded in bytes, datagrams and time; the oldest goes first. A datagram whose fragments overlap is given up as a
//! whole (RFC 5722, for IPv4 as well); the same fragment twice is no overlap. The identification of IPv4 has 16 bits
//! and comes again within a tenth of a second on a fast link, so fragments wait for a second, not for thirty.

mod datagram;
mod packet;

use std::collections::BTreeMap;

use hashbrown::HashMap;

use datagram::{Datagram, Taken};
use packet::{Id, Part};

/// Bounds of reassembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of fragments in hand.
    pub bytes: usize,
    /// Datagrams in hand.
    pub datagrams: usize,
    /// How long a datagram's fragments wait for the rest, in nanoseconds.
    pub time: u64,
}

impl Default for Bounds {
    /// 16 MiB, 4096 datagrams, 1 second.
    fn default() -> Self {
        Self { bytes: 16 << 20, datagrams: 4096, time: 1_000_000_000 }
    }
}

/// What became of fragments. `received = used + duplicates + overlaps + malformed + expired + evicted + waiting`, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Fragments given.
    pub received: u64,
    /// Fragments of packets that became whole.
    pub used: u64,
    /// The same fragment again.
    pub duplicates: u64,
    /// Fragments of packets in which two overlap.
    pub overlaps: u64,
    /// Fragments with an impossible length or place, and what was in hand of their packets.
    pub malformed: u64,
    /// Fragments whose packet did not become whole in time.
    pub expired: u64,
    /// Fragments that made room for others.
    pub evicted: u64,
    /// Fragments in hand.
    pub waiting: u64,
    /// Packets that became whole.
    pub packets: u64,
}

/// See the module.
pub struct Reassembly {
    bounds: Bounds,
    books: Books,
    by_id: HashMap<Id, u64>,
    /// By age.
    datagrams: BTreeMap<u64, Datagram>,
    next: u64,
    bytes: usize,
}

impl Reassembly {
    /// Nothing in hand.
    pub fn new(bounds: Bounds) -> Self {
        let (by_id, datagrams) = (HashMap::new(), BTreeMap::new());
        Self { bounds, books: Books::default(), by_id, datagrams, next: 0, bytes: 0 }
    }

    /// What became of fragments so far.
    pub fn books(&self) -> Books {
        self.books
    }

    /// Takes a frame that holds a fragment. Returns the whole one with the last missing piece.
    pub fn push(&mut self, frame: &[u8], now: u64) -> Option<Vec<u8>> {
        self.books.received += 1;
        self.expire(now);
        let Some((id, part)) = Part::parse(frame) else {
            self.books.malformed += 1;
            return None;
        };
        let number = match self.by_id.get(&id) {
            Some(number) => *number,
            None => self.begin(id, now),
        };
        let datagram = self.datagrams.get_mut(&number)?;
        let (held, fragments) = (datagram.bytes(), datagram.fragments());
        let taken = datagram.take(&part);
        self.bytes = self.bytes + datagram.bytes() - held;
        match taken {
            Taken::Waits => {
                self.books.waiting += 1;
                self.make_room(number);
                None
            }
            Taken::Duplicate => {
                self.books.duplicates += 1;
                None
            }
            Taken::Overlap => {
                self.books.waiting -= fragments;
                self.books.overlaps += fragments + 1;
                None
            }
            Taken::Malformed => {
                self.books.waiting -= fragments;
                self.books.malformed += fragments + 1;
                None
            }
            Taken::Whole(whole) => {
                self.books.waiting -= fragments;
                self.books.used += fragments + 1;
                self.books.packets += 1;
                self.remove(number);
                Some(whole)
            }
        }
    }

    /// Gives up what waits for too long.
    pub fn expire(&mut self, now: u64) {
        while let Some((&number, oldest)) = self.datagrams.first_key_value() {
            if oldest.since.saturating_add(self.bounds.time) > now {
                break;
            }
            let fragments = oldest.fragments();
            self.books.waiting -= fragments;
            self.books.expired += fragments;
            self.remove(number);
        }
    }

    fn begin(&mut self, id: Id, now: u64) -> u64 {
        if self.datagrams.len() >= self.bounds.datagrams {
            self.evict_oldest();
        }
        let number = self.next;
        self.next += 1;
        self.by_id.insert(id, number);
        let datagram = Datagram::new(id, now);
        self.bytes += datagram.bytes();
        self.datagrams.insert(number, datagram);
        number
    }

    fn make_room(&mut self, spared: u64) {
        while self.bytes > self.bounds.bytes && self.datagrams.len() > 1 {
            match self.datagrams.first_key_value() {
                Some((&oldest, _)) if oldest != spared => self.evict_oldest(),
                _ => break,
            }
        }
    }

    fn evict_oldest(&mut self) {
        if let Some((&number, oldest)) = self.datagrams.first_key_value() {
            let fragments = oldest.fragments();
            self.books.waiting -= fragments;
            self.books.evicted += fragments;
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(datagram) = self.datagrams.remove(&number) {
            self.bytes -= datagram.bytes();
            self.by_id.remove(&datagram.id);
        }
    }
}

#[cfg(test)]
mod tests;
