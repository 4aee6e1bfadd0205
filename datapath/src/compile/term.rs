//! From a rule to rule bits: per field of the packet the set of values that satisfies the bit.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use podwire_core::abi::{Direction, Mode};
use podwire_core::wire::{ethernet, protocol};

use super::ranges::Ranges;
use super::rule::{AddressSet, Rule, TcpFlags};

/// Protocols whose ports [`podwire_core::stage::parse`] reads.
const WITH_PORTS: [u8; 5] =
    [protocol::TCP, protocol::UDP, protocol::UDP_LITE, protocol::SCTP, protocol::DCCP];
/// Protocols whose type and code it reads.
const WITH_TYPES: [u8; 2] = [protocol::ICMP, protocol::ICMPV6];

/// What is looked up, each by its own trie. Keys are left-aligned in 128 bits, as
/// [`podwire_core::stage::Key`] has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    RemoteV4,
    RemoteV6,
    LocalV4,
    LocalV6,
    /// Protocol and source port, or protocol and ICMP type and code.
    Source,
    /// Protocol and destination port.
    Destination,
    /// Protocol of packets without ports and types.
    Portless,
    TcpFlags,
    /// Of frames that are not IP.
    EtherType,
}

impl Field {
    const COUNT: usize = 9;
}

/// One rule bit: satisfied when every field's value is in the field's set.
///
/// The order of terms is the order of their bits. Addresses come first in it, so that rules with neighbouring
/// addresses are neighbours and the rows of an address trie are mostly zero but in one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Term {
    /// By [`Field`]; `None`: any value.
    fields: [Option<Ranges>; Field::COUNT],
    /// By [`Mode`]: whether such a packet can match at all.
    modes: [bool; 3],
}

impl Term {
    const EVERYTHING: Self = Self { fields: [const { None }; Field::COUNT], modes: [true; 3] };

    /// Whether every frame satisfies it.
    pub(super) fn is_everything(&self) -> bool {
        *self == Self::EVERYTHING
    }

    /// Whether packets of this mode can satisfy it.
    pub(super) fn possible_in(&self, mode: Mode) -> bool {
        self.modes[mode as usize]
    }

    /// The values that satisfy it, `None` for any.
    pub(super) fn field(&self, field: Field) -> Option<&Ranges> {
        self.fields[field as usize].as_ref()
    }

    fn set(&mut self, field: Field, values: Option<Ranges>) {
        self.fields[field as usize] = values;
    }

    fn ether_type(ether_type: u16) -> Self {
        let mut term = Self::EVERYTHING;
        term.modes[Mode::V4 as usize] = ether_type == ethernet::ETHER_TYPE_IPV4;
        term.modes[Mode::V6 as usize] = ether_type == ethernet::ETHER_TYPE_IPV6;
        term.set(Field::EtherType, Some(Ranges::new([key(ether_type.into(), ether_type.into(), 16)])));
        term
    }
}

/// The bits of a rule, none when nothing can match it.
///
/// `either_ports` makes two: the AND over fields cannot say "source or destination".
pub(super) fn terms(rule: &Rule, direction: Direction) -> Vec<Term> {
    if let Some(ether_type) = rule.ether_type {
        return if rule.looks_at_ip() { Vec::new() } else { vec![Term::ether_type(ether_type)] };
    }
    if !rule.looks_at_ip() {
        return vec![Term::EVERYTHING];
    }
    let Some(term) = addresses(rule, direction) else {
        return Vec::new();
    };
    if rule.looks_at_ports() || rule.tcp_flags.is_some() {
        return with_ports(rule, &term);
    }
    with_protocol(rule, term).into_iter().collect()
}

/// The part of the term about addresses: `None` when neither an IPv4 nor an IPv6 packet can match.
fn addresses(rule: &Rule, direction: Direction) -> Option<Term> {
    let (remote, local) = match direction {
        Direction::Ingress => (&rule.source, &rule.destination),
        Direction::Egress => (&rule.destination, &rule.source),
    };
    let mut term = Term { modes: [false; 3], ..Term::EVERYTHING };
    let families = [(Mode::V4, Field::RemoteV4, Field::LocalV4), (Mode::V6, Field::RemoteV6, Field::LocalV6)];
    for (mode, remote_field, local_field) in families {
        let remote = family(mode, [rule.peer.as_ref(), remote.as_ref()]);
        let local = family(mode, [local.as_ref(), None]);
        if !remote.is_empty() && !local.is_empty() {
            term.modes[mode as usize] = true;
            term.set(remote_field, unless_any(remote, 0, u128::MAX));
            term.set(local_field, unless_any(local, 0, u128::MAX));
        }
    }
    term.modes.contains(&true).then_some(term)
}

