//! Which packets. In: what is said of them. Out: a row that the stages compare with, or a rule for the classifier.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_core::abi::MatchRow;
use podwire_core::stage::trace::{Shape, matches};
use podwire_core::stage::{Key, parse};

use crate::compile::{AddressSet, Rule, TcpFlags};

/// Which packets; what is not said is any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Source addresses.
    pub source: Option<IpNet>,
    /// Destination addresses.
    pub destination: Option<IpNet>,
    /// IPv6, or IPv4.
    pub v6: Option<bool>,
    /// IP protocol, after IPv6 extension headers.
    pub protocol: Option<u8>,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
    /// ICMP type.
    pub icmp_type: Option<u8>,
    /// ICMP code.
    pub icmp_code: Option<u8>,
    /// TCP flags: value and mask.
    pub tcp_flags: Option<(u8, u8)>,
    /// Time to live, or hop limit.
    pub ttl: Option<u8>,
    /// IPv4's total length, or IPv6's payload length.
    pub length: Option<u16>,
    /// IPv4's flags, the three bits beside the fragment offset.
    pub ip_flags: Option<u8>,
    /// Identifier of an ICMP echo.
    pub echo_id: Option<u16>,
    /// Sequence number of an ICMP echo.
    pub echo_sequence: Option<u16>,
}

impl Filter {
    /// The same of the answers: with sides exchanged.
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..*self
        }
    }

    /// Whether a frame, from its Ethernet header on, is one of them.
    ///
    /// # Errors
    /// Saying what contradicts itself.
    pub fn accepts(&self, frame: &[u8]) -> Result<bool, &'static str> {
        let facts = parse(&frame);
        Ok(matches(&self.row()?, &facts, &Shape::of(&frame, &facts)))
    }

    /// The rule that holds for all of them, and whether it holds for no others.
    pub fn rule(&self) -> (Rule, bool) {
        let set = |prefix: Option<IpNet>| {
            prefix.map(|prefix| AddressSet { cidrs: vec![prefix], except: Vec::new() })
        };
        let all: Option<IpNet> = self.v6.map(|v6| match v6 {
            true => IpNet::V6(ipnet::Ipv6Net::default()),
            false => IpNet::V4(ipnet::Ipv4Net::default()),
        });
        let port = |port: Option<u16>| port.into_iter().map(|port| port..=port).collect();
        let kinds = |kind: u8| {
            let kind = u16::from(kind) << 8;
            self.icmp_code.map_or(kind..=kind | 0xff, |code| kind | u16::from(code)..=kind | u16::from(code))
        };
        let rule = Rule {
            protocol: self.protocol,
            source_ports: port(self.source_port),
            destination_ports: port(self.destination_port),
            source: set(self.source.or(all)),
            destination: set(self.destination),
            icmp: self.icmp_type.into_iter().map(kinds).collect(),
            tcp_flags: self.tcp_flags.map(|(value, mask)| TcpFlags { value: value & mask, mask }),
            ..Rule::default()
        };
        let more = [self.ttl.is_some(), self.length.is_some(), self.ip_flags.is_some()];
        let echo = self.echo_id.is_some() || self.echo_sequence.is_some();
        (rule, !echo && !more.contains(&true))
    }

    /// What the stages compare with.
    pub(super) fn row(&self) -> Result<MatchRow, &'static str> {
        let (mut ports, mut ports_mask) = (0, 0);
        let upper = match (self.icmp_type, self.icmp_code) {
            (Some(kind), code) => {
                let code_mask = if code.is_some() { 0xff } else { 0 };
                Some((u32::from(kind) << 8 | u32::from(code.unwrap_or(0)), 0xff00 | code_mask))
            }
            (None, _) => self.source_port.map(|port| (u32::from(port), 0xffff)),
        };
        if let Some((value, mask)) = upper {
            (ports, ports_mask) = (value << 16, mask << 16);
        }
        if let Some(port) = self.destination_port {
            (ports, ports_mask) = (ports | u32::from(port), ports_mask | 0xffff);
        }
        let prefixes = [self.source, self.destination];
        let families = prefixes.iter().flatten().map(|prefix| prefix.addr().is_ipv6()).chain(self.v6);
        let v6: Vec<bool> = families.collect();
        if v6.windows(2).any(|two| two[0] != two[1]) {
            return Err("its addresses are of one family");
        }
        let [(source, source_mask), (destination, destination_mask)] = prefixes.map(prefix_words);
        let (tcp_flags, tcp_flags_mask) = self.tcp_flags.unwrap_or((0, 0));
        let half = |number: Option<u16>| number.map_or((0, 0), |number| (u32::from(number), 0xffff));
        let [(id, id_mask), (sequence, sequence_mask)] = [self.echo_id, self.echo_sequence].map(half);
        Ok(MatchRow {
            source,
            source_mask,
            destination,
            destination_mask,
            ports: ports & ports_mask,
            ports_mask,
            family: v6.first().map_or(0, |v6| if *v6 { 6 } else { 4 }),
            protocol: self.protocol.map_or(MatchRow::ANY_PROTOCOL, u32::from),
            tcp_flags: u32::from(tcp_flags & tcp_flags_mask),
            tcp_flags_mask: tcp_flags_mask.into(),
            ttl: self.ttl.map_or(0, u32::from),
            length: self.length.map_or(0, u32::from),
            ip_flags: self.ip_flags.map_or(0, u32::from),
            ip_flags_mask: if self.ip_flags.is_some() { 7 } else { 0 },
            echo: id << 16 | sequence,
            echo_mask: id_mask << 16 | sequence_mask,
            ..MatchRow::default()
        })
    }
}

