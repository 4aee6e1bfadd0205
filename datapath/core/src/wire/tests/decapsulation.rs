//! What `encapsulate` wraps, `decapsulate` unwraps; and what it must refuse.

extern crate std;

use std::{vec, vec::Vec};

use core::net::Ipv4Addr;

use proptest::prelude::*;

use super::encapsulation::{encapsulation, per_packet};
use crate::wire::{
    Layer, Problem,
    checksum::{self, pseudo_v4, pseudo_v6},
    decap::{DecapError, Decapsulated, Metadata, Receiver, decapsulate},
    encap::{Encapsulation, OuterAddresses, OuterTemplate, PerPacket, Tunnel, encapsulate},
    erspan, ethernet, geneve, gre, ip, ipv4, ipv6, protocol, udp, vlan, vxlan,
};

const LINK: ethernet::Header = ethernet::Header { destination: [2; 6], source: [4; 6], ether_type: 0 };
const INNER: [u8; 60] = [0x42; 60];

fn receiver<'a>(ports: &'a [u16], tunnel: &Tunnel) -> Receiver<'a> {
    match tunnel {
        Tunnel::Vxlan { .. } => Receiver { vxlan_ports: ports, geneve_ports: &[], verify: true },
        _ => Receiver { vxlan_ports: &[], geneve_ports: ports, verify: true },
    }
}

/// A frame with a tunnel between fixed addresses.
fn wrapped(tunnel: Tunnel) -> Vec<u8> {
    let addresses =
        OuterAddresses::V4 { local: Ipv4Addr::new(192, 0, 2, 1), remote: Ipv4Addr::new(192, 0, 2, 9) };
    let template = OuterTemplate::new(&Encapsulation::new(addresses, tunnel)).unwrap();
    let packet = PerPacket { inner_len: INNER.len() as u32, sequence: 7, ..PerPacket::default() };
    let mut out = vec![0; 256];
    let len = encapsulate(&template, &packet, &LINK, &INNER, &mut out).unwrap();
    out.truncate(len);
    out
}

fn fix_ipv4_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = checksum::full(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(
        description in encapsulation(),
        mut packet in per_packet(),
        inner in proptest::collection::vec(any::<u8>(), 14..300),
        padding in 0usize..20,
        tags in proptest::collection::vec((any::<bool>(), 0..=vlan::MAX_ID), 0..4),
    ) {
        packet.inner_len = inner.len() as u32;
        let template = OuterTemplate::new(&description).unwrap();
        let mut out = vec![0xee; 600];
        let len = encapsulate(&template, &packet, &LINK, &inner, &mut out).unwrap();
        let frame = tagged(&out[..len], &tags);
        let padded = [&frame[..], &vec![0xee; padding]].concat();
        let port = match description.tunnel {
            Tunnel::Vxlan { port, .. } | Tunnel::Geneve { port, .. } => port,
            _ => 0,
        };
        let ports = [1, port];
        let found = decapsulate(&padded, &receiver(&ports, &description.tunnel)).unwrap();
        prop_assert_eq!(&padded[found.inner.clone()], &inner[..]);
        prop_assert_eq!(found.outer, description.addresses);
        let sequence = packet.sequence;
        match (description.tunnel, found.metadata) {
            (Tunnel::Vxlan { vni, .. }, Metadata::Vxlan { vni: found }) => prop_assert_eq!(found, vni),
            (Tunnel::Geneve { vni, .. }, Metadata::Geneve { vni: found, options }) => {
                prop_assert_eq!(found, vni);
                prop_assert!(options.is_empty());
            }
            (Tunnel::Gre { key, sequence: numbered }, found) => {
                prop_assert_eq!(found, Metadata::Gre { key, sequence: numbered.then_some(sequence) });
            }
            (Tunnel::ErspanII { session, index }, Metadata::ErspanII { sequence: found, header }) => {
                prop_assert_eq!((found, header.session, header.index), (sequence, session, index));
            }
            (Tunnel::ErspanIII { session, hardware_id, .. }, Metadata::ErspanIII { sequence: found, header }) => {
                prop_assert_eq!(found, Some(sequence));
                prop_assert_eq!((header.session, header.hardware_id), (session, hardware_id));
            }
            (tunnel, metadata) => prop_assert!(false, "{tunnel:?} read as {metadata:?}"),
        }
    }
}

