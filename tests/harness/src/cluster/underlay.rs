//! The underlay, and what lies beyond it.

use anyhow::Result;

use super::{Cluster, Underlay};
use crate::netns::NetNs;

/// The server's addresses.
pub const SERVER_V4: &str = "198.51.100.5";
/// The server's IPv6 address.
pub const SERVER_V6: &str = "2001:db8:51::5";
/// Other addresses of the server, where a test wants two destinations.
pub const OTHER_SERVER_V4: &str = "198.51.100.6";
/// The other IPv6 address of the server.
pub const OTHER_SERVER_V6: &str = "2001:db8:51::6";
/// Where Egress addresses come from: the router asks for them on the underlay.
pub const EGRESS_V4: &str = "203.0.113.0/24";
/// Where IPv6 Egress addresses come from.
pub const EGRESS_V6: &str = "2001:db8:e::/64";

const ROUTER_V4: &str = "192.0.2.254";
const ROUTER_V6: &str = "2001:db8::fe";

impl Cluster {
    pub(super) fn lay_underlay(&self) -> Result<()> {
        // Its own queries for multicast listeners would stand in captures of the underlay.
        self.switch.ip(&["link", "add", "br0", "type", "bridge", "mcast_snooping", "0"])?;
        quiet(&self.switch, "br0")?;
        self.switch.ip(&["link", "set", "br0", "mtu", &self.options().underlay_mtu.to_string(), "up"])?;
        forwards(&self.router)?;
        self.plug_in(&self.router, "router", &format!("{ROUTER_V4}/24"), &format!("{ROUTER_V6}/64"))?;
        cable(&self.router, "eth1", &self.server, self.options().underlay_mtu)?;
        self.addresses(&self.router, "eth1", "198.51.100.1/24", "2001:db8:51::1/64")?;
        self.addresses(&self.server, "eth0", &format!("{SERVER_V4}/24"), &format!("{SERVER_V6}/64"))?;
        let (v4, v6) = (format!("{OTHER_SERVER_V4}/24"), format!("{OTHER_SERVER_V6}/64"));
        self.addresses(&self.server, "eth0", &v4, &v6)?;
        self.route(&self.server, "default", ["via", "198.51.100.1"], ["via", "2001:db8:51::1"])?;
        for range in [EGRESS_V4, EGRESS_V6].into_iter().filter(|range| self.speaks(range)) {
            self.router.ip(&[family(range), "route", "add", range, "dev", "eth0"])?;
        }
        Ok(())
    }

    /// Lays a cable from `eth0` of a namespace to the switch, and says how the router is reached.
    pub(super) fn plug_in(&self, netns: &NetNs, port: &str, v4: &str, v6: &str) -> Result<()> {
        cable(&self.switch, port, netns, self.options().underlay_mtu)?;
        self.switch.ip(&["link", "set", port, "master", "br0"])?;
        quiet(&self.switch, port)?;
        self.addresses(netns, "eth0", v4, v6)?;
        if port == "router" {
            return Ok(());
        }
        self.route(netns, "default", ["via", ROUTER_V4], ["via", ROUTER_V6])
    }

    /// Tells the router which node has which pods, so that answers to a pod's own address find their way.
    ///
    /// # Errors
    /// When it knows already.
    pub fn router_knows_pods(&self) -> Result<()> {
        for node in &self.nodes {
            let [v4, v6] = node.addresses();
            for (range, via) in [(node.cidr_v4(), v4), (node.cidr_v6(), v6)] {
                if self.speaks(&via) {
                    self.router.ip(&[family(&range), "route", "replace", &range, "via", &via])?;
                }
            }
        }
        Ok(())
    }

    fn addresses(&self, netns: &NetNs, device: &str, v4: &str, v6: &str) -> Result<()> {
        if self.options().underlay != Underlay::V6 {
            netns.ip(&["addr", "add", v4, "dev", device])?;
        }
        if self.options().underlay != Underlay::V4 {
            netns.ip(&["addr", "add", v6, "dev", device, "nodad"])?;
        }
        netns.ip(&["link", "set", device, "up"]).map(drop)
    }

    fn route(&self, netns: &NetNs, to: &str, v4: [&str; 2], v6: [&str; 2]) -> Result<()> {
        if self.options().underlay != Underlay::V6 {
            netns.ip(&["route", "add", to, v4[0], v4[1]])?;
        }
        if self.options().underlay != Underlay::V4 {
            netns.ip(&["-6", "route", "add", to, v6[0], v6[1]])?;
        }
        Ok(())
    }
}

/// The option of `ip` for the family of an address or prefix.
pub(super) fn family(address: &str) -> &'static str {
    if address.contains(':') { "-6" } else { "-4" }
}

/// Lets a namespace forward. Reverse path filters are off: they are the distribution's choice, not the scene's.
pub(super) fn forwards(netns: &NetNs) -> Result<()> {
    let knobs = [
        "ipv4.ip_forward=1",
        "ipv6.conf.all.forwarding=1",
        "ipv4.conf.all.rp_filter=0",
        "ipv4.conf.default.rp_filter=0",
    ];
    knobs.iter().try_for_each(|knob| netns.run_ok(&["sysctl", "-qw", &format!("net.{knob}")]).map(drop))
}

/// A device without IPv6 of its own, which says nothing by itself.
pub(super) fn quiet(netns: &NetNs, device: &str) -> Result<()> {
    netns.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{device}.disable_ipv6=1")]).map(drop)
}

/// A cable whose far end is `eth0` of `to`; the near end is up.
fn cable(from: &NetNs, name: &str, to: &NetNs, mtu: u32) -> Result<()> {
    let mtu = mtu.to_string();
    let near = ["link", "add", name, "mtu", &mtu, "type", "veth"];
    let far = ["peer", "name", "eth0", "mtu", &mtu, "netns", to.name()];
    from.ip(&[&near[..], &far[..]].concat())?;
    from.ip(&["link", "set", name, "up"]).map(drop)
}
