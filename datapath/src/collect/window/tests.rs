//! The window against rules that a naive list knows as well.
#![allow(clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{Books, Bounds, FAR, Released, Window};

/// Pushes numbers at times of their own and returns what came out, before and after the end.
fn run(bounds: Bounds, arrivals: &[(u32, u64)]) -> (Vec<u32>, Books) {
    let mut window = Window::new(bounds);
    let mut out = Vec::new();
    for &(number, now) in arrivals {
        window.push(number, now, || number, &mut |released| {
            out.push(match released {
                Released::This => number,
                Released::Held(other) => other,
            });
        });
        balanced(window.books());
    }
    window.flush(&mut |released| {
        if let Released::Held(number) = released {
            out.push(number);
        }
    });
    let books = window.books();
    balanced(books);
    assert_eq!((books.waiting, books.released), (0, out.len() as u64), "{books:?}");
    (out, books)
}

fn balanced(books: Books) {
    let Books { received, released, duplicates, late, waiting, .. } = books;
    assert_eq!(received, released + duplicates + late + waiting, "{books:?}");
}

fn at_once(numbers: &[u32]) -> Vec<(u32, u64)> {
    numbers.iter().map(|number| (*number, 0)).collect()
}

const ORDERED: Bounds = Bounds { frames: 16, time: 1_000 };
const PLAIN: Bounds = Bounds { frames: 0, time: 0 };

#[test]
fn gaps_duplicates_and_swaps_are_told_apart() {
    let (out, books) = run(PLAIN, &at_once(&[5, 6, 8, 7, 7, 10, 10, 12]));
    assert_eq!(out, [5, 6, 8, 7, 10, 12]);
    assert_eq!((books.lost, books.duplicates, books.reordered, books.restarts), (2, 2, 1, 0), "{books:?}");
    let (out, books) = run(ORDERED, &at_once(&[5, 6, 8, 7, 7, 10, 10, 12]));
    assert_eq!(out, [5, 6, 7, 8, 10, 12]);
    assert_eq!((books.lost, books.duplicates, books.reordered, books.restarts), (2, 2, 1, 0), "{books:?}");
}

#[test]
fn numbers_wrap() {
    let numbers: Vec<u32> = (0..40).map(|number: u32| (u32::MAX - 20).wrapping_add(number)).collect();
    for bounds in [PLAIN, ORDERED] {
        let (out, books) = run(bounds, &at_once(&numbers));
        assert_eq!((out.as_slice(), books.lost, books.restarts), (numbers.as_slice(), 0, 0), "{books:?}");
    }
}

#[test]
fn a_sender_that_begins_anew_is_no_loss() {
    for bounds in [PLAIN, ORDERED] {
        for (old, new) in [(100_000, 0), (3_000_000_000, 0), (7, 2_000_000_000), (0, 0), (200, 0), (600, 17)]
        {
            let numbers: Vec<u32> = (old..old + 30).chain(new..new + 30).collect();
            let (out, books) = run(bounds, &at_once(&numbers));
            assert_eq!(out, numbers);
            assert_eq!((books.lost, books.restarts, books.duplicates), (0, 1, 0), "{old} {new}: {books:?}");
        }
    }
}

#[test]
fn a_stray_is_no_beginning() {
    let numbers: Vec<u32> = (5000..5030).chain([17]).chain(5030..5060).collect();
    for bounds in [PLAIN, ORDERED] {
        let (out, books) = run(bounds, &at_once(&numbers));
        assert_eq!(out, (5000..5060).collect::<Vec<_>>());
        assert_eq!((books.lost, books.late, books.restarts), (0, 1, 0), "{books:?}");
    }
}

#[test]
fn a_gap_is_given_up_in_time_and_its_frame_is_late() {
    let arrivals = [(1, 0), (2, 2_000), (4, 2_100), (5, 2_500), (6, 3_200), (3, 3_300), (7, 3_400)];
    let (out, books) = run(ORDERED, &arrivals);
    assert_eq!(out, [1, 2, 4, 5, 6, 7]);
    assert_eq!((books.lost, books.late), (0, 1), "{books:?}");
}

#[test]
fn a_long_outage_is_a_loss() {
    let (_, books) = run(ORDERED, &at_once(&[1, 2, 3, FAR, FAR + 1]));
    assert_eq!((books.lost, books.restarts), (u64::from(FAR) - 4, 0), "{books:?}");
}

