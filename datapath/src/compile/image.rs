//! The compiled rules of all endpoints: tables with indexes from 0 on, to be moved into either bank.

use std::fmt;

use podwire_core::abi::{
    ChunkRow, Direction, EndpointRow, Entry, EntryKind, ModeRow, NodeRow, PrefixRow, RulesetRow, SpanRow,
    limits,
};

use super::error::Table;
use super::routes::Routes;
use super::rows::{Layout, RowId};

/// The tables of one generation, in no bank yet.
///
/// Equal input gives equal images.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    nodes: Vec<NodeRow>,
    prefixes: Vec<PrefixRow>,
    /// Without the shared empty row in front.
    chunks: Vec<ChunkRow>,
    spans: Vec<SpanRow>,
    rulesets: Vec<RulesetRow>,
    /// In the order of slots.
    endpoints: Vec<Compiled>,
    /// Behind the nodes and prefixes of the rules.
    routes: Routes,
}

/// An endpoint, compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compiled {
    pub(super) slot: u32,
    /// Rule set by direction.
    pub(super) rulesets: [Option<u32>; 2],
    /// Rule set of its Egress policies.
    pub(super) leaving: Option<u32>,
    /// MAC address of the interface's host side.
    pub(super) gateway: [u8; 6],
    /// `FLAG_…` of [`EndpointRow`].
    pub(super) flags: u32,
    /// The tries of its own sources: MAC addresses, IPv4, IPv6.
    pub(super) sources: [Entry; 3],
}

/// Rows of a map from index `base` on.
#[derive(Clone, PartialEq, Eq)]
pub struct Section<T> {
    /// Index of the first row.
    pub base: u32,
    /// The rows.
    pub rows: Vec<T>,
}

impl<T> Section<T> {
    /// The row at an absolute index.
    pub fn get(&self, index: u32) -> Option<&T> {
        self.rows.get(index.checked_sub(self.base)? as usize)
    }
}

/// The extent alone: rows are numbers by the thousand.
impl<T> fmt::Debug for Section<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows from {} on", self.rows.len(), self.base)
    }
}

/// The tables of one generation with absolute indexes, as they are written to the maps of the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BankTables {
    /// The bank, 0 or 1.
    pub bank: u32,
    /// Map `NODES`.
    pub nodes: Section<NodeRow>,
    /// Map `PREFIXES`.
    pub prefixes: Section<PrefixRow>,
    /// Map `CHUNKS`. The empty row, which is no bank's, is not in it.
    pub chunks: Section<ChunkRow>,
    /// Map `SPANS`.
    pub spans: Section<SpanRow>,
    /// Map `RULESETS`.
    pub rulesets: Section<RulesetRow>,
    /// The tries of IPv4 and IPv6 destinations; see [`podwire_core::abi::NetworkRow::routes_v4`].
    pub routes: [u32; 2],
    /// Map `ENDPOINTS`: every row of the bank, so that none of an earlier generation stays.
    pub endpoints: Section<EndpointRow>,
}

/// The sizes alone.
impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.usage()).finish()
    }
}

/// How full a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Which table.
    pub table: Table,
    /// Rows in use.
    pub used: u32,
    /// Rows of one bank.
    pub allowed: u32,
}

/// The parts of an image whose rows are still [`RowId`]s.
pub(super) struct Parts {
    pub(super) nodes: Vec<NodeRow>,
    pub(super) prefixes: Vec<PrefixRow>,
    pub(super) spans: Vec<SpanRow>,
    pub(super) rulesets: Vec<RulesetRow>,
    pub(super) endpoints: Vec<Compiled>,
    pub(super) routes: Routes,
}

impl Image {
    /// Puts the rows' places in.
    pub(super) fn new(parts: Parts, layout: Layout) -> Self {
        let row = |number: u32| {
            layout.place(RowId(number)).map_or(Entry::NONE.index(), |place| place + limits::RULESET_CHUNKS)
        };
        let moved = Move { row, node: 0, prefix: 0 };
        Self {
            nodes: parts.nodes.iter().map(|node| moved.node(node)).collect(),
            prefixes: parts.prefixes.iter().map(|prefix| moved.prefix(prefix)).collect(),
            spans: parts.spans,
            rulesets: parts.rulesets.iter().map(|ruleset| moved.ruleset(ruleset, 0)).collect(),
            endpoints: parts.endpoints.iter().map(|compiled| moved.endpoint(compiled)).collect(),
            chunks: layout.chunks,
            routes: parts.routes,
        }
    }

