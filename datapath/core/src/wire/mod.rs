//! Wire formats: every header that podwire reads or writes, one file per protocol.
//!
//! Each file has the same shape: constants with offsets, a `View` that reads in place, and a `Header` that
//! writes. What comes in is a frame and the offset at which the header begins; what goes out is a view whose
//! getters cannot fail, or a [`WireError`] that says layer, offset in the frame, bytes needed and bytes had.
//!
//! # Promises
//! - No reader panics, whatever the bytes. A header that is cut short is an error, never a guess.
//! - A field that the protocol tells receivers to ignore is ignored; one that makes the rest unreadable
//!   (version, header length) is an error.
//! - Lengths that reach beyond the frame are errors; bytes after the length (Ethernet padding) are cut off.
//! - Getters return host order; addresses and opaque fields are byte arrays in network order.
//! - `Header::write` writes every byte of the header and nothing else, or nothing at all.

pub mod arp;
pub mod checksum;
pub mod decap;
pub mod encap;
mod error;
pub mod erspan;
pub mod ethernet;
mod field;
pub mod geneve;
pub mod gre;
pub mod icmp;
pub mod icmpv6;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod protocol;
pub mod sctp;
pub mod tcp;
pub mod udp;
pub mod verify;
pub mod vlan;
pub mod vxlan;

pub use error::{Layer, Problem, WireError};

#[cfg(test)]
mod tests;
