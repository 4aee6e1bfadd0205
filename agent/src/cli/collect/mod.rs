//! `podwire collect`: receives mirrored streams and counts, writes or hands on what is in them.

mod json;
mod printer;
mod run;
mod table;
mod words;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use podwire_datapath::collect::{Compression, Options, Rotation, window};

use crate::failure::Failure;

/// What is collected, and where it goes.
#[derive(Clone, Debug, Args)]
pub struct Wanted {
    /// Interface at which the streams arrive.
    #[arg(short, long, value_name = "NAME", value_parser = words::device)]
    interface: String,
    /// Only these network identifiers of VXLAN and GENEVE.
    #[arg(long, value_name = "VNI", value_delimiter = ',', value_parser = words::vni)]
    vni: Vec<u32>,
    /// Only these keys of GRE.
    #[arg(long, value_name = "KEY", value_delimiter = ',', value_parser = words::key)]
    key: Vec<u32>,
    /// Only these sessions of ERSPAN.
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = words::session)]
    session: Vec<u16>,
    /// Only these kinds of tunnels. Without it all, or those that --vni, --key and --session are about.
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_enum)]
    format: Vec<Tunnel>,
    /// UDP ports of VXLAN.
    #[arg(long, value_name = "PORT", value_delimiter = ',', default_value = "4789", value_parser = clap::value_parser!(u16).range(1..))]
    vxlan_port: Vec<u16>,
    /// UDP ports of GENEVE.
    #[arg(long, value_name = "PORT", value_delimiter = ',', default_value = "6081", value_parser = clap::value_parser!(u16).range(1..))]
    geneve_port: Vec<u16>,
    /// Write pcapng to this file; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Feed the frames into a tap device of this name, as if they arrived there. It is made, and gone at the end.
    #[arg(long, value_name = "NAME", value_parser = words::device)]
    tap: Option<String>,
    /// Begin another file when one has so many bytes, as 500k, 100M or 2G.
    #[arg(long, value_name = "BYTES", requires = "write", value_parser = words::bytes)]
    rotate_bytes: Option<u64>,
    /// Begin another file when one is so many seconds old.
    #[arg(long, value_name = "SECONDS", requires = "write", value_parser = clap::value_parser!(u64).range(1..))]
    rotate_seconds: Option<u64>,
    /// Keep so many files, and remove the oldest.
    #[arg(long, value_name = "NUMBER", requires = "write", value_parser = clap::value_parser!(u32).range(1..))]
    files: Option<u32>,
    /// Compress files.
    #[arg(long, value_name = "HOW", requires = "write", value_enum)]
    compress: Option<Compress>,
    /// Put numbered frames in order, with at most so many numbers in hand, up to 4096.
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..=i64::from(window::MAX_FRAMES)))]
    reorder: Option<u32>,
    /// Wait so long for a missing frame when frames are put in order.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = words::time)]
    reorder_time: Duration,
    /// End after so many frames.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time.
    #[arg(long, value_name = "TIME", value_parser = words::time)]
    duration: Option<Duration>,
    /// table, or json: an object a line. Without it a table on a terminal, and json elsewhere.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    /// Time between two tables or objects.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = words::time)]
    interval: Duration,
    /// Show so many of each session's heaviest pairs of addresses, up to 64.
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = words::top)]
    top: usize,
    /// Verify outer UDP and GRE checksums.
    #[arg(long)]
    verify: bool,
    /// Use a packet socket even where AF_XDP would do.
    #[arg(long)]
    af_packet: bool,
}

/// A kind of tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tunnel {
    Vxlan,
    Geneve,
    Gre,
    Erspan,
}

/// How files are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compress {
    Gz,
    Zstd,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Collects until the end that is wanted, or Ctrl-C.
pub fn collect(wanted: &Wanted) -> Result<(), Failure> {
    wanted.check()?;
    run::run(wanted)
}

impl Wanted {
    fn check(&self) -> Result<(), Failure> {
        let mut wrong = Vec::new();
        if self.files.is_some() && self.rotate_bytes.is_none() && self.rotate_seconds.is_none() {
            wrong.push(
                "--files says how many are kept: --rotate-bytes or --rotate-seconds says when one is full"
                    .into(),
            );
        }
        if let Some(port) = self.vxlan_port.iter().find(|port| self.geneve_port.contains(port))
            && self.takes(Tunnel::Vxlan)
            && self.takes(Tunnel::Geneve)
        {
            wrong.push(format!(
                "port {port} is given to both --vxlan-port and --geneve-port: leave one out by --format"
            ));
        }
        for (given, option, kinds, word) in [
            (!self.vni.is_empty(), "--vni", &[Tunnel::Vxlan, Tunnel::Geneve][..], "vxlan or geneve"),
            (!self.key.is_empty(), "--key", &[Tunnel::Gre], "gre"),
            (!self.session.is_empty(), "--session", &[Tunnel::Erspan], "erspan"),
        ] {
            if given && !kinds.iter().any(|kind| self.takes(*kind)) {
                wrong.push(format!("{option} is about {word}, which --format leaves out"));
            }
        }
        let stdout = self.write.as_deref().is_some_and(|path| path.as_os_str() == "-");
        if stdout && self.rotation() != Rotation::default() {
            wrong.push("standard output is one file: --rotate-bytes and --rotate-seconds need a name".into());
        }
        if wrong.is_empty() { Ok(()) } else { Err(Failure::Usage(wrong)) }
    }

    fn takes(&self, kind: Tunnel) -> bool {
        if !self.format.is_empty() {
            return self.format.contains(&kind);
        }
        let about = match kind {
            Tunnel::Vxlan | Tunnel::Geneve => !self.vni.is_empty(),
            Tunnel::Gre => !self.key.is_empty(),
            Tunnel::Erspan => !self.session.is_empty(),
        };
        about || self.vni.is_empty() && self.key.is_empty() && self.session.is_empty()
    }

    /// For the library.
    fn options(&self) -> Options {
        let ports = |kind, ports: &Vec<u16>| if self.takes(kind) { ports.clone() } else { Vec::new() };
        let wanted = podwire_datapath::collect::Wanted {
            vxlan_ports: ports(Tunnel::Vxlan, &self.vxlan_port),
            geneve_ports: ports(Tunnel::Geneve, &self.geneve_port),
            gre: self.takes(Tunnel::Gre),
            erspan: self.takes(Tunnel::Erspan),
            vnis: self.vni.clone(),
            keys: self.key.clone(),
            sessions: self.session.clone(),
            af_packet: self.af_packet,
        };
        let order =
            window::Bounds { frames: self.reorder.unwrap_or_default(), time: nanoseconds(self.reorder_time) };
        let talkers = self.top != 0;
        Options { wanted, order, talkers, verify: self.verify, limit: self.count, ..Options::default() }
    }

    fn rotation(&self) -> Rotation {
        let time = self.rotate_seconds.map(|seconds| nanoseconds(Duration::from_secs(seconds)));
        Rotation { bytes: self.rotate_bytes, time, files: self.files }
    }

    fn compression(&self) -> Compression {
        match self.compress {
            None => Compression::None,
            Some(Compress::Gz) => Compression::Gzip,
            Some(Compress::Zstd) => Compression::Zstd,
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
