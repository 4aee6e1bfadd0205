//! The kernel's switches under `/proc/sys`. In: a name and a value. Out: it is so, and the log says what changed.

use std::fs;

use crate::error::{Context, Error};

/// Lets the node forward packets between its devices.
///
/// # Errors
/// A switch cannot be written. A kernel without IPv6 has no such switch, and that is none.
pub(crate) fn forward() -> Result<(), Error> {
    set("net/ipv4/ip_forward", "1")?;
    set("net/ipv6/conf/all/forwarding", "1")
}

/// Sets a switch that has another value; one that does not exist is left out.
///
/// # Errors
/// It cannot be written.
pub(crate) fn set(name: &str, value: &str) -> Result<(), Error> {
    let path = format!("/proc/sys/{name}");
    match fs::read_to_string(&path) {
        Ok(now) if now.trim() == value => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        _ => {}
    }
    fs::write(&path, value).context(|| format!("setting {name} to {value}"))?;
    tracing::info!(name, value, "a kernel switch was set");
    Ok(())
}
