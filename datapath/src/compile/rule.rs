//! What the compiler is given: rules as plain data, with names resolved and text parsed.
//!
//! A packet matches a [`Policy`] when any of its rules matches. A policy without rules, or with a rule that
//! gives no field, matches every frame: non-IP and malformed ones too.
//!
//! # When a rule matches
//! All given fields must agree; an empty `Vec` or `None` is not given. Packets are what
//! [`podwire_core::stage::parse`] makes of them.
//!
//! | field | agrees when |
//! |---|---|
//! | `protocol` | the packet is IPv4 or IPv6 and carries this protocol, after IPv6 extension headers |
//! | `either_ports` | the source or the destination port lies in one of the ranges |
//! | `source_ports`, `destination_ports` | that port lies in one of the ranges |
//! | `peer` | the address of the other side is in the set: Ingress the source, Egress the destination |
//! | `source`, `destination` | that address, as in the packet, is in the set |
//! | `icmp` | the packet is ICMP or ICMPv6, and type × 256 + code lies in one of the ranges |
//! | `tcp_flags` | the packet is TCP and its flags under the mask are the value |
//! | `ether_type` | the EtherType after VLAN tags is this one; a rule that gives any other field too never matches |
//!
//! - A frame that is neither IPv4 nor IPv6, or whose IP header is malformed, never matches a rule with an IP
//!   field: any but `ether_type`.
//! - Ports, ICMP types and TCP flags of later fragments and cut headers are unknown: a rule that gives one
//!   does not match. Ports without `protocol` mean every protocol that has ports: TCP, UDP, UDP-Lite, SCTP
//!   and DCCP.
//! - An address is in a set when it is in one of the CIDRs and in none of the exceptions. IPv4 entries say
//!   nothing about IPv6 packets, nor the other way round: a set without CIDRs of the packet's family does not
//!   hold its addresses.

use std::ops::RangeInclusive;

use ipnet::IpNet;

/// One rule; see the module's table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Ports on either side, host order.
    pub either_ports: Vec<RangeInclusive<u16>>,
    /// Source ports, host order.
    pub source_ports: Vec<RangeInclusive<u16>>,
    /// Destination ports, host order.
    pub destination_ports: Vec<RangeInclusive<u16>>,
    /// Addresses of the other side as seen from the pod.
    pub peer: Option<AddressSet>,
    /// Source addresses.
    pub source: Option<AddressSet>,
    /// Destination addresses.
    pub destination: Option<AddressSet>,
    /// ICMP and ICMPv6 types and codes: `type << 8 | code`.
    pub icmp: Vec<RangeInclusive<u16>>,
    /// TCP flags.
    pub tcp_flags: Option<TcpFlags>,
    /// EtherType after VLAN tags, host order.
    pub ether_type: Option<u16>,
}

impl Rule {
    /// Whether a field is given that only IP packets have.
    pub fn looks_at_ip(&self) -> bool {
        self.protocol.is_some()
            || self.looks_at_ports()
            || self.peer.is_some()
            || self.source.is_some()
            || self.destination.is_some()
            || !self.icmp.is_empty()
            || self.tcp_flags.is_some()
    }

    /// Whether a field is given that only packets with ports have.
    pub(super) fn looks_at_ports(&self) -> bool {
        !self.either_ports.is_empty() || !self.source_ports.is_empty() || !self.destination_ports.is_empty()
    }
}

/// TCP flags to compare (RFC 9293, CWR as the highest bit to FIN as the lowest).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TcpFlags {
    /// The flags that must be set, of those in `mask`.
    pub value: u8,
    /// The flags that are looked at.
    pub mask: u8,
}

/// Addresses: in any of `cidrs` and in none of `except`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressSet {
    /// What is in the set. Bits beyond the prefix length are ignored.
    pub cidrs: Vec<IpNet>,
    /// What is not.
    pub except: Vec<IpNet>,
}

/// Packets that one policy applies to, and what it does with them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The node-wide number of the policy, below [`podwire_core::abi::limits::POLICIES`].
    pub number: u16,
    /// The node-wide number of its session, below [`podwire_core::abi::limits::SESSIONS`].
    pub session: u16,
    /// What else the datapath has to know of it.
    pub nature: Nature,
    /// Any of these; empty means all traffic.
    pub rules: Vec<Rule>,
}

impl Policy {
    /// A mirror to a session, numbered as its session is.
    pub fn mirror(session: u16, rules: Vec<Rule>) -> Self {
        Self { number: session, session, nature: Nature::default(), rules }
    }
}

/// What a policy and its session are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nature {
    /// `Some`: it redirects; of several that match, the one with the lowest rank applies. `None`: it mirrors.
    pub redirect: Option<u16>,
    /// Its direction is that of the connection.
    pub stateful: bool,
    /// Its session takes samples or has a rate limit.
    pub limited: bool,
    /// Its session takes snapshots.
    pub snaps: bool,
    /// The agent reads its session's frames itself; it takes snapshots then.
    pub reader: bool,
}

/// The rules of one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndpointRules {
    /// The endpoint's slot, below [`podwire_core::abi::limits::ENDPOINTS`].
    pub slot: u32,
    /// For packets towards the pod.
    pub ingress: Vec<Policy>,
    /// For packets from the pod.
    pub egress: Vec<Policy>,
    /// The sources that are the pod's own, where they are known.
    pub sources: Option<Sources>,
    /// Its Egress policies, by rank; `None`: podwire does not lead what the pod sends.
    pub leaving: Option<Vec<Policy>>,
    /// Who opened a connection with the outside is kept in mind; see
    /// [`podwire_core::abi::EndpointRow::FLAG_ANSWERS`].
    pub answers: bool,
    /// MAC address of the interface's host side.
    pub gateway: [u8; 6],
}

/// The sources that are a pod's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sources {
    /// MAC addresses.
    pub macs: Vec<[u8; 6]>,
    /// Addresses, as prefixes; an IPv6 link-local address is one of its own only when it is here.
    pub prefixes: Vec<IpNet>,
    /// What becomes of packets with other sources; `None`: nobody looks.
    pub guard: Option<Guarded>,
}

/// What becomes of packets with a source that is not the pod's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guarded {
    /// They are counted.
    Observed,
    /// They are dropped.
    Dropped,
}

/// Destinations that the node knows: the longest prefix counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// Each with the number of its target, from 1 to [`podwire_core::abi::limits::TARGETS`] - 1.
    pub prefixes: Vec<(IpNet, u32)>,
}