/// Puts VLAN tags behind the MAC addresses, outermost first.
fn tagged(frame: &[u8], tags: &[(bool, u16)]) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    for &(service, id) in tags {
        let kind = if service { ethernet::ETHER_TYPE_QINQ } else { ethernet::ETHER_TYPE_VLAN };
        out.extend(kind.to_be_bytes());
        out.extend(id.to_be_bytes());
    }
    out.extend(&frame[12..]);
    out
}

#[test]
fn other_traffic_is_not_a_tunnel() {
    let default = Receiver::default();
    let vxlan = wrapped(Tunnel::Vxlan { vni: 1, port: 1111 });
    assert_eq!(decapsulate(&vxlan, &default), Err(DecapError::NotATunnel));
    let mut tcp = wrapped(Tunnel::Vxlan { vni: 1, port: vxlan::PORT });
    tcp[14 + ipv4::PROTOCOL_OFFSET] = protocol::TCP;
    fix_ipv4_checksum(&mut tcp);
    assert_eq!(decapsulate(&tcp, &default), Err(DecapError::NotATunnel));
    let mut gre = wrapped(Tunnel::Gre { key: None, sequence: false });
    gre[36..38].copy_from_slice(&ethernet::ETHER_TYPE_IPV4.to_be_bytes());
    assert_eq!(decapsulate(&gre, &default), Err(DecapError::NotATunnel));
    let mut geneve = wrapped(Tunnel::Geneve { vni: 1, port: geneve::PORT });
    geneve[44..46].copy_from_slice(&ethernet::ETHER_TYPE_IPV4.to_be_bytes());
    assert_eq!(decapsulate(&geneve, &default), Err(DecapError::NotATunnel));
    let arp = [&[0xff; 12][..], &ethernet::ETHER_TYPE_ARP.to_be_bytes(), &[0; 28]].concat();
    assert_eq!(decapsulate(&arp, &default), Err(DecapError::NotATunnel));
}

#[test]
fn erspan_without_an_ethernet_header_is_named() {
    let granularity = erspan::iii::Granularity::HundredNanoseconds;
    let mut frame =
        wrapped(Tunnel::ErspanIII { session: 1, hardware_id: 0, sgt: 0, direction: None, granularity });
    let flags = 14 + 20 + 8 + erspan::iii::FLAGS_OFFSET;
    frame[flags] |= 2 << 2;
    assert_eq!(decapsulate(&frame, &Receiver::default()), Err(DecapError::FrameType(2)));
}

#[test]
fn outer_fragments_are_named() {
    for (word, offset, more) in [(0x2000u16, 0, true), (0x2003, 24, true), (0x0003, 24, false)] {
        let mut frame = wrapped(Tunnel::Vxlan { vni: 1, port: vxlan::PORT });
        frame[18..20].copy_from_slice(&0xbeefu16.to_be_bytes());
        frame[20..22].copy_from_slice(&word.to_be_bytes());
        fix_ipv4_checksum(&mut frame);
        let fragment = ip::Fragment { id: 0xbeef, offset, more };
        assert_eq!(decapsulate(&frame, &Receiver::default()), Err(DecapError::OuterFragment(fragment)));
    }
}

