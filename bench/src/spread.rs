//! Medians and quartiles.

use serde::Serialize;

/// A sample in short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// A quarter lies below it.
    pub p25: f64,
    /// Half lies below it.
    pub median: f64,
    /// A quarter lies above it.
    pub p75: f64,
}

impl Spread {
    /// Of any values; zeros of none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let last = values.len().checked_sub(1)?;
            values.get((last as f64 * part).round() as usize).copied()
        };
        Self {
            p25: at(0.25).unwrap_or_default(),
            median: at(0.5).unwrap_or_default(),
            p75: at(0.75).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_of_five() {
        let spread = Spread::of([5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(spread, Spread { p25: 2.0, median: 3.0, p75: 4.0 });
    }

    #[test]
    fn nothing_and_what_is_no_number_count_for_nothing() {
        assert_eq!(Spread::of([]), Spread::default());
        assert_eq!(Spread::of([f64::NAN, 7.0, f64::INFINITY]).median, 7.0);
    }
}
