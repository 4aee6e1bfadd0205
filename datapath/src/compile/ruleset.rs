//! One rule set. In: the rule bits of an endpoint and direction, by policy. Out: its row, with the tries,
//! rows and spans that it needs added to the image.

use std::collections::BTreeMap;

use podwire_core::abi::{CHUNK_WORDS, Direction, Entry, Mode, ModeRow, RulesetRow, SpanRow, limits};

use super::error::{CompileError, Table, fits};
use super::rows::{RowId, Rows};
use super::rule::{EndpointRules, Nature, Policy, Rule};
use super::term::{Field, Term, terms};
use super::trie::{Piece, Tries};

/// Bits of a word.
const WORD: usize = 64;

/// The slots of an endpoint, the same for both directions: mirrors by number, then redirects by rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct SlotTable(Vec<Slot>);

/// A policy without its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Slot {
    /// First in the order.
    nature: Nature,
    number: u16,
    session: u16,
}

impl SlotTable {
    /// # Errors
    /// Numbers out of range, or more policies than an endpoint can have.
    pub(super) fn new(endpoint: &EndpointRules) -> Result<Self, CompileError> {
        Self::of(endpoint.ingress.iter().chain(&endpoint.egress), endpoint.slot)
    }

    /// # Errors
    /// As [`Self::new`].
    pub(super) fn of<'a>(
        policies: impl IntoIterator<Item = &'a Policy>,
        endpoint: u32,
    ) -> Result<Self, CompileError> {
        let mut slots: Vec<Slot> = policies
            .into_iter()
            .map(|policy| Slot { nature: policy.nature, number: policy.number, session: policy.session })
            .collect();
        slots.sort_unstable_by_key(|slot| (slot.nature.redirect, slot.number, *slot));
        slots.dedup();
        for slot in &slots {
            fits(Table::Sessions, usize::from(slot.session) + 1, Some(endpoint))?;
            fits(Table::Policies, usize::from(slot.number) + 1, Some(endpoint))?;
        }
        fits(Table::EndpointPolicies, slots.len(), Some(endpoint))?;
        Ok(Self(slots))
    }

    pub(super) fn is_stateful(&self) -> bool {
        self.0.iter().any(|slot| slot.nature.stateful)
    }

    fn find(&self, policy: &Policy) -> Option<usize> {
        self.0.iter().position(|slot| {
            (slot.nature, slot.number, slot.session) == (policy.nature, policy.number, policy.session)
        })
    }

    /// The slots that are so, a bit each.
    fn mask(&self, is_so: impl Fn(&Slot) -> bool) -> u64 {
        self.0.iter().enumerate().filter(|(_, slot)| is_so(slot)).fold(0, |mask, (bit, _)| mask | 1 << bit)
    }

    /// The part of a rule set's row that the slots decide.
    fn row(&self) -> RulesetRow {
        let mut row = RulesetRow {
            redirects: self.mask(|slot| slot.nature.redirect.is_some()),
            stateful: self.mask(|slot| slot.nature.stateful),
            limited: self.mask(|slot| slot.nature.limited),
            snaps: self.mask(|slot| slot.nature.snaps),
            readers: self.mask(|slot| slot.nature.reader),
            ..RulesetRow::default()
        };
        for (index, slot) in self.0.iter().enumerate().take(limits::RULESET_POLICIES) {
            row.policies[index] = slot.number;
            row.sessions[index] = slot.session;
            row.shares[index] = self.mask(|other| {
                other.session == slot.session
                    && other.nature.redirect.is_some() == slot.nature.redirect.is_some()
            });
        }
        row
    }
}

/// What an endpoint's policies of one direction come to: the slots, and per slot the distinct bits, in order.
/// Equal values match equal packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Demand {
    table: SlotTable,
    bits: Vec<(usize, Vec<Term>)>,
}

impl Demand {
    pub(super) fn new(table: &SlotTable, policies: &[Policy], direction: Direction) -> Self {
        let mut slots: BTreeMap<usize, Vec<Term>> = BTreeMap::new();
        for policy in policies {
            let Some(slot) = table.find(policy) else {
                continue;
            };
            let bits = slots.entry(slot).or_default();
            if policy.rules.is_empty() {
                bits.extend(terms(&Rule::default(), direction));
            }
            bits.extend(policy.rules.iter().flat_map(|rule| terms(rule, direction)));
        }
        for bits in slots.values_mut() {
            if let Some(everything) = bits.iter().position(Term::is_everything) {
                *bits = vec![bits.swap_remove(everything)];
            }
            bits.sort_unstable();
            bits.dedup();
        }
        slots.retain(|_, bits| !bits.is_empty());
        Self { table: table.clone(), bits: slots.into_iter().collect() }
    }

    /// Whether no packet can match.
    pub(super) fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }
}

/// The policy slot of each word, padded to whole chunks.
fn spans(demand: &Demand, endpoint: u32) -> Result<Vec<SpanRow>, CompileError> {
    let mut slots = Vec::new();
    for (slot, bits) in &demand.bits {
        slots.resize(slots.len() + bits.len().div_ceil(WORD), *slot as u8);
    }
    fits(Table::RulesetBits, slots.len() * WORD, Some(endpoint))?;
    slots.resize(slots.len().next_multiple_of(CHUNK_WORDS), 0);
    Ok(slots.as_chunks::<CHUNK_WORDS>().0.to_vec())
}

