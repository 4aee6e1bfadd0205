//! What a header writes, its view reads back; and what does not fit, or has no space, is refused.

extern crate std;

use std::{vec, vec::Vec};

use proptest::prelude::*;

use crate::wire::{
    Problem, arp, erspan, ethernet, geneve, gre, icmp, icmpv6, ipv4, ipv6, ndp, protocol, sctp, tcp, udp,
    vlan, vxlan,
};

/// Writes a header and a payload, reads them back, and tries every space that is too small.
macro_rules! round_trip {
    ($protocol:ident, $header:expr, $payload:expr) => {{
        let (header, payload): (_, &[u8]) = ($header, &$payload);
        let mut out = vec![0xaa; 4096];
        let len = header.write(&mut out).unwrap();
        prop_assert!(out[len..].iter().all(|&byte| byte == 0xaa));
        out[len..len + payload.len()].copy_from_slice(payload);
        out.truncate(len + payload.len());
        // Behind other bytes, so that offsets count from the frame's start.
        let frame = [&[0xbb; 5][..], &out].concat();
        let view = $protocol::View::parse(&frame, 5).unwrap();
        prop_assert_eq!(view.header(), header);
        for space in 0..len {
            let mut small = vec![0xaa; space];
            let error = header.write(&mut small).unwrap_err();
            prop_assert_eq!((error.problem, error.needed, error.had), (Problem::NoSpace, len, space));
            prop_assert!(small.iter().all(|&byte| byte == 0xaa), "written to a space too small");
        }
        (len, frame)
    }};
}

