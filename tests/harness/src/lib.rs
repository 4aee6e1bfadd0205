//! Network namespaces, devices, captures and traffic for tests and the demo. All of it is undone on drop.
//!
//! Only the network namespace is entered, never a mount namespace: `ip netns exec` would hide the bpffs.

mod agent;
mod api_server;
mod bpffs;
mod capture;
mod cluster;
mod http;
mod iperf;
mod kernel_log;
mod netns;
mod patience;
mod ping;
mod process;
mod raw;
mod stream;
mod suricata;
mod tagged;
mod topology;
mod web;
mod witness;

pub use agent::{Agent, binary};
pub use api_server::ApiServer;
pub use bpffs::Scratch;
pub use capture::Capture;
pub use cluster::{
    About, Cluster, ClusterNode, ClusterOptions, EGRESS_V4, EGRESS_V6, FIRST_POD, OTHER_SERVER_V4,
    OTHER_SERVER_V6, SERVER_V4, SERVER_V6, Underlay, Wiring,
};
pub use http::Page;
pub use iperf::{Iperf, IperfReport};
pub use kernel_log::KernelLog;
pub use netns::NetNs;
pub use patience::eventually;
pub use ping::{Hop, Ping, PingReport};
pub use process::{Background, run, run_ok};
pub use raw::RawSocket;
pub use stream::{RunningStream, StreamReport, UdpStream};
pub use suricata::{Alert, Suricata, SuricataReport};
pub use tagged::Tagged;
pub use topology::{COLLECTOR_V4, COLLECTOR_V6, NODE_V4, Pod, Topology, TopologyOptions};
pub use web::WebServer;
pub use witness::Witness;
