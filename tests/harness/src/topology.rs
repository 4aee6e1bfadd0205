//! The usual scene: pods on a node, and a collector behind the node's uplink.
//!
//! ```text
//!  pod web-0 ─ eth0 ══ veth-web-0 ┐
//!  pod web-1 ─ eth0 ══ veth-web-1 ┤ node ├ uplink0 ══ eth0 ─ collector
//! ```
//! Pods have 10.10.1.N/32 and fd00:10:1::N/128 by routes, the node answers for its neighbours' addresses.
//! With a bridge they are neighbours in 10.10.1.0/24 and fd00:10:1::/64, and the node's `br0` is their gateway.

use anyhow::Result;

use crate::netns::NetNs;

/// The node's address on the underlay.
pub const NODE_V4: &str = "192.0.2.1";
/// The collector's addresses.
pub const COLLECTOR_V4: &str = "192.0.2.9";
/// The collector's IPv6 address.
pub const COLLECTOR_V6: &str = "2001:db8::9";
/// The gateway that all pods see.
const GATEWAY_V4: &str = "169.254.1.1";
const GATEWAY_V6: &str = "fe80::1";
/// The bridge's addresses in the pods' networks.
const BRIDGE_V4: &str = "10.10.1.1";
const BRIDGE_V6: &str = "fd00:10:1::1";

/// How a scene differs from the usual one.
#[derive(Clone, Copy, Debug)]
pub struct TopologyOptions {
    /// Number of pods.
    pub pods: usize,
    /// MTU of the pods' interfaces.
    pub pod_mtu: u32,
    /// MTU of the underlay.
    pub underlay_mtu: u32,
    /// The pods hang on a Linux bridge of the node instead of on routes of their own.
    pub bridge: bool,
}

impl Default for TopologyOptions {
    fn default() -> Self {
        Self { pods: 2, pod_mtu: 1500, underlay_mtu: 1600, bridge: false }
    }
}

/// A pod.
#[derive(Debug)]
pub struct Pod {
    /// Its namespace.
    pub netns: NetNs,
    /// `web-0`, `web-1`, …
    pub name: String,
    /// Host side of its interface.
    pub interface: String,
    /// Its IPv4 address.
    pub v4: String,
    /// Its IPv6 address.
    pub v6: String,
    /// Its MAC address.
    pub mac: String,
}

/// The scene.
#[derive(Debug)]
pub struct Topology {
    /// The node.
    pub node: NetNs,
    /// The pods.
    pub pods: Vec<Pod>,
    /// The collector.
    pub collector: NetNs,
    options: TopologyOptions,
}

impl Topology {
    /// The usual scene.
    ///
    /// # Errors
    /// Without root or iproute2.
    pub fn new() -> Result<Self> {
        Self::with(TopologyOptions::default())
    }

    /// A scene of one's own.
    ///
    /// # Errors
    /// Without root or iproute2.
    pub fn with(options: TopologyOptions) -> Result<Self> {
        let node = NetNs::new("node")?;
        for knob in ["ipv4.ip_forward=1", "ipv6.conf.all.forwarding=1"] {
            node.run_ok(&["sysctl", "-qw", &format!("net.{knob}")])?;
        }
        let collector = NetNs::new("collector")?;
        let mut scene = Self { node, pods: Vec::new(), collector, options };
        scene.lay_underlay()?;
        if options.bridge {
            scene.lay_bridge()?;
        }
        for number in 0..options.pods {
            scene.add_pod(number)?;
        }
        Ok(scene)
    }

    fn lay_underlay(&self) -> Result<()> {
        let mtu = self.options.underlay_mtu.to_string();
        let (node, collector) = (&self.node, &self.collector);
        node.ip(&[
            "link",
            "add",
            "uplink0",
            "mtu",
            &mtu,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "mtu",
            &mtu,
            "netns",
            collector.name(),
        ])?;
        for (netns, device, v4, v6) in [
            (node, "uplink0", "192.0.2.1/24", "2001:db8::1/64"),
            (collector, "eth0", "192.0.2.9/24", "2001:db8::9/64"),
        ] {
            netns.ip(&["addr", "add", v4, "dev", device])?;
            netns.ip(&["addr", "add", v6, "dev", device, "nodad"])?;
            netns.ip(&["link", "set", device, "up"])?;
        }
        Ok(())
    }

    fn lay_bridge(&self) -> Result<()> {
        // Its own queries for multicast listeners would be counted with the pods' packets.
        self.node.ip(&["link", "add", "br0", "type", "bridge", "mcast_snooping", "0"])?;
        self.node.ip(&["addr", "add", &format!("{BRIDGE_V4}/24"), "dev", "br0"])?;
        self.node.ip(&["addr", "add", &format!("{BRIDGE_V6}/64"), "dev", "br0", "nodad"])?;
        self.node.ip(&["link", "set", "br0", "up"]).map(drop)
    }

    /// Adds pod `web-NUMBER`.
    ///
    /// # Errors
    /// When its names are taken.
    pub fn add_pod(&mut self, number: usize) -> Result<()> {
        let netns = NetNs::new("pod")?;
        let pod = Pod {
            name: format!("web-{number}"),
            interface: format!("veth-web-{number}"),
            v4: format!("10.10.1.{}", number + 5),
            v6: format!("fd00:10:1::{}", number + 5),
            mac: format!("02:00:00:00:00:{:02x}", number + 5),
            netns,
        };
        self.connect(&pod)?;
        self.pods.push(pod);
        Ok(())
    }

