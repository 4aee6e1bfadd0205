//! The pod datapath of a Linux node, for a node agent to link: mirror chosen pod traffic to a device or a
//! tunnel, with eBPF at the host side of each pod's interface.
//!
//! ```text
//!  Desired ─► check ─► plan ─► compile ─► idle bank ─► flip ─► attach
//!                                                       │
//!                    packets see the old bank, whole ───┴─── or the new one, whole
//! ```
//!
//! [`Datapath::open`] loads the programs and adopts what an earlier run left; [`Datapath::apply`] makes a
//! [`Desired`] state so; [`Datapath::counters`] says what became of packets and copies. The process may die:
//! what is in force is pinned and goes on.
//!
//! The BPF object is part of the library; no eBPF toolchain is needed to build it.
#![deny(unsafe_code)]

mod btf;
pub mod collect;
pub mod compile;
mod datapath;
mod desired;
mod error;
mod host;
mod inject;
mod internal;
mod links;
pub mod locate;
mod log_carrier;
#[allow(unsafe_code, reason = "tells aya which rows may be copied byte by byte")]
mod maps;
pub mod netdev;
mod network;
pub mod object;
mod observe;
mod offload;
mod pins;
mod plan;
pub mod probe;
mod program;
mod reader;
mod relay;
mod slots;
mod status;
#[allow(unsafe_code, reason = "system calls that no crate of ours wraps")]
mod sys;
pub mod traceflow;
mod vlan;
#[cfg(feature = "xsk")]
pub mod xsk;

pub use datapath::{Datapath, Options};
pub use desired::{
    Allowed, Bandwidth, Desired, Egress, EgressNode, Endpoint, Engine, Forwarding, Guard, Mirror, Network,
    Oversize, Peer, Redirect, Sampling, SessionOptions, Target,
};
pub use error::{Error, ErrorKind};
pub use inject::{Attachment, Injector};
pub use links::Hook;
pub use observe::{
    Account, Capture, Captures, Filter, Flow, Live, Observation, Place, Stream, Trace, TraceOptions, Watch,
    WatchOptions, Watcher,
};
pub use podwire_core as core;
pub use reader::{Frame, Frames};
pub use status::{Applied, Counters, EgressState, EndpointState, SessionState};
