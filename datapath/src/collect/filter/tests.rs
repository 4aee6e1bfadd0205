//! The filter, run as the kernel runs it, against the reader in user space.
#![allow(clippy::indexing_slicing, reason = "a test fails by panicking")]

use podwire_core::wire::decap::{DecapError, Receiver, decapsulate};
use podwire_core::wire::encap::Tunnel;
use proptest::prelude::*;

use super::{Instruction, Wanted, program};
use crate::collect::samples;

/// Classic BPF, as far as the program uses it. Loads beyond the packet end it with a refusal.
fn takes(program: &[Instruction], packet: &[u8]) -> bool {
    let (mut at, mut a, mut x) = (0, 0u32, 0u32);
    let half = |at: usize| Some(u32::from(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?])));
    loop {
        let Instruction { code, on_true, on_false, operand: k } = program[at];
        at += 1;
        match code {
            0x28 => match half(k as usize) {
                Some(value) => a = value,
                None => return false,
            },
            0x48 => match half((x + k) as usize) {
                Some(value) => a = value,
                None => return false,
            },
            0x30 => match packet.get(k as usize) {
                Some(value) => a = (*value).into(),
                None => return false,
            },
            0xb1 => match packet.get(k as usize) {
                Some(value) => x = u32::from(value & 15) * 4,
                None => return false,
            },
            0x05 => at += k as usize,
            0x15 => at += usize::from(if a == k { on_true } else { on_false }),
            0x45 => at += usize::from(if a & k != 0 { on_true } else { on_false }),
            0x06 => return k != 0,
            other => unreachable!("instruction {other:#x}"),
        }
    }
}

fn tunnels() -> Vec<Tunnel> {
    samples::tunnels().into_iter().chain([Tunnel::Vxlan { vni: 7, port: 1111 }]).collect()
}

proptest! {
    /// What a reader finds a frame or a fragment in, the filter takes; and of noise it takes nothing that cannot be.
    #[test]
    fn the_filter_takes_what_is_read(
        tunnel in 0usize..8,
        v6: bool,
        tagged in 0usize..3,
        change in proptest::option::of((14usize..80, any::<u8>())),
        gre: bool,
        ports in proptest::collection::vec(any::<u16>(), 0..100),
    ) {
        let tunnel = tunnels().swap_remove(tunnel);
        let mut frame = samples::outer(v6, tunnel, 1, 0, &[7; 80]);
        for _ in 0..tagged {
            let tag = [0x81, 0x00, 0, 5];
            frame.splice(12..12, tag);
        }
        if let Some((at, byte)) = change
            && let Some(place) = frame.get_mut(at)
        {
            *place = byte;
        }
        let mut wanted = Wanted { gre, erspan: gre, ..Wanted::default() };
        wanted.vxlan_ports.extend(ports);
        let receiver = Receiver { vxlan_ports: &wanted.vxlan_ports, geneve_ports: &wanted.geneve_ports, verify: false };
        let read = decapsulate(&frame, &receiver);
        let is_ours = match &read {
            Ok(found) => wanted.accepts(&found.metadata),
            // Fragments of IPv4 may be those of a port that nobody wants; the first one is left out then.
            Err(DecapError::OuterFragment(part)) => part.offset != 0 && gre,
            Err(_) => false,
        };
        if is_ours {
            prop_assert!(takes(&program(&wanted), &frame), "{read:?}");
        }
    }
}