/// Each frame at most `frames - 1` places behind the ones that overtake it.
fn shuffled(count: u32, frames: u32) -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(0..frames, count as usize).prop_map(move |chances| {
        let (mut left, mut order): (Vec<u32>, Vec<u32>) = ((0..count).collect(), Vec::new());
        for chance in chances {
            // Nothing further ahead of the least one than the window is wide.
            let least = left[0];
            let eligible = left.iter().filter(|number| **number - least < frames).count();
            order.push(left.remove(chance as usize % eligible));
        }
        order
    })
}

proptest! {
    #[test]
    fn any_order_within_the_window_comes_out_sorted(
        order in shuffled(200, ORDERED.frames),
        first in prop_oneof![Just(0), Just(u32::MAX - 100), any::<u32>()],
    ) {
        let numbers: Vec<u32> = order.iter().map(|number| first.wrapping_add(*number)).collect();
        let (out, books) = run(ORDERED, &at_once(&numbers));
        let sorted: Vec<u32> = (0..200).map(|number| first.wrapping_add(number)).collect();
        prop_assert_eq!(out, sorted);
        prop_assert_eq!((books.lost, books.late, books.duplicates, books.restarts), (0, 0, 0, 0));
    }

    /// Losses and repeats on top: what is missing is exactly what never came.
    #[test]
    fn the_books_are_those_of_a_naive_list(
        order in shuffled(200, ORDERED.frames),
        fates in proptest::collection::vec(0u8..10, 200),
        ordered: bool,
    ) {
        let (mut arrivals, mut came) = (Vec::new(), BTreeSet::new());
        let (mut repeats, mut overtaken, mut highest) = (0, 0, None);
        for number in order {
            match fates[number as usize] {
                0 => continue,
                1 => { arrivals.extend([number, number]); repeats += 1; }
                _ => arrivals.push(number),
            }
            came.insert(number);
            overtaken += u64::from(highest.is_some_and(|highest| number < highest));
            highest = highest.max(Some(number));
        }
        // A doubled 0 and then 1 is a new beginning, by rule.
        prop_assume!(!arrivals.windows(2).any(|pair| pair == [0, 0]));
        let (out, books) = run(if ordered { ORDERED } else { PLAIN }, &at_once(&arrivals));
        let sorted: Vec<u32> = came.iter().copied().collect();
        let span = sorted.last().zip(sorted.first()).map_or(0, |(last, first)| u64::from(last - first) + 1);
        if ordered {
            prop_assert_eq!(&out, &sorted);
            prop_assert_eq!(books.lost, span - came.len() as u64);
        } else {
            let unique: BTreeSet<u32> = out.iter().copied().collect();
            prop_assert_eq!((unique, out.len()), (came.clone(), came.len()));
            // Numbers before the first one that came are not missed.
            let first = arrivals.first().copied().unwrap_or_default();
            let after = sorted.iter().filter(|number| **number >= first).count() as u64;
            let span = sorted.last().map_or(0, |last| u64::from(last - first) + 1);
            prop_assert_eq!(books.lost, span - after);
        }
        prop_assert_eq!((books.duplicates, books.reordered), (repeats, overtaken));
    }

    /// Whatever comes, whenever: the books balance, nothing is held for too long or in too great number.
    #[test]
    fn nothing_breaks_the_books(
        arrivals in proptest::collection::vec((prop_oneof![0u32..64, 1000u32..1064, any::<u32>()], 0u64..400), 0..300),
        frames in 0u32..40,
    ) {
        let mut now = 0;
        let arrivals: Vec<(u32, u64)> = arrivals.into_iter().map(|(number, gap)| { now += gap; (number, now) }).collect();
        let mut window = Window::new(Bounds { frames, time: 1_000 });
        let (mut given, mut back) = (BTreeSet::new(), BTreeSet::new());
        for (frame, (number, now)) in arrivals.iter().enumerate() {
            given.insert(frame);
            window.push(*number, *now, || frame, &mut |released| {
                let released = match released { Released::This => frame, Released::Held(other) => other };
                assert!(back.insert(released), "released twice");
            });
            balanced(window.books());
            assert!(window.books().waiting <= u64::from(frames) + 1);
        }
        window.tick(now + 2_000_000_000, &mut |released| {
            if let Released::Held(frame) = released { assert!(back.insert(frame)); }
        });
        prop_assert_eq!(window.books().waiting, 0);
        balanced(window.books());
        prop_assert_eq!(back.len() as u64, window.books().released);
        prop_assert!(back.is_subset(&given));
    }
}
