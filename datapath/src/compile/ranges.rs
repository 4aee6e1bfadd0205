//! Sets of numbers as sorted ranges: the values of a field that satisfy a rule.

/// Inclusive ranges, sorted, neither overlapping nor adjacent: equal sets are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// The union of `ranges`, in any order. A range that ends before it starts is empty.
    pub(super) fn new(ranges: impl IntoIterator<Item = (u128, u128)>) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u128, u128)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match merged.last_mut() {
                Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// The ranges, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u128, u128)> + '_ {
        self.0.iter().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is in both sets.
    pub(super) fn intersect(&self, other: &Self) -> Self {
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut common = Vec::new();
        while let (Some(&&(first_left, last_left)), Some(&&(first_right, last_right))) =
            (left.peek(), right.peek())
        {
            let (first, last) = (first_left.max(first_right), last_left.min(last_right));
            if first <= last {
                common.push((first, last));
            }
            if last_left < last_right {
                left.next();
            } else {
                right.next();
            }
        }
        Self(common)
    }

    /// What is in this set and not in the other.
    pub(super) fn subtract(&self, other: &Self) -> Self {
        self.intersect(&other.complement())
    }

    fn complement(&self) -> Self {
        let mut gaps = Vec::with_capacity(self.0.len() + 1);
        let mut start = Some(0);
        for &(first, last) in &self.0 {
            if let Some(start) = start.filter(|&start| start < first) {
                gaps.push((start, first - 1));
            }
            start = last.checked_add(1);
        }
        gaps.extend(start.map(|start| (start, u128::MAX)));
        Self(gaps)
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn touching_ranges_become_one() {
        assert_eq!(Ranges::new([(5, 9), (0, 4), (11, 12), (30, 20)]), Ranges(vec![(0, 9), (11, 12)]));
        assert_eq!(Ranges::new([(7, u128::MAX), (u128::MAX, u128::MAX)]), Ranges(vec![(7, u128::MAX)]));
    }

    #[test]
    fn difference_keeps_the_edges() {
        let set = Ranges::new([(0, 10), (20, u128::MAX)]);
        assert_eq!(set.subtract(&Ranges::new([(0, 3), (10, 25)])), Ranges(vec![(4, 9), (26, u128::MAX)]));
        assert!(set.subtract(&Ranges::new([(0, u128::MAX)])).is_empty());
        assert_eq!(set.subtract(&Ranges::default()), set);
    }
}
