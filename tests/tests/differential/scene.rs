//! A node without traffic of its own: whatever is counted was sent by the test.

use anyhow::Result;
use podwire_datapath::Target;
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::core::wire::erspan::iii::Granularity;
use podwire_harness::NetNs;
use podwire_tests::model::copy::Path;

/// Host sides of the pods' interfaces. They stay down: programs are run on them by hand.
pub const INTERFACES: [&str; 3] = ["pod0", "pod1", "pod2"];
/// The device that copies go to as they are.
const DEVICE: &str = "tap0";
const DEVICE_MTU: u32 = 1400;
const UPLINK_MTU: u32 = 1600;
const UPLINK_MAC: [u8; 6] = [2, 0, 0, 0, 0xaa, 1];
const COLLECTOR_MAC: [u8; 6] = [2, 0, 0, 0, 0xaa, 9];
const COLLECTOR_V4: &str = "192.0.2.9";
const COLLECTOR_V6: &str = "2001:db8::9";
/// An address that no route leads to.
const NOWHERE: &str = "198.51.100.1";

/// Lays the cables.
pub fn lay(node: &NetNs, sink: &NetNs) -> Result<()> {
    for name in INTERFACES {
        node.ip(&["link", "add", name, "type", "veth", "peer", "name", &format!("{name}-p")])?;
    }
    for (name, mtu) in [(DEVICE, DEVICE_MTU), ("uplink0", UPLINK_MTU)] {
        let mtu = mtu.to_string();
        let peer = ["peer", "name", name, "mtu", &mtu, "netns", sink.name()];
        node.ip(&[&["link", "add", name, "mtu", &mtu, "type", "veth"], &peer[..]].concat())?;
    }
    node.ip(&["link", "set", "uplink0", "address", &text(UPLINK_MAC)])?;
    node.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{DEVICE}.disable_ipv6=1")])?;
    for name in [DEVICE, "uplink0"] {
        sink.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{name}.disable_ipv6=1")])?;
        sink.ip(&["link", "set", name, "up"])?;
        node.ip(&["link", "set", name, "up"])?;
    }
    node.ip(&["addr", "add", "192.0.2.1/24", "dev", "uplink0"])?;
    node.ip(&["addr", "add", "2001:db8::1/64", "dev", "uplink0", "nodad"])?;
    for address in [COLLECTOR_V4, COLLECTOR_V6] {
        let mac = text(COLLECTOR_MAC);
        node.ip(&["neigh", "add", address, "lladdr", &mac, "dev", "uplink0", "nud", "permanent"])?;
    }
    Ok(())
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// A session of every kind.
pub fn targets() -> Result<Vec<Target>> {
    let (v4, v6) = (COLLECTOR_V4.parse()?, COLLECTOR_V6.parse()?);
    let tunnel = |remote, tunnel| Target::Tunnel { remote, tunnel };
    let third = Tunnel::ErspanIII {
        session: 7,
        hardware_id: 3,
        sgt: 9,
        direction: None,
        granularity: Granularity::HundredMicroseconds,
    };
    Ok(vec![
        Target::Device { name: DEVICE.into() },
        Target::Device { name: "absent0".into() },
        tunnel(v4, Tunnel::Vxlan { vni: 1111, port: 4789 }),
        tunnel(v6, Tunnel::Vxlan { vni: 2222, port: 1111 }),
        tunnel(v4, Tunnel::Geneve { vni: 3, port: 6081 }),
        tunnel(v6, Tunnel::Gre { key: Some(5), sequence: false }),
        tunnel(v4, Tunnel::Gre { key: None, sequence: false }),
        tunnel(v4, Tunnel::ErspanII { session: 6, index: 8 }),
        tunnel(v6, third),
        tunnel(NOWHERE.parse()?, Tunnel::Vxlan { vni: 4, port: 4789 }),
    ])
}

/// How copies for a target leave.
pub fn path(target: &Target) -> Path {
    let mtu = match target {
        Target::Device { name } => (name == DEVICE).then_some(DEVICE_MTU),
        Target::Tunnel { remote, .. } => (remote.to_string() != NOWHERE).then_some(UPLINK_MTU),
        Target::Internal { .. } | Target::Reader { .. } => None,
    };
    Path { mtu, source: UPLINK_MAC, destination: COLLECTOR_MAC }
}

/// The node's own address towards a tunnel's end, as its routes say; none without a route.
pub fn local(target: &Target) -> Option<&'static str> {
    match target {
        Target::Tunnel { remote, .. } if path(target).mtu.is_none() => {
            Some(if remote.is_ipv4() { "0.0.0.0" } else { "::" })
        }
        Target::Tunnel { remote, .. } => Some(if remote.is_ipv4() { "192.0.2.1" } else { "2001:db8::1" }),
        Target::Device { .. } | Target::Internal { .. } | Target::Reader { .. } => None,
    }
}
