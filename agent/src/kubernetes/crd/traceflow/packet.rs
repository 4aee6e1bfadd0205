//! The packet of a trace: what one that is made has, or what a live one must have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kubernetes::crd::value::{TcpFlags, Word};

/// Made, it has what is unsaid by default; live, what is unsaid is anything.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Packet {
    /// Source address; the source's unless said.
    #[serde(rename = "srcIP")]
    src_ip: Option<String>,
    /// Destination address; the destination's unless said.
    #[serde(rename = "dstIP")]
    dst_ip: Option<String>,
    /// Bytes of the IPv4 packet, or behind the IPv6 header.
    #[schemars(range(min = 0, max = 65535))]
    length: Option<i64>,
    /// Bytes behind the transport header of a packet that is made; 0 unless said.
    #[schemars(range(min = 0, max = 65535))]
    payload_length: Option<i64>,
    /// The IPv4 header.
    ip_header: Option<Ipv4>,
    /// The IPv6 header; its presence selects IPv6.
    #[serde(rename = "ipv6Header")]
    ipv6_header: Option<Ipv6>,
    /// The transport header.
    transport_header: Option<Transport>,
}

/// An IPv4 header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Ipv4 {
    /// Protocol number; made, that of transportHeader unless said, else 1 (ICMP).
    #[schemars(range(min = 0, max = 255))]
    protocol: Option<i64>,
    /// Time to live; made, 64 unless said.
    #[schemars(range(min = 1, max = 255))]
    ttl: Option<i64>,
    /// The three bits beside the fragment offset: 2 is "don't fragment"; made, 0 unless said.
    #[schemars(range(min = 0, max = 7))]
    flags: Option<i64>,
}

/// An IPv6 header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv6 {
    /// Protocol number; made, that of transportHeader unless said, else 58 (ICMPv6).
    #[schemars(range(min = 0, max = 255))]
    next_header: Option<i64>,
    /// Hop limit; made, 64 unless said.
    #[schemars(range(min = 1, max = 255))]
    hop_limit: Option<i64>,
}

/// One of these at most.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Transport {
    /// TCP.
    tcp: Option<Tcp>,
    /// UDP.
    udp: Option<Ports>,
    /// ICMP or ICMPv6.
    icmp: Option<Icmp>,
    /// SCTP.
    sctp: Option<Ports>,
}

/// A TCP header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tcp {
    /// Source port; made, a random one unless said.
    #[schemars(range(min = 0, max = 65535))]
    src_port: Option<i64>,
    /// Destination port; made, 0 unless said.
    #[schemars(range(min = 0, max = 65535))]
    dst_port: Option<i64>,
    /// A number for all flags as they are, `+syn-ack`, or `{value, mask}`; made, 2 (SYN) unless said.
    flags: Option<TcpFlags>,
}

/// A UDP or SCTP header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    /// Source port; made, a random one unless said.
    #[schemars(range(min = 0, max = 65535))]
    src_port: Option<i64>,
    /// Destination port; made, 0 unless said.
    #[schemars(range(min = 0, max = 65535))]
    dst_port: Option<i64>,
}

/// An ICMP or ICMPv6 header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Icmp {
    /// Name or number; made, an echo request unless said.
    #[serde(rename = "type")]
    kind: Option<Word>,
    /// Code of that type.
    #[schemars(range(min = 0, max = 255))]
    code: Option<i64>,
    /// Identifier of an echo.
    #[schemars(range(min = 0, max = 65535))]
    id: Option<i64>,
    /// Sequence number of an echo.
    #[schemars(range(min = 0, max = 65535))]
    sequence: Option<i64>,
}
