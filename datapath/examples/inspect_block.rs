//! An inline inspector that drops what holds a pattern: `inspect_block INPUT OUTPUT SECONDS PATTERN…`.
//!
//! INPUT and OUTPUT are the ports that a redirect's `targetPort` and `returnPort` name. While it is not at work,
//! frames are dropped.

#![expect(clippy::print_stdout, reason = "the example's result")]

use std::time::{Duration, Instant};

use aho_corasick::AhoCorasick;
use anyhow::{Context, Result, ensure};
use podwire_datapath::xsk::inspect::{Inspect, Inspected, OnFailure, Setup};

/// Drops every frame with one of the patterns in it.
struct Block(AhoCorasick);

impl Inspect for Block {
    fn inspect(&mut self, batch: &mut [Inspected<'_>]) {
        for frame in batch {
            if self.0.is_match(frame.bytes()) {
                frame.discard();
            }
        }
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, seconds, patterns @ ..] = words.as_slice() else {
        anyhow::bail!("usage: inspect_block INPUT OUTPUT SECONDS PATTERN...");
    };
    let seconds: u64 = seconds.parse().context("SECONDS is a number")?;
    let patterns = AhoCorasick::new(patterns).context("the patterns")?;
    let mut setup = Setup { on_failure: OnFailure::Drop, ..Setup::new(input, output) };
    if let Some(bpffs) = std::env::var_os("PODWIRE_BPFFS") {
        setup.bpffs = bpffs.into();
    }
    let inspector = setup.start(|_queue| Block(patterns.clone()))?;
    println!("at work");
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
        ensure!(inspector.is_alive(), "a port is gone: {:?}", inspector.counts());
    }
    println!("{:?}", inspector.counts());
    inspector.stop();
    Ok(())
}
