//! Reassembly against a packet that was cut by rules of our own, and against noise.
#![allow(clippy::indexing_slicing, reason = "a test fails by panicking")]

use podwire_core::wire::decap::{DecapError, Receiver, decapsulate};
use podwire_core::wire::{checksum, ipv6::extension};
use proptest::prelude::*;

use super::{Books, Bounds, Reassembly};

/// A whole packet of UDP to the port of VXLAN, in a frame.
fn frame(v6: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let len = payload.len() as u16;
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([17, 64]);
        frame.extend([0xfd; 32]);
    } else {
        let mut header = vec![0x45, 0];
        header.extend((20 + len).to_be_bytes());
        header.extend([0, 7, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 9]);
        let sum = checksum::full(&header).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        frame.extend([0x08, 0x00]);
        frame.extend(header);
    }
    frame.extend(payload);
    frame
}

/// The fragment of `frame` with these bytes of its payload.
fn piece(v6: bool, frame: &[u8], from: usize, to: usize, id: u16) -> Vec<u8> {
    let at = if v6 { 54 } else { 34 };
    let payload = &frame[at..];
    let more = to < payload.len();
    let mut out = frame[..at].to_vec();
    if v6 {
        let header = extension::Fragment { next_header: 17, offset: from as u16, more, id: id.into() };
        let mut bytes = [0; 8];
        header.write(&mut bytes).unwrap_or_default();
        out[20] = 44;
        out[18..20].copy_from_slice(&((8 + to - from) as u16).to_be_bytes());
        out.extend(bytes);
    } else {
        out[16..18].copy_from_slice(&((20 + to - from) as u16).to_be_bytes());
        out[18..20].copy_from_slice(&id.to_be_bytes());
        let word = (from / 8) as u16 | if more { 0x2000 } else { 0 };
        out[20..22].copy_from_slice(&word.to_be_bytes());
        out[24..26].fill(0);
        let sum = checksum::full(&out[14..34]).to_be_bytes();
        out[24..26].copy_from_slice(&sum);
    }
    out.extend(&payload[from..to]);
    out
}

fn balanced(books: Books) {
    let Books { received, used, duplicates, overlaps, malformed, expired, evicted, waiting, .. } = books;
    assert_eq!(received, used + duplicates + overlaps + malformed + expired + evicted + waiting, "{books:?}");
}

/// Cuts at multiples of eight.
fn cuts(len: usize, at: &[usize]) -> Vec<(usize, usize)> {
    let mut places: Vec<usize> = at.iter().map(|at| at % len / 8 * 8).chain([0, len]).collect();
    places.sort_unstable();
    places.dedup();
    places.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

proptest! {
    #[test]
    fn what_was_cut_is_whole_again(
        v6: bool,
        payload in proptest::collection::vec(any::<u8>(), 40..3000),
        at in proptest::collection::vec(any::<usize>(), 1..20),
        order in any::<u64>(),
    ) {
        let whole = frame(v6, &payload);
        let mut pieces: Vec<_> = cuts(payload.len(), &at).iter().map(|(from, to)| piece(v6, &whole, *from, *to, 9)).collect();
        prop_assume!(pieces.len() > 1);
        for piece in &pieces {
            prop_assert!(matches!(decapsulate(piece, &Receiver::default()), Err(DecapError::OuterFragment(_))));
        }
        // Any order, the first of them twice.
        let count = pieces.len();
        for place in (1..count).rev() {
            pieces.swap(place, (order as usize ^ place.wrapping_mul(0x9e37)) % (place + 1));
        }
        pieces.insert(0, pieces[0].clone());
        let mut reassembly = Reassembly::new(Bounds::default());
        let mut out = Vec::new();
        for piece in &pieces {
            out.extend(reassembly.push(piece, 5));
            balanced(reassembly.books());
        }
        let mut expected = whole;
        if !v6 {
            // The identification stays.
            expected[18..20].copy_from_slice(&9u16.to_be_bytes());
            expected[24..26].fill(0);
            let sum = checksum::full(&expected[14..34]).to_be_bytes();
            expected[24..26].copy_from_slice(&sum);
        }
        prop_assert_eq!(out, [expected]);
        let books = reassembly.books();
        prop_assert_eq!((books.packets, books.duplicates, books.waiting), (1, 1, 0));
        prop_assert_eq!(reassembly.bytes, 0);
    }

    /// Pieces at random places, of two packets, against a naive list of byte ranges.
    #[test]
    fn overlaps_are_refused_as_a_naive_list_says(
        v6: bool,
        ranges in proptest::collection::vec((0usize..12, 1usize..6, any::<bool>()), 1..25),
    ) {
        let payload: Vec<u8> = (0..128u8).collect();
        let whole = frame(v6, &payload);
        let mut reassembly = Reassembly::new(Bounds::default());
        let (mut naive, mut refused): ([Vec<(usize, usize)>; 2], [bool; 2]) = Default::default();
        for (from, len, second) in ranges {
            let (from, to, which) = (from * 8, ((from + len) * 8).min(128), usize::from(second));
            let out = reassembly.push(&piece(v6, &whole, from, to, which as u16), 5);
            balanced(reassembly.books());
            let ranges = &mut naive[which];
            if refused[which] || ranges.contains(&(from, to)) {
                prop_assert!(out.is_none());
                continue;
            }
            if ranges.iter().any(|range| from < range.1 && range.0 < to) {
                refused[which] = true;
                ranges.clear();
                prop_assert!(out.is_none());
                continue;
            }
            ranges.push((from, to));
            let covered: usize = ranges.iter().map(|range| range.1 - range.0).sum();
            prop_assert_eq!(out.is_some(), covered == 128);
            if covered == 128 {
                ranges.clear();
            }
        }
    }

    /// Fragments of many packets that never become whole: neither bytes nor time grow without bound.
    #[test]
    fn bounds_are_kept(ids in proptest::collection::vec((any::<u16>(), 0usize..15, 0u64..200), 1..300)) {
        let whole = frame(false, &[7; 128]);
        let bounds = Bounds { bytes: 4096, datagrams: 20, time: 1_000 };
        let (mut reassembly, mut now) = (Reassembly::new(bounds), 0);
        for (id, place, gap) in ids {
            now += gap;
            reassembly.push(&piece(false, &whole, place * 8, place * 8 + 8, id % 40), now);
            balanced(reassembly.books());
            prop_assert!(reassembly.bytes <= 4096 + 512);
            prop_assert!(reassembly.datagrams.len() <= 20 && reassembly.by_id.len() == reassembly.datagrams.len());
        }
        reassembly.expire(now + 2_000);
        prop_assert_eq!((reassembly.bytes, reassembly.books().waiting, reassembly.datagrams.len()), (0, 0, 0));
    }

    /// Noise where fragments are expected.
    #[test]
    fn noise_breaks_nothing(frames in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..120), 0usize..200, any::<u8>()), 0..50)) {
        let mut reassembly = Reassembly::new(Bounds::default());
        let whole = frame(false, &[1; 64]);
        for (valid, noise, place, byte) in frames {
            let mut frame = if valid { piece(false, &whole, 8, 16, 3) } else { noise };
            if let Some(at) = frame.get_mut(place) {
                *at = byte;
            }
            reassembly.push(&frame, 1);
            balanced(reassembly.books());
        }
    }
}
