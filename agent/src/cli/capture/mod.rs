//! `podwire capture`: packets at one pod, or at both ends at once, as they pass.
//!
//! ```text
//!  words ─► place (which agent has which pod) ─► requests ─► agents
//!                                                              │ streams of frames
//!  pcapng, or lines ◄─ limits ◄─ order (by time) ◄─────────────┘
//! ```

mod file;
mod limit;
mod line;
mod order;
mod place;
mod progress;
mod run;
mod summary;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::traceflow::duration;
use super::traceflow::end::End;
use super::traceflow::flow::Flow;
use crate::capture::Direction;
pub use run::capture;

/// What is captured, and where it goes.
#[derive(Debug, Args)]
pub struct Wanted {
    /// The pod: NAMESPACE/POD, or POD in namespace default.
    #[arg(short = 'S', long, value_name = "POD")]
    source: End,
    /// The other end. A pod: it is captured at as well, and only packets between the two are taken. An address: only
    /// packets from and to it are.
    #[arg(short = 'D', long, value_name = "END")]
    destination: Option<End>,
    /// Which packets, in the words of podwire traceflow --flow: tcp,tcp_dst=80 or icmp.
    ///
    /// Words: ip, ipv6, icmp, icmpv6, tcp, udp, sctp, and with a value tcp_src, tcp_dst, tcp_flags, udp_src, udp_dst,
    /// sctp_src, sctp_dst, icmp_type, icmp_code, icmp_id, icmp_seq, icmpv6_type, icmpv6_code, icmpv6_id, icmpv6_seq,
    /// nw_ttl. The flow's answers are taken as well, with source and destination exchanged; flags, types and the time to
    /// live have to be as they are said in either case.
    #[arg(short, long, value_name = "FLOW", default_value = "", hide_default_value = true)]
    flow: Flow,
    /// Which direction, relative to the pod. With in or out the flow's answers are not taken.
    #[arg(long, value_enum, default_value_t = Direction::Both)]
    direction: Direction,
    /// Capture at both pods whatever the other side is: Services, translated addresses and ARP are seen.
    #[arg(long, requires = "destination")]
    any_peer: bool,
    /// Take pods that do not exist yet, and capture from their first packet on.
    #[arg(long)]
    wait: bool,
    /// End after so many packets.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End before more than so many bytes of packets are captured: 1000000, 100k, 5M or 1G.
    #[arg(long, value_name = "BYTES", value_parser = limit::bytes)]
    bytes: Option<u64>,
    /// End after this time: 10s or 5m; a plain number is seconds.
    #[arg(long, value_name = "TIME", value_parser = positive)]
    duration: Option<Duration>,
    /// Bytes of each packet that are captured; all unless said otherwise.
    #[arg(short = 's', long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(14..=262_144))]
    snaplen: Option<u32>,
    /// Write pcapng to this file, - for standard output; without it a line is printed for each packet.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
}

fn positive(text: &str) -> Result<Duration, String> {
    const DAY: u64 = 24 * 3600;
    let time = duration(text)?;
    let right = time >= Duration::from_millis(1) && time.as_secs() <= DAY;
    right.then_some(time).ok_or_else(|| "allowed: 1ms to 1day".into())
}
