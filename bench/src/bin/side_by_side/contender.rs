//! Who takes part: podwire's ways of mirroring, and what Linux has beside it.

use podwire_datapath::SessionOptions;
use podwire_datapath::compile::Rule;
use podwire_datapath::core::wire::encap::Tunnel;

use crate::scene::PODWIRE_PORT;

/// Outer Ethernet, IPv4, UDP and VXLAN headers.
const VXLAN_OVERHEAD: usize = 14 + 20 + 8 + 8;

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Contender {
    /// What readers see.
    pub name: &'static str,
    pub way: Way,
}

/// How packets are copied at the hook.
#[derive(Clone, Debug)]
pub enum Way {
    Nothing,
    EmptyProgram,
    Podwire {
        /// `None`: a local device.
        target: Option<Tunnel>,
        /// Empty: all packets.
        rules: Vec<Rule>,
        options: SessionOptions,
    },
    CloneRedirect,
    Mirred,
    NftDup,
    Tee,
    MirredVxlan,
}

/// Where copies end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// There are none.
    None,
    Tap,
    Collector,
}

impl Way {
    /// Where its copies end.
    pub fn sink(&self) -> Sink {
        match self {
            Self::Nothing | Self::EmptyProgram => Sink::None,
            Self::Podwire { rules, .. } if !rules.is_empty() => Sink::None,
            Self::Podwire { target: Some(_), .. } | Self::Tee | Self::MirredVxlan => Sink::Collector,
            Self::Podwire { target: None, .. } | Self::CloneRedirect | Self::Mirred | Self::NftDup => {
                Sink::Tap
            }
        }
    }

    /// The program that puts it in force, where that is one of its own.
    pub fn program(&self) -> Option<&'static str> {
        match self {
            Self::NftDup => Some("nft"),
            Self::Tee => Some("iptables"),
            _ => None,
        }
    }

    /// Bytes of a copy of a frame of `len` bytes where it arrives.
    pub fn copy_len(&self, len: usize) -> usize {
        match self {
            Self::Podwire { target: Some(_), options, .. } => {
                options.truncate.map_or(len, |most| len.min(most as usize)) + VXLAN_OVERHEAD
            }
            Self::MirredVxlan => len + VXLAN_OVERHEAD,
            _ => len,
        }
    }

    /// Whether it needs a local device.
    pub fn wants_tap(&self) -> bool {
        match self {
            Self::Podwire { target, .. } => target.is_none(),
            other => other.sink() == Sink::Tap,
        }
    }
}

/// Names that targets and the report refer to.
pub const NOTHING: &str = "nothing";
pub const PODWIRE_LOCAL: &str = "podwire, local mirror";
pub const PODWIRE_VXLAN: &str = "podwire, VXLAN mirror";
pub const PODWIRE_SNAP: &str = "podwire, VXLAN snap (truncate 128)";
pub const MIRRED: &str = "tc u32 + mirred, local device";
pub const MIRRED_VXLAN: &str = "tc u32 + mirred + kernel vxlan";
pub const CLONE: &str = "plain bpf_clone_redirect, local device";
pub const NFT_DUP: &str = "nft dup (netdev ingress), local device";

/// The base, and those whose name contains one of `parts`; all when there are no parts.
pub fn chosen(parts: &[String]) -> Vec<Contender> {
    let wanted = |name: &str| parts.is_empty() || parts.iter().any(|part| name.contains(part.as_str()));
    all().into_iter().filter(|one| one.name == NOTHING || wanted(one.name)).collect()
}

/// Whether a program can be started.
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()))
}

fn all() -> Vec<Contender> {
    let vxlan = |vni| Some(Tunnel::Vxlan { vni, port: PODWIRE_PORT });
    let podwire = |target, rules: &[Rule], truncate| Way::Podwire {
        target,
        rules: rules.to_vec(),
        options: SessionOptions { truncate, ..SessionOptions::default() },
    };
    let tcp = [Rule { protocol: Some(6), destination_ports: vec![80..=80], ..Rule::default() }];
    [
        (NOTHING, Way::Nothing),
        ("empty tcx program", Way::EmptyProgram),
        ("podwire, no rule matches", podwire(None, &tcp, None)),
        (PODWIRE_LOCAL, podwire(None, &[], None)),
        (CLONE, Way::CloneRedirect),
        (MIRRED, Way::Mirred),
        (NFT_DUP, Way::NftDup),
        ("iptables TEE (IP copy, routed)", Way::Tee),
        (PODWIRE_SNAP, podwire(vxlan(2), &[], Some(128))),
        (PODWIRE_VXLAN, podwire(vxlan(1), &[], None)),
        (MIRRED_VXLAN, Way::MirredVxlan),
    ]
    .into_iter()
    .map(|(name, way)| Contender { name, way })
    .collect()
}
