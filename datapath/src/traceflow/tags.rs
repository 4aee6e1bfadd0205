//! Tags. In: which are in use. Out: the next one.
//!
//! First the 16 DSCP values that are for experiments and local use, then the 16 that may become so, then the others
//! (RFC 2474 section 6): what applications mark their packets with is met last.

use podwire_core::stage::trace::LARGEST_TAG;

/// Every tag, the least likely to be met first.
pub fn all() -> impl Iterator<Item = u8> {
    let pool = |tag: u8| match tag & 3 {
        3 => 0,
        1 => 1,
        _ => 2,
    };
    (0..3).flat_map(move |wanted| (1..=LARGEST_TAG).filter(move |tag| pool(*tag) == wanted))
}

/// The tag for packets that have this one by themselves.
pub fn spare(tag: u8) -> u8 {
    all().skip_while(|other| *other != tag).nth(1).unwrap_or(3)
}

/// The first of those that fewest use; `None` when all may not be taken.
pub fn choose(may: impl Fn(u8) -> bool, users: impl Fn(u8) -> usize) -> Option<u8> {
    all().filter(|tag| may(*tag)).min_by_key(|tag| users(*tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_is_there_once() {
        let mut tags: Vec<u8> = all().collect();
        assert_eq!(tags[..2], [3, 7]);
        tags.sort_unstable();
        assert_eq!(tags, (1..=63).collect::<Vec<u8>>());
        assert!(all().all(|tag| spare(tag) != tag));
    }

    #[test]
    fn the_first_of_the_least_used_is_chosen() {
        assert_eq!(choose(|_| true, |_| 0), Some(3));
        assert_eq!(choose(|tag| tag != 3, |_| 0), Some(7));
        assert_eq!(choose(|_| true, |tag| usize::from(tag == 3)), Some(7));
        assert_eq!(choose(|_| false, |_| 0), None);
    }
}
