//! Waiting for what others do by themselves.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Waits until `holds`, at most ten seconds.
///
/// # Errors
/// When it does not hold in time, or cannot be told.
pub fn eventually(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds()? {
        if Instant::now() > deadline {
            bail!("{what}: not within ten seconds");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
