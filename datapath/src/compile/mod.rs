//! The rule compiler. In: the rules of all endpoints. Out: an [`Image`], the tables in which a packet's
//! sessions are found by array loads alone, whatever the number of rules.
//!
//! ```text
//!  Rule ► Term (a bit: per field a set of values) ► pieces (per field: values with equal bits)
//!       ► trie and rows ► RulesetRow ► Image ► BankTables
//! ```
//!
//! What rules mean is written in [`rule`], and in code that can be read beside it in [`naive`]. The compiled
//! form and how a packet goes through it stand in [`podwire_core::abi`] and [`podwire_core::stage`].
//!
//! Pure: no I/O, no clock, and equal input gives equal output. Equal rules are compiled once, whatever the
//! number of endpoints that have them.

mod error;
mod image;
pub mod naive;
mod ranges;
mod routes;
mod rows;
pub mod rule;
mod ruleset;
mod sources;
mod synthetic;
pub mod tables;
mod term;
#[cfg(test)]
mod tests;
mod trie;

use std::collections::HashMap;

use podwire_core::abi::{Direction, EndpointRow, Entry, RulesetRow, SpanRow};

pub use error::{CompileError, Table};
pub use image::{BankTables, Image, Section, Usage};
pub use rule::{AddressSet, Destinations, EndpointRules, Guarded, Nature, Policy, Rule, Sources, TcpFlags};
pub use synthetic::synthetic;

use error::fits;
use image::{Compiled, Parts};
use rows::Rows;
use ruleset::Demand;
use trie::Tries;

/// Compiles the rules of all endpoints of the node.
///
/// The order of endpoints, of policies and of rules does not matter. Several policies may name one session.
///
/// # Errors
/// When something does not fit its table, or a slot or session number is out of range or, for a slot, given
/// twice.
pub fn compile(endpoints: &[EndpointRules]) -> Result<Image, CompileError> {
    compile_with(endpoints, &Destinations::default())
}

/// [`compile`], with the destinations that the node knows.
///
/// # Errors
/// As [`compile`].
pub fn compile_with(endpoints: &[EndpointRules], destinations: &Destinations) -> Result<Image, CompileError> {
    let mut sorted: Vec<_> = endpoints.iter().collect();
    sorted.sort_by_key(|endpoint| endpoint.slot);
    for same in sorted.chunk_by(|left, right| left.slot == right.slot) {
        let slot = same[0].slot;
        fits(Table::Endpoints, (slot as usize).saturating_add(1), Some(slot))?;
        fits(Table::EndpointEntries, same.len(), Some(slot))?;
    }
    let mut compiler = Compiler::default();
    let mut rows = Rows::new();
    let mut slots = Vec::with_capacity(sorted.len());
    for endpoint in sorted {
        let table = ruleset::SlotTable::new(endpoint)?;
        let ingress =
            compiler.ruleset(&table, &endpoint.ingress, Direction::Ingress, &mut rows, endpoint.slot)?;
        let egress =
            compiler.ruleset(&table, &endpoint.egress, Direction::Egress, &mut rows, endpoint.slot)?;
        let mut flags = if table.is_stateful() { EndpointRow::FLAG_STATEFUL } else { 0 };
        let mut sources = [Entry::NONE; 3];
        if let Some(own) = &endpoint.sources {
            flags |= match own.guard {
                Some(Guarded::Dropped) => EndpointRow::FLAG_ENFORCE,
                Some(Guarded::Observed) => EndpointRow::FLAG_OBSERVE,
                None => 0,
            };
            sources = sources::compile(own, &mut rows, &mut compiler.tries, endpoint.slot)?;
        }
        flags |= if endpoint.answers { EndpointRow::FLAG_ANSWERS } else { 0 };
        let mut leaving = None;
        if let Some(policies) = &endpoint.leaving {
            flags |= EndpointRow::FLAG_LEAVES;
            let table = ruleset::SlotTable::of(policies, endpoint.slot)?;
            leaving = compiler.ruleset(&table, policies, Direction::Egress, &mut rows, endpoint.slot)?;
        }
        slots.push(Compiled {
            slot: endpoint.slot,
            rulesets: [ingress, egress],
            leaving,
            flags,
            sources,
            gateway: endpoint.gateway,
        });
    }
    let Compiler { tries, spans, rulesets, .. } = compiler;
    let (nodes, prefixes) = tries.into_rows();
    let routes = routes::compile(destinations)?;
    fits(Table::Nodes, nodes.len() + routes.nodes.len(), None)?;
    fits(Table::Prefixes, prefixes.len() + routes.prefixes.len(), None)?;
    Ok(Image::new(Parts { nodes, prefixes, spans, rulesets, endpoints: slots, routes }, rows.lay_out()?))
}

/// What is compiled so far, and by which rules it is found again.
#[derive(Default)]
struct Compiler {
    tries: Tries,
    spans: Vec<SpanRow>,
    rulesets: Vec<RulesetRow>,
    /// Rule sets by what the rules come to: independent of their order and of the direction.
    by_demand: HashMap<Demand, u32>,
    by_spans: HashMap<Vec<SpanRow>, u32>,
}

impl Compiler {
    /// The rule set for an endpoint's policies of one direction, `None` when nothing can match.
    fn ruleset(
        &mut self,
        table: &ruleset::SlotTable,
        policies: &[Policy],
        direction: Direction,
        rows: &mut Rows,
        endpoint: u32,
    ) -> Result<Option<u32>, CompileError> {
        let demand = Demand::new(table, policies, direction);
        let index = if demand.is_empty() {
            None
        } else if let Some(&known) = self.by_demand.get(&demand) {
            Some(known)
        } else {
            let (mut ruleset, spans) = ruleset::compile(&demand, rows, &mut self.tries, endpoint)?;
            ruleset.spans = self.span(spans, endpoint)?;
            let index = self.rulesets.len() as u32;
            self.rulesets.push(ruleset);
            fits(Table::Rulesets, self.rulesets.len(), Some(endpoint))?;
            self.by_demand.insert(demand, index);
            Some(index)
        };
        Ok(index)
    }

    /// First row of these spans.
    fn span(&mut self, spans: Vec<SpanRow>, endpoint: u32) -> Result<u32, CompileError> {
        if let Some(&known) = self.by_spans.get(&spans) {
            return Ok(known);
        }
        let first = self.spans.len() as u32;
        self.spans.extend(&spans);
        fits(Table::Spans, self.spans.len(), Some(endpoint))?;
        self.by_spans.insert(spans, first);
        Ok(first)
    }
}
