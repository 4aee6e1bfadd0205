//! Packets that scapy wrote and tshark found no fault with, and what our readers must find in them.

extern crate std;

use std::vec::Vec;

use super::hex;
use crate::wire::{
    Layer, Problem, arp, ethernet, icmp, ip, ipv4, ipv6, ndp, protocol, sctp, tcp, udp,
    verify::{self, Verified},
};

/// ARP request, padded to 60 bytes.
pub const ARP_REQUEST: [u8; 60] =
    hex("ffffffffffff02000000000a0806000108000604000102000000000a0a0000010000000000000a000002000000000000 \
     000000000000000000000000");
/// 802.1ad and 802.1Q tags, IPv4 with options, TCP SYN with options.
pub const QINQ_TCP_V4: [u8; 91] =
    hex("02000000000b02000000000a88a8a064810070c8080046000045123440003f0680780a0000010a000002940400009c40 \
     01bb0102030400000000a002faf053330000020405b40402080a00000001000000000103030768656c6c6f");
/// IPv6 with hop-by-hop, destination options, fragment (the only one) and UDP.
pub const UDP_V6_EXTENSIONS: [u8; 101] =
    hex("02000000000b02000000000a86dd6b812345002f004020010db800000000000000000000000120010db8000000000000 \
     0000000000023c000502000001002c01010c00000000000000000000000011000000abcdef0114e90035000fd20d7061 \
     796c6f6164");
/// ICMP fragmentation needed with the packet that caused it.
pub const ICMP_UNREACHABLE: [u8; 70] =
    hex("02000000000b02000000000a08004500003800010000400165c60a0000fe0a0000010304116700000578450005dc0001 \
     4000401121070a0000010a0000090001000205c8e051");
/// Neighbour solicitation with the sender's link-layer address.
pub const NEIGHBOUR_SOLICITATION: [u8; 86] =
    hex("3333ff00000202000000000a86dd6000000000203afffe800000000000000000000000000001ff020000000000000000 \
     0001ff00000287007a8e00000000fe800000000000000000000000000002010102000000000a");
/// Router advertisement with link-layer address, MTU and prefix.
pub const ROUTER_ADVERTISEMENT: [u8; 118] =
    hex("33330000000102000000000a86dd6000000000403afffe800000000000000000000000000001ff020000000000000000 \
     0000000000018600b2604088070800007530000003e8010102000000000a05010000000005aa030440c0000151800000 \
     38400000000020010db8000100000000000000000000");
/// SCTP with a COOKIE ACK and a DATA chunk of odd length.
pub const SCTP_DATA: [u8; 74] =
    hex("02000000000b02000000000a08004500003c000100004084663b0a0000010a00000213881389112233448c6dcd940b00 \
     0004000300150000000700010002000000006162636465000000");
/// Second fragment of an IPv4 datagram.
pub const IPV4_FRAGMENT: [u8; 58] =
    hex("02000000000b02000000000a08004500002c004d20b9401145b90a0000010a000002000102030405060708090a0b0c0d \
     0e0f1011121314151617");

/// All of them.
pub const ALL: [&[u8]; 8] = [
    &ARP_REQUEST,
    &QINQ_TCP_V4,
    &UDP_V6_EXTENSIONS,
    &ICMP_UNREACHABLE,
    &NEIGHBOUR_SOLICITATION,
    &ROUTER_ADVERTISEMENT,
    &SCTP_DATA,
    &IPV4_FRAGMENT,
];

const HOST_A: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const HOST_B: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];

/// The network layer of a sample.
fn network(frame: &[u8]) -> (u16, usize) {
    ethernet::View::parse(frame, 0).unwrap().network().unwrap()
}

fn v6(frame: &[u8]) -> ipv6::View<'_> {
    let (ether_type, at) = network(frame);
    assert_eq!(ether_type, ethernet::ETHER_TYPE_IPV6);
    ipv6::View::parse(frame, at).unwrap()
}

fn v4(frame: &[u8]) -> ipv4::View<'_> {
    let (ether_type, at) = network(frame);
    assert_eq!(ether_type, ethernet::ETHER_TYPE_IPV4);
    ipv4::View::parse(frame, at).unwrap()
}

#[test]
fn all_checksums_hold() {
    for (index, frame) in ALL.iter().enumerate() {
        let (ether_type, at) = network(frame);
        let expected = match ether_type {
            ethernet::ETHER_TYPE_ARP => Verified::CannotTell,
            _ if *frame == IPV4_FRAGMENT => Verified::CannotTell,
            _ => Verified::Holds,
        };
        assert_eq!(verify::checksums(ether_type, frame, at), Ok(expected), "sample {index}");
    }
}