fn words(max: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<[u8; 4]>(), 0..=max / 4).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn link_layer(
        macs in any::<([u8; 6], [u8; 6], u16)>(),
        priority in 0u8..8, drop_eligible in any::<bool>(), id in 0..=vlan::MAX_ID,
        ips in any::<(u16, [u8; 4], [u8; 4])>(),
    ) {
        let header = ethernet::Header { destination: macs.0, source: macs.1, ether_type: macs.2 };
        round_trip!(ethernet, header, [1, 2, 3]);
        round_trip!(vlan, vlan::Header { priority, drop_eligible, id, ether_type: macs.2 }, []);
        let arp = arp::Header {
            operation: ips.0, sender_mac: macs.0, sender_ip: ips.1, target_mac: macs.1, target_ip: ips.2,
        };
        round_trip!(arp, arp, [0; 18]);
    }

    #[test]
    fn ipv4_header(
        numbers in any::<(u8, u16, bool, bool, u8, u8)>(),
        addresses in any::<([u8; 4], [u8; 4])>(),
        fragment_offset in 0..=ipv4::FRAGMENT_OFFSET_MASK,
        options in words(ipv4::MAX_OPTIONS_LEN),
        payload in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let (tos, id, dont_fragment, more_fragments, ttl, protocol) = numbers;
        let header = ipv4::Header {
            tos, total_length: (20 + options.len() + payload.len()) as u16, id, dont_fragment, more_fragments,
            fragment_offset, ttl, protocol, source: addresses.0, destination: addresses.1, options: &options,
        };
        let (len, mut frame) = round_trip!(ipv4, header, payload);
        prop_assert_eq!(len, header.len());
        frame.extend([0xcc; 9]);
        let view = ipv4::View::parse(&frame, 5).unwrap();
        prop_assert!(view.checksum_holds());
        prop_assert_eq!(view.payload(), &payload[..], "padding was taken for payload");
        prop_assert_eq!(view.fragment_offset(), usize::from(fragment_offset) * 8);
    }

    #[test]
    fn ipv6_header(
        numbers in any::<(u8, u8, u8)>(),
        addresses in any::<([u8; 16], [u8; 16])>(),
        flow_label in 0..=ipv6::MAX_FLOW_LABEL,
        payload in proptest::collection::vec(any::<u8>(), 1..80),
    ) {
        let header = ipv6::Header {
            traffic_class: numbers.0, flow_label, payload_length: payload.len() as u16, next_header: numbers.1,
            hop_limit: numbers.2, source: addresses.0, destination: addresses.1,
        };
        let (_, mut frame) = round_trip!(ipv6, header, payload);
        frame.extend([0xcc; 9]);
        prop_assert_eq!(ipv6::View::parse(&frame, 5).unwrap().payload(), &payload[..]);
    }

    #[test]
    fn ipv6_extension_chain(
        chain in proptest::collection::vec((0usize..6, 0usize..4, any::<u8>()), 0..=ipv6::extension::MAX_HEADERS),
        fragment in proptest::option::of((0u16..0x2000, any::<bool>(), any::<u32>())),
    ) {
        const NUMBERS: [u8; 6] = [
            protocol::HOP_BY_HOP, protocol::ROUTING, protocol::AUTHENTICATION, protocol::DESTINATION_OPTIONS,
            protocol::MOBILITY, protocol::SHIM6,
        ];
        let chain = &chain[..chain.len().min(ipv6::extension::MAX_HEADERS - usize::from(fragment.is_some()))];
        let numbers: Vec<u8> = chain.iter().map(|&(which, ..)| NUMBERS[which])
            .chain(fragment.map(|_| protocol::FRAGMENT)).chain([protocol::TCP]).collect();
        let mut body = Vec::new();
        let mut out = [0; 64];
        for (index, &(_, size, fill)) in chain.iter().enumerate() {
            let (number, next_header) = (numbers[index], numbers[index + 1]);
            let data = vec![fill; 14 + size * 8];
            let len = ipv6::extension::Header { number, next_header, data: &data }.write(&mut out).unwrap();
            body.extend(&out[..len]);
        }
        if let Some((units, more, id)) = fragment {
            let part = ipv6::extension::Fragment { next_header: protocol::TCP, offset: units * 8, more, id };
            let len = part.write(&mut out).unwrap();
            body.extend(&out[..len]);
        }
        let headers_len = body.len();
        body.extend([0x77; 20]);
        let mut packet = vec![0; 40];
        ipv6::Header { payload_length: body.len() as u16, next_header: numbers[0], ..ipv6::Header::default() }
            .write(&mut packet).unwrap();
        packet.extend(body);
        let view = ipv6::View::parse(&packet, 0).unwrap();
        let found: Vec<_> = view.extensions().map(|extension| extension.unwrap().number()).collect();
        prop_assert_eq!(&found[..], &numbers[..numbers.len() - 1]);
        let upper = view.upper_layer().unwrap();
        prop_assert_eq!((upper.protocol, upper.offset), (protocol::TCP, 40 + headers_len));
        prop_assert_eq!(upper.payload, &[0x77; 20]);
        prop_assert_eq!(
            upper.fragment.map(|part| (part.offset / 8, part.more, part.id)),
            fragment
        );
    }

    #[test]
    fn transport(
        ports in any::<(u16, u16)>(), numbers in any::<(u32, u32, u8, u16, u16, u16)>(),
        options in words(tcp::MAX_OPTIONS_LEN), rest in any::<[u8; 4]>(),
        payload in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let tcp = tcp::Header {
            source_port: ports.0, destination_port: ports.1, sequence: numbers.0, acknowledgment: numbers.1,
            flags: numbers.2, window: numbers.3, checksum: numbers.4, urgent: numbers.5, options: &options,
        };
        round_trip!(tcp, tcp, payload);
        let udp = udp::Header {
            source_port: ports.0, destination_port: ports.1, length: (8 + payload.len()) as u16,
            checksum: numbers.3,
        };
        round_trip!(udp, udp, payload);
        let sctp = sctp::Header {
            source_port: ports.0, destination_port: ports.1, tag: numbers.0, checksum: numbers.1,
        };
        round_trip!(sctp, sctp, payload);
        let (kind, code) = (numbers.2, numbers.3 as u8);
        round_trip!(icmp, icmp::Header { kind, code, checksum: numbers.4, rest }, payload);
        round_trip!(icmpv6, icmpv6::Header { kind, code, checksum: numbers.4, rest }, payload);
    }

    #[test]
    fn neighbour_discovery(
        which in 0..5, target in any::<[u8; 16]>(), destination in any::<[u8; 16]>(), flags in any::<u8>(),
        timers in any::<(u8, u16, u32, u32, u16)>(), mac in any::<[u8; 6]>(), mtu in any::<u32>(),
        lifetimes in any::<(u32, u32)>(),
    ) {
        let message = match which {
            0 => ndp::Message::RouterSolicitation,
            1 => ndp::Message::RouterAdvertisement {
                hop_limit: timers.0, flags, router_lifetime: timers.1, reachable_time: timers.2,
                retransmit_timer: timers.3,
            },
            2 => ndp::Message::NeighbourSolicitation { target },
            3 => ndp::Message::NeighbourAdvertisement { flags, target },
            _ => ndp::Message::Redirect { target, destination },
        };
        let prefix = ndp::option::Prefix {
            len: 64, flags, valid_lifetime: lifetimes.0, preferred_lifetime: lifetimes.1, prefix: target,
        };
        let [a, b, c, d] = mtu.to_be_bytes();
        let (prefix_data, mtu_data) = (prefix.data(), [0, 0, a, b, c, d]);
        let written = [
            ndp::option::NdpOption { kind: ndp::option::SOURCE_LINK_LAYER, data: &mac },
            ndp::option::NdpOption { kind: ndp::option::MTU, data: &mtu_data },
            ndp::option::NdpOption { kind: ndp::option::PREFIX_INFORMATION, data: &prefix_data },
        ];
        let mut options = [0; 48];
        let mut used = 0;
        for option in &written {
            used += option.write(&mut options[used..]).unwrap();
        }
        let header = ndp::Header { message, checksum: timers.4, options: &options[..used] };
        let (_, frame) = round_trip!(ndp, header, []);
        let view = ndp::View::parse(&frame, 5).unwrap();
        let read: Vec<_> = view.options().map(|option| option.unwrap()).collect();
        prop_assert_eq!(&read[..], &written[..]);
        prop_assert_eq!((read[0].mac(), read[1].mtu(), read[2].prefix()), (Some(mac), Some(mtu), Some(prefix)));
    }

    #[test]
    fn tunnels(
        vni in 0..=vxlan::MAX_VNI, numbers in any::<(u16, Option<u16>, Option<u32>, Option<u32>)>(),
        flags in any::<(bool, bool)>(), options in words(geneve::MAX_OPTIONS_LEN),
    ) {
        round_trip!(vxlan, vxlan::Header { vni }, [1; 14]);
        let header = geneve::Header {
            control: flags.0, critical: flags.1, protocol: numbers.0, vni, options: &options,
        };
        round_trip!(geneve, header, [1; 14]);
        let header =
            gre::Header { protocol: numbers.0, checksum: numbers.1, key: numbers.2, sequence: numbers.3 };
        round_trip!(gre, header, [1; 14]);
    }

    #[test]
    fn geneve_options(
        written in proptest::collection::vec((any::<u16>(), any::<u8>(), words(24)), 0..6),
    ) {
        let mut options = vec![0; 252];
        let mut used = 0;
        for (class, kind, data) in &written {
            used += geneve::GeneveOption { class: *class, kind: *kind, data }.write(&mut options[used..]).unwrap();
        }
        let mut out = vec![0; 300];
        let header = geneve::Header { options: &options[..used], ..geneve::Header::default() };
        let len = header.write(&mut out).unwrap();
        let view = geneve::View::parse(&out[..len], 0).unwrap();
        let read: Vec<_> = view.options().map(|option| option.unwrap())
            .map(|option| (option.class, option.kind, option.data.to_vec())).collect();
        prop_assert_eq!(read, written);
    }

    #[test]
    fn erspan_headers(
        vlan in 0..=erspan::MAX_VLAN, cos in 0..=erspan::MAX_COS, two_bits in 0u8..4, truncated in any::<bool>(),
        session in 0..=erspan::MAX_SESSION, index in 0..=erspan::ii::MAX_INDEX,
        numbers in any::<(u32, u16, bool, bool)>(), frame_type in 0..=erspan::iii::MAX_FRAME_TYPE,
        hardware_id in 0..=erspan::iii::MAX_HARDWARE_ID, granularity in 0u16..4,
        subheader in any::<Option<[u8; 8]>>(),
    ) {
        use erspan::{ii, iii};
        let vlan_tag = erspan::VlanTag::from_bits(two_bits);
        round_trip!(ii, ii::Header { vlan, cos, vlan_tag, truncated, session, index }, [1; 14]);
        let header = iii::Header {
            vlan, cos, integrity: iii::Integrity::from_bits(two_bits), truncated, session, timestamp: numbers.0,
            sgt: numbers.1, ethernet: numbers.2, frame_type, hardware_id,
            direction: if numbers.3 { erspan::Direction::Egress } else { erspan::Direction::Ingress },
            granularity: iii::Granularity::from_bits(granularity), subheader,
        };
        round_trip!(iii, header, [1; 14]);
    }
}

