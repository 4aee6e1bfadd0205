//! From a pod to its node.

use anyhow::Result;

use super::underlay::family;
use super::{ClusterNode, Wiring};
use crate::netns::NetNs;
use crate::topology::Pod;

/// The gateway of pods with nothing but their own address on the link.
const GATEWAY_V4: &str = "169.254.1.1";
const GATEWAY_V6: &str = "fe80::1";

impl ClusterNode {
    /// Where its pods' addresses come from.
    pub fn cidr_v4(&self) -> String {
        format!("10.10.{}.0/24", self.number)
    }

    /// Where its pods' IPv6 addresses come from.
    pub fn cidr_v6(&self) -> String {
        format!("fd00:10:{}::/64", self.number)
    }

    /// The gateway that a pod of this node has by its default route.
    ///
    /// # Errors
    /// When the pod has no default route.
    pub fn gateway(&self, pod: &Pod, v6: bool) -> Result<String> {
        let option = if v6 { "-6" } else { "-4" };
        let route = pod.netns.ip(&[option, "route", "show", "default"])?;
        let words = route.split_whitespace().skip_while(|word| *word != "via").nth(1);
        Ok(anyhow::Context::context(words, "no default route")?.to_owned())
    }

    pub(super) fn lay_bridge(&self, mtu: u32) -> Result<()> {
        self.netns.ip(&["link", "add", "cni0", "type", "bridge", "mcast_snooping", "0"])?;
        self.netns.ip(&["addr", "add", &format!("10.10.{}.1/24", self.number), "dev", "cni0"])?;
        let v6 = format!("fd00:10:{}::1/64", self.number);
        self.netns.ip(&["addr", "add", &v6, "dev", "cni0", "nodad"])?;
        self.netns.ip(&["link", "set", "cni0", "mtu", &mtu.to_string(), "up"]).map(drop)
    }

    /// Lays a pod's cable.
    pub(super) fn connect(&self, pod: &Pod, wiring: Wiring, mtu: u32) -> Result<()> {
        let (mtu, inside) = (mtu.to_string(), &pod.netns);
        let near = ["link", "add", &pod.interface, "mtu", &mtu, "type", "veth"];
        let far = ["peer", "name", "eth0", "mtu", &mtu, "address", &pod.mac, "netns", inside.name()];
        self.netns.ip(&[&near[..], &far[..]].concat())?;
        let (v4, v6) = match wiring {
            Wiring::Native | Wiring::Routed => (32, 128),
            Wiring::NativeSubnet | Wiring::Bridge => (24, 64),
        };
        inside.ip(&["addr", "add", &format!("{}/{v4}", pod.v4), "dev", "eth0"])?;
        inside.ip(&["addr", "add", &format!("{}/{v6}", pod.v6), "dev", "eth0", "nodad"])?;
        inside.ip(&["link", "set", "eth0", "up"])?;
        self.netns.ip(&["link", "set", &pod.interface, "up"])?;
        match wiring {
            Wiring::Native => defaults(inside, GATEWAY_V4, GATEWAY_V6),
            Wiring::NativeSubnet | Wiring::Bridge => {
                if wiring == Wiring::Bridge {
                    self.netns.ip(&["link", "set", &pod.interface, "master", "cni0"])?;
                }
                defaults(inside, &format!("10.10.{}.1", self.number), &format!("fd00:10:{}::1", self.number))
            }
            Wiring::Routed => self.route_to(pod),
        }
    }

    /// Calico's way: the node's end of the cable has no IPv4 address and answers ARP for all it has routes to; the
    /// IPv6 gateway is that end's own link-local address.
    fn route_to(&self, pod: &Pod) -> Result<()> {
        let device = pod.interface.as_str();
        for address in [&pod.v4, &pod.v6] {
            self.netns.ip(&[family(address), "route", "add", address, "dev", device])?;
        }
        // ARP is answered for what another device leads to, and a node without IPv4 has no default route.
        self.netns.ip(&["route", "replace", GATEWAY_V4, "dev", "eth0"])?;
        for knob in ["conf.{}.proxy_arp=1", "neigh.{}.proxy_delay=0"] {
            let knob = format!("net.ipv4.{}", knob.replace("{}", device));
            self.netns.run_ok(&["sysctl", "-qw", &knob])?;
        }
        defaults(&pod.netns, GATEWAY_V4, &link_local(&self.netns, device)?)
    }
}

fn defaults(inside: &NetNs, v4: &str, v6: &str) -> Result<()> {
    inside.ip(&["route", "add", "default", "via", v4, "dev", "eth0", "onlink"])?;
    inside.ip(&["-6", "route", "add", "default", "via", v6, "dev", "eth0"]).map(drop)
}

/// The link-local address that the kernel made for a device.
fn link_local(netns: &NetNs, device: &str) -> Result<String> {
    for _ in 0..100 {
        let text = netns.ip(&["-6", "-o", "addr", "show", "dev", device, "scope", "link"])?;
        if let Some(address) = text.split_whitespace().find(|word| word.starts_with("fe80:")) {
            return Ok(address.trim_end_matches("/64").to_owned());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    anyhow::bail!("{device} has no link-local address")
}
