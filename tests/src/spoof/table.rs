//! The attempts as data: files with a row for each, `fate | what it is | frame`.
//!
//! Frames are scapy's expressions. They know: `OM O4 O6 OL` the pod's own MAC, IPv4, IPv6 and link-local addresses,
//! `NM N4 N6` its neighbour's, `G4` its gateway, `TO` the MAC address that the pod sends to, `D4 D6` the destination.
//! `M` is a mark by which the frame is found again; `P` is a mark behind the packet. `E` is an Ethernet header from the
//! pod to `TO`, `B` one to all, `ALL` one to all IPv6 nodes, `ND` IPv6 from its link-local address to them with hop
//! limit 255, `U` a UDP header.

use anyhow::{Context, Result};

/// A frame that a pod sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// What it is.
    pub name: &'static str,
    /// Scapy's expression.
    pub expression: &'static str,
    /// What becomes of it.
    pub fate: Fate,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Dropped by the guard for this reason; it is seen nowhere.
    Dropped(&'static str),
    /// Dropped by the guard for whatever reason; it is seen nowhere.
    DroppedAnyhow,
    /// Not dropped by the guard; how far it goes is not its matter.
    Passes,
    /// It reaches its destination.
    Arrives,
}

impl Fate {
    /// Whether it must not be seen.
    pub fn is_dropped(self) -> bool {
        matches!(self, Self::Dropped(_) | Self::DroppedAnyhow)
    }
}

/// What [`allowed_addresses`] is about.
pub const ALLOWED: [&str; 4] = ["10.10.1.200", "172.16.5.0/24", "fd00:99::/64", "02:00:00:00:00:aa"];

/// What must not pass.
///
/// # Errors
/// When a row is not one.
pub fn forbidden() -> Result<Vec<Attempt>> {
    read(include_str!("forbidden.txt"))
}

/// What must pass.
///
/// # Errors
/// When a row is not one.
pub fn legal() -> Result<Vec<Attempt>> {
    read(include_str!("legal.txt"))
}

/// With [`ALLOWED`] in force: what that adds, and how far it goes.
///
/// # Errors
/// When a row is not one.
pub fn allowed_addresses() -> Result<Vec<Attempt>> {
    read(include_str!("allowed.txt"))
}

fn read(text: &'static str) -> Result<Vec<Attempt>> {
    let rows = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|row| {
        let mut columns = row.splitn(3, " | ").map(str::trim);
        let mut column = || columns.next().with_context(|| format!("three columns: {row}"));
        let fate = match column()? {
            "passes" => Fate::Passes,
            "arrives" => Fate::Arrives,
            "any" => Fate::DroppedAnyhow,
            reason => Fate::Dropped(reason),
        };
        Ok(Attempt { name: column()?, expression: column()?, fate })
    })
    .collect()
}