#[test]
fn ipv6_fragments_are_named_and_lone_ones_read() {
    let udp = &wrapped(Tunnel::Vxlan { vni: 5, port: vxlan::PORT })[34..];
    for (offset, more) in [(0, false), (0, true), (64, false)] {
        let mut frame = vec![0; 14 + 40 + 8];
        ethernet::Header { ether_type: ethernet::ETHER_TYPE_IPV6, ..LINK }.write(&mut frame).unwrap();
        ipv6::Header {
            payload_length: (8 + udp.len()) as u16,
            next_header: protocol::FRAGMENT,
            ..ipv6::Header::default()
        }
        .write(&mut frame[14..])
        .unwrap();
        let part = ipv6::extension::Fragment { next_header: protocol::UDP, offset, more, id: 0xdead_beef };
        part.write(&mut frame[54..]).unwrap();
        frame.extend(udp);
        let result = decapsulate(&frame, &Receiver::default());
        if offset == 0 && !more {
            assert_eq!(result.unwrap().metadata, Metadata::Vxlan { vni: 5 });
        } else {
            let fragment = ip::Fragment { id: 0xdead_beef, offset: offset.into(), more };
            assert_eq!(result, Err(DecapError::OuterFragment(fragment)));
        }
    }
}

#[test]
fn bad_checksums_are_found_where_asked_for() {
    let verify = Receiver { verify: true, ..Receiver::default() };
    let mut frame = wrapped(Tunnel::Vxlan { vni: 1, port: vxlan::PORT });
    let right = frame[24];
    frame[24] ^= 1;
    let Err(DecapError::Wire(error)) = decapsulate(&frame, &Receiver::default()) else {
        panic!("a bad IPv4 checksum was taken");
    };
    assert_eq!((error.layer, error.problem, error.offset), (Layer::Ipv4, Problem::Checksum, 24));
    assert_eq!(error.needed, usize::from(u16::from_be_bytes([right, frame[25]])));

    frame[24] ^= 1;
    let udp = &frame[34..];
    let pseudo = pseudo_v4([192, 0, 2, 1], [192, 0, 2, 9], protocol::UDP, udp.len() as u16);
    let sum = pseudo.add_bytes(udp).checksum();
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
    decapsulate(&frame, &verify).unwrap();
    *frame.last_mut().unwrap() ^= 1;
    decapsulate(&frame, &Receiver::default()).unwrap();
    let Err(DecapError::Wire(error)) = decapsulate(&frame, &verify) else {
        panic!("a bad UDP checksum was taken");
    };
    assert_eq!((error.layer, error.offset, error.had), (Layer::Udp, 40, usize::from(sum)));
}

#[test]
fn gre_checksum_and_erspan_i() {
    let ip_len = 20;
    let gre = gre::Header {
        protocol: ethernet::ETHER_TYPE_TEB,
        checksum: Some(0),
        key: Some(9),
        ..gre::Header::default()
    };
    let mut frame = frame_with_gre(&gre);
    let sum = checksum::full(&frame[14 + ip_len..]);
    frame[38..40].copy_from_slice(&sum.to_be_bytes());
    let verify = Receiver { verify: true, ..Receiver::default() };
    let found = decapsulate(&frame, &verify).unwrap();
    assert_eq!(found.metadata, Metadata::Gre { key: Some(9), sequence: None });
    frame[39] ^= 1;
    decapsulate(&frame, &Receiver::default()).unwrap();
    assert!(
        matches!(decapsulate(&frame, &verify), Err(DecapError::Wire(error)) if error.layer == Layer::Gre)
    );

    let frame =
        frame_with_gre(&gre::Header { protocol: ethernet::ETHER_TYPE_ERSPAN_II, ..gre::Header::default() });
    let Decapsulated { metadata, inner, .. } = decapsulate(&frame, &Receiver::default()).unwrap();
    assert_eq!((metadata, &frame[inner]), (Metadata::ErspanI, &INNER[..]));
}

