//! What `fill` writes, against the readers and against full recomputation.

extern crate std;

use core::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use crate::wire::{
    Layer, Problem,
    encap::{
        Encapsulation, Flow, OUTER_MAX, OuterAddresses, OuterTemplate, PerPacket, Tunnel, encapsulate,
        flow_hash,
    },
    erspan::{self, iii::Granularity},
    ethernet, geneve, gre, ipv4, ipv6, udp, vxlan,
};

pub(super) fn tunnel() -> impl Strategy<Value = Tunnel> {
    let direction =
        proptest::option::of(prop_oneof![Just(erspan::Direction::Ingress), Just(erspan::Direction::Egress)]);
    let granularity =
        prop_oneof![Just(Granularity::HundredMicroseconds), Just(Granularity::HundredNanoseconds)];
    prop_oneof![
        (0..=vxlan::MAX_VNI, 1u16..).prop_map(|(vni, port)| Tunnel::Vxlan { vni, port }),
        (0..=geneve::MAX_VNI, 1u16..).prop_map(|(vni, port)| Tunnel::Geneve { vni, port }),
        any::<(Option<u32>, bool)>().prop_map(|(key, sequence)| Tunnel::Gre { key, sequence }),
        (0..=erspan::MAX_SESSION, 0..=erspan::ii::MAX_INDEX)
            .prop_map(|(session, index)| Tunnel::ErspanII { session, index }),
        (0..=erspan::MAX_SESSION, 0..=erspan::iii::MAX_HARDWARE_ID, any::<u16>(), direction, granularity)
            .prop_map(|(session, hardware_id, sgt, direction, granularity)| Tunnel::ErspanIII {
                session,
                hardware_id,
                sgt,
                direction,
                granularity
            }),
    ]
}

pub(super) fn addresses() -> impl Strategy<Value = OuterAddresses> {
    prop_oneof![
        any::<(Ipv4Addr, Ipv4Addr)>().prop_map(|(local, remote)| OuterAddresses::V4 { local, remote }),
        any::<(Ipv6Addr, Ipv6Addr)>().prop_map(|(local, remote)| OuterAddresses::V6 { local, remote }),
    ]
}

pub(super) fn encapsulation() -> impl Strategy<Value = Encapsulation> {
    (addresses(), tunnel(), any::<(u8, u8, bool)>()).prop_map(
        |(addresses, tunnel, (ttl, tos, dont_fragment))| Encapsulation {
            addresses,
            tunnel,
            ttl,
            tos,
            dont_fragment,
        },
    )
}

pub(super) fn per_packet() -> impl Strategy<Value = PerPacket> {
    (any::<(u64, u32, u32, u16, u16)>(), 0..2u32, 0..2u32, 0..4u32).prop_map(
        |((timestamp_ns, flow_hash, sequence, ip_id, vlan_tci), direction, truncated, vlan_tag)| PerPacket {
            timestamp_ns,
            flow_hash,
            sequence,
            direction,
            truncated,
            ip_id,
            vlan_tci,
            vlan_tag,
            ..PerPacket::default()
        },
    )
}

