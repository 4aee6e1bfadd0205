//! Against etherparse, where both know the protocol: what either writes the other reads, and on random bytes
//! both take and refuse the same.

extern crate std;

use std::{vec, vec::Vec};

use ::etherparse::{
    ArpPacketSlice, Ethernet2HeaderSlice, Icmpv4Slice, Icmpv6Slice, IpAuthHeaderSlice, IpNumber,
    Ipv4HeaderSlice, Ipv6FragmentHeaderSlice, Ipv6HeaderSlice, Ipv6RawExtHeaderSlice, NetSlice,
    PacketBuilder, SingleVlanHeaderSlice, SlicedPacket, TcpHeaderSlice, TcpOptionElement, TransportSlice,
    UdpHeaderSlice, VlanId,
};
use proptest::prelude::*;

use super::samples;
use crate::wire::{
    Problem, arp, ethernet, icmp, icmpv6, ip, ipv4,
    ipv6::{self, extension::Extension},
    protocol, tcp, udp,
    verify::{self, Verified},
    vlan,
};

/// Random bytes that often are a header: the first byte is one that both sides may like.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![any::<u8>(), Just(0x45), 0x45u8..=0x4f, 0x60u8..=0x6f];
    (first, proptest::collection::vec(any::<u8>(), 0..100)).prop_map(|(first, mut bytes)| {
        bytes.insert(0, first);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn link_layer(bytes in bytes()) {
        let (ours, theirs) = (ethernet::View::parse(&bytes, 0), Ethernet2HeaderSlice::from_slice(&bytes));
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            prop_assert_eq!((ours.source(), ours.destination()), (theirs.source(), theirs.destination()));
            prop_assert_eq!(ours.ether_type(), theirs.ether_type().0);
        }
        let (ours, theirs) = (vlan::View::parse(&bytes, 0), SingleVlanHeaderSlice::from_slice(&bytes));
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            prop_assert_eq!(ours.id(), theirs.vlan_identifier().value());
            prop_assert_eq!(ours.priority(), theirs.priority_code_point().value());
            prop_assert_eq!(ours.drop_eligible(), theirs.drop_eligible_indicator());
            prop_assert_eq!(ours.ether_type(), theirs.ether_type().0);
        }
    }

    #[test]
    fn arp_message(mut bytes in proptest::collection::vec(any::<u8>(), 0..40), real in any::<bool>()) {
        if real && bytes.len() >= 6 {
            bytes[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        }
        match (arp::View::parse(&bytes, 0), ArpPacketSlice::from_slice(&bytes)) {
            (Ok(ours), Ok(theirs)) => {
                prop_assert_eq!(ours.operation(), theirs.operation().0);
                prop_assert_eq!(&ours.sender_mac()[..], theirs.sender_hw_addr());
                prop_assert_eq!(&ours.sender_ip()[..], theirs.sender_protocol_addr());
                prop_assert_eq!(&ours.target_mac()[..], theirs.target_hw_addr());
                prop_assert_eq!(&ours.target_ip()[..], theirs.target_protocol_addr());
            }
            // Other kinds of addresses are read by etherparse only.
            (Err(error), Ok(_)) => prop_assert!(!bytes.starts_with(&[0, 1, 8, 0, 6, 4]), "{error}"),
            (Ok(_), Err(error)) => prop_assert!(false, "{error}"),
            (Err(_), Err(_)) => {}
        }
    }

    #[test]
    fn ipv4_header(mut bytes in bytes(), total in proptest::option::of(0u16..120)) {
        if let (Some(total), true) = (total, bytes.len() >= 4) {
            bytes[2..4].copy_from_slice(&total.to_be_bytes());
        }
        match (ipv4::View::parse(&bytes, 0), Ipv4HeaderSlice::from_slice(&bytes)) {
            (Ok(ours), Ok(theirs)) => {
                prop_assert_eq!(ours.header_len(), usize::from(theirs.ihl()) * 4);
                prop_assert_eq!(ours.tos(), theirs.dcp().value() << 2 | theirs.ecn().value());
                prop_assert_eq!((ours.total_length(), ours.id()), (theirs.total_len(), theirs.identification()));
                prop_assert_eq!(ours.dont_fragment(), theirs.dont_fragment());
                prop_assert_eq!(ours.more_fragments(), theirs.more_fragments());
                prop_assert_eq!(ours.fragment_offset(), usize::from(theirs.fragments_offset().value()) * 8);
                prop_assert_eq!(ours.is_fragment(), theirs.is_fragmenting_payload());
                prop_assert_eq!((ours.ttl(), ours.protocol()), (theirs.ttl(), theirs.protocol().0));
                prop_assert_eq!((ours.source(), ours.destination()), (theirs.source(), theirs.destination()));
                prop_assert_eq!(ours.option_bytes(), theirs.options());
                prop_assert_eq!(ours.checksum(), theirs.header_checksum());
                let holds = theirs.to_header().calc_header_checksum() == theirs.header_checksum();
                prop_assert_eq!(ours.checksum_holds(), holds);
                if let Ok(payload) = theirs.payload_len() {
                    prop_assert_eq!(ours.payload().len(), usize::from(payload));
                }
            }
            // Theirs is the header alone: the total length is looked at later.
            (Err(error), Ok(theirs)) => {
                let total = usize::from(theirs.total_len());
                prop_assert!(total > bytes.len() || total < usize::from(theirs.ihl()) * 4, "{error}");
            }
            (Ok(_), Err(error)) => prop_assert!(false, "{error}"),
            (Err(_), Err(_)) => {}
        }
    }

    #[test]
    fn ipv6_header(mut bytes in bytes(), payload in proptest::option::of(0u16..120)) {
        if let (Some(payload), true) = (payload, bytes.len() >= 6) {
            bytes[4..6].copy_from_slice(&payload.to_be_bytes());
        }
        match (ipv6::View::parse(&bytes, 0), Ipv6HeaderSlice::from_slice(&bytes)) {
            (Ok(ours), Ok(theirs)) => {
                prop_assert_eq!(ours.traffic_class(), theirs.traffic_class());
                prop_assert_eq!(ours.flow_label(), theirs.flow_label().value());
                prop_assert_eq!(ours.payload_length(), theirs.payload_length());
                prop_assert_eq!(ours.next_header(), theirs.next_header().0);
                prop_assert_eq!(ours.hop_limit(), theirs.hop_limit());
                prop_assert_eq!((ours.source(), ours.destination()), (theirs.source(), theirs.destination()));
            }
            (Err(error), Ok(theirs)) => {
                prop_assert!(usize::from(theirs.payload_length()) + 40 > bytes.len(), "{error}");
            }
            (Ok(_), Err(error)) => prop_assert!(false, "{error}"),
            (Err(_), Err(_)) => {}
        }
    }

    #[test]
    fn ipv6_extension_headers(mut bytes in proptest::collection::vec(any::<u8>(), 0..100), units in 0u8..12) {
        if bytes.len() > 1 {
            bytes[1] = units;
        }
        for number in [protocol::HOP_BY_HOP, protocol::ROUTING, protocol::DESTINATION_OPTIONS, protocol::MOBILITY] {
            let (ours, theirs) = (Extension::parse(number, &bytes, 0), Ipv6RawExtHeaderSlice::from_slice(&bytes));
            prop_assert_eq!(ours.is_ok(), theirs.is_ok());
            if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
                prop_assert_eq!((ours.next_header(), ours.bytes()), (theirs.next_header().0, theirs.slice()));
            }
        }
        let ours = Extension::parse(protocol::FRAGMENT, &bytes, 0);
        let theirs = Ipv6FragmentHeaderSlice::from_slice(&bytes);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            let part = ours.fragment().unwrap();
            prop_assert_eq!((part.next_header, part.id), (theirs.next_header().0, theirs.identification()));
            prop_assert_eq!((part.offset / 8, part.more), (theirs.fragment_offset().value(), theirs.more_fragments()));
        }
        let ours = Extension::parse(protocol::AUTHENTICATION, &bytes, 0);
        let theirs = IpAuthHeaderSlice::from_slice(&bytes);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            prop_assert_eq!((ours.next_header(), ours.bytes()), (theirs.next_header().0, theirs.slice()));
        }
    }

    #[test]
    fn tcp_header(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), offset in 3u8..16) {
        if bytes.len() > 12 {
            bytes[12] = offset << 4 | bytes[12] & 0x0f;
        }
        let (ours, theirs) = (tcp::View::parse(&bytes, 0), TcpHeaderSlice::from_slice(&bytes));
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            prop_assert_eq!(ours.source_port(), theirs.source_port());
            prop_assert_eq!(ours.destination_port(), theirs.destination_port());
            prop_assert_eq!(ours.sequence(), theirs.sequence_number());
            prop_assert_eq!(ours.acknowledgment(), theirs.acknowledgment_number());
            prop_assert_eq!(ours.window(), theirs.window_size());
            prop_assert_eq!((ours.checksum(), ours.urgent()), (theirs.checksum(), theirs.urgent_pointer()));
            prop_assert_eq!(ours.option_bytes(), theirs.options());
            let flags = [
                theirs.fin(), theirs.syn(), theirs.rst(), theirs.psh(), theirs.ack(), theirs.urg(), theirs.ece(),
                theirs.cwr(),
            ];
            for (bit, set) in flags.into_iter().enumerate() {
                prop_assert_eq!(ours.flags() >> bit & 1 == 1, set);
            }
        }
    }

    #[test]
    fn udp_and_icmp_headers(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        match (udp::View::parse(&bytes, 0), UdpHeaderSlice::from_slice(&bytes)) {
            (Ok(ours), Ok(theirs)) => {
                prop_assert_eq!(ours.source_port(), theirs.source_port());
                prop_assert_eq!(ours.destination_port(), theirs.destination_port());
                prop_assert_eq!((ours.length(), ours.checksum()), (theirs.length(), theirs.checksum()));
            }
            (Err(error), Ok(theirs)) => {
                let len = usize::from(theirs.length());
                prop_assert!(len > bytes.len() || len < 8, "{error}");
            }
            (Ok(_), Err(error)) => prop_assert!(false, "{error}"),
            (Err(_), Err(_)) => {}
        }
        let (ours, theirs) = (icmpv6::View::parse(&bytes, 0), Icmpv6Slice::from_slice(&bytes));
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            prop_assert_eq!((ours.kind(), ours.code()), (theirs.type_u8(), theirs.code_u8()));
            prop_assert_eq!((ours.checksum(), ours.rest()), (theirs.checksum(), theirs.bytes5to8()));
        }
        // Theirs wants 20 bytes for a timestamp, ours leaves them to the payload.
        if let (Ok(ours), Ok(theirs)) = (icmp::View::parse(&bytes, 0), Icmpv4Slice::from_slice(&bytes)) {
            prop_assert_eq!((ours.kind(), ours.code()), (theirs.type_u8(), theirs.code_u8()));
            prop_assert_eq!((ours.checksum(), ours.rest()), (theirs.checksum(), theirs.bytes5to8()));
        }
    }

    #[test]
    fn what_etherparse_builds_we_read(
        macs in any::<([u8; 6], [u8; 6])>(), v6 in any::<bool>(), source in any::<[u8; 16]>(),
        destination in any::<[u8; 16]>(), ttl in any::<u8>(), ports in any::<(u16, u16)>(), which in 0..3,
        id in 0..=vlan::MAX_ID, payload in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let link = PacketBuilder::ethernet2(macs.0, macs.1).single_vlan(VlanId::try_new(id).unwrap());
        let network = if v6 {
            link.ipv6(source, destination, ttl)
        } else {
            link.ipv4(*source.first_chunk().unwrap(), *destination.first_chunk().unwrap(), ttl)
        };
        let mut frame = Vec::new();
        match (which, v6) {
            (0, _) => {
                let options = [TcpOptionElement::MaximumSegmentSize(1460), TcpOptionElement::Timestamp(7, 9)];
                network.tcp(ports.0, ports.1, 5, 6).syn().options(&options).unwrap()
                    .write(&mut frame, &payload).unwrap();
            }
            (1, _) => network.udp(ports.0, ports.1).write(&mut frame, &payload).unwrap(),
            (_, false) => network.icmpv4_echo_request(ports.0, ports.1).write(&mut frame, &payload).unwrap(),
            (_, true) => network.icmpv6_echo_request(ports.0, ports.1).write(&mut frame, &payload).unwrap(),
        }
        let link = ethernet::View::parse(&frame, 0).unwrap();
        prop_assert_eq!((link.source(), link.destination()), macs);
        prop_assert_eq!(link.tags().next().unwrap().unwrap().id(), id);
        let (ether_type, at) = link.network().unwrap();
        prop_assert_eq!(verify::checksums(ether_type, &frame, at), Ok(Verified::Holds));
        let transport = ip::View::parse(ether_type, &frame, at).unwrap().unwrap().transport().unwrap();
        let (packet, at) = (transport.frame, transport.offset);
        match (which, v6) {
            (0, _) => {
                let tcp = tcp::View::parse(packet, at).unwrap();
                prop_assert_eq!((tcp.source_port(), tcp.destination_port()), ports);
                let kinds: Vec<_> = tcp.options().map(|option| option.unwrap().kind).collect();
                prop_assert_eq!(&kinds[..2], &[2, 8]);
                prop_assert_eq!(tcp.payload(), &payload[..]);
            }
            (1, _) => {
                let udp = udp::View::parse(packet, at).unwrap();
                prop_assert_eq!((udp.source_port(), udp.destination_port()), ports);
                prop_assert_eq!(udp.payload(), &payload[..]);
            }
            (_, false) => prop_assert_eq!(icmp::View::parse(packet, at).unwrap().echo(), Some(ports)),
            (_, true) => prop_assert_eq!(icmpv6::View::parse(packet, at).unwrap().echo(), Some(ports)),
        }
    }
}

