//! Encapsulation as data: what a tunnel puts before a mirrored frame, built once per session, filled in per
//! packet.
//!
//! In: an [`Encapsulation`] (addresses and tunnel). Out: an [`OuterTemplate`], the bytes from the outer IP header
//! through the tunnel header with everything that is the same for all packets already in place.
//! [`OuterTemplate::fill`] copies it and writes what varies; it runs in BPF programs and in user space alike.
//! The outer Ethernet header is not part of it: the kernel's neighbour layer, or [`encapsulate`], puts it before.
//!
//! | varies per packet | in | from |
//! |---|---|---|
//! | total or payload length | IPv4, IPv6 | `inner_len` |
//! | identification, header checksum | IPv4 | `ip_id`; a sum made with the template |
//! | length, source port | UDP (VXLAN, GENEVE) | `inner_len`; `flow_hash`, RFC 7348 section 5 |
//! | sequence number | GRE where asked for, ERSPAN always | `sequence` |
//! | VLAN, class of service, truncated | ERSPAN II, III | `vlan_tci`, `vlan_tag`, `truncated` |
//! | timestamp, direction | ERSPAN III | `timestamp_ns`, `direction` |
//!
//! - The UDP checksum is 0 for both families: RFC 6935 and RFC 6936 allow it to tunnels over IPv6, and the kernel
//!   accepts it there when the receiving device says `udp6zerocsumrx`.
//! - The IPv4 flag "don't fragment" is off unless asked for: a copy that is too big for some link further on
//!   arrives in fragments rather than not at all.
//! - GRE is written without its own checksum.

mod describe;
mod fill;
mod flow;
mod frame;
mod template;

pub use describe::{Encapsulation, OuterAddresses, Tunnel};
pub use fill::PerPacket;
pub use flow::{Flow, flow_hash};
pub use frame::encapsulate;
pub use template::{Family, OUTER_MAX, OuterTemplate, TunnelKind};