/// The addresses of one family that are in all given sets.
fn family(mode: Mode, sets: [Option<&AddressSet>; 2]) -> Ranges {
    let part = |cidrs: &[IpNet]| {
        Ranges::new(cidrs.iter().filter(|cidr| matches!(cidr, IpNet::V4(_)) == (mode == Mode::V4)).map(
            |cidr| match (cidr.network(), cidr.broadcast()) {
                (IpAddr::V4(first), IpAddr::V4(last)) => {
                    key(u32::from(first).into(), u32::from(last).into(), 32)
                }
                (first, last) => (number(first), number(last)),
            },
        ))
    };
    let all = Ranges::new([(0, u128::MAX)]);
    sets.into_iter()
        .flatten()
        .fold(all, |common, set| common.intersect(&part(&set.cidrs).subtract(&part(&set.except))))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// Bits of a rule that wants packets with ports.
///
/// The protocol is checked together with the port that is looked at, and only there: rules on one side's
/// ports then leave the other side's trie alone.
fn with_ports(rule: &Rule, term: &Term) -> Vec<Term> {
    let mut protocols: Vec<u8> = WITH_PORTS.to_vec();
    protocols.retain(|&number| rule.protocol.is_none_or(|wanted| wanted == number));
    protocols.retain(|&number| rule.tcp_flags.is_none() || number == protocol::TCP);
    if protocols.is_empty() || !rule.icmp.is_empty() {
        return Vec::new();
    }
    let flags = rule.tcp_flags.map(matching_flags);
    if flags.as_ref().is_some_and(Ranges::is_empty) {
        return Vec::new();
    }
    let flags = flags.and_then(|flags| unless_any(flags, 0, u128::MAX));
    let (source, destination) = (numbers(&rule.source_ports), numbers(&rule.destination_ports));
    let sides = if rule.either_ports.is_empty() {
        vec![(source, destination)]
    } else {
        let either = numbers(&rule.either_ports);
        vec![(source.intersect(&either), destination.clone()), (source, destination.intersect(&either))]
    };
    let mut terms = Vec::with_capacity(sides.len());
    for (source, destination) in sides {
        if source.is_empty() || destination.is_empty() {
            continue;
        }
        let destination = unless_any(destination, 0, u16::MAX.into());
        let source = match &destination {
            Some(_) => unless_any(source, 0, u16::MAX.into()),
            None => Some(source),
        };
        let mut term = term.clone();
        term.set(Field::Source, source.map(|ports| with_protocols(&protocols, &ports)));
        term.set(Field::Destination, destination.map(|ports| with_protocols(&protocols, &ports)));
        term.set(Field::Portless, Some(Ranges::default()));
        term.set(Field::TcpFlags, flags.clone());
        terms.push(term);
    }
    terms
}

/// The bit of a rule on protocol and ICMP type, or on addresses alone.
fn with_protocol(rule: &Rule, mut term: Term) -> Option<Term> {
    if !rule.icmp.is_empty() {
        let mut protocols = WITH_TYPES.to_vec();
        protocols.retain(|&number| rule.protocol.is_none_or(|wanted| wanted == number));
        let values = with_protocols(&protocols, &numbers(&rule.icmp));
        if values.is_empty() {
            return None;
        }
        term.set(Field::Source, Some(values));
        term.set(Field::Portless, Some(Ranges::default()));
    } else if let Some(number) = rule.protocol {
        term.set(Field::Source, Some(with_protocols(&[number], &numbers(&[]))));
        term.set(Field::Portless, Some(Ranges::new([key(number.into(), number.into(), 8)])));
    }
    Some(term)
}

/// Ports, or types and codes; not given means all.
fn numbers(ranges: &[RangeInclusive<u16>]) -> Ranges {
    if ranges.is_empty() {
        return Ranges::new([(0, u16::MAX.into())]);
    }
    Ranges::new(ranges.iter().map(|range| ((*range.start()).into(), (*range.end()).into())))
}

/// Keys of protocol and port.
fn with_protocols(protocols: &[u8], ports: &Ranges) -> Ranges {
    Ranges::new(protocols.iter().flat_map(|&number| {
        let high = u128::from(number) << 16;
        ports.iter().map(move |(first, last)| key(high | first, high | last, 24))
    }))
}

/// Keys of the flags bytes that agree.
fn matching_flags(flags: TcpFlags) -> Ranges {
    let matching = (0..=u8::MAX).filter(|byte| byte & flags.mask == flags.value);
    Ranges::new(matching.map(|byte| key(byte.into(), byte.into(), 8)))
}

/// The range of left-aligned keys between two numbers of `bits` bits, whatever follows them.
fn key(first: u128, last: u128, bits: u32) -> (u128, u128) {
    let shift = 128 - bits;
    (first << shift, last << shift | ((1 << shift) - 1))
}

/// `None` for a set of all values.
fn unless_any(values: Ranges, first: u128, last: u128) -> Option<Ranges> {
    let any = values.iter().eq([(first, last)]);
    (!any).then_some(values)
}
