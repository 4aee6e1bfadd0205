//! The loaded programs and the reference model see the same frames under the same rules, and must agree on
//! everything: return code, frame, counters, and every byte of a tunnelled copy.
//!
//! `PODWIRE_DIFFERENTIAL_CASES` frames (10,000 unless given) from seed `PODWIRE_DIFFERENTIAL_SEED`.

mod differential;

use std::time::Instant;

use anyhow::{Context, Result};
use podwire_harness::{NetNs, Scratch};
use podwire_tests::model::random::Random;

use differential::{Kernel, Tally, scene};

/// Frames per set of rules.
const FRAMES: u64 = 200;

#[test]
fn root_kernel_and_model_agree() -> Result<()> {
    if !podwire_tests::node::has_tcx() {
        println!("SKIPPED: this kernel has no tcx links, by which the test finds the programs");
        return Ok(());
    }
    let cases = number("PODWIRE_DIFFERENTIAL_CASES", 10_000)?;
    let seed = number("PODWIRE_DIFFERENTIAL_SEED", 1)?;
    let (node, sink) = (NetNs::new("loaded")?, NetNs::new("sink")?);
    let scratch = Scratch::new()?;
    scene::lay(&node, &sink)?;
    let bpffs = scratch.bpf().join("podwire");
    let started = Instant::now();
    let tally = node.enter(move || {
        let mut kernel = Kernel::open(bpffs)?;
        let mut random = Random::new(seed);
        let mut tally = Tally::default();
        while tally.frames < cases {
            let mut round = kernel.next_rules(&mut random)?;
            for _ in 0..FRAMES.min(cases - tally.frames) {
                round.frame(&mut random, &mut tally).with_context(|| {
                    format!("seed {seed}, frame {}, {:#?}", tally.frames, round.desired.mirrors)
                })?;
            }
        }
        kernel.remove()?;
        Ok(tally)
    })?;
    println!("seed {seed}, {:.1} s: {tally:?}", started.elapsed().as_secs_f64());
    tally.check()
}

fn number(variable: &str, otherwise: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable}={text}")),
        Err(_) => Ok(otherwise),
    }
}