#[test]
fn a_flipped_bit_is_found_wherever_a_checksum_covers_it() {
    for frame in ALL {
        let (ether_type, at) = network(frame);
        let Ok(Some(ip)) = ip::View::parse(ether_type, frame, at) else { continue };
        let transport = ip.transport().unwrap();
        if transport.fragment.is_some() {
            continue;
        }
        for byte in transport.offset..transport.frame.len() {
            let mut damaged = frame.to_vec();
            damaged[byte] ^= 0x04;
            let result = verify::checksums(ether_type, &damaged, at);
            // A changed length or offset is an error of its own, or leaves too little to check.
            assert!(result.is_err(), "byte {byte} of {frame:02x?}: {result:?}");
        }
    }
}

#[test]
fn the_checksum_that_should_be_there_is_told() {
    let mut damaged = QINQ_TCP_V4.to_vec();
    let at = v4(&QINQ_TCP_V4).payload_offset() + tcp::CHECKSUM_OFFSET;
    damaged[at..at + 2].fill(0xee);
    let (ether_type, network) = network(&damaged);
    let error = verify::checksums(ether_type, &damaged, network).unwrap_err();
    assert_eq!((error.layer, error.problem, error.offset), (Layer::Tcp, Problem::Checksum, at));
    assert_eq!((error.needed, error.had), (0x5333, 0xeeee));
}

#[test]
fn an_icmp_message_of_zeros_has_no_right_checksum() {
    let mut frame = ICMP_UNREACHABLE;
    let at = v4(&ICMP_UNREACHABLE).payload_offset();
    frame[at..].fill(0);
    let (ether_type, network) = network(&frame);
    let error = verify::checksums(ether_type, &frame, network).unwrap_err();
    assert_eq!((error.layer, error.needed, error.had), (Layer::Icmp, 0xffff, 0));
}

#[test]
fn arp() {
    let (ether_type, at) = network(&ARP_REQUEST);
    assert_eq!(ether_type, ethernet::ETHER_TYPE_ARP);
    let expected = arp::Header {
        operation: arp::REQUEST,
        sender_mac: HOST_A,
        sender_ip: [10, 0, 0, 1],
        target_mac: [0; 6],
        target_ip: [10, 0, 0, 2],
    };
    assert_eq!(arp::View::parse(&ARP_REQUEST, at).unwrap().header(), expected);
}

#[test]
fn stacked_tags_and_tcp_options() {
    let link = ethernet::View::parse(&QINQ_TCP_V4, 0).unwrap();
    assert_eq!((link.destination(), link.source()), (HOST_B, HOST_A));
    let tags: Vec<_> = link.tags().map(|tag| tag.unwrap().header()).collect();
    assert_eq!((tags[0].priority, tags[0].drop_eligible, tags[0].id), (5, false, 100));
    assert_eq!((tags[1].priority, tags[1].drop_eligible, tags[1].id), (3, true, 200));
    let ip = v4(&QINQ_TCP_V4);
    assert_eq!((ip.id(), ip.ttl(), ip.dont_fragment(), ip.is_fragment()), (0x1234, 63, true, false));
    assert_eq!(ip.option_bytes(), ROUTER_ALERT);
    let options: Vec<_> = ip.options().map(|option| option.unwrap().kind).collect();
    assert_eq!(options, [ROUTER_ALERT[0]]);
    let tcp = tcp::View::parse(ip.frame(), ip.payload_offset()).unwrap();
    assert_eq!((tcp.source_port(), tcp.destination_port(), tcp.sequence()), (40_000, 443, 0x0102_0304));
    assert_eq!((tcp.flags(), tcp.window()), (tcp::FLAG_SYN, 64_240));
    let options: Vec<_> =
        tcp.options().map(|option| option.unwrap()).map(|o| (o.kind, o.data.len())).collect();
    assert_eq!(options, [(2, 2), (4, 0), (8, 8), (1, 0), (3, 1)]);
    assert_eq!(tcp.payload(), b"hello");
}

