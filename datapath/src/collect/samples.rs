//! Outer frames for tests, as podwire sends them.

use podwire_core::wire::encap::{
    Encapsulation, OuterAddresses, OuterTemplate, PerPacket, Tunnel, encapsulate,
};
use podwire_core::wire::erspan::iii::Granularity;
use podwire_core::wire::ethernet;

/// One of each kind; GRE with and without key and numbers.
pub(crate) fn tunnels() -> [Tunnel; 7] {
    let granularity = Granularity::HundredNanoseconds;
    [
        Tunnel::Vxlan { vni: 7, port: 4789 },
        Tunnel::Geneve { vni: 8, port: 6081 },
        Tunnel::Gre { key: None, sequence: false },
        Tunnel::Gre { key: Some(9), sequence: false },
        Tunnel::Gre { key: Some(10), sequence: true },
        Tunnel::ErspanII { session: 11, index: 1 },
        Tunnel::ErspanIII { session: 12, hardware_id: 1, sgt: 0, direction: None, granularity },
    ]
}

/// The outer frame around `inner`.
pub(crate) fn outer(v6: bool, tunnel: Tunnel, sequence: u32, time: u64, inner: &[u8]) -> Vec<u8> {
    let addresses = if v6 {
        OuterAddresses::V6 { local: [0xfd; 16].into(), remote: [0xfe; 16].into() }
    } else {
        OuterAddresses::V4 { local: [192, 0, 2, 1].into(), remote: [192, 0, 2, 9].into() }
    };
    let wish = Encapsulation { addresses, tunnel, ttl: 64, tos: 0, dont_fragment: false };
    let packet =
        PerPacket { timestamp_ns: time, inner_len: inner.len() as u32, sequence, ..PerPacket::default() };
    let ethernet = ethernet::Header { destination: [2; 6], source: [4; 6], ether_type: 0 };
    let mut frame = vec![0; inner.len() + 200];
    let len = OuterTemplate::new(&wish)
        .and_then(|template| encapsulate(&template, &packet, &ethernet, inner, &mut frame))
        .unwrap_or_default();
    frame.truncate(len);
    frame
}

/// A mirrored frame of UDP over IPv4 between two addresses that end in `number`, with a payload of zeros.
pub(crate) fn inner(number: u8, payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, number, 2, 0, 0, 0, 1, number, 0x08, 0x00, 0x45, 0];
    frame.extend((28 + payload as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, number, 10, 0, 1, number, 0, 9, 0, 9]);
    frame.extend((8 + payload as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.resize(frame.len() + payload, 0);
    frame
}
