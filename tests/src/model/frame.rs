//! Random frames: mostly whole packets of every kind that the parser knows, some damaged, some plain noise.

use super::desired::{ETHER_TYPES, MACS, PORTS, PROTOCOLS, TCP_FLAGS, V4, V6};
use super::random::Random;
use crate::test_run::{MAX_FRAME, MIN_FRAME};

/// A random frame of a length that the kernel takes.
pub fn frame(random: &mut Random) -> Vec<u8> {
    let mut frame = if random.one_in(40) { noise(random) } else { packet(random) };
    if random.one_in(8) {
        frame.truncate(random.below(frame.len().min(120)));
    }
    if random.one_in(8) && !frame.is_empty() {
        for _ in 0..1 + random.below(3) {
            let at = random.below(frame.len().min(100));
            frame[at] ^= 1 << random.below(8);
        }
    }
    frame.resize(frame.len().clamp(MIN_FRAME, MAX_FRAME), 0);
    // The kernel refuses to run on less than an IP header; behind VLAN tags it does not look.
    let shortest = match frame[12..14] {
        [0x08, 0x00] => 14 + 20,
        [0x86, 0xdd] => 14 + 40,
        _ => MIN_FRAME,
    };
    frame.resize(frame.len().max(shortest), 0);
    frame
}

fn noise(random: &mut Random) -> Vec<u8> {
    let len = MIN_FRAME + random.below(300);
    random.bytes(len)
}

fn packet(random: &mut Random) -> Vec<u8> {
    let mut frame = MACS[0].to_vec();
    frame.extend(if random.one_in(10) { MACS[0] } else { MACS[1] });
    let tags = if random.one_in(4) { 1 + random.below(3) } else { 0 };
    for _ in 0..tags {
        frame.extend(random.pick(&[0x8100u16, 0x88a8]).to_be_bytes());
        frame.extend((random.number() as u16).to_be_bytes());
    }
    match random.below(11) {
        0..5 => v4(random, &mut frame),
        5..10 => v6(random, &mut frame),
        _ if random.one_in(2) => {
            frame.extend(0x0806u16.to_be_bytes());
            frame.extend(arp(random));
        }
        _ => {
            frame.extend(random.pick(&ETHER_TYPES).to_be_bytes());
            let len = 28 + random.below(100);
            frame.extend(random.bytes(len));
        }
    }
    frame
}

fn v4(random: &mut Random, frame: &mut Vec<u8>) {
    let protocol = random.pick(&PROTOCOLS);
    let payload = transport(random, protocol);
    let words = if random.one_in(6) { random.below(11) } else { 0 };
    let fragment: u16 = match random.below(10) {
        0 => 0x2000,
        1 => 0x2000 | (1 + random.below(0x1ffe) as u16),
        2 => 185,
        _ => 0x4000,
    };
    frame.extend(0x0800u16.to_be_bytes());
    frame.extend([0x45 + words as u8, 0]);
    frame.extend(((20 + 4 * words + payload.len()) as u16).to_be_bytes());
    frame.extend([0x12, 0x34]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, protocol, 0, 0]);
    frame.extend(random.pick(&V4).to_be_bytes());
    frame.extend(random.pick(&V4).to_be_bytes());
    frame.extend(vec![1; 4 * words]);
    frame.extend(payload);
}

fn v6(random: &mut Random, frame: &mut Vec<u8>) {
    let protocol = random.pick(&PROTOCOLS);
    let mut rest = transport(random, protocol);
    let mut next = protocol;
    let extensions = if random.one_in(3) { 1 + random.below(9) } else { 0 };
    for _ in 0..extensions {
        next = extension(random, next, &mut rest);
    }
    frame.extend(0x86ddu16.to_be_bytes());
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((rest.len() as u16).to_be_bytes());
    frame.extend([next, 64]);
    frame.extend(random.pick(&V6).to_be_bytes());
    frame.extend(random.pick(&V6).to_be_bytes());
    frame.extend(rest);
}

/// Puts an extension header before `rest`; returns its number.
fn extension(random: &mut Random, next: u8, rest: &mut Vec<u8>) -> u8 {
    let kind = random.pick(&[0u8, 43, 44, 51, 60, 135, 139, 140]);
    let units = random.below(3);
    let mut header = vec![next, 0, 0, 0];
    let len = match kind {
        44 => {
            let fragment: u16 = if random.one_in(3) { (8 * (1 + random.below(100) as u16)) | 1 } else { 1 };
            header[2..4].copy_from_slice(&fragment.to_be_bytes());
            8
        }
        51 => {
            header[1] = (units + 1) as u8;
            4 * (units + 3)
        }
        _ => {
            header[1] = units as u8;
            8 * (units + 1)
        }
    };
    header.resize(len, 0);
    header.append(rest);
    *rest = header;
    kind
}

/// Neighbour discovery and its like: the type, a target, options that may name a MAC address.
fn discovery(random: &mut Random) -> Vec<u8> {
    let mut bytes =
        vec![random.pick(&[131, 132, 133, 134, 135, 135, 136, 136, 137, 143]), 0, 0, 0, 0, 0, 0, 0];
    if bytes[0] != 133 {
        bytes.extend(random.pick(&V6).to_be_bytes());
    }
    for _ in 0..random.below(8) {
        let units = random.pick(&[1, 1, 1, 2, 0]);
        let mut option = vec![random.pick(&[1, 2, 5, 14]), units];
        option.extend(random.pick(&MACS));
        option.resize(8 * usize::from(units).max(1), 0);
        bytes.extend(option);
    }
    bytes
}

/// ARP that may be anybody's.
fn arp(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0, 1, 8, 0, 6, 4, 0, random.pick(&[1, 2, 3])];
    for _ in 0..2 {
        bytes.extend(random.pick(&MACS));
        bytes.extend(if random.one_in(4) { [0; 4] } else { random.pick(&V4).to_be_bytes() });
    }
    bytes
}

/// A transport header and its payload, most of them short, some around the MTU.
fn transport(random: &mut Random, protocol: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(random.pick(&PORTS).to_be_bytes());
    bytes.extend(random.pick(&PORTS).to_be_bytes());
    match protocol {
        6 => {
            bytes.extend([0, 0, 0, 1, 0, 0, 0, 2]);
            let words = if random.one_in(4) { 5 + random.below(11) } else { 5 };
            bytes.extend([(words << 4) as u8, random.pick(&TCP_FLAGS), 1, 0, 0, 0, 0, 0]);
            bytes.resize(words * 4, 1);
        }
        58 if random.one_in(2) => return discovery(random),
        1 | 58 => {
            bytes[0] = random.pick(&[8, 0, 3, 128]);
            bytes[1] = random.below(6) as u8;
            bytes.extend([0; 4]);
        }
        _ => bytes.extend([0; 4]),
    }
    let payload = match random.below(12) {
        0 => 1380 + random.below(240),
        1 => random.below(2600),
        _ => random.below(80),
    };
    bytes.extend(random.bytes(payload));
    bytes
}
