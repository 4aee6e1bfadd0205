//! What podwire aims at, as ratios to its rivals in the same run.

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
    /// None: shown for comparison.
    pub bound: Option<f64>,
    /// The ratio should not be above the bound, else not below it.
    pub at_most: bool,
}

impl Target {
    /// The bound, and whether the median keeps to it.
    pub fn verdict(&self) -> String {
        let Some(bound) = self.bound else { return "for comparison".into() };
        let met = if self.at_most { self.ratio.median <= bound } else { self.ratio.median >= bound };
        let (sign, word) = (if self.at_most { "<=" } else { ">=" }, if met { "met" } else { "MISSED" });
        format!("{sign} {bound:.2} {word}")
    }
}

/// Those of the measurement per packet; without those whose rows are not there.
pub fn per_packet(rows: &[Row]) -> Vec<Target> {
    [
        (PODWIRE_VXLAN, MIRRED_VXLAN, 0.5),
        (PODWIRE_LOCAL, MIRRED, 1.1),
        (PODWIRE_LOCAL, NFT_DUP, 0.8),
        (PODWIRE_SNAP, CLONE, 1.0 / 3.0),
    ]
    .into_iter()
    .filter_map(|(own, rival, bound)| {
        Some(Target {
            what: format!("{own} / {rival}: added ns"),
            ratio: ratio(rows, own, rival)?,
            bound: Some(bound),
            at_most: true,
        })
    })
    .collect()
}

/// Each round's ratio of what two contenders add.
fn ratio(rows: &[Row], own: &str, rival: &str) -> Option<Spread> {
    let samples = |name: &str| rows.iter().find(|row| row.name == name).map(|row| row.samples.as_slice());
    let (base, own, rival) = (samples(NOTHING)?, samples(own)?, samples(rival)?);
    Some(Spread::of(
        base.iter().zip(own).zip(rival).map(|((base, own), rival)| (own - base) / (rival - base)),
    ))
}
