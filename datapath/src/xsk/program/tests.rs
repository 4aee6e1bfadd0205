//! Which packets the program takes, and how it counts.

use podwire_core::wire::decap::{Receiver, decapsulate};
use podwire_core::xsk::{Found, Window, find};
use podwire_harness::{NetNs, Scratch};
use proptest::prelude::*;

use super::*;
use crate::collect::samples;

/// Where one queue's packets are on one CPU, and nowhere else, additions need not be atomic.
#[test]
fn root_only_a_drivers_queue_is_counted_by_plain_additions() {
    let (node, scratch) = (NetNs::new("host").unwrap(), Scratch::new().unwrap());
    node.ip(&["link", "add", "up0", "type", "veth", "peer", "name", "up1"]).unwrap();
    node.ip(&["link", "add", "bridge0", "type", "bridge"]).unwrap();
    node.ip(&["tuntap", "add", "tap0", "mode", "tap"]).unwrap();
    let plain = u32::from(cfg!(target_arch = "x86_64"));
    let expected =
        [("up0", Attached::Native, plain), ("bridge0", Attached::Generic, 0), ("tap0", Attached::Native, 0)];
    for (interface, attached, alone) in expected {
        // Attached, then taken over.
        for _ in 0..2 {
            let folder = scratch.bpf().join(interface);
            let found = node.enter(move || {
                let mut program = Program::load(interface, Some(&folder))?;
                let work = Work::Collect(Wanted::default(), Surplus::Stack);
                program.configure(&work, 1522, Duration::from_millis(40))?;
                let attached = program.attach()?;
                Ok((attached, program.config.get(&0, 0)?.0.alone))
            });
            assert_eq!(found.unwrap(), (attached, alone), "{interface}");
        }
    }
}

struct Frame<'a>(&'a [u8], &'a Wanted);

impl Window for Frame<'_> {
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.0.get(offset..offset + N)?.try_into().ok()
    }
    fn wanted(&self, key: &IdKey) -> bool {
        identifiers(self.1).any(|(kind, id)| kind as u32 == key.kind && id == key.id)
    }
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let some = |ids: &'static [u32]| prop::collection::vec(prop::sample::select(ids), 0..3);
    let port = |port: u16| prop::sample::select(vec![vec![], vec![port], vec![1, port, 3]]);
    (port(4789), port(6081), any::<[bool; 2]>(), some(&[7, 8, 1]), some(&[9, 10, 1]), some(&[11, 12, 1]))
        .prop_map(|(vxlan_ports, geneve_ports, [gre, erspan], vnis, keys, sessions)| Wanted {
            vxlan_ports,
            geneve_ports,
            gre,
            erspan,
            vnis,
            keys,
            sessions: sessions.into_iter().map(|id| id as u16).collect(),
            af_packet: false,
        })
}

/// With VLAN tags, and bytes changed.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let tunnels = prop::sample::select(samples::tunnels().to_vec());
    let changes = prop::collection::vec((0usize..120, any::<u8>()), 0..3);
    (any::<bool>(), tunnels, 0usize..3, changes).prop_map(|(v6, tunnel, tags, changes)| {
        let mut frame = samples::outer(v6, tunnel, 5, 0, &samples::inner(1, 20));
        for _ in 0..tags {
            frame.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
        }
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// What the decapsulation can use and somebody wants is taken from the stack; what is no tunnel stays there.
    #[test]
    fn the_program_takes_what_the_collector_can_use(wanted in wanted(), frame in frame()) {
        let found = find(&Frame(&frame, &wanted), &filter(&wanted).unwrap());
        let receiver = Receiver {
            vxlan_ports: &wanted.vxlan_ports,
            geneve_ports: &wanted.geneve_ports,
            verify: false,
        };
        match decapsulate(&frame, &receiver) {
            Ok(inside) => prop_assert_eq!(found == Found::Whole, wanted.accepts(&inside.metadata)),
            Err(podwire_core::wire::decap::DecapError::NotATunnel) => prop_assert_ne!(found, Found::Whole),
            Err(_) => {}
        }
    }
}
