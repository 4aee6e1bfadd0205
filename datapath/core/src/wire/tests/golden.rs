//! Whole tunnel packets, byte for byte: outer Ethernet, outer IP, UDP or GRE, tunnel header, inner frame.
//!
//! Each was compared with the packet that scapy 2.5.0 builds from the same fields, and read with tshark 4.0.17,
//! which showed every field with the value of [`tunnels`] and [`packet`] and all IPv4 checksums as correct.

extern crate std;

use std::vec;

use core::net::{Ipv4Addr, Ipv6Addr};

use super::hex;
use crate::wire::{
    encap::{Encapsulation, OuterAddresses, OuterTemplate, PerPacket, Tunnel, encapsulate},
    erspan::{Direction, VlanTag, iii::Granularity},
    ethernet, geneve, vxlan,
};

/// The mirrored frame: an echo request.
const INNER: [u8; 46] = hex("02000000000b 02000000000a 0800 \
     45000020 00010000 400166da 0a000001 0a000002 0800 b6dd 0007 0001 70696e67");
/// VXLAN over IPv4.
const VXLAN_V4: [u8; 96] = hex("0200000000020200000000010800 \
     45b80052123400004011e3a4c0000201c0000209 \
     f7ab12b5003e0000 \
     0800000012345600 \
     02000000000b02000000000a0800 4500002000010000400166da0a0000010a000002 0800b6dd0007000170696e67");
/// VXLAN over IPv6.
const VXLAN_V6: [u8; 116] = hex("02000000000202000000000186dd \
     6b800000003e114020010db800000000000000000000000120010db8000000000000000000000009 \
     f7ab12b5003e0000 \
     0800000000000100 \
     02000000000b02000000000a0800 4500002000010000400166da0a0000010a000002 0800b6dd0007000170696e67");
/// GENEVE over IPv4.
const GENEVE_V4: [u8; 96] = hex("0200000000020200000000010800 \
     45b80052123400004011e3a4c0000201c0000209 \
     f7ab17c1003e0000 \
     00006558abcdef00 \
     02000000000b02000000000a0800 4500002000010000400166da0a0000010a000002 0800b6dd0007000170696e67");
/// GRE with key and sequence number over IPv4.
const GRE_V4: [u8; 92] = hex("0200000000020200000000010800 \
     45b8004e12340000402fe38ac0000201c0000209 \
     30006558deadbeef01020304 \
     02000000000b02000000000a0800 4500002000010000400166da0a0000010a000002 0800b6dd0007000170696e67");
/// ERSPAN type II over IPv4.
const ERSPAN_II_V4: [u8; 96] = hex("0200000000020200000000010800 \
     45b8005212340000402fe386c0000201c0000209 \
     100088be01020304 \
     10c87709000fedcb \
     02000000000b02000000000a0800 4500002000010000400166da0a0000010a000002 0800b6dd0007000170696e67");
/// ERSPAN type III over IPv4.
const ERSPAN_III_V4: [u8; 100] = hex("0200000000020200000000010800 \
     45b8005612340000402fe382c0000201c0000209 \
     100022eb01020304 \
     20c867ff1ef614d2beef82a8 \
     02000000000b02000000000a0800 4500002000010000400166da0a0000010a000002 0800b6dd0007000170696e67");
/// ERSPAN type III over IPv6.
const ERSPAN_III_V6: [u8; 120] = hex("02000000000202000000000186dd \
     6b80000000422f4020010db800000000000000000000000120010db8000000000000000000000009 \
     100022eb01020304 \
     20c867ff1ef614d2beef82a8 \
     02000000000b02000000000a0800 4500002000010000400166da0a0000010a000002 0800b6dd0007000170696e67");
/// All of them.
pub const ALL: [&[u8]; 7] =
    [&VXLAN_V4, &VXLAN_V6, &GENEVE_V4, &GRE_V4, &ERSPAN_II_V4, &ERSPAN_III_V4, &ERSPAN_III_V6];

const V4: OuterAddresses =
    OuterAddresses::V4 { local: Ipv4Addr::new(192, 0, 2, 1), remote: Ipv4Addr::new(192, 0, 2, 9) };
const V6: OuterAddresses = OuterAddresses::V6 {
    local: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    remote: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9),
};

const LINK: ethernet::Header =
    ethernet::Header { destination: [2, 0, 0, 0, 0, 2], source: [2, 0, 0, 0, 0, 1], ether_type: 0 };

/// What varies per packet, the same for all of them.
fn packet() -> PerPacket {
    PerPacket {
        inner_len: INNER.len() as u32,
        flow_hash: 0xdead_beef,
        ip_id: 0x1234,
        sequence: 0x0102_0304,
        timestamp_ns: 1_700_000_000_123_456_789,
        direction: Direction::Egress as u32,
        vlan_tci: 3 << 13 | 200,
        vlan_tag: VlanTag::Removed as u32,
        truncated: 1,
        ..PerPacket::default()
    }
}

fn tunnels() -> [(OuterAddresses, Tunnel); 7] {
    let third = Tunnel::ErspanIII {
        session: 1023,
        hardware_id: 42,
        sgt: 0xbeef,
        direction: None,
        granularity: Granularity::HundredMicroseconds,
    };
    [
        (V4, Tunnel::Vxlan { vni: 0x0012_3456, port: vxlan::PORT }),
        (V6, Tunnel::Vxlan { vni: 1, port: vxlan::PORT }),
        (V4, Tunnel::Geneve { vni: 0x00ab_cdef, port: geneve::PORT }),
        (V4, Tunnel::Gre { key: Some(0xdead_beef), sequence: true }),
        (V4, Tunnel::ErspanII { session: 777, index: 0x000f_edcb }),
        (V4, third),
        (V6, third),
    ]
}

#[test]
fn encapsulation_writes_these_bytes() {
    for ((addresses, tunnel), golden) in tunnels().into_iter().zip(ALL) {
        let description = Encapsulation { tos: 0xb8, ..Encapsulation::new(addresses, tunnel) };
        let template = OuterTemplate::new(&description).unwrap();
        let mut out = vec![0; 200];
        let len = encapsulate(&template, &packet(), &LINK, &INNER, &mut out).unwrap();
        assert_eq!(&out[..len], golden, "{tunnel:?}");
        assert_eq!(template.overhead(), golden.len() - INNER.len() - ethernet::HEADER_LEN);
        assert_eq!(template.remote(), addresses.remote());
    }
}
