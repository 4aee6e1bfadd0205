//! What a node agent wants of the datapath. Plain data; [`crate::Datapath::apply`] makes it so.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use podwire_core::abi::Direction;
use podwire_core::wire::encap::Tunnel;

use crate::compile::Rule;

/// Everything that shall be in force on this node. What is not in it is taken down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// The endpoints of this node.
    pub endpoints: Vec<Endpoint>,
    /// The mirrors. Every one that matches a packet applies.
    pub mirrors: Vec<Mirror>,
    /// The redirects. The first one that matches a packet applies.
    pub redirects: Vec<Redirect>,
    /// The Egress policies. The first one that matches a packet applies.
    pub egresses: Vec<Egress>,
    /// The cluster around this node, and who forwards.
    pub network: Network,
}

impl Desired {
    /// Policies that would harm the pods they apply to, by name, and why: a target that is the pod's own interface, a
    /// return port that is an interface which policies apply to. A state with any is refused.
    pub fn conflicts(&self) -> BTreeMap<String, String> {
        crate::plan::conflicts(self)
    }
}

/// A pod's interface on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// A name that stays the same, `namespace/pod` by custom. Unique.
    pub name: String,
    /// Host side of the pod's interface. It may not exist yet.
    pub interface: String,
    /// The pod's MAC address.
    pub mac: Option<[u8; 6]>,
    /// The pod's addresses.
    pub ips: Vec<IpAddr>,
    /// Further sources that it may use.
    pub allowed: Vec<Allowed>,
    /// What becomes of packets with a source that is not its own.
    pub guard: Guard,
}

/// A source that an endpoint may use besides its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allowed {
    /// A prefix; an address is one of full length.
    Prefix(IpNet),
    /// A MAC address.
    Mac([u8; 6]),
}

/// What becomes of packets with a source that is not the endpoint's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Guard {
    /// Nobody looks.
    #[default]
    Off,
    /// They are counted, and go on.
    Observe,
    /// They are dropped, and so is what cannot be judged.
    Enforce,
}

impl Guard {
    /// The word that users read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "Off",
            Self::Observe => "Observe",
            Self::Enforce => "Enforce",
        }
    }
}

/// The cluster around this node, and who forwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Who forwards pods' packets.
    pub forwarding: Forwarding,
    /// This node's addresses.
    pub addresses: Vec<IpAddr>,
    /// Where this node's pods have their addresses from.
    pub pod_cidrs: Vec<IpNet>,
    /// The other nodes.
    pub peers: Vec<Peer>,
    /// Destinations that no Egress policy applies to, besides the nodes and their pods.
    pub except: Vec<IpNet>,
}

/// Who forwards pods' packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Forwarding {
    /// The CNI, or whoever laid the routes.
    #[default]
    Host,
    /// podwire: from pod to pod past the host's stack, to other nodes by the overlay.
    Native,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name. Unique.
    pub name: String,
    /// Its addresses in the underlay; the first one that this node has a route to is its tunnel's end.
    pub addresses: Vec<IpAddr>,
    /// Where its pods have their addresses from.
    pub pod_cidrs: Vec<IpNet>,
}

/// A wish that what pods send out of the cluster leaves with an address of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// A name that stays the same, on all nodes alike. Unique among Egress policies.
    pub name: String,
    /// Names of the endpoints of this node that it applies to.
    pub endpoints: Vec<String>,
    /// The source addresses; an endpoint keeps to one of each family. A family without any is not governed.
    pub ips: Vec<IpAddr>,
    /// Where they are.
    pub node: EgressNode,
    /// Whether podwire puts them on the uplink, where they are not there already, and announces them.
    pub own: bool,
    /// Destinations that it applies to; none for all outside of the cluster.
    pub destinations: Vec<IpNet>,
    /// Destinations that it does not apply to.
    pub except: Vec<IpNet>,
    /// How much may leave.
    pub bandwidth: Option<Bandwidth>,
}

/// Where an Egress policy's addresses are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressNode {
    /// On this node.
    Here,
    /// On the peer of this name.
    Peer(String),
    /// On no node that is known: packets are dropped rather than sent with another address.
    Nowhere,
}

/// How much may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Bits per second.
    pub rate: u64,
    /// Bytes at once.
    pub burst: u64,
}