proptest! {
    #[test]
    fn ipv4_checksum_is_that_of_a_full_recomputation(
        encapsulation in encapsulation(),
        mut packet in per_packet(),
        inner_len in 0..70_000u32,
    ) {
        packet.inner_len = inner_len;
        let template = OuterTemplate::new(&encapsulation).unwrap();
        let mut out = [0xaa; OUTER_MAX];
        let len = template.fill(&packet, &mut out);
        prop_assert_eq!(len, template.overhead());
        prop_assert!(out[len..].iter().all(|&byte| byte == 0));
        if let OuterAddresses::V4 { local, remote } = encapsulation.addresses {
            let total = len as u32 + inner_len;
            let mut expected = [0; ipv4::MIN_HEADER_LEN];
            ipv4::Header {
                tos: encapsulation.tos,
                total_length: u16::try_from(total).unwrap_or(0),
                id: packet.ip_id,
                dont_fragment: encapsulation.dont_fragment,
                ttl: encapsulation.ttl,
                protocol: out[ipv4::PROTOCOL_OFFSET],
                source: local.octets(),
                destination: remote.octets(),
                ..ipv4::Header::default()
            }
            .write(&mut expected)
            .unwrap();
            prop_assert_eq!(&out[..ipv4::MIN_HEADER_LEN], &expected[..]);
        }
    }

    #[test]
    fn every_field_is_read_back(
        encapsulation in encapsulation(),
        mut packet in per_packet(),
        inner in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        packet.inner_len = inner.len() as u32;
        let template = OuterTemplate::new(&encapsulation).unwrap();
        let link = ethernet::Header { destination: [2; 6], source: [4; 6], ether_type: 0 };
        let mut frame = [0u8; 400];
        let len = encapsulate(&template, &packet, &link, &inner, &mut frame).unwrap();
        let frame = &frame[..len];
        prop_assert_eq!(ethernet::View::parse(frame, 0).unwrap().destination(), [2; 6]);
        let at = match encapsulation.addresses {
            OuterAddresses::V4 { local, remote } => {
                let ip = ipv4::View::parse(frame, 14).unwrap();
                prop_assert_eq!((ip.source(), ip.destination()), (local.octets(), remote.octets()));
                prop_assert_eq!((ip.ttl(), ip.tos()), (encapsulation.ttl, encapsulation.tos));
                prop_assert_eq!(ip.frame().len(), len);
                prop_assert!(ip.checksum_holds());
                ip.payload_offset()
            }
            OuterAddresses::V6 { local, remote } => {
                let ip = ipv6::View::parse(frame, 14).unwrap();
                prop_assert_eq!((ip.source(), ip.destination()), (local.octets(), remote.octets()));
                prop_assert_eq!((ip.hop_limit(), ip.traffic_class()), (encapsulation.ttl, encapsulation.tos));
                prop_assert_eq!(ip.frame().len(), len);
                ip.payload_offset()
            }
        };
        prop_assert_eq!(at, 14 + template.transport_offset as usize);
        let payload_offset = tunnel_fields(&encapsulation.tunnel, &packet, frame, at);
        prop_assert_eq!(&frame[payload_offset..], &inner[..]);
    }

    #[test]
    fn both_directions_of_a_flow_have_one_hash(
        source in any::<[u64; 2]>(),
        destination in any::<[u64; 2]>(),
        ports in any::<(u16, u16)>(),
        protocol in any::<u8>(),
    ) {
        let there = Flow { source, destination, source_port: ports.0, destination_port: ports.1, protocol };
        let back =
            Flow { source: destination, destination: source, source_port: ports.1, destination_port: ports.0, protocol };
        prop_assert_eq!(flow_hash(&there), flow_hash(&back));
    }
}

#[test]
fn the_hash_spreads_neighbouring_flows() {
    // 4,096 flows of neighbouring addresses and ports over 64 buckets of the bits that UDP ports and queues take.
    for shift in [0u32, 26] {
        let mut buckets = [0u32; 64];
        for host in 0..64u64 {
            for port in 0..64u16 {
                let flow = Flow {
                    source: [(0x0a0a_0100 + host) << 32, 0],
                    destination: [0x0a0a_0201 << 32, 0],
                    source_port: 40_000 + port,
                    destination_port: 80,
                    protocol: 6,
                };
                buckets[(flow_hash(&flow) >> shift) as usize & 63] += 1;
            }
        }
        let chi: f64 = buckets.iter().map(|&count| (f64::from(count) - 64.0).powi(2) / 64.0).sum();
        // 63 degrees of freedom: above 110 once in 5,000 draws, and this draw is fixed.
        assert!(chi < 110.0, "{chi}: {buckets:?}");
    }
}

#[test]
fn parameters_beyond_their_fields_are_refused() {
    let addresses = OuterAddresses::V4 { local: Ipv4Addr::LOCALHOST, remote: Ipv4Addr::LOCALHOST };
    let third = |hardware_id, granularity| Tunnel::ErspanIII {
        session: 1,
        hardware_id,
        sgt: 0,
        direction: None,
        granularity,
    };
    for (tunnel, layer, problem) in [
        (Tunnel::Vxlan { vni: 1 << 24, port: 4789 }, Layer::Vxlan, Problem::ValueTooLarge),
        (Tunnel::Geneve { vni: 1 << 24, port: 6081 }, Layer::Geneve, Problem::ValueTooLarge),
        (Tunnel::ErspanII { session: 1024, index: 0 }, Layer::Erspan, Problem::ValueTooLarge),
        (Tunnel::ErspanII { session: 0, index: 1 << 20 }, Layer::Erspan, Problem::ValueTooLarge),
        (third(64, Granularity::default()), Layer::Erspan, Problem::ValueTooLarge),
        (third(1, Granularity::Ieee1588), Layer::Erspan, Problem::Unsupported),
    ] {
        let error = OuterTemplate::new(&Encapsulation::new(addresses, tunnel)).unwrap_err();
        assert_eq!((error.layer, error.problem), (layer, problem), "{tunnel:?}");
    }
}

