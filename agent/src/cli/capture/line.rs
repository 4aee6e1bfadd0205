//! A packet in a line, much as `tcpdump -n` has it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, UNIX_EPOCH};

use podwire_datapath::core::abi::{Direction, Mode};
use podwire_datapath::core::stage::{Facts, Key, Transport, parse};
use podwire_datapath::object::TCP_FLAGS;

use super::order::Packet;

/// The line; `pod`: where it was captured.
pub fn line(packet: &Packet, pod: &str) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(packet.head.time_ns);
    let way = match packet.head.direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    };
    let cut = if packet.bytes.len() < packet.head.length as usize { " (cut)" } else { "" };
    format!(
        "{} {pod} {way:<3} {}, length {}{cut}",
        humantime::format_rfc3339_nanos(time),
        describe(&packet.bytes),
        packet.head.length
    )
}

fn describe(frame: &[u8]) -> String {
    let facts = parse(&frame);
    let (source, destination) = (address(&facts, facts.source), address(&facts, facts.destination));
    let (Some(source), Some(destination)) = (source, destination) else {
        return match facts.ether_type {
            0x0806 => arp(frame.get(facts.network_offset as usize..).unwrap_or_default()),
            other => format!("ethertype {other:#06x}"),
        };
    };
    let protocol = protocol(facts.protocol);
    match facts.transport {
        Transport::Ports => {
            let end = |address: IpAddr, port: u16| match address {
                IpAddr::V4(address) => format!("{address}:{port}"),
                IpAddr::V6(address) => format!("[{address}]:{port}"),
            };
            let (from, to) = (end(source, facts.source_port), end(destination, facts.destination_port));
            format!("{protocol} {from} > {to}{}", flags(&facts))
        }
        Transport::Icmp => {
            let (kind, code) = (facts.source_port >> 8, facts.source_port & 0xff);
            format!("{protocol} {source} > {destination} type {kind} code {code}")
        }
        Transport::Portless => format!("{protocol} {source} > {destination}"),
    }
}

fn arp(packet: &[u8]) -> String {
    let ip = |at: usize| {
        packet.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(Ipv4Addr::from)
    };
    match (packet.get(7), ip(14), ip(24)) {
        (Some(1), Some(sender), Some(target)) => format!("arp who has {target}, says {sender}"),
        (Some(2), Some(sender), Some(target)) => format!("arp {sender} answers {target}"),
        _ => "arp".into(),
    }
}

fn address(facts: &Facts, key: Key) -> Option<IpAddr> {
    match facts.mode {
        Mode::V4 => Some(Ipv4Addr::from((key.high >> 32) as u32).into()),
        Mode::V6 => Some(Ipv6Addr::from(u128::from(key.high) << 64 | u128::from(key.low)).into()),
        Mode::Other => None,
    }
}

fn flags(facts: &Facts) -> String {
    const TCP: u8 = 6;
    if facts.protocol != TCP {
        return String::new();
    }
    let set = TCP_FLAGS.iter().enumerate().filter(|(bit, _)| facts.tcp_flags & 1 << bit != 0);
    let set: Vec<&str> = set.map(|(_, name)| *name).collect();
    format!(" {}", if set.is_empty() { "none".into() } else { set.join("|") })
}

fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmpv6".into(),
        132 => "sctp".into(),
        other => format!("protocol {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::describe;

    fn frame(ether_type: [u8; 2], rest: &[u8]) -> Vec<u8> {
        [&[0; 12][..], &ether_type, rest].concat()
    }

    #[test]
    fn packets_are_told_by_what_they_are() {
        let v4 = |protocol: u8, rest: &[u8]| {
            let head = [0x45, 0, 0, 40, 0, 7, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 5, 10, 0, 1, 6];
            frame([8, 0], &[&head, rest].concat())
        };
        let syn = [3, 0xe8, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0];
        assert_eq!(describe(&v4(6, &syn)), "tcp 10.0.0.5:1000 > 10.0.1.6:80 syn|ack");
        assert_eq!(describe(&v4(1, &[8, 0, 0, 0, 0, 1, 0, 1])), "icmp 10.0.0.5 > 10.0.1.6 type 8 code 0");
        assert_eq!(describe(&v4(47, &[0; 20])), "protocol 47 10.0.0.5 > 10.0.1.6");
        let mut arp = [0; 28];
        (arp[7], arp[14], arp[24]) = (1, 10, 11);
        assert_eq!(describe(&frame([8, 6], &arp)), "arp who has 11.0.0.0, says 10.0.0.0");
        assert_eq!(describe(&frame([0x88, 0xb5], &[0; 40])), "ethertype 0x88b5");
        assert_eq!(describe(&[]), "ethertype 0x0000");
    }
}
