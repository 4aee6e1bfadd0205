//! How the daemon runs: its command line, read and checked.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use super::convert::Here;
use crate::kubernetes::Access;

/// How the daemon runs.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// File or folder with objects (*.yaml, *.yml, *.json); may be given again.
    #[arg(long, required_unless_present_any = ["kubeconfig", "kubernetes"])]
    pub config: Vec<PathBuf>,
    /// Take objects from a Kubernetes API server, reached as this file says.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "kubernetes"])]
    pub kubeconfig: Option<PathBuf>,
    /// Take objects from the API server of the cluster that the agent runs in as a pod.
    #[arg(long, conflicts_with = "config")]
    pub kubernetes: bool,
    /// Name of this node.
    #[arg(long)]
    pub node: String,
    /// Interface towards other nodes.
    #[arg(long)]
    pub uplink: String,
    /// Who forwards pods' packets.
    #[arg(long, value_enum, default_value_t = Forwarding::Host)]
    pub forwarding: Forwarding,
    /// UDP port of the overlay, the same on all nodes.
    #[arg(long, value_name = "PORT", default_value_t = 4789, value_parser = clap::value_parser!(u16).range(1..))]
    pub overlay_port: u16,
    /// VNI of what pods send to each other across nodes, below 8388608, the same on all nodes.
    #[arg(long, value_name = "VNI", default_value_t = 1, value_parser = clap::value_parser!(u32).range(..1 << 23))]
    pub overlay_vni: u32,
    /// Bits of the packet mark that Egress uses: adjacent, 2 at least. Other bits are left alone.
    #[arg(long, value_name = "MASK", default_value = "0x0fff0000", value_parser = read_mask)]
    pub egress_mark: u32,
    /// Destinations that no Egress policy applies to, besides the nodes and their pods; may be given again.
    #[arg(long, value_name = "CIDR", value_parser = read_cidr)]
    pub egress_except: Vec<IpNet>,
    /// Folder for pins; a bpffs is mounted when it lies in none.
    #[arg(long, default_value = "/sys/fs/bpf/podwire")]
    pub bpffs: PathBuf,
    /// Folder for objects that came over the socket.
    #[arg(long, default_value = "/var/lib/podwire")]
    pub state: PathBuf,
    /// How programs are attached.
    #[arg(long, value_enum, default_value_t = Hook::Auto)]
    pub hook: Hook,
    /// Form of the log on standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Take everything down at the end, instead of leaving it in force.
    #[arg(long)]
    pub remove_on_exit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Forwarding {
    /// The CNI.
    Host,
    /// podwire: between pods of the node, and by an overlay to those of other nodes.
    Native,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Hook {
    /// tcx where the kernel has it, else clsact.
    Auto,
    /// tcx links.
    Tcx,
    /// clsact filters.
    Clsact,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For eyes.
    Text,
    /// A JSON object a line.
    Json,
}

impl Options {
    /// What the library is opened with.
    pub fn datapath(&self) -> podwire_datapath::Options {
        podwire_datapath::Options {
            bpffs: self.bpffs.clone(),
            hook: match self.hook {
                Hook::Auto => podwire_datapath::Hook::Auto,
                Hook::Tcx => podwire_datapath::Hook::Tcx,
                Hook::Clsact => podwire_datapath::Hook::Clsact,
            },
            uplink: Some(self.uplink.clone()),
            overlay_port: self.overlay_port,
            overlay_vni: self.overlay_vni,
            egress_mark: self.egress_mark,
            ..Default::default()
        }
    }

    /// How an API server is reached; `None` when objects stand in files.
    pub fn access(&self) -> Option<Access> {
        let file = self.kubeconfig.clone().map(Access::Kubeconfig);
        file.or_else(|| self.kubernetes.then_some(Access::InCluster))
    }

    /// Which node this is, and how it forwards.
    pub fn here(&self) -> Here {
        Here {
            node: self.node.clone(),
            forwarding: match self.forwarding {
                Forwarding::Host => podwire_datapath::Forwarding::Host,
                Forwarding::Native => podwire_datapath::Forwarding::Native,
            },
            except: self.egress_except.clone(),
        }
    }
}

fn read_mask(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    // from_str_radix takes a sign as well.
    let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mask = hexadecimal.then(|| u32::from_str_radix(digits, 16).ok()).flatten();
    let adjacent = |mask: &u32| mask.count_ones() + mask.leading_zeros() + mask.trailing_zeros() == 32;
    mask.filter(|mask| mask.count_ones() >= 2 && adjacent(mask))
        .ok_or_else(|| "allowed: a hexadecimal mask of 2 to 32 adjacent bits, like 0x0fff0000".to_owned())
}

fn read_cidr(text: &str) -> Result<IpNet, String> {
    let cidr: IpNet = text
        .parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "allowed: a CIDR, like 10.0.0.0/8 or fd00::/64".to_owned())?;
    let right = cidr.trunc();
    if cidr == right { Ok(cidr) } else { Err(format!("it has host bits; did you mean \"{right}\"?")) }
}

#[cfg(test)]
mod tests {
    use super::{read_cidr, read_mask};

    #[test]
    fn a_mask_has_adjacent_bits() {
        for (text, mask) in [
            ("0x0fff0000", 0x0fff_0000),
            ("ff", 0xff),
            ("0xffffffff", u32::MAX),
            ("0xc0000000", 0xc000_0000),
            ("3", 3),
        ] {
            assert_eq!(read_mask(text), Ok(mask), "{text}");
        }
        for text in ["", "0x", "0", "1", "0x80000000", "0x5", "0xff0ff", "0x1ffffffff", "+3", "mask"] {
            assert!(read_mask(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_prefix_with_host_bits_is_refused() {
        assert_eq!(read_cidr("10.0.0.1").map(|cidr| cidr.to_string()), Ok("10.0.0.1/32".into()));
        assert_eq!(read_cidr("10.0.0.1/8"), Err("it has host bits; did you mean \"10.0.0.0/8\"?".into()));
        assert!(read_cidr("10.0.0.0/33").is_err());
    }
}
