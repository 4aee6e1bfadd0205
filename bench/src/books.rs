//! What the kernel counts. In: a network namespace. Out: packets by interface, packets that the IP stack received.
//!
//! Read from /proc, opened once: a read takes microseconds, where a command would take milliseconds.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use podwire_harness::NetNs;

/// The counters of a namespace.
#[derive(Debug)]
pub struct Books {
    devices: File,
    ip: File,
}

impl Books {
    /// Opens those of a namespace.
    pub fn open(netns: &NetNs) -> Result<Self> {
        netns.enter(|| {
            Ok(Self {
                devices: File::open("/proc/thread-self/net/dev")?,
                ip: File::open("/proc/thread-self/net/snmp")?,
            })
        })
    }

    /// Packets and bytes received by interface.
    pub fn received(&self) -> Result<HashMap<String, (u64, u64)>> {
        let text = read(&self.devices)?;
        Ok(text
            .lines()
            .filter_map(|line| {
                let (name, fields) = line.split_once(':')?;
                let mut fields = fields.split_whitespace().map(|field| field.parse().ok());
                let (bytes, packets) = (fields.next()??, fields.next()??);
                Some((name.trim().to_owned(), (packets, bytes)))
            })
            .collect())
    }

    /// Packets that reached the IP stack.
    pub fn ip_received(&self) -> Result<u64> {
        let text = read(&self.ip)?;
        let mut lines = text.lines().filter(|line| line.starts_with("Ip:"));
        let (names, values) = (lines.next().context("no names")?, lines.next().context("no values")?);
        names
            .split_whitespace()
            .zip(values.split_whitespace())
            .find(|(name, _)| *name == "InReceives")
            .and_then(|(_, value)| value.parse().ok())
            .context("the kernel does not count received packets")
    }
}

fn read(file: &File) -> Result<String> {
    let mut text = vec![0; 1 << 16];
    let mut len = 0;
    loop {
        let more = file.read_at(&mut text[len..], len as u64)?;
        if more == 0 {
            break;
        }
        len += more;
    }
    text.truncate(len);
    Ok(String::from_utf8(text)?)
}