#[test]
fn ipv6_extensions() {
    let ip = v6(&UDP_V6_EXTENSIONS);
    assert_eq!((ip.traffic_class(), ip.flow_label(), ip.hop_limit()), (0xb8, 0x12345, 64));
    let extensions: Vec<_> = ip.extensions().map(|extension| extension.unwrap()).collect();
    let numbers: Vec<_> = extensions.iter().map(|extension| extension.number()).collect();
    assert_eq!(numbers, [protocol::HOP_BY_HOP, protocol::DESTINATION_OPTIONS, protocol::FRAGMENT]);
    let alert = extensions[0].options().next().unwrap().unwrap();
    assert_eq!((alert.kind, alert.data), (5, &[0, 0][..]));
    let upper = ip.upper_layer().unwrap();
    let fragment = upper.fragment.unwrap();
    assert_eq!((fragment.id, fragment.offset, fragment.more), (0xabcd_ef01, 0, false));
    assert_eq!(upper.protocol, protocol::UDP);
    assert_eq!(ip::View::V6(ip).transport().unwrap().fragment, None);
    let udp = udp::View::parse(ip.frame(), upper.offset).unwrap();
    assert_eq!((udp.source_port(), udp.destination_port(), udp.payload()), (5353, 53, &b"payload"[..]));
}

#[test]
fn icmp_error_quotes_its_packet() {
    let ip = v4(&ICMP_UNREACHABLE);
    let icmp = icmp::View::parse(ip.frame(), ip.payload_offset()).unwrap();
    assert_eq!((icmp.next_hop_mtu(), icmp.is_error(), icmp.echo()), (Some(1400), true, None));
    // The quoted packet is longer than the quote: reading it as a whole says so, by how much.
    let error = ipv4::View::parse(ip.frame(), icmp.payload_offset()).unwrap_err();
    assert_eq!((error.offset, error.needed, error.had), (icmp.payload_offset(), 1500, icmp.payload().len()));
}

#[test]
fn neighbour_discovery() {
    let ip = v6(&NEIGHBOUR_SOLICITATION);
    let ns = ndp::View::parse(ip.frame(), ip.payload_offset()).unwrap();
    let mut target = [0; 16];
    (target[0], target[1], target[15]) = (0xfe, 0x80, 2);
    assert_eq!(ns.message(), ndp::Message::NeighbourSolicitation { target });
    let options: Vec<_> = ns.options().map(|option| option.unwrap()).collect();
    assert_eq!(
        (options.len(), options[0].kind, options[0].mac()),
        (1, ndp::option::SOURCE_LINK_LAYER, Some(HOST_A))
    );

    let ip = v6(&ROUTER_ADVERTISEMENT);
    let ra = ndp::View::parse(ip.frame(), ip.payload_offset()).unwrap();
    let expected = ndp::Message::RouterAdvertisement {
        hop_limit: 64,
        flags: ndp::FLAG_MANAGED | 0x08,
        router_lifetime: 1800,
        reachable_time: 30_000,
        retransmit_timer: 1000,
    };
    assert_eq!(ra.message(), expected);
    let options: Vec<_> = ra.options().map(|option| option.unwrap()).collect();
    assert_eq!((options[0].mac(), options[1].mtu()), (Some(HOST_A), Some(1450)));
    let prefix = options[2].prefix().unwrap();
    assert_eq!((prefix.len, prefix.flags), (64, ndp::option::FLAG_ON_LINK | ndp::option::FLAG_AUTONOMOUS));
    assert_eq!((prefix.valid_lifetime, prefix.preferred_lifetime), (86_400, 14_400));
    assert_eq!(prefix.prefix[..6], [0x20, 0x01, 0x0d, 0xb8, 0, 1]);
}

#[test]
fn sctp_chunks() {
    let ip = v4(&SCTP_DATA);
    let sctp = sctp::View::parse(ip.frame(), ip.payload_offset()).unwrap();
    assert_eq!((sctp.source_port(), sctp.destination_port(), sctp.tag()), (5000, 5001, 0x1122_3344));
    let chunks: Vec<_> = sctp.chunks().map(|chunk| chunk.unwrap()).collect();
    assert_eq!((chunks.len(), chunks[0].kind, chunks[1].kind, chunks[1].flags), (2, 11, 0, 3));
    assert!(chunks[1].value.ends_with(b"abcde"));
    // The check value of CRC-32/ISCSI.
    assert_eq!(sctp::crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn ipv4_fragment() {
    let ip = v4(&IPV4_FRAGMENT);
    assert_eq!((ip.fragment_offset(), ip.more_fragments(), ip.is_fragment()), (1480, true, true));
    let transport = ip::View::V4(ip).transport().unwrap();
    assert_eq!(transport.fragment, Some(ip::Fragment { id: 77, offset: 1480, more: true }));
}
