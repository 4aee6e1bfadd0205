//! Runs that are left alone. In: a run. Out: what it measured when the hypervisor took no processor away, as far as it
//! says so, in ticks of 10 ms.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use crate::report;

/// A run that is never left alone is taken as it is.
const TRIES: usize = 6;

/// How many runs there were.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Calm {
    /// Those that warm up included.
    pub runs: usize,
    /// Made once more.
    pub repeated: usize,
    /// Taken though they were not left alone, by whose they were.
    pub disturbed: BTreeMap<&'static str, usize>,
}

impl Calm {
    /// Makes a run, and again when something was taken away meanwhile.
    ///
    /// # Errors
    /// Those of the run.
    pub fn run<T>(&mut self, whose: &'static str, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        self.runs += 1;
        let mut tries = 1;
        loop {
            let before = report::steal();
            let result = work()?;
            if report::steal() == before {
                return Ok(result);
            }
            if tries == TRIES {
                *self.disturbed.entry(whose).or_default() += 1;
                return Ok(result);
            }
            tries += 1;
            self.repeated += 1;
        }
    }

    /// Says it.
    pub fn tell(&self) {
        let Self { runs, repeated, disturbed } = self;
        let list: Vec<String> =
            disturbed.iter().map(|(whose, count)| format!("{count} of {whose}")).collect();
        report::note(&format!(
            "\n{runs} runs; {repeated} were made again, for the hypervisor took a processor away meanwhile; \
             taken though it did so {TRIES} times: {}",
            if list.is_empty() { "none".to_owned() } else { list.join(", ") }
        ));
    }
}
