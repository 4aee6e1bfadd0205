//! `podwire traceflow`: one packet, every stage, every node.
//!
//! ```text
//!  words ─► request (a manifest) ─► the agent ─┐
//!  saved results (-r) ─────────────────────────┴─► result ─► route ─► verdict ─► exit code
//!                                                              └────► path, yaml, json, dot, svg, mermaid, pcapng
//! ```

mod capture;
pub mod end;
pub mod flow;
mod path;
mod picture;
mod request;
mod result;
mod route;
mod run;
mod summary;
mod verdict;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use end::End;
use flow::Flow;
pub use run::trace;
pub use summary::{describe, summarize};

/// What is traced, and how it is shown.
#[derive(Debug, Args)]
pub struct Wanted {
    /// Where the packet comes from: NAMESPACE/POD, POD in namespace default, or with --live-traffic an address.
    #[arg(short = 'S', long, value_name = "END", required_unless_present_any = ["live_traffic", "read"])]
    source: Option<End>,
    /// Where it goes to: NAMESPACE/POD, NAMESPACE/SERVICE, either without namespace, or an address.
    #[arg(short = 'D', long, value_name = "END", required_unless_present_any = ["live_traffic", "read"])]
    destination: Option<End>,
    /// Which packet, in the words of ovs-ofctl: tcp,tcp_dst=80 or ipv6,udp,udp_dst=53 or icmp,icmp_type=echo-request.
    ///
    /// Words: ip, ipv6, icmp, icmpv6, tcp, udp, sctp, and with a value tcp_src, tcp_dst, tcp_flags, udp_src, udp_dst,
    /// sctp_src, sctp_dst, icmp_type, icmp_code, icmp_id, icmp_seq, icmpv6_type, icmpv6_code, icmpv6_id, icmpv6_seq,
    /// nw_ttl.
    #[arg(short, long, value_name = "FLOW", default_value = "", hide_default_value = true)]
    flow: Flow,
    /// How the result is printed; path on a terminal, else yaml, unless said otherwise.
    #[arg(short, long, value_enum)]
    output: Option<Picture>,
    /// Trace packets of the pods' own instead of making one.
    #[arg(short = 'L', long)]
    live_traffic: bool,
    /// Of live traffic only what is dropped.
    #[arg(long, requires = "live_traffic")]
    dropped_only: bool,
    /// Do not wait for the end: print the name, and leave the results to "podwire get traceflows".
    #[arg(long = "nowait", visible_alias = "no-wait", conflicts_with = "capture")]
    no_wait: bool,
    /// When the trace ends by itself: 1s to 300s; a plain number is seconds.
    #[arg(short, long, value_name = "TIME", default_value = "20s", value_parser = timeout)]
    timeout: Duration,
    /// Time to live or hop limit of the packet.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..))]
    ttl: Option<u8>,
    /// Bytes behind the transport header of a packet that is made.
    #[arg(long, value_name = "BYTES", conflicts_with = "live_traffic")]
    payload_length: Option<u16>,
    /// Live packets that are traced.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "live_traffic", value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
    /// Of so many live packets that match trace one.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "live_traffic", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sampling: u32,
    /// Of which connections live packets are.
    #[arg(long, value_enum, default_value_t = Connection::Any, requires = "live_traffic")]
    connection: Connection,
    /// Trace the answer as well; a packet that is made needs --deliver for it.
    #[arg(long)]
    replies: bool,
    /// Hand a packet that is made to its destination in the end.
    #[arg(long, conflicts_with = "live_traffic")]
    deliver: bool,
    /// Write the packets to a file, as pcapng.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Bytes of each packet that the file gets.
    #[arg(long, value_name = "BYTES", default_value_t = 65535, requires = "capture")]
    capture_bytes: u16,
    /// Keep the results for so long after the end, 10m with --nowait; without either nothing is left.
    #[arg(long, value_name = "TIME", value_parser = kept)]
    ttl_after_finished: Option<Duration>,
    /// Succeed when it ends so, and only then: delivered, dropped, or egress=NAME.
    #[arg(long, value_name = "END", conflicts_with = "no_wait")]
    expect: Option<Expectation>,
    /// Show results that were saved as yaml or json instead of tracing, - for standard input.
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["source", "destination", "live_traffic", "no_wait", "ttl_after_finished"])]
    read: Option<PathBuf>,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Picture {
    /// For eyes: hop by hop, and the verdict.
    Path,
    /// As antctl prints it.
    Yaml,
    /// As antctl prints it.
    Json,
    /// For graphviz.
    Dot,
    /// A picture.
    Svg,
    /// A flow chart for Markdown.
    Mermaid,
}

/// Of which connections live packets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Connection {
    /// Of those that begin with the packet.
    New,
    /// Of all.
    Any,
}

/// How a trace has to end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expectation {
    /// In a pod, or out of the network.
    Delivered,
    /// Dropped.
    Dropped,
    /// Out of the network by this Egress policy.
    Egress(String),
}

impl FromStr for Expectation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "delivered" => Ok(Self::Delivered),
            None if text == "dropped" => Ok(Self::Dropped),
            Some(("egress", name)) if !name.is_empty() => Ok(Self::Egress(name.to_owned())),
            _ => Err("allowed: delivered, dropped, egress=NAME".into()),
        }
    }
}

/// A plain number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text).map_err(|_| format!("\"{text}\" is not a time, as 10s or 5m"))
}

fn timeout(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let whole = time.subsec_nanos() == 0 && (1..=300).contains(&time.as_secs());
    whole.then_some(time).ok_or_else(|| "allowed: 1s to 300s, whole seconds".into())
}

fn kept(text: &str) -> Result<Duration, String> {
    const DAY: u64 = 24 * 3600;
    let time = duration(text)?;
    let whole = time.subsec_nanos() == 0 && time.as_secs() <= DAY;
    whole.then_some(time).ok_or_else(|| "allowed: 0s to 1day, whole seconds".into())
}
