//! What several tests of this crate need beyond the harness.

pub mod node;
pub mod pcapng;
pub mod signals;