#[test]
fn etherparse_reads_the_samples_alike() {
    for frame in samples::ALL {
        let sliced = SlicedPacket::from_ethernet(frame).unwrap();
        let (ether_type, at) = ethernet::View::parse(frame, 0).unwrap().network().unwrap();
        let Some(ip) = ip::View::parse(ether_type, frame, at).unwrap() else {
            assert!(matches!(sliced.net, Some(NetSlice::Arp(_))));
            continue;
        };
        let transport = ip.transport().unwrap();
        let (theirs, number) = match sliced.net.as_ref().unwrap() {
            NetSlice::Ipv4(ip) => (ip.payload().payload, ip.payload().ip_number),
            NetSlice::Ipv6(ip) => (ip.payload().payload, ip.payload().ip_number),
            NetSlice::Arp(_) => panic!("IP was read as ARP"),
        };
        assert_eq!(number, IpNumber(transport.protocol));
        assert_eq!(&transport.frame[transport.offset..], theirs);
        assert_eq!(transport.fragment.is_some(), sliced.is_ip_payload_fragmented());
    }
}

#[test]
fn etherparse_reads_what_we_write() {
    let mut frame = vec![0; 14 + 4 + 24 + 24 + 3];
    let options = [1, 1, 1, 0];
    let ports = (1234, 80);
    ethernet::Header { destination: [1; 6], source: [2; 6], ether_type: ethernet::ETHER_TYPE_VLAN }
        .write(&mut frame)
        .unwrap();
    vlan::Header { priority: 3, drop_eligible: true, id: 99, ether_type: ethernet::ETHER_TYPE_IPV4 }
        .write(&mut frame[14..])
        .unwrap();
    let (source, destination) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    ipv4::Header {
        total_length: 51,
        protocol: protocol::TCP,
        source,
        destination,
        options: &options,
        ..ipv4::Header::default()
    }
    .write(&mut frame[18..])
    .unwrap();
    let header = tcp::Header {
        source_port: ports.0,
        destination_port: ports.1,
        flags: tcp::FLAG_SYN,
        options: &options,
        ..tcp::Header::default()
    };
    header.write(&mut frame[42..]).unwrap();
    // Our own verdict on the missing checksum is what etherparse computes.
    let error = verify::checksums(ethernet::ETHER_TYPE_IPV4, &frame, 18).unwrap_err();
    assert_eq!(error.problem, Problem::Checksum);
    let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
    assert_eq!(sliced.vlan_ids()[0].value(), 99);
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("not read as TCP") };
    assert_eq!((tcp.source_port(), tcp.destination_port(), tcp.options()), (ports.0, ports.1, &options[..]));
    assert_eq!(usize::from(tcp.calc_checksum_ipv4(source, destination).unwrap()), error.needed);
}