/// Ethernet, IPv4, this GRE header and the inner frame.
fn frame_with_gre(gre: &gre::Header) -> Vec<u8> {
    let mut frame = vec![0; 34];
    let mut header = [0; gre::MAX_HEADER_LEN];
    let len = gre.write(&mut header).unwrap();
    ethernet::Header { ether_type: ethernet::ETHER_TYPE_IPV4, ..LINK }.write(&mut frame).unwrap();
    ipv4::Header {
        total_length: (20 + len + INNER.len()) as u16,
        protocol: protocol::GRE,
        ..ipv4::Header::default()
    }
    .write(&mut frame[14..])
    .unwrap();
    frame.extend(&header[..len]);
    frame.extend(INNER);
    frame
}

#[test]
fn erspan_iii_with_subheader_and_geneve_options() {
    let header = erspan::iii::Header {
        session: 1023,
        granularity: erspan::iii::Granularity::Ieee1588,
        subheader: Some([0x14, 1, 2, 3, 0, 0, 0, 9]),
        ..erspan::iii::Header::default()
    };
    let mut frame = frame_with_gre(&gre::Header {
        protocol: ethernet::ETHER_TYPE_ERSPAN_III,
        sequence: Some(3),
        ..gre::Header::default()
    });
    let inner = frame.split_off(42);
    let mut bytes = [0; 20];
    header.write(&mut bytes).unwrap();
    frame.extend(bytes);
    frame.extend(inner);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    fix_ipv4_checksum(&mut frame);
    let found = decapsulate(&frame, &Receiver::default()).unwrap();
    assert_eq!(found.metadata, Metadata::ErspanIII { sequence: Some(3), header });
    assert_eq!(&frame[found.inner], &INNER[..]);

    for (kind, control, expected) in [
        (0x01, false, None),
        (0x81, false, Some(DecapError::CriticalOption { class: 0x0102, kind: 0x81 })),
        (0x01, true, Some(DecapError::Control)),
    ] {
        let frame = frame_with_geneve_option(kind, control);
        let result = decapsulate(&frame, &Receiver::default());
        match expected {
            Some(error) => assert_eq!(result, Err(error)),
            None => {
                let found = result.unwrap();
                assert_eq!(found.metadata, Metadata::Geneve { vni: 77, options: 50..58 });
                assert_eq!(&frame[found.inner], &INNER[..]);
            }
        }
    }
}

fn frame_with_geneve_option(kind: u8, control: bool) -> Vec<u8> {
    let mut options = [0; 8];
    geneve::GeneveOption { class: 0x0102, kind, data: &[1, 2, 3, 4] }.write(&mut options).unwrap();
    let mut header = [0; 16];
    geneve::Header {
        control,
        protocol: ethernet::ETHER_TYPE_TEB,
        vni: 77,
        options: &options,
        ..geneve::Header::default()
    }
    .write(&mut header)
    .unwrap();
    let mut frame = wrapped(Tunnel::Geneve { vni: 77, port: geneve::PORT });
    frame.splice(42..50, header);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    fix_ipv4_checksum(&mut frame);
    frame
}

#[test]
fn a_udp_checksum_over_ipv6_is_verified() {
    let (source, destination) = ([0x20; 16], [0x30; 16]);
    let mut udp = wrapped(Tunnel::Vxlan { vni: 5, port: vxlan::PORT }).split_off(34);
    let sum = pseudo_v6(source, destination, protocol::UDP, udp.len() as u32).add_bytes(&udp).checksum();
    udp[udp::CHECKSUM_OFFSET..][..2].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0; 54];
    ethernet::Header { ether_type: ethernet::ETHER_TYPE_IPV6, ..LINK }.write(&mut frame).unwrap();
    ipv6::Header {
        payload_length: udp.len() as u16,
        next_header: protocol::UDP,
        source,
        destination,
        ..ipv6::Header::default()
    }
    .write(&mut frame[14..])
    .unwrap();
    frame.extend(udp);
    let verify = Receiver { verify: true, ..Receiver::default() };
    decapsulate(&frame, &verify).unwrap();
    frame[30] ^= 0x10;
    assert!(
        matches!(decapsulate(&frame, &verify), Err(DecapError::Wire(error)) if error.layer == Layer::Udp)
    );
}
