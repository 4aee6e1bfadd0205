//! In either bank, every index leads to a row of that bank.

use podwire_core::abi::{Entry, EntryKind, limits};

use super::endpoint;
use crate::compile::{BankTables, EndpointRules, Policy, Section, compile, synthetic};

impl BankTables {
    fn check_entry(&self, entry: u32, chunks: u32) {
        let entry = Entry(entry);
        match entry.kind() {
            EntryKind::Row => self.check_row(entry.index(), chunks),
            EntryKind::Node => assert!(self.nodes.get(entry.index()).is_some()),
            EntryKind::Prefix => assert!(self.prefixes.get(entry.index()).is_some()),
            EntryKind::Any => {}
        }
    }

    /// The whole row is in the bank, or is the empty row.
    fn check_row(&self, index: u32, chunks: u32) {
        let within = |index| self.chunks.get(index).is_some();
        assert!(index == 0 || within(index) && within(index + chunks - 1), "row {index}");
    }
}

/// A few rule sets of one size.
fn endpoints() -> Vec<EndpointRules> {
    let mut endpoints: Vec<_> = (0..4).map(|slot| endpoint(slot, synthetic(900, slot.into()))).collect();
    endpoints[2].ingress.push(Policy::mirror(3, synthetic(20, 9)));
    endpoints
}

#[test]
fn every_index_stays_in_its_bank() {
    let image = compile(&endpoints()).unwrap();
    for bank in [0, 1] {
        let tables = image.relocate(bank);
        for endpoint in &tables.endpoints.rows[..4] {
            assert!(endpoint.rulesets.iter().all(|index| tables.rulesets.get(index - 1).is_some()));
        }
        for ruleset in &tables.rulesets.rows {
            assert_eq!(ruleset.chunks, 2);
            assert!(
                tables.spans.get(ruleset.spans).is_some() && tables.spans.get(ruleset.spans + 1).is_some()
            );
            for mode in &ruleset.modes {
                assert_eq!(Entry(mode.base).kind(), EntryKind::Row);
                let tries =
                    [mode.remote, mode.local, mode.source, mode.destination, mode.portless, mode.tcp_flags];
                tries.into_iter().chain([mode.base]).for_each(|entry| tables.check_entry(entry, 2));
            }
        }
        tables.nodes.rows.iter().flatten().for_each(|&entry| tables.check_entry(entry, 2));
        for prefix in &tables.prefixes.rows {
            tables.check_row(prefix.hit, 2);
            tables.check_row(prefix.miss, 2);
        }
    }
}

#[test]
fn banks_do_not_overlap() {
    fn apart<T>(low: &Section<T>, high: &Section<T>, start: u32, end: u32) {
        assert_eq!((low.base, high.base), (start, (start + end) / 2));
        assert!(!low.rows.is_empty() && low.rows.len() == high.rows.len());
        assert!(low.base + low.rows.len() as u32 <= high.base && high.base + high.rows.len() as u32 <= end);
    }
    let image = compile(&endpoints()).unwrap();
    let (low, high) = (image.relocate(0), image.relocate(1));
    apart(&low.nodes, &high.nodes, 0, 2 * limits::NODES);
    apart(&low.prefixes, &high.prefixes, 0, 2 * limits::PREFIXES);
    // As large as two banks, of which the shared empty row takes the first chunks.
    let chunks = 2 * limits::CHUNKS - limits::RULESET_CHUNKS;
    apart(&low.chunks, &high.chunks, limits::RULESET_CHUNKS, chunks);
    apart(&low.spans, &high.spans, 0, 2 * limits::SPANS);
    apart(&low.rulesets, &high.rulesets, 0, 2 * limits::RULESETS);
    apart(&low.endpoints, &high.endpoints, 0, 2 * limits::ENDPOINTS);
    assert_eq!(low.endpoints.rows.len() as u32, limits::ENDPOINTS);
}
