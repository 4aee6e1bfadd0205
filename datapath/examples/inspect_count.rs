//! An inline inspector that only counts: `inspect_count INPUT OUTPUT SECONDS [BPFFS]`.
//!
//! INPUT and OUTPUT are the ports that a redirect's `targetPort` and `returnPort` name. With 0 seconds it works
//! until it is killed; frames then pass uninspected.

#![expect(clippy::print_stdout, reason = "the example's result")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwire_datapath::xsk::inspect::{Inspected, Setup};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, seconds, rest @ ..] = words.as_slice() else {
        anyhow::bail!("usage: inspect_count INPUT OUTPUT SECONDS [BPFFS]");
    };
    let mut setup = Setup::new(input, output);
    if let Some(bpffs) = rest.first() {
        setup.bpffs = bpffs.into();
    }
    let seconds: u64 = seconds.parse().context("SECONDS is a number")?;
    let inspector = setup.start(|_queue| |_frame: &mut Inspected<'_>| {})?;
    println!("at work");
    let end = Instant::now() + Duration::from_secs(if seconds == 0 { u64::from(u32::MAX) } else { seconds });
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
        ensure!(inspector.is_alive(), "a port is gone: {:?}", inspector.counts());
    }
    println!("{:?}", inspector.counts());
    inspector.stop();
    Ok(())
}