/// A wish for copies.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirror {
    /// A name that stays the same. Unique among mirrors and redirects.
    pub name: String,
    /// Names of the endpoints that it applies to.
    pub endpoints: Vec<String>,
    /// Directions relative to the pod.
    pub directions: Vec<Direction>,
    /// Which packets: any rule that matches; none for all packets.
    pub rules: Vec<Rule>,
    /// Whether the direction is that of the connection, with its replies. Rules are asked about the packet that
    /// opened it.
    pub stateful: bool,
    /// Where the copies go.
    pub target: Target,
    /// How, and how many. Mirrors with the same target have the same options.
    pub options: SessionOptions,
}

/// A wish to send packets through a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Redirect {
    /// A name that stays the same. Unique among mirrors and redirects.
    pub name: String,
    /// Names of the endpoints that it applies to.
    pub endpoints: Vec<String>,
    /// Directions relative to the pod.
    pub directions: Vec<Direction>,
    /// Which packets: any rule that matches; none for all packets.
    pub rules: Vec<Rule>,
    /// As of [`Mirror::stateful`].
    pub stateful: bool,
    /// Where the tool takes packets.
    pub target: Target,
    /// Where it gives them back.
    pub return_port: Target,
    /// Whether packets are dropped when the tool does not take them; otherwise they go on without it.
    pub closed: bool,
    /// The tool counts as dead when packets went to it and none came back for so long.
    pub health_check: Option<Duration>,
    /// Whether packets that do not fit a tunnel's path are sent in fragments; otherwise the tool does not take
    /// them.
    pub fragment: bool,
}

/// Where packets go. Mirrors with equal targets share a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A port that podwire makes, and removes with its last user: a device of this name for a tool to read from
    /// or to write to.
    Internal {
        /// Its name.
        name: String,
    },
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
    /// To whoever reads them: see [`Datapath::read_frames`](crate::Datapath::read_frames). For mirrors alone.
    Reader {
        /// Which reader.
        number: u32,
    },
}

/// How copies are made for a session, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SessionOptions {
    /// Bytes of each frame that are sent; `None` for all.
    pub truncate: Option<u32>,
    /// Which part is sent; `None` for all.
    pub sampling: Option<Sampling>,
    /// Frames per second at most; `None` for no limit.
    pub rate_limit: Option<u32>,
    /// What becomes of a frame that does not fit its path.
    pub oversize: Oversize,
    /// How the copies are made.
    pub engine: Engine,
}

/// One in so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sampling {
    /// How many.
    pub one_in: u32,
    /// Of flows, both directions of one together; otherwise of packets.
    pub by_flow: bool,
}

/// What becomes of a frame that does not fit its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Oversize {
    /// It is cut.
    #[default]
    Truncate,
    /// It is sent in fragments of the outer packet.
    Fragment,
    /// It is dropped.
    Drop,
}

/// How copies are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// As suits the session: ERSPAN and other numbered sessions by segments, short truncated copies by
    /// snapshots, the rest by clones.
    #[default]
    Auto,
    /// A clone, super-packets whole: the least work. Checksums are as the sender's offload left them.
    Clone,
    /// What would be on the wire: super-packets cut up, checksums complete, each packet numbered and timed.
    Segment,
    /// The head of each frame, without a clone; put into its tunnel by the agent.
    Snap,
}

impl Engine {
    /// The word that users read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Clone => "clone",
            Self::Segment => "segment",
            Self::Snap => "snap",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internal { name } => write!(f, "internal {name}"),
            Self::Device { name } => write!(f, "device {name}"),
            Self::Reader { number } => write!(f, "reader {number}"),
            Self::Tunnel { remote, tunnel } => match tunnel {
                Tunnel::Vxlan { vni, port } => write!(f, "vxlan {remote} vni {vni} port {port}"),
                Tunnel::Geneve { vni, port } => write!(f, "geneve {remote} vni {vni} port {port}"),
                Tunnel::Gre { key: Some(key), .. } => write!(f, "gre {remote} key {key}"),
                Tunnel::Gre { key: None, .. } => write!(f, "gre {remote}"),
                Tunnel::ErspanII { session, index } => {
                    write!(f, "erspan {remote} version 1 session {session} index {index}")
                }
                Tunnel::ErspanIII { session, hardware_id, direction, .. } => {
                    write!(f, "erspan {remote} version 2 session {session} hardware id {hardware_id}")?;
                    match direction {
                        Some(direction) => write!(f, " direction {}", *direction as u32),
                        None => Ok(()),
                    }
                }
            },
        }
    }
}
