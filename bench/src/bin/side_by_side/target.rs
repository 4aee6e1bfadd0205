//! What podwire aims at per packet, as ratios to its rivals in the same run.

use podwire_bench::spread::Spread;
pub use podwire_bench::target::Target;

use crate::contender::{
    CLONE, MIRRED, MIRRED_VXLAN, NFT_DUP, NOTHING, PODWIRE_LOCAL, PODWIRE_SNAP, PODWIRE_VXLAN,
};
use crate::per_packet::Row;

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
