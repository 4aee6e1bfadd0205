//! The compiled form against the naive matcher, sizes, sharing, and speed.

mod equivalence;
mod frame;
mod generate;
mod relocation;
mod sharing;
mod sizes;

use std::collections::BTreeSet;

use podwire_core::abi::{Direction, Generation};
use podwire_core::stage::{Facts, Tables, classify};

use super::tables::MemoryTables;
use super::{EndpointRules, Image, Policy, Rule};

/// Tables with the image in the bank of `generation`.
fn tables(image: &Image, generation: Generation) -> MemoryTables {
    let mut tables = MemoryTables::new();
    tables.write(image.relocate(generation.bank()));
    tables.set_generation(generation);
    tables
}

/// The rule set of an endpoint and direction, in the generation in force.
fn ruleset_of(tables: &MemoryTables, slot: u32, direction: Direction) -> Option<u32> {
    tables.endpoint(tables.generation(), slot)?.rulesets[direction as usize].checked_sub(1)
}

/// Sessions that the compiled tables find for a packet of an endpoint.
fn sessions(tables: &MemoryTables, slot: u32, direction: Direction, facts: &Facts) -> BTreeSet<u16> {
    let Some(index) = ruleset_of(tables, slot, direction) else {
        return BTreeSet::new();
    };
    let ruleset = tables.ruleset(index).expect("an endpoint names a rule set that exists");
    let found = classify(tables, index, direction, facts);
    (0..64).filter(|slot| found >> slot & 1 == 1).map(|slot| ruleset.sessions[slot]).collect()
}

/// An endpoint with one mirror per direction.
fn endpoint(slot: u32, rules: Vec<Rule>) -> EndpointRules {
    let mirrors = vec![Policy::mirror(1, rules)];
    EndpointRules { slot, ingress: mirrors.clone(), egress: mirrors, ..EndpointRules::default() }
}
