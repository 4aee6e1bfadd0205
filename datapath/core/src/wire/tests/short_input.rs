//! Readers on input that is cut short, random, or damaged: they answer, and answer sensibly.

extern crate std;

use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::{encapsulation, golden, walk};
use crate::wire::encap::{OuterTemplate, encapsulate};
use crate::wire::ethernet;

fn run(frame: &[u8]) {
    for at in [0, 1, frame.len() / 2, frame.len(), frame.len() + 1] {
        if at <= frame.len() {
            walk::every_reader(frame, at);
        }
    }
    walk::frame(frame);
    walk::decapsulate(frame);
}

#[test]
fn every_prefix_of_valid_packets() {
    for packet in golden::ALL.iter().copied().chain(super::samples::ALL.iter().copied()) {
        for len in 0..=packet.len() {
            run(&packet[..len]);
        }
    }
}

#[test]
fn readers_beyond_the_end() {
    let frame = [0u8; 4];
    let error = ethernet::View::parse(&frame, 9).unwrap_err();
    assert_eq!((error.offset, error.needed, error.had), (9, 14, 0));
}

fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let count = golden::ALL.len() + super::samples::ALL.len();
    let damage = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (0..count, damage, any::<prop::sample::Index>()).prop_map(|(which, damage, end)| {
        let mut frame: Vec<u8> = golden::ALL
            .iter()
            .chain(&super::samples::ALL)
            .nth(which)
            .map_or(vec![0], |packet| packet.to_vec());
        for (index, byte) in damage {
            let at = index.index(frame.len());
            frame[at] = byte;
        }
        // One in four is cut as well.
        let cut = end.index(frame.len() * 4);
        frame.truncate(cut.max(1));
        frame
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn random_bytes(frame in proptest::collection::vec(any::<u8>(), 0..160)) {
        run(&frame);
    }

    #[test]
    fn damaged_packets(frame in damaged()) {
        run(&frame);
    }

    #[test]
    fn damaged_encapsulations(
        description in encapsulation::encapsulation(),
        mut packet in encapsulation::per_packet(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let inner = [0x5a; 40];
        packet.inner_len = inner.len() as u32;
        let mut out = [0; 256];
        let template = OuterTemplate::new(&description).unwrap();
        let len = encapsulate(&template, &packet, &ethernet::Header::default(), &inner, &mut out).unwrap();
        for (index, byte) in damage {
            out[index.index(len)] = byte;
        }
        run(&out[..len]);
    }
}
