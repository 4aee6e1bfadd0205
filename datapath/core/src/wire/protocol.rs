//! IP protocol numbers (IANA, "Assigned Internet Protocol Numbers"); also the values of IPv6 Next Header.

/// IPv6 hop-by-hop options (RFC 8200 section 4.3).
pub const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4.
pub const ICMP: u8 = 1;
/// IGMP.
pub const IGMP: u8 = 2;
/// IPv4 in IP.
pub const IPV4: u8 = 4;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// DCCP.
pub const DCCP: u8 = 33;
/// IPv6 in IP.
pub const IPV6: u8 = 41;
/// IPv6 routing header (RFC 8200 section 4.4).
pub const ROUTING: u8 = 43;
/// IPv6 fragment header (RFC 8200 section 4.5).
pub const FRAGMENT: u8 = 44;
/// GRE.
pub const GRE: u8 = 47;
/// Encapsulating Security Payload: nothing behind it can be read.
pub const ESP: u8 = 50;
/// Authentication header (RFC 4302).
pub const AUTHENTICATION: u8 = 51;
/// ICMPv6.
pub const ICMPV6: u8 = 58;
/// IPv6 "no next header": what follows is not to be read.
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options (RFC 8200 section 4.6).
pub const DESTINATION_OPTIONS: u8 = 60;
/// SCTP.
pub const SCTP: u8 = 132;
/// Mobility header (RFC 6275).
pub const MOBILITY: u8 = 135;
/// UDP-Lite.
pub const UDP_LITE: u8 = 136;
/// Host Identity Protocol (RFC 7401).
pub const HIP: u8 = 139;
/// Shim6 (RFC 5533).
pub const SHIM6: u8 = 140;