/// The bits of a demand by number, and the parts of the image that they go to.
struct Compiler<'a> {
    bits: Vec<(usize, &'a Term)>,
    words: usize,
    rows: &'a mut Rows,
    tries: &'a mut Tries,
    endpoint: u32,
}

/// Compiles a demand. Rows in the result are [`RowId`]s, and `spans` is for the caller to set.
///
/// # Errors
/// Any table may be too small.
pub(super) fn compile(
    demand: &Demand,
    rows: &mut Rows,
    tries: &mut Tries,
    endpoint: u32,
) -> Result<(RulesetRow, Vec<SpanRow>), CompileError> {
    let spans = spans(demand, endpoint)?;
    let mut bits = Vec::new();
    let mut word = 0;
    for (_, terms) in &demand.bits {
        bits.extend(terms.iter().enumerate().map(|(index, term)| (word * WORD + index, term)));
        word += terms.len().div_ceil(WORD);
    }
    let words = spans.len() * CHUNK_WORDS;
    let modes = Compiler { bits, words, rows, tries, endpoint }.modes()?;
    Ok((RulesetRow { modes, chunks: spans.len() as u32, ..demand.table.row() }, spans))
}

impl Compiler<'_> {
    fn modes(&mut self) -> Result<[ModeRow; 3], CompileError> {
        // Rules that only one of the two IP versions can match are in the row of the other's ports as well;
        // that is harmless, and both versions share the tries.
        let ip = |term: &Term| term.possible_in(Mode::V4) || term.possible_in(Mode::V6);
        let source = self.root(Field::Source, ip)?;
        let destination = self.root(Field::Destination, ip)?;
        let portless = self.root(Field::Portless, ip)?;
        let tcp_flags = self.root(Field::TcpFlags, ip)?;
        let mut modes = [ModeRow::NONE; 3];
        for (mode, remote, local) in
            [(Mode::V4, Field::RemoteV4, Field::LocalV4), (Mode::V6, Field::RemoteV6, Field::LocalV6)]
        {
            let possible = |term: &Term| term.possible_in(mode);
            let looked_at = |this: &Self, field, entry: Entry| {
                let any = this.bits.iter().all(|(_, term)| !possible(term) || term.field(field).is_none());
                if any { Entry::ANY.0 } else { entry.0 }
            };
            modes[mode as usize] = ModeRow {
                base: self.base(mode)?,
                remote: self.root(remote, possible)?.0,
                local: self.root(local, possible)?.0,
                source: looked_at(self, Field::Source, source),
                destination: looked_at(self, Field::Destination, destination),
                portless: looked_at(self, Field::Portless, portless),
                tcp_flags: looked_at(self, Field::TcpFlags, tcp_flags),
            };
        }
        modes[Mode::Other as usize] = ModeRow {
            base: self.base(Mode::Other)?,
            source: self.root(Field::EtherType, |term| term.possible_in(Mode::Other))?.0,
            ..ModeRow::NONE
        };
        Ok(modes)
    }

    /// The row of the bits that can match in a mode at all.
    fn base(&mut self, mode: Mode) -> Result<u32, CompileError> {
        let mut row = vec![0; self.words];
        for &(bit, term) in &self.bits {
            if term.possible_in(mode) {
                toggle(&mut row, bit);
            }
        }
        Ok(Entry::row(self.rows.number(&row, self.endpoint)?.0).0)
    }

    /// The trie of a field for the bits that are `possible`, [`Entry::ANY`] when none of them looks at it.
    ///
    /// One sweep over the bounds of all the bits' ranges, in order: the row changes by the bits that begin or
    /// end there.
    fn root(&mut self, field: Field, possible: impl Fn(&Term) -> bool) -> Result<Entry, CompileError> {
        let mut row = vec![0; self.words];
        let mut bounds = Vec::new();
        let mut looked_at = false;
        for &(bit, term) in self.bits.iter().filter(|(_, term)| possible(term)) {
            let Some(values) = term.field(field) else {
                toggle(&mut row, bit);
                continue;
            };
            looked_at = true;
            for (first, last) in values.iter() {
                bounds.push((first, bit));
                bounds.extend(last.checked_add(1).map(|end| (end, bit)));
            }
        }
        if !looked_at {
            return Ok(Entry::ANY);
        }
        bounds.sort_unstable();
        let pieces = self.pieces(row, &bounds)?;
        self.tries.root(&pieces, self.endpoint)
    }

    /// Pieces with different rows, from the row before all bounds on.
    fn pieces(&mut self, mut row: Vec<u64>, bounds: &[(u128, usize)]) -> Result<Vec<Piece>, CompileError> {
        let mut pieces: Vec<Piece> = Vec::new();
        if bounds.first().is_none_or(|&(start, _)| start > 0) {
            pieces.push(Piece { start: 0, row: self.number(&row)? });
        }
        for group in bounds.chunk_by(|left, right| left.0 == right.0) {
            for &(_, bit) in group {
                toggle(&mut row, bit);
            }
            let number = self.number(&row)?;
            if pieces.last().is_none_or(|last| last.row != number) {
                pieces.push(Piece { start: group[0].0, row: number });
            }
        }
        Ok(pieces)
    }

    fn number(&mut self, row: &[u64]) -> Result<RowId, CompileError> {
        self.rows.number(row, self.endpoint)
    }
}

fn toggle(row: &mut [u64], bit: usize) {
    row[bit / WORD] ^= 1 << (bit % WORD);
}