#[test]
fn a_ninth_extension_header_is_an_error() {
    let count = ipv6::extension::MAX_HEADERS + 1;
    let mut packet = vec![0; 40 + count * 8];
    ipv6::Header {
        payload_length: (count * 8) as u16,
        next_header: protocol::DESTINATION_OPTIONS,
        ..ipv6::Header::default()
    }
    .write(&mut packet)
    .unwrap();
    for index in 0..count {
        packet[40 + index * 8] = protocol::DESTINATION_OPTIONS;
    }
    let error = ipv6::View::parse(&packet, 0).unwrap().upper_layer().unwrap_err();
    assert_eq!((error.problem, error.offset), (Problem::LengthTooLarge, 40 + 8 * 8));
}

#[test]
fn values_beyond_their_fields_are_refused() {
    let mut out = [0xaa; 400];
    let options = [0; 400];
    let refused = [
        vlan::Header { priority: 8, ..vlan::Header::default() }.write(&mut out),
        vlan::Header { id: 4096, ..vlan::Header::default() }.write(&mut out),
        ipv4::Header { fragment_offset: 0x2000, ..ipv4::Header::default() }.write(&mut out),
        ipv4::Header { options: &options[..44], ..ipv4::Header::default() }.write(&mut out),
        ipv4::Header { options: &options[..3], ..ipv4::Header::default() }.write(&mut out),
        ipv6::Header { flow_label: 1 << 20, ..ipv6::Header::default() }.write(&mut out),
        ipv6::extension::Fragment { offset: 9, ..Default::default() }.write(&mut out),
        ipv6::extension::Header { number: protocol::FRAGMENT, next_header: 6, data: &options[..6] }
            .write(&mut out),
        ipv6::extension::Header { number: protocol::ROUTING, next_header: 6, data: &options[..7] }
            .write(&mut out),
        tcp::Header { options: &options[..44], ..tcp::Header::default() }.write(&mut out),
        vxlan::Header { vni: 1 << 24 }.write(&mut out),
        geneve::Header { vni: 1 << 24, ..geneve::Header::default() }.write(&mut out),
        geneve::Header { options: &options[..256], ..geneve::Header::default() }.write(&mut out),
        geneve::GeneveOption { class: 0, kind: 0, data: &options[..128] }.write(&mut out),
        erspan::ii::Header { vlan: 4096, ..Default::default() }.write(&mut out),
        erspan::ii::Header { cos: 8, ..Default::default() }.write(&mut out),
        erspan::iii::Header { frame_type: 32, ..Default::default() }.write(&mut out),
        ndp::option::NdpOption { kind: 1, data: &options[..7] }.write(&mut out),
    ];
    for (index, result) in refused.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert!(
            matches!(error.problem, Problem::ValueTooLarge | Problem::Unsupported),
            "case {index}: {error}"
        );
    }
    assert_eq!(out, [0xaa; 400]);
}
