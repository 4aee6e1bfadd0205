//! What podwire asks of the node's own kernel for forwarding and Egress. In: wishes. Out: nftables, devices,
//! routes, neighbours and addresses that are so.
//!
//! Everything works in the network namespace of the calling thread, may be called again at any time, and changes
//! only what differs. What podwire made carries a mark of its own (a table's name, a device's alias, a protocol
//! number) by which a later process knows it; what does not is left alone.

pub(crate) mod address;
pub(crate) mod announce;
pub(crate) mod conntrack;
pub(crate) mod mtu;
pub(crate) mod overlay;
pub(crate) mod routes;
pub(crate) mod snat;
pub(crate) mod sysctl;
#[cfg(test)]
mod tests;

/// podwire's number among the origins of routes (`rtm_protocol`), neighbours (`NDA_PROTOCOL`) and addresses
/// (`IFA_PROTO`). No routing daemon of iproute2's `rt_protos` has it.
pub(crate) const PROTOCOL: u8 = 112;
