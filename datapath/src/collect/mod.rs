//! The collector: receives mirrored streams, takes the mirrored frames out of their tunnels, and hands them on.
//!
//! ```text
//!  Source ─► Collector ─► Sink
//!  packet socket,          pcapng files, a tap, a function,
//!  AF_XDP                  nothing
//! ```
//! In: outer frames of VXLAN, GENEVE, GRE and ERSPAN over IPv4 and IPv6. Out: inner frames by session, in order where
//! that is asked for, and a [`Report`] in which every packet is accounted for.
//!
//! [`open`] gives the fastest [`Source`] there is; a loop gives what it shows to [`Collector::receive`] and calls
//! [`Collector::tick`] in between. [`Collector::finish`] ends it. Nothing here needs the datapath or its agent.

mod account;
mod background;
mod collector;
mod entry;
mod filter;
mod frame;
mod latency;
mod owners;
#[allow(unsafe_code, reason = "a ring that the kernel writes to")]
mod packet_socket;
mod pcapng;
mod quiet;
pub mod reassembly;
mod report;
#[cfg(test)]
pub(crate) mod samples;
mod session;
mod sink;
mod source;
mod talkers;
#[allow(unsafe_code, reason = "the requests that make a tap device")]
mod tap;
mod wanted;
pub mod window;

pub use account::Account;
pub use background::{Background, Batch, Record, Writer};
pub use collector::{Collector, Options, Totals};
pub use frame::{Frame, Payload};
pub use latency::Quantiles;
pub use packet_socket::PacketSocket;
pub use pcapng::{Compression, Files, Pcapng, Rotation};
pub use quiet::Quiet;
pub use report::{Report, SessionReport};
pub use session::{Key, Session};
pub use sink::{Callback, Sink};
pub use source::{Losses, Opened, Received, Source, open};
pub use talkers::{PLACES, Pair, Talker};
pub use tap::Tap;
pub use wanted::{Kind, Wanted};
