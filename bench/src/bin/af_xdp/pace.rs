//! Frames at a rate. In: a cable and packets per second. Out: how many were sent, in which time.

use std::time::{Duration, Instant};

use anyhow::Result;
use podwire_bench::generator::{Generator, Outlet};

/// Frames that leave at once, as many as the kernel's generator makes in one go.
const CHUNK: u32 = 64;
/// A generator that was held up does not make up for more than this in one go.
const MOST: u32 = 2 * CHUNK;

/// What was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub frames: u64,
    pub time: Duration,
    /// Processor time in ns of the generator, and of what the kernel did there.
    pub work: u64,
}

/// Sends for so long; the clock decides when the next frames are due.
pub fn at_rate(outlet: &Outlet, frame: &[u8], rate: u32, time: Duration) -> Result<Sent> {
    on_thread(outlet, |start| {
        let mut frames = 0;
        loop {
            let elapsed = start.elapsed();
            if elapsed >= time {
                return Ok(frames);
            }
            let due = (elapsed.as_nanos() * u128::from(rate) / 1_000_000_000) as u64;
            let open = due.saturating_sub(frames);
            if open < u64::from(CHUNK) {
                std::hint::spin_loop();
                continue;
            }
            let count = open.min(u64::from(MOST)) as u32;
            outlet.send(frame, count)?;
            frames += u64::from(count);
        }
    })
}

/// Sends so many as fast as it goes.
pub fn at_once(outlet: &Outlet, frame: &[u8], count: u32) -> Result<Sent> {
    on_thread(outlet, |_| outlet.send(frame, count).map(|()| u64::from(count)))
}

fn on_thread(outlet: &Outlet, work: impl FnOnce(Instant) -> Result<u64> + Send) -> Result<Sent> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let generator = Generator::become_it()?;
            outlet.enter()?;
            let (before, start) = (generator.time()?, Instant::now());
            let frames = work(start)?;
            Ok(Sent { frames, time: start.elapsed(), work: generator.time()?.saturating_sub(before) })
        });
        thread.join().map_err(|_| anyhow::anyhow!("the generator panicked"))?
    })
}