    /// Lays the cable between a pod and the node, again after [`Topology::cut`].
    ///
    /// # Errors
    /// When it lies already.
    pub fn connect(&self, pod: &Pod) -> Result<()> {
        let mtu = self.options.pod_mtu.to_string();
        let (node, inside) = (&self.node, &pod.netns);
        node.ip(&[
            "link",
            "add",
            &pod.interface,
            "mtu",
            &mtu,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "mtu",
            &mtu,
            "address",
            &pod.mac,
            "netns",
            inside.name(),
        ])?;
        inside.ip(&["link", "set", "eth0", "up"])?;
        node.ip(&["link", "set", &pod.interface, "up"])?;
        if self.options.bridge { self.join_bridge(pod) } else { self.route(pod) }
    }

    fn join_bridge(&self, pod: &Pod) -> Result<()> {
        let inside = &pod.netns;
        self.node.ip(&["link", "set", &pod.interface, "master", "br0"])?;
        inside.ip(&["addr", "add", &format!("{}/24", pod.v4), "dev", "eth0"])?;
        inside.ip(&["addr", "add", &format!("{}/64", pod.v6), "dev", "eth0", "nodad"])?;
        inside.ip(&["route", "add", "default", "via", BRIDGE_V4, "dev", "eth0"])?;
        inside.ip(&["-6", "route", "add", "default", "via", BRIDGE_V6, "dev", "eth0"]).map(drop)
    }

    fn route(&self, pod: &Pod) -> Result<()> {
        let (node, inside) = (&self.node, &pod.netns);
        inside.ip(&["addr", "add", &format!("{}/32", pod.v4), "dev", "eth0"])?;
        inside.ip(&["addr", "add", &format!("{}/128", pod.v6), "dev", "eth0", "nodad"])?;
        let hardware = node.run_ok(&["cat", "/proc/sys/net/ipv4/conf/default/forwarding"])?;
        anyhow::ensure!(hardware.trim() == "1", "the node does not forward");
        let mac = self.mac(&pod.interface)?;
        inside.ip(&["route", "add", GATEWAY_V4, "dev", "eth0"])?;
        inside.ip(&["route", "add", "default", "via", GATEWAY_V4, "dev", "eth0"])?;
        inside.ip(&["-6", "route", "add", "default", "via", GATEWAY_V6, "dev", "eth0"])?;
        for gateway in [GATEWAY_V4, GATEWAY_V6] {
            inside.ip(&["neigh", "replace", gateway, "lladdr", &mac, "dev", "eth0", "nud", "permanent"])?;
        }
        for address in [&pod.v4, &pod.v6] {
            node.ip(&["route", "replace", address, "dev", &pod.interface])?;
            node.ip(&[
                "neigh",
                "replace",
                address,
                "lladdr",
                &pod.mac,
                "dev",
                &pod.interface,
                "nud",
                "permanent",
            ])?;
        }
        Ok(())
    }

    /// Removes the cable, and with it the pod's interface.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn cut(&self, pod: &Pod) -> Result<()> {
        self.node.ip(&["link", "del", &pod.interface]).map(drop)
    }

    fn mac(&self, interface: &str) -> Result<String> {
        let text = self.node.ip(&["-j", "link", "show", "dev", interface])?;
        let parsed: serde_json::Value = serde_json::from_str(&text)?;
        Ok(parsed[0]["address"].as_str().unwrap_or_default().to_owned())
    }

    /// Lets the kernel of the collector decapsulate VXLAN; returns the device's name.
    ///
    /// # Errors
    /// When the port or identifier is taken.
    pub fn vxlan(&self, vni: u32, port: u16) -> Result<String> {
        let name = format!("vxlan{vni}");
        let (vni, port) = (vni.to_string(), port.to_string());
        self.collector.ip(&[
            "link",
            "add",
            &name,
            "type",
            "vxlan",
            "id",
            &vni,
            "dstport",
            &port,
            "local",
            COLLECTOR_V4,
            "nolearning",
            "dev",
            "eth0",
        ])?;
        self.collector.ip(&["link", "set", &name, "up"])?;
        Ok(name)
    }

    /// A device pair inside the node: copies sent to `name` come out of `name-out`.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn local_device(&self, name: &str, mtu: u32) -> Result<String> {
        let (mtu, peer) = (mtu.to_string(), format!("{name}-out"));
        self.node
            .ip(&["link", "add", name, "mtu", &mtu, "type", "veth", "peer", "name", &peer, "mtu", &mtu])?;
        for end in [name, &peer] {
            // The kernel's own multicast reports would be counted too.
            self.node.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{end}.disable_ipv6=1")])?;
            self.node.ip(&["link", "set", end, "up"])?;
        }
        Ok(peer)
    }

    /// Fills the collector's and the node's neighbour tables, so that no copy has to wait.
    ///
    /// # Errors
    /// When the underlay does not work.
    pub fn warm_up(&self) -> Result<()> {
        anyhow::ensure!(self.node.ping(COLLECTOR_V4, 1, 8)? == 1, "the underlay does not work");
        Ok(())
    }
}
