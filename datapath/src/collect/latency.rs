//! How long mirrored frames were on their way. In: an ERSPAN III timestamp and the time of arrival. Out: least,
//! median, 99th percentile, most.
//!
//! Both clocks count from 1970; the timestamp has 32 bits of it, in units of 100 microseconds or 100 nanoseconds, and
//! wraps after five days or seven minutes. A frame that seems to arrive before it was sent (by less than half of
//! that) says that the clocks differ.

use podwire_core::wire::erspan::iii::Granularity;

/// Parts of each power of two: a percentile is at most a sixteenth too high.
const PARTS: u32 = 16;
const PARTS_SHIFT: u32 = PARTS.trailing_zeros();
/// One row of parts for each power of two up to 2^63.
const BUCKETS: usize = (64 - PARTS_SHIFT as usize + 1) * PARTS as usize;

/// See the module. Memory: a fixed 8 kilobytes.
#[derive(Clone, Debug)]
pub struct Latency {
    buckets: Box<[u64]>,
    measured: u64,
    ahead: u64,
    least: u64,
    most: u64,
}

/// What was measured, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// Frames measured.
    pub measured: u64,
    /// Frames that seemed to arrive before they were sent.
    pub ahead: u64,
    /// Least; the timestamp's unit is its limit.
    pub least: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Most.
    pub most: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS].into(), measured: 0, ahead: 0, least: u64::MAX, most: 0 }
    }
}

impl Latency {
    /// Takes a frame's two times. Timestamps without a fixed unit (IEEE 1588, custom) are not measured.
    pub fn measure(&mut self, timestamp: u32, granularity: Granularity, arrival: u64) {
        let unit = match granularity {
            Granularity::HundredMicroseconds => 100_000,
            Granularity::HundredNanoseconds => 100,
            Granularity::Ieee1588 | Granularity::Custom => return,
        };
        let way = ((arrival / unit) as u32).wrapping_sub(timestamp) as i32;
        match u64::try_from(way) {
            Ok(way) => self.record(way * unit),
            Err(_) => self.ahead += 1,
        }
    }

    fn record(&mut self, nanoseconds: u64) {
        self.measured += 1;
        self.least = self.least.min(nanoseconds);
        self.most = self.most.max(nanoseconds);
        if let Some(bucket) = self.buckets.get_mut(bucket(nanoseconds)) {
            *bucket += 1;
        }
    }

    /// What was measured so far; `None` before the first frame.
    pub fn quantiles(&self) -> Option<Quantiles> {
        if self.measured + self.ahead == 0 {
            return None;
        }
        if self.measured == 0 {
            return Some(Quantiles { ahead: self.ahead, ..Quantiles::default() });
        }
        Some(Quantiles {
            measured: self.measured,
            ahead: self.ahead,
            least: self.least,
            p50: self.at(self.measured.div_ceil(2)),
            p99: self.at(self.measured - self.measured / 100),
            most: self.most,
        })
    }

    fn at(&self, rank: u64) -> u64 {
        let mut below = 0;
        let reached = |count: &u64| {
            below += count;
            below >= rank
        };
        let bucket = self.buckets.iter().position(reached).unwrap_or_default();
        upper(bucket).clamp(self.least, self.most)
    }
}

/// Small values have a bucket each; above, the highest bit and the next four decide.
fn bucket(value: u64) -> usize {
    let bits = u64::BITS - value.leading_zeros();
    match bits.checked_sub(PARTS_SHIFT + 1) {
        None => value as usize,
        Some(shift) => (shift * PARTS) as usize + (value >> shift) as usize,
    }
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let parts = u64::from(PARTS);
    if bucket < 2 * parts {
        return bucket;
    }
    let shift = bucket / parts - 1;
    let part = bucket % parts + parts + 1;
    part.checked_shl(shift as u32).filter(|value| value >> shift == part).map_or(u64::MAX, |value| value - 1)
}

#[cfg(test)]
mod tests {
    use podwire_core::wire::erspan::iii::Granularity;
    use proptest::prelude::*;

    use super::{Latency, bucket, upper};

    proptest! {
        #[test]
        fn a_bucket_is_narrow(value: u64) {
            let top = upper(bucket(value));
            prop_assert!(top >= value);
            prop_assert!(top - value <= value / 16, "{value} {top}");
            prop_assert!(bucket(value) < super::BUCKETS);
        }

        #[test]
        fn quantiles_are_those_of_a_sorted_list(mut ways in proptest::collection::vec(0u64..1_000_000, 1..200), base in 0u64..1 << 60) {
            let mut latency = Latency::default();
            let base = base / 100 * 100;
            for way in &ways {
                latency.measure((base / 100) as u32, Granularity::HundredNanoseconds, base + way * 100);
            }
            ways.sort_unstable();
            let (Some(seen), count) = (latency.quantiles(), ways.len()) else { unreachable!("measured") };
            let exact = |rank: usize| ways[rank - 1] * 100;
            prop_assert_eq!((seen.measured, seen.ahead), (count as u64, 0));
            prop_assert_eq!((seen.least, seen.most), (exact(1), exact(count)));
            for (told, exact) in [(seen.p50, exact(count.div_ceil(2))), (seen.p99, exact(count - count / 100))] {
                prop_assert!(told >= exact && told - exact <= exact / 16, "{told} {exact}");
            }
        }
    }

    #[test]
    fn a_timestamp_wraps_and_a_clock_differs() {
        let mut latency = Latency::default();
        // Sent before the wrap, arrived after it.
        let wrap = (1u64 << 32) * 100;
        latency.measure(u32::MAX, Granularity::HundredNanoseconds, wrap + 400);
        latency.measure(7, Granularity::HundredMicroseconds, 600_000);
        latency.measure(7, Granularity::Custom, 0);
        let seen = latency.quantiles().unwrap_or_default();
        assert_eq!((seen.measured, seen.ahead, seen.least, seen.most), (1, 1, 500, 500), "{seen:?}");
    }
}
