//! Input that must be refused, each with its whole error; and what must not be judged.

extern crate std;

use std::vec::Vec;

use super::samples;
use crate::wire::{
    Layer, Problem, WireError, erspan, ethernet, geneve, gre, ipv4,
    ipv6::{self, extension},
    ndp, protocol, sctp, tcp, udp,
    verify::{self, Verified},
    vxlan,
};

const fn error(layer: Layer, problem: Problem, offset: usize, needed: usize, had: usize) -> WireError {
    WireError { layer, problem, offset, needed, had }
}

#[test]
fn versions_and_flags_that_readers_do_not_know() {
    let unsupported = |layer, needed, had| error(layer, Problem::Unsupported, 0, needed, had);
    let cases = [
        (ipv4::View::parse(&[0x65; 60], 0).err(), unsupported(Layer::Ipv4, 4, 6)),
        (ipv6::View::parse(&[0x45; 60], 0).err(), unsupported(Layer::Ipv6, 6, 4)),
        (vxlan::View::parse(&[0xf7; 8], 0).err(), unsupported(Layer::Vxlan, 8, 0xf7)),
        (geneve::View::parse(&[0x40; 300], 0).err(), unsupported(Layer::Geneve, 0, 1)),
        // PPTP's version, then the routing flag.
        (gre::View::parse(&[0x20, 0x01, 0x88, 0x0b, 0, 0, 0, 0], 0).err(), unsupported(Layer::Gre, 0, 1)),
        (gre::View::parse(&[0x40, 0, 8, 0], 0).err(), unsupported(Layer::Gre, 0, 0x4000)),
        (erspan::ii::View::parse(&[0x20; 8], 0).err(), unsupported(Layer::Erspan, 1, 2)),
        (erspan::iii::View::parse(&[0x10; 20], 0).err(), unsupported(Layer::Erspan, 2, 1)),
        (ndp::View::parse(&[128; 40], 0).err(), unsupported(Layer::Ndp, 133, 128)),
    ];
    for (index, (found, expected)) in cases.into_iter().enumerate() {
        assert_eq!(found, Some(expected), "case {index}");
    }
}

#[test]
fn lengths_that_contradict_each_other() {
    let ipv4 = |first: u8, total: u16, len: usize| {
        let mut bytes = [0; 80];
        bytes[0] = first;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        ipv4::View::parse(&bytes[..len], 0).map(|view| view.payload().len())
    };
    assert_eq!(ipv4(0x44, 20, 40), Err(error(Layer::Ipv4, Problem::LengthTooSmall, 0, 20, 16)));
    assert_eq!(ipv4(0x46, 23, 40), Err(error(Layer::Ipv4, Problem::LengthTooSmall, 2, 24, 23)));
    assert_eq!(ipv4(0x4f, 0, 40), Err(error(Layer::Ipv4, Problem::Truncated, 0, 60, 40)));
    assert_eq!(ipv4(0x45, 41, 40), Err(error(Layer::Ipv4, Problem::Truncated, 0, 41, 40)));
    assert_eq!((ipv4(0x45, 40, 40), ipv4(0x45, 30, 40), ipv4(0x45, 0, 40)), (Ok(20), Ok(10), Ok(20)));

    let udp = |length: u16| {
        let mut bytes = [0; 20];
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        udp::View::parse(&bytes, 0).map(|view| view.payload().len())
    };
    assert_eq!(udp(7), Err(error(Layer::Udp, Problem::LengthTooSmall, 4, 8, 7)));
    assert_eq!(udp(21), Err(error(Layer::Udp, Problem::Truncated, 0, 21, 20)));
    assert_eq!((udp(8), udp(20), udp(0)), (Ok(0), Ok(12), Ok(12)));

    let mut tcp = [0; 20];
    tcp[12] = 0x40;
    let short = error(Layer::Tcp, Problem::LengthTooSmall, 12, 20, 16);
    assert_eq!(tcp::View::parse(&tcp, 0).err(), Some(short));
    let authentication = extension::Extension::parse(protocol::AUTHENTICATION, &[0; 20], 0);
    let short = error(Layer::Ipv6Extension, Problem::LengthTooSmall, 1, 12, 8);
    assert_eq!(authentication.err(), Some(short));
}

#[test]
fn an_ipv6_packet_without_next_header_has_no_payload() {
    let parse = |next_header: u8| {
        let mut frame = [0xcc; 60];
        ipv6::Header { next_header, ..ipv6::Header::default() }.write(&mut frame).unwrap();
        ipv6::View::parse(&frame, 0).unwrap().payload().len()
    };
    assert_eq!(parse(protocol::NO_NEXT_HEADER), 0, "padding was taken for payload");
    // A jumbogram: its length is in an option.
    assert_eq!(parse(protocol::HOP_BY_HOP), 20);
}

#[test]
fn nothing_is_read_behind_the_header_of_a_later_fragment() {
    let mut packet = [0; 40 + 8 + 8];
    ipv6::Header { payload_length: 16, next_header: protocol::FRAGMENT, ..ipv6::Header::default() }
        .write(&mut packet)
        .unwrap();
    // What follows looks like an options header but is the middle of one.
    extension::Fragment { next_header: protocol::DESTINATION_OPTIONS, offset: 8, more: false, id: 1 }
        .write(&mut packet[40..])
        .unwrap();
    packet[48] = protocol::TCP;
    let upper = ipv6::View::parse(&packet, 0).unwrap().upper_layer().unwrap();
    assert_eq!((upper.protocol, upper.offset), (protocol::DESTINATION_OPTIONS, 48));
}

