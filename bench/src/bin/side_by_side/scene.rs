//! The scene of the measurement per packet: a node, a pod for each contender, and a collector that drops
//! whatever reaches it.
//!
//! Each contender has a pod's cable to itself, laid alike, so that all stand ready and rounds can alternate
//! between them within milliseconds. Originals end in the node's IP stack, which counts and refuses them: their
//! destination is a loopback address. Copies end at the far end of their device, where a program drops them.

use anyhow::{Context, Result, bail};
use podwire_datapath::compile::Rule;
use podwire_datapath::core::abi::Direction;
use podwire_datapath::{Desired, Endpoint, Hook, Mirror, SessionOptions, Target};
use podwire_harness::{COLLECTOR_V4, NODE_V4, NetNs, Pod, Scratch, Topology, TopologyOptions};
use podwire_tests::node::Node;

use crate::contender::{Contender, Way};
use podwire_bench::books::Books;
use podwire_bench::generator::{self, Outlet, ifindex};
use podwire_bench::kernel::{Attached, Program};

/// MTU of what copies go through: room for every tunnel's headers.
const MTU: u32 = 1600;
/// Ports of the tunnels, apart from each other.
pub const PODWIRE_PORT: u16 = 1111;
const KERNEL_PORT: u16 = 1112;

/// The scene, with everything in force.
pub struct Scene {
    pub topology: Topology,
    pub outlets: Vec<Outlet>,
    /// The node's MAC address on each cable.
    pub macs: Vec<[u8; 6]>,
    pub node_books: Books,
    pub collector_books: Books,
    pub podwire: Node,
    _scratch: Scratch,
    _programs: Vec<Attached>,
}

impl Scene {
    /// Makes it.
    pub fn new(contenders: &[Contender]) -> Result<Self> {
        let options =
            TopologyOptions { pods: contenders.len(), underlay_mtu: MTU, ..TopologyOptions::default() };
        let (topology, scratch) = (Topology::with(options)?, Scratch::new()?);
        // Looking for a socket costs, and none is there.
        topology.node.run_ok(&["sysctl", "-qw", "net.ipv4.ip_early_demux=0"])?;
        fix_neighbour(&topology)?;
        let podwire = Node::open(&topology.node, &scratch, Hook::Auto)?;
        let mut programs = vec![drop_at(&topology.collector, "eth0")?];
        let (mut outlets, mut macs, mut desired) = (Vec::new(), Vec::new(), Desired::default());
        for (contender, pod) in contenders.iter().zip(&topology.pods) {
            macs.push(generator::mac(&topology.node, &pod.interface)?);
            outlets.push(Outlet::open(&topology.node, pod)?);
            if contender.way.wants_tap() {
                let out = topology.local_device(&tap(pod), MTU)?;
                programs.push(drop_at(&topology.node, &out)?);
            }
            match contender.way {
                Way::Podwire { ref rules, options, .. } => {
                    let target = target(pod, &contender.way).context("podwire's target")?;
                    add_mirror(&mut desired, pod, target, rules, options);
                }
                ref way => programs.extend(put_in_force(&topology.node, pod, way)?),
            }
        }
        for state in podwire.apply(&desired)?.sessions {
            if let Some(problem) = state.problem {
                bail!("session to {}: {problem}", state.target);
            }
        }
        Ok(Self {
            node_books: Books::open(&topology.node)?,
            collector_books: Books::open(&topology.collector)?,
            topology,
            outlets,
            macs,
            podwire,
            _scratch: scratch,
            _programs: programs,
        })
    }
}

/// Name of a pod's local device for copies.
pub fn tap(pod: &Pod) -> String {
    pod.interface.replace("veth-web", "tap")
}

/// Copies need not wait for an answer that the collector would drop.
pub fn fix_neighbour(topology: &Topology) -> Result<()> {
    let mac = generator::mac(&topology.collector, "eth0")?;
    let words: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    let mac = words.join(":");
    let words =
        ["neigh", "replace", COLLECTOR_V4, "lladdr", mac.as_str(), "dev", "uplink0", "nud", "permanent"];
    topology.node.ip(&words).map(drop)
}