/// As the stages keep an address.
pub(super) fn words(address: IpAddr) -> [u64; 2] {
    let Key { high, low } = match address {
        IpAddr::V4(address) => Key::from_v4(address.octets()),
        IpAddr::V6(address) => Key::from_v6(address.octets()),
    };
    [high, low]
}

/// An address under its mask, and the mask.
fn prefix_words(prefix: Option<IpNet>) -> ([u64; 2], [u64; 2]) {
    let Some(prefix) = prefix else {
        return ([0; 2], [0; 2]);
    };
    (words(prefix.network()), words(prefix.netmask()))
}

#[cfg(test)]
mod tests {
    use super::Filter;

    /// An Ethernet frame with an echo request of identifier 7, number 3.
    fn echo() -> [u8; 42] {
        let mut frame = [0; 42];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..34].copy_from_slice(&[0x45, 0, 0, 28, 0, 7, 0, 0, 64, 1, 0, 0, 10, 0, 0, 5, 10, 0, 1, 6]);
        frame[34..42].copy_from_slice(&[8, 0, 0, 0, 0, 7, 0, 3]);
        frame
    }

    #[test]
    fn a_frame_is_looked_at_as_the_stages_do() {
        let own = Filter { protocol: Some(1), icmp_type: Some(8), ttl: Some(64), ..Filter::default() };
        let own = Filter { echo_id: Some(7), echo_sequence: Some(3), v6: Some(false), ..own };
        assert_eq!(own.accepts(&echo()), Ok(true));
        for other in [
            Filter { ttl: Some(63), ..own },
            Filter { echo_id: Some(8), ..own },
            Filter { icmp_type: Some(0), ..own },
            Filter { v6: Some(true), ..own },
        ] {
            assert_eq!(other.accepts(&echo()), Ok(false), "{other:?}");
        }
    }

    #[test]
    fn a_rule_says_whether_it_says_all() {
        let ports = Filter { protocol: Some(6), destination_port: Some(80), ..Filter::default() };
        let (rule, whole) = ports.rule();
        assert!(whole && rule.destination_ports == [80..=80] && rule.source_ports.is_empty());
        let (rule, _) = ports.reversed().rule();
        assert!(rule.source_ports == [80..=80] && rule.destination_ports.is_empty());
        let kind = Filter { icmp_type: Some(8), icmp_code: Some(0), ..Filter::default() };
        assert_eq!(kind.rule().0.icmp, [0x0800..=0x0800]);
        assert!(!Filter { ttl: Some(1), ..ports }.rule().1);
        assert!(Filter { v6: Some(true), ..Filter::default() }.rule().0.source.is_some());
    }
}