#[test]
fn options_that_run_over_end_their_list() {
    let too_large = |layer, offset, needed, had| error(layer, Problem::LengthTooLarge, offset, needed, had);
    let too_small = |layer, offset, needed, had| error(layer, Problem::LengthTooSmall, offset, needed, had);

    let tcp_options = |options: [u8; 4]| {
        let mut bytes = [0; 24];
        tcp::Header { options: &options, ..tcp::Header::default() }.write(&mut bytes).unwrap();
        tcp::View::parse(&bytes, 0).unwrap().options().map(|o| o.map(|o| o.kind)).collect::<Vec<_>>()
    };
    assert_eq!(tcp_options([1, 2, 4, 0]), [Ok(1), Err(too_large(Layer::Tcp, 21, 3, 4))]);
    assert_eq!(tcp_options([2, 1, 1, 1]), [Err(too_small(Layer::Tcp, 20, 2, 1))]);
    assert_eq!(
        tcp_options([1, 1, 1, 2]),
        [Ok(1), Ok(1), Ok(1), Err(WireError::truncated(Layer::Tcp, 23, 2, 1))]
    );
    assert_eq!(tcp_options([1, 0, 9, 9]), [Ok(1)]);

    let mut bytes = [0; 16];
    geneve::Header { options: &[1, 2, 3, 2, 0, 0, 0, 0], ..geneve::Header::default() }
        .write(&mut bytes)
        .unwrap();
    let options: Vec<_> = geneve::View::parse(&bytes, 0).unwrap().options().collect();
    assert_eq!(options, [Err(too_large(Layer::Geneve, 8, 8, 12))]);

    let mut bytes = [0; 24];
    ndp::Header { message: ndp::Message::RouterSolicitation, checksum: 0, options: &[1, 0, 0, 0] }
        .write(&mut bytes)
        .unwrap();
    let options: Vec<_> = ndp::View::parse(&bytes[..12], 0).unwrap().options().collect();
    assert_eq!(options, [Err(too_small(Layer::Ndp, 8, 8, 0))]);

    let mut bytes = [0; 20];
    bytes[15] = 3;
    let chunks: Vec<_> = sctp::View::parse(&bytes, 0).unwrap().chunks().collect();
    assert_eq!(chunks, [Err(too_small(Layer::Sctp, 12, 4, 3))]);
}

/// A frame with IPv4, these options, this protocol and this payload.
fn ipv4_frame(options: &[u8], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Header {
        total_length: (20 + options.len() + payload.len()) as u16,
        protocol,
        options,
        ..ipv4::Header::default()
    };
    let mut frame = std::vec![0; header.len()];
    header.write(&mut frame).unwrap();
    frame.extend(payload);
    frame
}

#[test]
fn packets_whose_checksum_cannot_be_judged() {
    let wrong = [0xee; 20];
    let verdict = |options: &[u8], protocol| {
        verify::checksums(ethernet::ETHER_TYPE_IPV4, &ipv4_frame(options, protocol, &wrong), 0)
    };
    let loose_source_route = [131, 7, 4, 10, 0, 0, 9, 0];
    assert_eq!(verdict(&loose_source_route, protocol::SCTP), Ok(Verified::CannotTell));
    assert_eq!(verdict(&[], protocol::ESP), Ok(Verified::CannotTell));
    assert!(verdict(&[], protocol::SCTP).is_err());

    // A routing header with a hop left: the address on the wire is not the one that was summed up.
    for (segments_left, judged) in [(1, false), (0, true)] {
        let mut packet = [0; 40 + 8 + 8];
        ipv6::Header { payload_length: 16, next_header: protocol::ROUTING, ..ipv6::Header::default() }
            .write(&mut packet)
            .unwrap();
        packet[40..44].copy_from_slice(&[protocol::ICMPV6, 0, 4, segments_left]);
        packet[48] = 128;
        let result = verify::checksums(ethernet::ETHER_TYPE_IPV6, &packet, 0);
        assert_eq!(result.is_err(), judged, "{result:?}");
    }
}

#[test]
fn udp_checksums_cover_the_datagram_alone() {
    let mut udp = [0; 12];
    udp::Header { source_port: 1, destination_port: 2, length: 10, checksum: 0 }.write(&mut udp).unwrap();
    udp[8..].copy_from_slice(&[1, 2, 0xff, 0xff]);
    let frame = ipv4_frame(&[], protocol::UDP, &udp);
    let check = |frame: &[u8]| verify::checksums(ethernet::ETHER_TYPE_IPV4, frame, 0);
    assert_eq!(check(&frame), Ok(Verified::NotComputed));
    let mut wrong = frame.clone();
    wrong[26] = 1;
    // Of the words 17 and 10 (pseudo-header), 1, 2, 10 (header) and 0x0102.
    let right: u16 = !0x012a;
    assert_eq!(check(&wrong).unwrap_err().needed, right.into());
    wrong[26..28].copy_from_slice(&right.to_be_bytes());
    assert_eq!(check(&wrong), Ok(Verified::Holds));
    // Two bytes behind the datagram's end, inside the IP packet.
    wrong[30] = 0;
    assert_eq!(check(&wrong), Ok(Verified::Holds));
    wrong[29] ^= 1;
    assert!(check(&wrong).is_err());
}

#[test]
fn errors_read_as_sentences() {
    let frame = &samples::SCTP_DATA[..20];
    let error = ipv4::View::parse(frame, 14).unwrap_err();
    assert_eq!(std::format!("{error}"), "IPv4 at byte 14: needs 20 bytes, the packet has 6");
}
