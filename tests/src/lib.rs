//! What several tests of this crate need beyond the harness.

pub mod agents;
pub mod captured;
pub mod collected;
pub mod crowd;
pub mod egress;
pub mod flows;
#[cfg(feature = "test-run")]
pub mod inspected;
pub mod kubernetes;
#[cfg(feature = "test-run")]
pub mod model;
pub mod node;
pub mod pcapng;
pub mod reach;
pub mod scapy;
pub mod signals;
pub mod spoof;
#[cfg(feature = "test-run")]
pub mod test_run;
pub mod tool;
pub mod traced;
pub mod watched;
pub mod wish;
