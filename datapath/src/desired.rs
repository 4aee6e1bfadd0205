//! What a node agent wants of the datapath. Plain data; [`crate::Datapath::apply`] makes it so.

use std::fmt;
use std::net::IpAddr;

use podwire_core::abi::Direction;
use podwire_core::wire::encap::Tunnel;

use crate::compile::Rule;

/// Everything that shall be in force on this node. What is not in it is taken down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// The endpoints of this node.
    pub endpoints: Vec<Endpoint>,
    /// The mirrors.
    pub mirrors: Vec<Mirror>,
}

/// A pod's interface on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name that stays the same, `namespace/pod` by custom. Unique.
    pub name: String,
    /// Host side of the pod's interface. It may not exist yet.
    pub interface: String,
}

/// A wish for copies.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirror {
    /// A name that stays the same. Unique.
    pub name: String,
    /// Names of the endpoints that it applies to.
    pub endpoints: Vec<String>,
    /// Directions relative to the pod.
    pub directions: Vec<Direction>,
    /// Which packets: any rule that matches; none for all packets.
    pub rules: Vec<Rule>,
    /// Where the copies go.
    pub target: Target,
}

/// Where copies go. Mirrors with equal targets share a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Out of an existing device, as they are.
    Device {
        /// Its name. While it does not exist, copies are counted as lost.
        name: String,
    },
    /// Through a tunnel, by the kernel's route to its remote end.
    Tunnel {
        /// The remote end.
        remote: IpAddr,
        /// The tunnel.
        tunnel: Tunnel,
    },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device { name } => write!(f, "device {name}"),
            Self::Tunnel { remote, tunnel } => match tunnel {
                Tunnel::Vxlan { vni, port } => write!(f, "vxlan {remote} vni {vni} port {port}"),
                Tunnel::Geneve { vni, port } => write!(f, "geneve {remote} vni {vni} port {port}"),
                Tunnel::Gre { key: Some(key), .. } => write!(f, "gre {remote} key {key}"),
                Tunnel::Gre { key: None, .. } => write!(f, "gre {remote}"),
                Tunnel::ErspanII { session, index } => {
                    write!(f, "erspan {remote} version 1 session {session} index {index}")
                }
                Tunnel::ErspanIII { session, hardware_id, .. } => {
                    write!(f, "erspan {remote} version 2 session {session} hardware id {hardware_id}")
                }
            },
        }
    }
}
