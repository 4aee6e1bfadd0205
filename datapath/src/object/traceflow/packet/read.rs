//! Reads the packet of a trace. In: `spec.packet` and the addresses of both ends. Out: what it has, with family and
//! protocol settled and the defaults filled in when it is made; of a live one, what is not written is `None` and
//! matches anything.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use podwire_core::wire::protocol;

use super::super::finish;
use super::{TraceFamily, TraceIcmp, TracePacket, TracePorts, TraceTransport};
use crate::compile::TcpFlags;
use crate::object::address::unicast;
use crate::object::decode::{Field, Map, read_number};
use crate::object::rule::{read_flags, read_icmp_type};

/// Time to live of a packet that is made.
const DEFAULT_TTL: u8 = 64;
/// Flags of a TCP packet that is made: SYN.
const DEFAULT_FLAGS: TcpFlags = TcpFlags { value: 2, mask: 255 };

/// What stands in `packet`, and which header said the family.
#[derive(Default)]
pub(in crate::object::traceflow) struct Written {
    pub(in crate::object::traceflow) source_ip: Option<IpAddr>,
    pub(in crate::object::traceflow) destination_ip: Option<IpAddr>,
    length: Option<u16>,
    payload_length: Option<u16>,
    header: Option<(&'static str, TraceFamily)>,
    protocol: Option<u8>,
    ttl: Option<u8>,
    ip_flags: Option<u8>,
    transport: Option<TraceTransport>,
}

/// `v6` is whether an end of the trace is an IPv6 address.
pub(in crate::object::traceflow) fn read(
    field: &Field,
    antrea: bool,
    live: bool,
    v6: bool,
) -> Option<Written> {
    let map = field.map()?;
    let address = |name| map.get(name).map(|field| unicast(&field));
    let (source_ip, destination_ip) = (address("srcIP"), address("dstIP"));
    let mut written = Written { length: number(&map, "length", 0..=65535), ..Written::default() };
    if !antrea {
        written.payload_length = number(&map, "payloadLength", 0..=65535);
    }
    let both = map.has("ipHeader") && map.has("ipv6Header");
    if let Some(header) = map.get("ipHeader").and_then(|field| field.map()) {
        written.header = Some(("ipHeader", TraceFamily::V4));
        written.protocol = number(&header, "protocol", 0..=255);
        written.ttl = number(&header, "ttl", 1..=255);
        written.ip_flags = number(&header, "flags", 0..=7);
        finish(&header, antrea);
    }
    if let Some(header) = map.get("ipv6Header").and_then(|field| field.map()) {
        written.header = Some(("ipv6Header", TraceFamily::V6));
        written.protocol = number(&header, "nextHeader", 0..=255);
        written.ttl = number(&header, "hopLimit", 1..=255);
        finish(&header, antrea);
    }
    let v6 = v6 || map.has("ipv6Header") || [&source_ip, &destination_ip].iter().any(|ip| is_v6(ip));
    let transport = map.get("transportHeader").map(|field| read_transport(&field, antrea, v6));
    finish(&map, antrea);
    let problem = if both {
        "ipHeader and ipv6Header are given; a packet has one of them"
    } else if map.has("length") && map.has("payloadLength") {
        "length and payloadLength are two ways to say one thing; one of both is enough"
    } else if live && map.has("payloadLength") {
        "payloadLength is for a packet that is made; length matches live traffic"
    } else {
        // Zero is how Go says that nothing was written.
        written.length = written.length.filter(|length| *length != 0);
        written.source_ip = source_ip.map_or(Some(None), |ip| ip.map(Some))?;
        written.destination_ip = destination_ip.map_or(Some(None), |ip| ip.map(Some))?;
        written.transport = transport.unwrap_or(Some(None))?;
        return Some(written);
    };
    map.contradiction(problem);
    None
}

fn is_v6(ip: &Option<Option<IpAddr>>) -> bool {
    matches!(ip, Some(Some(IpAddr::V6(_))))
}

fn number<T: TryFrom<i64>>(map: &Map, name: &'static str, range: RangeInclusive<i64>) -> Option<T> {
    map.get(name).and_then(|field| field.number(range)).and_then(|number| T::try_from(number).ok())
}

/// `Some(None)` for a map without a header, as some clients write it.
fn read_transport(field: &Field, antrea: bool, v6: bool) -> Option<Option<TraceTransport>> {
    let map = field.map()?;
    let mut found = Vec::new();
    if let Some(header) = map.get("tcp").and_then(|field| field.map()) {
        let ports = read_ports(&header);
        let flags = header.get("flags").and_then(|field| flags(&field, antrea));
        finish(&header, antrea);
        found.push(TraceTransport::Tcp { ports, flags });
    }
    if let Some(header) = map.get("udp").and_then(|field| field.map()) {
        found.push(TraceTransport::Udp(read_ports(&header)));
        finish(&header, antrea);
    }
    if let Some(header) = map.get("icmp").and_then(|field| field.map()) {
        let (id, sequence) = (number(&header, "id", 0..=65535), number(&header, "sequence", 0..=65535));
        let mut icmp = TraceIcmp { id, sequence, ..TraceIcmp::default() };
        if !antrea {
            icmp.kind = header.get("type").and_then(|field| read_icmp_type(&field, v6));
            icmp.code = number(&header, "code", 0..=255);
        }
        finish(&header, antrea);
        if !antrea && header.has("code") && !header.has("type") {
            header.contradiction("code needs type");
        }
        found.push(TraceTransport::Icmp(icmp));
    }
    if !antrea && let Some(header) = map.get("sctp").and_then(|field| field.map()) {
        found.push(TraceTransport::Sctp(read_ports(&header)));
        finish(&header, antrea);
    }
    finish(&map, antrea);
    if found.len() > 1 {
        let names: Vec<&str> = found.iter().map(TraceTransport::field).collect();
        map.contradiction(&format!("{} are given; a packet has one of them", names.join(" and ")));
        return None;
    }
    Some(found.pop())
}

/// Port 0 is how Go says that nothing was written.
fn read_ports(header: &Map) -> TracePorts {
    let port = |name| number(header, name, 0..=65535).filter(|port| *port != 0);
    TracePorts { source: port("srcPort"), destination: port("dstPort") }
}

/// A number is all flags as they are; podwire's own kind takes the form of rules as well.
fn flags(field: &Field, antrea: bool) -> Option<TcpFlags> {
    if antrea || (!field.is_map() && read_number(field.text()?).is_some()) {
        return field.number(0..=255).map(|number| TcpFlags { value: number as u8, mask: 255 });
    }
    read_flags(field)
}

/// Family and protocol out of all that says them; defaults for a packet that is made.
pub(in crate::object::traceflow) fn settle(
    spec: &Map,
    written: Written,
    addresses: &[(&str, IpAddr)],
    live: bool,
) -> Option<TracePacket> {
    let header = written.header.map(|(field, family)| (format!("packet.{field}"), family));
    let said = addresses.iter().map(|(field, ip)| (format!("{field} {ip}"), TraceFamily::of(*ip)));
    let said: Vec<(String, TraceFamily)> = header.into_iter().chain(said).collect();
    let first = said.first().cloned();
    if let Some((first, family)) = &first
        && let Some((other, of)) = said.iter().find(|(_, of)| of != family)
    {
        let (family, of) = (family.as_str(), of.as_str());
        spec.contradiction(&format!("address families differ: {first} is {family}, {other} is {of}"));
        return None;
    }
    let icmp = matches!(written.transport, Some(TraceTransport::Icmp(_)));
    let by_protocol = match written.protocol {
        Some(protocol::ICMP) => Some(TraceFamily::V4),
        Some(protocol::ICMPV6) => Some(TraceFamily::V6),
        _ => None,
    };
    let family = first
        .map(|(_, family)| family)
        .or(by_protocol)
        .or_else(|| (icmp || !live).then_some(TraceFamily::V4));
    if let Some((family, by_protocol)) = family.zip(by_protocol).filter(|(one, other)| one != other) {
        let (number, of, icmp) = (by_protocol.icmp(), by_protocol.as_str(), family.icmp());
        let family = family.as_str();
        spec.contradiction(&format!(
            "packet: protocol {number} is {of}'s ICMP, and the packet is {family}; allowed: {icmp}"
        ));
        return None;
    }
    let implied =
        written.transport.as_ref().map(|transport| transport.protocol(family.unwrap_or(TraceFamily::V4)));
    if let Some((number, transport)) = written.protocol.zip(written.transport.as_ref())
        && implied != Some(number)
    {
        let (field, implied) = (transport.field(), implied.unwrap_or_default());
        spec.contradiction(&format!(
            "packet: protocol {number} has no transportHeader.{field}, whose protocol is {implied}"
        ));
        return None;
    }
    let mut packet = TracePacket {
        family,
        source_ip: written.source_ip,
        destination_ip: written.destination_ip,
        length: written.length,
        payload_length: written.payload_length,
        protocol: written.protocol.or(implied),
        ttl: written.ttl,
        ip_flags: written.ip_flags,
        transport: written.transport,
    };
    if !live {
        fill(spec, &mut packet, family.unwrap_or(TraceFamily::V4))?;
    }
    Some(packet)
}

/// The defaults of a packet that is made.
fn fill(spec: &Map, packet: &mut TracePacket, family: TraceFamily) -> Option<()> {
    let number = packet.protocol.unwrap_or(family.icmp());
    let Some(empty) = TraceTransport::empty(number) else {
        spec.contradiction(&format!(
            "packet: protocol {number} is for live traffic; a packet that is made is TCP (6), UDP (17), ICMP (1), ICMPv6 (58) or SCTP (132)"
        ));
        return None;
    };
    packet.family = Some(family);
    packet.protocol = Some(number);
    packet.ttl = packet.ttl.or(Some(DEFAULT_TTL));
    let transport = packet.transport.get_or_insert(empty);
    if let TraceTransport::Tcp { flags, .. } = transport {
        flags.get_or_insert(DEFAULT_FLAGS);
    }
    Some(())
}