    /// The tables for `bank`, of which only the lowest bit counts.
    pub fn relocate(&self, bank: u32) -> BankTables {
        let bank = bank & 1;
        let chunk_offset = bank * Table::Chunks.allowed();
        let (node, prefix) = (bank * limits::NODES, bank * limits::PREFIXES);
        let (span, ruleset) = (bank * limits::SPANS, bank * limits::RULESETS);
        let row = |index: u32| if index == Entry::NONE.index() { index } else { index + chunk_offset };
        let moved = Move { row, node, prefix };
        let mut endpoints = vec![EndpointRow::default(); limits::ENDPOINTS as usize];
        for compiled in &self.endpoints {
            if let Some(endpoint) = endpoints.get_mut(compiled.slot as usize) {
                endpoint.rulesets =
                    compiled.rulesets.map(|index| index.map_or(0, |index| ruleset + index + 1));
                endpoint.flags = compiled.flags;
                endpoint.gateway = compiled.gateway;
                endpoint.egress = compiled.leaving.map_or(0, |index| ruleset + index + 1);
                let [macs, v4, v6] = compiled.sources.map(|entry| moved.entry(entry.0));
                (endpoint.macs, endpoint.sources_v4, endpoint.sources_v6) = (macs, v4, v6);
            }
        }
        let targets = bank * limits::TARGETS;
        let led = Move {
            row: |target: u32| if target == 0 { 0 } else { target + targets },
            node: node + self.nodes.len() as u32,
            prefix: prefix + self.prefixes.len() as u32,
        };
        let nodes = self.nodes.iter().map(|row| moved.node(row));
        let prefixes = self.prefixes.iter().map(|row| moved.prefix(row));
        BankTables {
            bank,
            nodes: section(node, nodes.chain(self.routes.nodes.iter().map(|row| led.node(row)))),
            prefixes: section(prefix, prefixes.chain(self.routes.prefixes.iter().map(|row| led.prefix(row)))),
            routes: self.routes.roots.map(|root| led.entry(root.0)),
            chunks: section(limits::RULESET_CHUNKS + chunk_offset, self.chunks.iter().copied()),
            spans: section(span, self.spans.iter().copied()),
            rulesets: section(ruleset, self.rulesets.iter().map(|row| moved.ruleset(row, span))),
            endpoints: section(bank * limits::ENDPOINTS, endpoints),
        }
    }

    /// Whether an endpoint's packets of this direction have to be looked at: rules can match them, they are answers
    /// within connections, their source is guarded, or podwire leads them.
    pub fn has_rules(&self, slot: u32, direction: Direction) -> bool {
        self.endpoints.binary_search_by_key(&slot, |compiled| compiled.slot).is_ok_and(|index| {
            let compiled = &self.endpoints[index];
            let stateful = compiled.flags & EndpointRow::FLAG_STATEFUL != 0;
            let from_pod = EndpointRow::FLAG_OBSERVE | EndpointRow::FLAG_ENFORCE | EndpointRow::FLAG_LEAVES;
            compiled.rulesets[direction as usize].is_some()
                || stateful && compiled.rulesets != [None, None]
                || compiled.flags & from_pod != 0 && direction == Direction::Egress
                || compiled.flags & EndpointRow::FLAG_ANSWERS != 0 && direction == Direction::Ingress
        })
    }

    /// How full the tables are.
    pub fn usage(&self) -> Vec<Usage> {
        [
            (Table::Endpoints, self.endpoints.len()),
            (Table::Rulesets, self.rulesets.len()),
            (Table::Nodes, self.nodes.len() + self.routes.nodes.len()),
            (Table::Prefixes, self.prefixes.len() + self.routes.prefixes.len()),
            (Table::Chunks, self.chunks.len()),
            (Table::Spans, self.spans.len()),
        ]
        .map(|(table, used)| Usage { table, used: used as u32, allowed: table.allowed() })
        .to_vec()
    }
}

fn section<T>(base: u32, rows: impl IntoIterator<Item = T>) -> Section<T> {
    Section { base, rows: rows.into_iter().collect() }
}

/// How indexes change: rows by a function, the others by an offset.
struct Move<F> {
    row: F,
    node: u32,
    prefix: u32,
}

impl<F: Fn(u32) -> u32> Move<F> {
    fn entry(&self, entry: u32) -> u32 {
        let entry = Entry(entry);
        match entry.kind() {
            EntryKind::Row => Entry::row((self.row)(entry.index())).0,
            EntryKind::Node => Entry::node(entry.index() + self.node).0,
            EntryKind::Prefix => Entry::prefix(entry.index() + self.prefix).0,
            EntryKind::Any => entry.0,
        }
    }

    fn endpoint(&self, compiled: &Compiled) -> Compiled {
        Compiled { sources: compiled.sources.map(|entry| Entry(self.entry(entry.0))), ..*compiled }
    }

    fn node(&self, node: &NodeRow) -> NodeRow {
        node.map(|entry| self.entry(entry))
    }

    fn prefix(&self, prefix: &PrefixRow) -> PrefixRow {
        PrefixRow { hit: (self.row)(prefix.hit), miss: (self.row)(prefix.miss), ..*prefix }
    }

    fn ruleset(&self, ruleset: &RulesetRow, span: u32) -> RulesetRow {
        let modes = ruleset.modes.map(|mode| ModeRow {
            base: self.entry(mode.base),
            remote: self.entry(mode.remote),
            local: self.entry(mode.local),
            source: self.entry(mode.source),
            destination: self.entry(mode.destination),
            portless: self.entry(mode.portless),
            tcp_flags: self.entry(mode.tcp_flags),
        });
        RulesetRow { modes, spans: ruleset.spans + span, ..*ruleset }
    }
}
