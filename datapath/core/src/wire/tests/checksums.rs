//! Checksums: in full, by difference, and against etherparse's.

extern crate std;

use std::vec::Vec;

use ::etherparse::checksum::Sum16BitWords;
use proptest::prelude::*;

use crate::wire::checksum::{Sum, full, pseudo_v4, pseudo_v6, update, update_32};

#[test]
fn rfc_1071_example() {
    // Section 3: the sum of these words is ddf2.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(Sum::ZERO.add_bytes(&bytes).folded(), 0xddf2);
    assert_eq!(full(&bytes), !0xddf2);
}

#[test]
fn rfc_1624_example() {
    // Section 4: a field goes from 5555 to 3285 under checksum dd2f; equation 3 says 0000, not ffff.
    assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn carries_beyond_32_bits_are_kept() {
    let bytes = std::vec![0xff; 1 << 20];
    assert_eq!(Sum::ZERO.add_bytes(&bytes).folded(), 0xffff);
    assert_eq!(Sum::ZERO.add_bytes(&bytes).add_word(1).folded(), 1);
}

proptest! {
    #[test]
    fn full_is_etherparses(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let theirs = u16::from_be(Sum16BitWords::new().add_slice(&bytes).ones_complement());
        prop_assert_eq!(full(&bytes), theirs);
    }

    #[test]
    fn pseudo_headers_are_etherparses(
        v4 in any::<([u8; 4], [u8; 4])>(),
        v6 in any::<([u8; 16], [u8; 16])>(),
        protocol in any::<u8>(),
        len in any::<u16>(),
        long in any::<u32>(),
    ) {
        let theirs = Sum16BitWords::new()
            .add_4bytes(v4.0).add_4bytes(v4.1).add_2bytes([0, protocol]).add_2bytes(len.to_be_bytes());
        prop_assert_eq!(pseudo_v4(v4.0, v4.1, protocol, len).checksum(), u16::from_be(theirs.ones_complement()));
        let theirs = Sum16BitWords::new()
            .add_16bytes(v6.0).add_16bytes(v6.1).add_4bytes(long.to_be_bytes()).add_2bytes([0, protocol]);
        prop_assert_eq!(pseudo_v6(v6.0, v6.1, protocol, long).checksum(), u16::from_be(theirs.ones_complement()));
    }

    #[test]
    fn a_difference_is_a_full_recomputation(
        mut bytes in proptest::collection::vec(any::<u8>(), 8..120),
        index in any::<prop::sample::Index>(),
        word in any::<u16>(),
        long in any::<u32>(),
    ) {
        bytes.truncate(bytes.len() & !3);
        // All zero is the one content whose checksum has two forms.
        bytes[0] |= 1;
        let before = full(&bytes);
        let at = 2 + index.index((bytes.len() - 2) / 2) * 2;
        let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let mut changed = bytes.clone();
        changed[at..at + 2].copy_from_slice(&word.to_be_bytes());
        prop_assert_eq!(update(before, old, word), full(&changed));

        let at = 4 + index.index((bytes.len() - 4) / 4) * 4;
        let old = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut changed = bytes.clone();
        changed[at..at + 4].copy_from_slice(&long.to_be_bytes());
        prop_assert_eq!(update_32(before, old, long), full(&changed));
    }

    #[test]
    fn parts_add_up(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..150) {
        let cut = (cut * 2).min(bytes.len() & !1);
        let (left, right) = bytes.split_at(cut);
        let parts: Vec<_> = [left, right].into_iter().collect();
        let sum = parts.iter().fold(Sum::ZERO, |sum, part| sum.add_bytes(part));
        prop_assert_eq!(sum.folded(), Sum::ZERO.add_bytes(&bytes).folded());
    }
}
