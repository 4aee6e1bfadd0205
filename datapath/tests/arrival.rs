//! What podwire itself puts into a tunnel is found again at the other end: the tunnel, its identifier, the frame.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::net::IpAddr;

use podwire_datapath::core::stage::arrival;
use podwire_datapath::core::wire::encap::{
    Encapsulation, OUTER_MAX, OuterAddresses, OuterTemplate, PerPacket, Tunnel, TunnelKind, encapsulate,
};
use podwire_datapath::core::wire::ethernet;

const INNER: [u8; 60] = [0x5a; 60];

fn tunnelled(local: &str, remote: &str, tunnel: Tunnel) -> Vec<u8> {
    let [local, remote]: [IpAddr; 2] = [local, remote].map(|text| text.parse().expect("an address"));
    let addresses = OuterAddresses::new(local, remote).expect("one family");
    let template = OuterTemplate::new(&Encapsulation::new(addresses, tunnel)).expect("a template");
    let packet = PerPacket { inner_len: INNER.len() as u32, sequence: 77, ..PerPacket::default() };
    let link = ethernet::Header { destination: [2; 6], source: [4; 6], ether_type: template.ether_type() };
    let mut out = vec![0; ethernet::HEADER_LEN + OUTER_MAX + INNER.len()];
    let len = encapsulate(&template, &packet, &link, &INNER, &mut out).expect("it fits");
    out.truncate(len);
    out
}

#[test]
fn every_tunnel_is_found_again() {
    for (local, remote, family) in [("192.0.2.1", "192.0.2.9", 4), ("2001:db8::1", "2001:db8::9", 6)] {
        for (tunnel, kind, id, port) in [
            (Tunnel::Vxlan { vni: 0xff_ffff, port: 4789 }, TunnelKind::Vxlan, 0xff_ffff, 4789),
            (Tunnel::Geneve { vni: 5, port: 6081 }, TunnelKind::Geneve, 5, 6081),
            (Tunnel::Gre { key: None, sequence: false }, TunnelKind::Gre, 0, 0),
            (Tunnel::Gre { key: Some(u32::MAX), sequence: false }, TunnelKind::Gre, u32::MAX, 1),
            (Tunnel::Gre { key: Some(9), sequence: true }, TunnelKind::Gre, 9, 1),
        ] {
            let frame = tunnelled(local, remote, tunnel);
            let found = arrival(&frame.as_slice()).expect("a tunnel");
            let geneve = kind == TunnelKind::Geneve;
            let (key, offset) = if geneve {
                (found.as_geneve(), found.geneve_offset)
            } else {
                (found.key, found.inner_offset)
            };
            assert_eq!(
                (key.kind, key.family, key.id, key.port),
                (kind as u32, family, id, port),
                "{tunnel:?}"
            );
            let source: IpAddr = local.parse().expect("an address");
            let octets = match source {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            assert_eq!(key.remote[..octets.len()], octets, "{tunnel:?}");
            assert_eq!(frame[offset as usize..], INNER, "{tunnel:?}");
        }
    }
}

#[test]
fn what_is_no_whole_tunnel_is_left_alone() {
    for tunnel in [Tunnel::Vxlan { vni: 1, port: 4789 }, Tunnel::Gre { key: Some(1), sequence: false }] {
        let whole = tunnelled("192.0.2.1", "192.0.2.9", tunnel);
        let headers = whole.len() - INNER.len();
        for len in 0..headers {
            let cut = &whole[..len];
            let found = arrival(&cut);
            assert!(
                found.is_none_or(|found| found.inner_offset as usize >= len),
                "{tunnel:?} cut to {len}: {found:?}"
            );
        }
        let mut fragment = whole.clone();
        // The second fragment of something.
        fragment[20..22].copy_from_slice(&[0x00, 0x10]);
        assert_eq!(arrival(&fragment.as_slice()), None, "{tunnel:?}");
    }
}
