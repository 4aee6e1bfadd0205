//! Rows that say which live packets become traced. In: rows and the places where they count. Out: the datapath looks
//! there.
//!
//! The rows of a place stand side by side. A place grows at its end; when it is full it moves, and what ended stays
//! behind. What was moved from is written again only when no packet can be looking at it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use aya::maps::MapData;
use podwire_core::abi::{MatchBlock, MatchRow, limits};

use crate::error::{Context, Error, ErrorKind};
use crate::maps::{self, Row, Table};
use crate::pins::Pins;
use crate::sys::wait_for_packets;

/// What is at one place.
struct Block {
    base: u32,
    room: u32,
    /// Numbers of the traces, `None` for one that has ended.
    rows: Vec<Option<u32>>,
}

/// All of them.
pub(super) struct Matches {
    blocks: aya::maps::HashMap<MapData, Row<u32>, Row<MatchBlock>>,
    rows: Table<MatchRow>,
    places: HashMap<u32, Block>,
    /// By row.
    used: Vec<bool>,
    /// Rows that a packet may still be looking at, and since when none should.
    left: Vec<(Instant, u32, u32)>,
}

/// How long rows that were left stay as they are; packets look for microseconds.
const REST: Duration = Duration::from_secs(1);

impl Matches {
    pub(super) fn open(pins: &Pins) -> Result<Self, Error> {
        let blocks = maps::reopen_hash(pins, "MATCH_BLOCKS")?;
        let rows = Table::reopen(pins, "MATCHES")?;
        let used = vec![false; limits::MATCHES as usize];
        let mut matches = Self { blocks, rows, places: HashMap::new(), used, left: Vec::new() };
        matches.clear()?;
        Ok(matches)
    }

    /// No packet becomes traced any more.
    pub(super) fn clear(&mut self) -> Result<(), Error> {
        let left: Vec<_> = self.blocks.keys().filter_map(Result::ok).collect();
        for key in left {
            self.remove_block(key.0)?;
        }
        self.places.clear();
        self.used.fill(false);
        self.left.clear();
        wait_for_packets();
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds a row to a place.
    pub(super) fn add(&mut self, place: u32, row: MatchRow) -> Result<(), Error> {
        let full = match self.places.get(&place) {
            Some(block) => block.rows.len() as u32 == block.room,
            None => true,
        };
        if full {
            self.make_room(place)?;
        }
        let Some(block) = self.places.get_mut(&place) else {
            return Err(Error::new(ErrorKind::Kernel, "a place for a trace is gone"));
        };
        self.rows.set(block.base + block.rows.len() as u32, row)?;
        block.rows.push(Some(row.number));
        let stored = MatchBlock { base: block.base, len: block.rows.len() as u32 };
        self.blocks.insert(Row(place), Row(stored), 0).context(|| "writing map MATCH_BLOCKS".into())
    }

    /// A larger block, or a first one, with those rows that have not ended.
    fn make_room(&mut self, place: u32) -> Result<(), Error> {
        let mut live = Vec::new();
        if let Some(block) = self.places.get(&place) {
            for (row, number) in (block.base..).zip(&block.rows) {
                if number.is_some() {
                    live.push(self.rows.get(row)?);
                }
            }
        }
        let room = (live.len() as u32 + 1).next_power_of_two();
        if room > limits::MATCH_BLOCK {
            let what = format!(
                "an endpoint has at most {} rows of live traces at a time, one for each pair of addresses",
                limits::MATCH_BLOCK
            );
            return Err(Error::new(ErrorKind::TableFull, what));
        }
        let base = self.take(room)?;
        let rows = live.iter().map(|row| Some(row.number)).collect();
        for (index, row) in (base..).zip(&live) {
            self.rows.set(index, *row)?;
        }
        let stored = MatchBlock { base, len: live.len() as u32 };
        self.blocks.insert(Row(place), Row(stored), 0).context(|| "writing map MATCH_BLOCKS".into())?;
        if let Some(old) = self.places.insert(place, Block { base, room, rows }) {
            self.left.push((Instant::now(), old.base, old.room));
        }
        Ok(())
    }

    fn take(&mut self, room: u32) -> Result<u32, Error> {
        for (_, base, room) in self.left.extract_if(.., |(since, ..)| since.elapsed() > REST) {
            self.used[base as usize..(base + room) as usize].fill(false);
        }
        // Rooms are powers of two, and so are the places where they begin.
        let fits = |base: &usize| self.used[*base..base + room as usize].iter().all(|used| !used);
        let base = (0..self.used.len()).step_by(room as usize).find(fits).ok_or_else(|| {
            let what = format!("a node has at most {} live traces", limits::MATCHES);
            Error::new(ErrorKind::TableFull, what)
        })?;
        self.used[base..base + room as usize].fill(true);
        Ok(base as u32)
    }

    /// Ends the rows of a trace.
    pub(super) fn end(&mut self, number: u32) -> Result<(), Error> {
        let mut empty = Vec::new();
        for (place, block) in &mut self.places {
            for (row, owner) in (block.base..).zip(&mut block.rows) {
                if *owner == Some(number) {
                    *owner = None;
                    self.rows.set(row, MatchRow::default())?;
                }
            }
            if block.rows.iter().all(Option::is_none) {
                empty.push(*place);
            }
        }
        for place in &empty {
            self.remove_block(*place)?;
        }
        for place in empty {
            if let Some(block) = self.places.remove(&place) {
                self.left.push((Instant::now(), block.base, block.room));
            }
        }
        Ok(())
    }

    fn remove_block(&mut self, place: u32) -> Result<(), Error> {
        match self.blocks.remove(&Row(place)) {
            Err(aya::maps::MapError::KeyNotFound) => Ok(()),
            other => other.context(|| "writing map MATCH_BLOCKS".into()),
        }
    }
}