#[test]
fn frames_beyond_the_outer_length_are_refused() {
    for (addresses, overhead) in [
        (OuterAddresses::V4 { local: Ipv4Addr::LOCALHOST, remote: Ipv4Addr::LOCALHOST }, 36),
        (OuterAddresses::V6 { local: Ipv6Addr::LOCALHOST, remote: Ipv6Addr::LOCALHOST }, 16),
    ] {
        let tunnel = Tunnel::Vxlan { vni: 1, port: 4789 };
        let template = OuterTemplate::new(&Encapsulation::new(addresses, tunnel)).unwrap();
        let mut out = std::vec![0; 70_000];
        let mut run = |len: usize, space: usize| {
            let packet = PerPacket { inner_len: len as u32, ..PerPacket::default() };
            encapsulate(
                &template,
                &packet,
                &ethernet::Header::default(),
                &std::vec![0; len],
                &mut out[..space],
            )
        };
        let most = 65_535 - overhead;
        assert_eq!(run(most, 70_000), Ok(14 + template.overhead() + most));
        assert_eq!(run(most + 1, 70_000).unwrap_err().problem, Problem::ValueTooLarge);
        assert_eq!(run(10, 20).unwrap_err().problem, Problem::NoSpace);
    }
}

/// Checks the tunnel's fields and returns where the inner frame begins.
fn tunnel_fields(tunnel: &Tunnel, packet: &PerPacket, frame: &[u8], at: usize) -> usize {
    let udp = |port: u16| {
        let udp = udp::View::parse(frame, at).unwrap();
        assert_eq!(udp.destination_port(), port);
        assert!(udp.source_port() >= 49152);
        assert_eq!((udp.checksum(), udp.length() as usize), (0, frame.len() - at));
        udp.payload_offset()
    };
    let gre = |protocol: u16, key: Option<u32>, sequence: bool| {
        let gre = gre::View::parse(frame, at).unwrap();
        assert_eq!((gre.protocol(), gre.key()), (protocol, key));
        assert_eq!(gre.sequence(), sequence.then_some(packet.sequence));
        gre.payload_offset()
    };
    let (vlan, cos) = (packet.vlan_tci & 0xfff, (packet.vlan_tci >> 13) as u8);
    match *tunnel {
        Tunnel::Vxlan { vni, port } => {
            let vxlan = vxlan::View::parse(frame, udp(port)).unwrap();
            assert_eq!(vxlan.vni(), vni);
            vxlan.payload_offset()
        }
        Tunnel::Geneve { vni, port } => {
            let geneve = geneve::View::parse(frame, udp(port)).unwrap();
            assert_eq!((geneve.vni(), geneve.protocol()), (vni, ethernet::ETHER_TYPE_TEB));
            geneve.payload_offset()
        }
        Tunnel::Gre { key, sequence } => gre(ethernet::ETHER_TYPE_TEB, key, sequence),
        Tunnel::ErspanII { session, index } => {
            let at = gre(ethernet::ETHER_TYPE_ERSPAN_II, None, true);
            let erspan = erspan::ii::View::parse(frame, at).unwrap();
            let expected = erspan::ii::Header {
                vlan,
                cos,
                vlan_tag: erspan::VlanTag::from_bits(packet.vlan_tag as u8),
                truncated: packet.truncated != 0,
                session,
                index,
            };
            assert_eq!(erspan.header(), expected);
            erspan.payload_offset()
        }
        Tunnel::ErspanIII { session, hardware_id, sgt, direction, granularity } => {
            let at = gre(ethernet::ETHER_TYPE_ERSPAN_III, None, true);
            let erspan = erspan::iii::View::parse(frame, at).unwrap();
            let unit = if granularity == Granularity::HundredNanoseconds { 100 } else { 100_000 };
            let own =
                if packet.direction == 0 { erspan::Direction::Ingress } else { erspan::Direction::Egress };
            let expected = erspan::iii::Header {
                vlan,
                cos,
                truncated: packet.truncated != 0,
                session,
                timestamp: (packet.timestamp_ns / unit) as u32,
                sgt,
                ethernet: true,
                hardware_id,
                direction: direction.unwrap_or(own),
                granularity,
                ..erspan::iii::Header::default()
            };
            assert_eq!(erspan.header(), expected);
            erspan.payload_offset()
        }
    }
}