/// Drops all that comes in at an interface.
pub fn drop_at(netns: &NetNs, interface: &str) -> Result<Attached> {
    attach(netns, interface, Program::drop_all()?)
}

fn attach(netns: &NetNs, interface: &str, program: Program) -> Result<Attached> {
    let ifindex = ifindex(netns, interface)?;
    netns.enter(move || program.attach(ifindex))
}

/// Where podwire sends a pod's copies.
pub fn target(pod: &Pod, way: &Way) -> Option<Target> {
    match way {
        Way::Podwire { target: Some(tunnel), .. } => {
            Some(Target::Tunnel { remote: COLLECTOR_V4.parse().ok()?, tunnel: *tunnel })
        }
        Way::Podwire { target: None, .. } => Some(Target::Device { name: tap(pod) }),
        _ => None,
    }
}

fn add_mirror(desired: &mut Desired, pod: &Pod, target: Target, rules: &[Rule], options: SessionOptions) {
    desired.endpoints.push(Endpoint {
        name: pod.name.clone(),
        interface: pod.interface.clone(),
        ..Endpoint::default()
    });
    desired.mirrors.push(Mirror {
        name: pod.name.clone(),
        endpoints: vec![pod.name.clone()],
        directions: vec![Direction::Egress],
        rules: rules.to_vec(),
        stateful: false,
        target,
        options,
    });
}

/// Puts a rival in force at a pod's cable.
fn put_in_force(node: &NetNs, pod: &Pod, way: &Way) -> Result<Option<Attached>> {
    let interface = pod.interface.as_str();
    match way {
        Way::Nothing => {}
        Way::EmptyProgram => return attach(node, interface, Program::empty()?).map(Some),
        Way::CloneRedirect => {
            let program = Program::clone_to(ifindex(node, &tap(pod))?)?;
            return attach(node, interface, program).map(Some);
        }
        Way::Mirred => mirred(node, interface, "ingress", &tap(pod))?,
        Way::MirredVxlan => {
            add_vxlan(node, "kernel-vxlan")?;
            mirred(node, interface, "ingress", "kernel-vxlan")?;
        }
        Way::NftDup => {
            let chain = format!("{{ type filter hook ingress device \"{interface}\" priority 0; }}");
            node.run_ok(&["nft", "add", "table", "netdev", "bench"])?;
            node.run_ok(&["nft", "add", "chain", "netdev", "bench", "copies", &chain])?;
            node.run_ok(&["nft", "add", "rule", "netdev", "bench", "copies", "dup", "to", &tap(pod)])?;
        }
        Way::Tee => {
            let words = ["iptables", "-w", "-t", "mangle", "-A", "PREROUTING", "-i", interface];
            node.run_ok(&[&words[..], &["-j", "TEE", "--gateway", COLLECTOR_V4]].concat())?;
        }
        Way::Podwire { .. } => bail!("podwire is put in force by itself"),
    }
    Ok(None)
}

/// `tc`, u32 and mirred: all of an interface's packets to a device.
pub fn mirred(node: &NetNs, interface: &str, hook: &str, device: &str) -> Result<()> {
    // There is one already when both directions are mirrored.
    let _ = node.run(&["tc", "qdisc", "add", "dev", interface, "clsact"])?;
    let filter = ["tc", "filter", "add", "dev", interface, hook, "protocol", "all", "u32", "match", "u32"];
    let action = ["0", "0", "action", "mirred", "egress", "mirror", "dev", device];
    node.run_ok(&[&filter[..], &action[..]].concat()).context("tc's filter").map(drop)
}

/// The kernel's own VXLAN device, towards the collector.
pub fn add_vxlan(node: &NetNs, name: &str) -> Result<()> {
    let port = KERNEL_PORT.to_string();
    node.ip(&[
        "link",
        "add",
        name,
        "type",
        "vxlan",
        "id",
        "7",
        "dstport",
        &port,
        "local",
        NODE_V4,
        "remote",
        COLLECTOR_V4,
        "dev",
        "uplink0",
        "nolearning",
    ])?;
    node.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{name}.disable_ipv6=1")])?;
    node.ip(&["link", "set", name, "mtu", "1550", "up"]).map(drop)
}
