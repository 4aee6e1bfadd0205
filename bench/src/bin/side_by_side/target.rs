//! What podwire aims at, as ratios to its rivals in the same run.

use anyhow::{Context, Result};
use serde::Serialize;

use crate::contender::{
    CLONE, MIRRED, MIRRED_VXLAN, NFT_DUP, NOTHING, PODWIRE_LOCAL, PODWIRE_SNAP, PODWIRE_VXLAN,
};
use crate::per_packet::Row;
use crate::spread::Spread;

/// A figure and what it should be.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    pub what: String,
    pub ratio: Spread,
    pub bound: f64,
    /// The ratio should not be above the bound, else not below it.
    pub at_most: bool,
}

impl Target {
    /// Whether the median keeps to the bound.
    pub fn is_met(&self) -> bool {
        if self.at_most { self.ratio.median <= self.bound } else { self.ratio.median >= self.bound }
    }
}

/// Those of the measurement per packet.
///
/// # Errors
/// When a row is missing.
pub fn per_packet(rows: &[Row]) -> Result<Vec<Target>> {
    [
        (PODWIRE_VXLAN, MIRRED_VXLAN, 0.5),
        (PODWIRE_LOCAL, MIRRED, 1.1),
        (PODWIRE_LOCAL, NFT_DUP, 0.8),
        (PODWIRE_SNAP, CLONE, 1.0 / 3.0),
    ]
    .into_iter()
    .map(|(own, rival, bound)| {
        Ok(Target {
            what: format!("{own} / {rival}: added ns"),
            ratio: ratio(rows, own, rival)?,
            bound,
            at_most: true,
        })
    })
    .collect()
}

/// Each round's ratio of what two contenders add.
fn ratio(rows: &[Row], own: &str, rival: &str) -> Result<Spread> {
    let samples = |name: &str| {
        let row = rows.iter().find(|row| row.name == name);
        row.map(|row| row.samples.as_slice()).with_context(|| format!("no row {name}"))
    };
    let (base, own, rival) = (samples(NOTHING)?, samples(own)?, samples(rival)?);
    Ok(Spread::of(base.iter().zip(own).zip(rival).map(|((base, own), rival)| (own - base) / (rival - base))))
}
