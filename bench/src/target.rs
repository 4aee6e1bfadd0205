//! What podwire aims at, as ratios to its rivals in the same run.

use serde::Serialize;

use crate::spread::Spread;

/// A figure and what it should be.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// What is compared with what.
    pub what: String,
    /// Of one to the other.
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
