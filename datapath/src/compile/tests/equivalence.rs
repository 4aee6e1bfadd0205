//! For every packet, the compiled tables and the naive matcher name the same sessions.

use std::collections::BTreeSet;

use podwire_core::abi::{Direction, Generation};
use podwire_core::stage::{Facts, parse};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::frame::Frame;
use super::generate::{Bounds, Probe, mirrors, probe};
use super::{sessions, tables};
use crate::compile::{EndpointRules, Policy, compile, naive};

const GENERATIONS: [Generation; 2] = [Generation(6), Generation(7)];

/// Sessions by rules for every direction, endpoint and packet; the tables must agree in both banks.
fn check(endpoints: &[EndpointRules], packets: &[Facts]) -> Result<(), TestCaseError> {
    let image = compile(endpoints).expect("small rule sets fit");
    let banks = GENERATIONS.map(|generation| tables(&image, generation));
    for endpoint in endpoints {
        for (direction, mirrors) in
            [(Direction::Ingress, &endpoint.ingress), (Direction::Egress, &endpoint.egress)]
        {
            for facts in packets {
                let expected = naive::sessions(mirrors, direction, facts);
                for tables in &banks {
                    let found = sessions(tables, endpoint.slot, direction, facts);
                    prop_assert_eq!(&found, &expected, "{:?} {:?} {:#?}", direction, facts, mirrors);
                }
            }
        }
    }
    Ok(())
}

/// Endpoints of which some have the same rules in both directions.
fn endpoints() -> impl Strategy<Value = Vec<EndpointRules>> {
    vec((mirrors(), proptest::option::of(mirrors())), 1..4).prop_map(|lists| {
        let slots = [0, 5, 1023];
        let endpoint = |(slot, (ingress, egress)): (u32, (Vec<Policy>, Option<Vec<Policy>>))| EndpointRules {
            slot,
            egress: egress.unwrap_or_else(|| ingress.clone()),
            ingress,
            sources: None,
            leaving: None,
            answers: false,
            gateway: [0; 6],
        };
        slots.into_iter().zip(lists).map(endpoint).collect()
    })
}

fn bounds(endpoints: &[EndpointRules]) -> Bounds {
    let all: Vec<Policy> = endpoints
        .iter()
        .flat_map(|endpoint| endpoint.ingress.iter().chain(&endpoint.egress))
        .cloned()
        .collect();
    Bounds::of(&all)
}

proptest! {
    #[test]
    fn compiled_and_naive_agree_on_facts(endpoints in endpoints(), probes in vec(probe(), 100)) {
        let bounds = bounds(&endpoints);
        let packets: Vec<Facts> = probes.iter().map(|probe| bounds.facts(probe)).collect();
        check(&endpoints, &packets)?;
    }

    #[test]
    fn compiled_and_naive_agree_on_frames(
        endpoints in endpoints(),
        frames in vec((probe(), any::<bool>(), any::<Option<Index>>(), any::<Option<(Index, u8)>>()), 50),
    ) {
        let bounds = bounds(&endpoints);
        let packets: Vec<Facts> = frames
            .iter()
            .map(|(probe, fragment, cut, change)| parse(&frame(&bounds, probe, *fragment, *cut, *change)))
            .collect();
        check(&endpoints, &packets)?;
    }

    #[test]
    fn order_of_rules_and_mirrors_does_not_matter(mirrors in mirrors()) {
        let endpoint = |mirrors: Vec<Policy>| {
            [EndpointRules { slot: 3, ingress: mirrors, ..EndpointRules::default() }]
        };
        let mut reversed = mirrors.clone();
        reversed.reverse();
        reversed.iter_mut().for_each(|mirror| mirror.rules.reverse());
        let image = compile(&endpoint(mirrors.clone())).unwrap();
        prop_assert_eq!(&image, &compile(&endpoint(reversed)).unwrap());
        prop_assert_eq!(&image, &compile(&endpoint(mirrors)).unwrap());
    }
}

/// A frame, perhaps cut short, perhaps with a byte changed.
fn frame(
    bounds: &Bounds,
    probe: &Probe,
    fragment: bool,
    cut: Option<Index>,
    change: Option<(Index, u8)>,
) -> Frame {
    let mut frame = Frame::new(&bounds.facts(probe), fragment);
    if let Some((index, value)) = change {
        *index.get_mut(&mut frame.0) = value;
    }
    if let Some(cut) = cut {
        let len = cut.index(frame.0.len());
        frame.0.truncate(len);
    }
    frame
}

/// Which kinds of outcome the generated packets reach: a generator that never hits proves nothing.
#[test]
fn generated_packets_hit_and_miss() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut hits, mut partial, mut misses) = (0, 0, 0);
    for _ in 0..200 {
        let mirrors = mirrors().new_tree(&mut runner).unwrap().current();
        let all: BTreeSet<u16> = mirrors.iter().map(|mirror| mirror.session).collect();
        let bounds = Bounds::of(&mirrors);
        for _ in 0..50 {
            let facts = bounds.facts(&probe().new_tree(&mut runner).unwrap().current());
            match naive::sessions(&mirrors, Direction::Egress, &facts) {
                found if found.is_empty() => misses += 1,
                found if found == all => hits += 1,
                _ => partial += 1,
            }
        }
    }
    assert!(
        hits > 1000 && partial > 1000 && misses > 1000,
        "{hits} hits, {partial} partial, {misses} misses"
    );
}
