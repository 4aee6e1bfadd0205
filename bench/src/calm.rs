//! Runs that are left alone. In: a run. Out: what it measured at a time when the hypervisor took no processor away.

use anyhow::Result;
use serde::Serialize;

use crate::report;

/// Clock ticks of 10 ms that may be missing of a run, over all processors.
const STOLEN: u64 = 1;
/// A run that is never left alone is taken as it is.
const TRIES: usize = 6;

/// How many runs there were.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Calm {
    /// All that count.
    pub runs: usize,
    /// Made once more.
    pub repeated: usize,
    /// Taken though they were not left alone.
    pub disturbed: usize,
}

impl Calm {
    /// Makes a run, and again when something was taken away meanwhile.
    ///
    /// # Errors
    /// Those of the run.
    pub fn run<T>(&mut self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        self.runs += 1;
        let mut tries = 1;
        loop {
            let before = report::steal();
            let result = work()?;
            let stolen =
                report::steal().zip(before).map_or(0, |(after, before)| after.saturating_sub(before));
            if stolen <= STOLEN {
                return Ok(result);
            }
            if tries == TRIES {
                self.disturbed += 1;
                return Ok(result);
            }
            tries += 1;
            self.repeated += 1;
        }
    }

    /// Says it.
    pub fn tell(&self) {
        let Self { runs, repeated, disturbed } = self;
        report::note(&format!(
            "\n{runs} runs; {repeated} were made again, for the hypervisor took a processor away meanwhile; \
             {disturbed} were taken though it did so {TRIES} times"
        ));
    }
}
