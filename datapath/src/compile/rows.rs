//! Rows of rule bits. In: rows as words. Out: the `CHUNKS` table and each row's place in it.
//!
//! Most rows hold a few bits in one place. What a row keeps when the zero chunks at both ends are cut off is
//! its core; rows share cores, and cores share the zero chunks between them. A row is then a window of the
//! table: as many chunks as its rule set has, around the core.

use std::collections::HashMap;

use podwire_core::abi::{CHUNK_WORDS, ChunkRow};

use super::error::{CompileError, Table, fits};

/// A row, by number until the table is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowId(pub(super) u32);

impl RowId {
    /// The row without bits.
    pub(super) const EMPTY: Self = Self(0);
}

/// A core and the zero chunks that the rows around it need on its sides.
#[derive(Default)]
struct Margins {
    before: usize,
    after: usize,
}

/// All rows of an image.
pub(super) struct Rows {
    cores: HashMap<Box<[u64]>, usize>,
    margins: Vec<Margins>,
    /// Number by core and zero chunks before it.
    numbers: HashMap<(usize, usize), RowId>,
    /// Core and zero chunks before it, by number less one.
    rows: Vec<(usize, usize)>,
    /// Chunks of all cores.
    core_chunks: usize,
}

impl Rows {
    pub(super) fn new() -> Self {
        Self {
            cores: HashMap::new(),
            margins: Vec::new(),
            numbers: HashMap::new(),
            rows: Vec::new(),
            core_chunks: 0,
        }
    }

    /// The number of a row: whole chunks, as many as its rule set has.
    ///
    /// # Errors
    /// [`Table::Chunks`] when the cores alone are more than the table holds.
    pub(super) fn number(&mut self, row: &[u64], endpoint: u32) -> Result<RowId, CompileError> {
        let Some(first) = row.iter().position(|&word| word != 0) else {
            return Ok(RowId::EMPTY);
        };
        let last = row.iter().rposition(|&word| word != 0).unwrap_or(first);
        let (before, end) = (first / CHUNK_WORDS, last / CHUNK_WORDS + 1);
        let core = self.core(&row[before * CHUNK_WORDS..end * CHUNK_WORDS]);
        fits(Table::Chunks, self.core_chunks, Some(endpoint))?;
        let margins = &mut self.margins[core];
        margins.before = margins.before.max(before);
        margins.after = margins.after.max(row.len() / CHUNK_WORDS - end);
        Ok(*self.numbers.entry((core, before)).or_insert_with(|| {
            self.rows.push((core, before));
            RowId(self.rows.len() as u32)
        }))
    }

    fn core(&mut self, words: &[u64]) -> usize {
        if let Some(&core) = self.cores.get(words) {
            return core;
        }
        let core = self.margins.len();
        self.cores.insert(words.into(), core);
        self.margins.push(Margins::default());
        self.core_chunks += words.len() / CHUNK_WORDS;
        core
    }

    /// Lays the table out, in the order in which cores were first seen.
    ///
    /// # Errors
    /// [`Table::Chunks`].
    pub(super) fn lay_out(self) -> Result<Layout, CompileError> {
        let mut cores = vec![<Box<[u64]>>::default(); self.margins.len()];
        for (words, core) in self.cores {
            cores[core] = words;
        }
        let mut chunks: Vec<ChunkRow> = Vec::new();
        let mut starts = Vec::with_capacity(cores.len());
        let mut after = 0;
        for (words, margins) in cores.iter().zip(&self.margins) {
            chunks.resize(chunks.len() + margins.before.max(after), [0; CHUNK_WORDS]);
            starts.push(chunks.len());
            chunks.extend(words.as_chunks::<CHUNK_WORDS>().0);
            after = margins.after;
        }
        chunks.resize(chunks.len() + after, [0; CHUNK_WORDS]);
        fits(Table::Chunks, chunks.len(), None)?;
        let places = self.rows.iter().map(|&(core, before)| (starts[core] - before) as u32).collect();
        Ok(Layout { chunks, places })
    }
}

/// The table and where its rows are.
pub(super) struct Layout {
    /// The table.
    pub(super) chunks: Vec<ChunkRow>,
    places: Vec<u32>,
}

impl Layout {
    /// First chunk of a row, `None` for the row without bits.
    pub(super) fn place(&self, row: RowId) -> Option<u32> {
        row.0.checked_sub(1).and_then(|index| self.places.get(index as usize)).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::{CHUNK_WORDS, Rows};

    /// A row of `chunks` chunks with some bits; those beyond it are left out.
    fn row(chunks: usize, bits: &[usize]) -> Vec<u64> {
        let mut row = vec![0; chunks * CHUNK_WORDS];
        for bit in bits {
            if let Some(word) = row.get_mut(bit / 64) {
                *word |= 1 << (bit % 64);
            }
        }
        row
    }

    proptest! {
        #[test]
        fn rows_read_back_as_written(
            written in vec((1..=20_usize, vec((0..20_usize, 0..3_usize), 0..4)), 1..20),
        ) {
            let written: Vec<_> = written
                .into_iter()
                .map(|(chunks, bits)| {
                    row(chunks, &bits.iter().map(|(chunk, bit)| chunk * 512 + bit).collect::<Vec<_>>())
                })
                .collect();
            let mut rows = Rows::new();
            let numbers: Vec<_> = written.iter().map(|row| rows.number(row, 0).unwrap()).collect();
            let layout = rows.lay_out().unwrap();
            for (row, number) in written.iter().zip(numbers) {
                let chunks = row.len() / CHUNK_WORDS;
                let read = match layout.place(number) {
                    Some(place) => layout.chunks[place as usize..][..chunks].concat(),
                    None => vec![0; row.len()],
                };
                prop_assert_eq!(&read, row);
            }
        }
    }

    #[test]
    fn single_bits_cost_a_chunk_per_place_in_the_chunk() {
        let mut rows = Rows::new();
        for bit in 0..10_240 {
            rows.number(&row(20, &[bit]), 0).unwrap();
        }
        // 512 cores with 19 empty chunks around each, not 10,240 rows of 20.
        assert_eq!(rows.lay_out().unwrap().chunks.len(), 512 * 20 + 19);
    }
}
