//! The host's side in network namespaces, judged by `ip`, `nft`, tcpdump and tshark.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod devices;
mod packets;
