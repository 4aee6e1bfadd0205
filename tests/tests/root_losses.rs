//! Targets that vanish, go down or have no route while traffic flows: the original loses nothing, and every
//! lost copy is in the books.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use anyhow::Result;
use podwire_datapath::compile::Rule;
use podwire_datapath::core::abi::{Direction, Reason};
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::{Desired, Endpoint, Hook, Mirror, Target};
use podwire_harness::{COLLECTOR_V4, Scratch, Topology, UdpStream};
use podwire_tests::node::{Node, all_lost, lost};

const PORT: u16 = 7000;
const COUNT: u64 = 3000;

fn wish(scene: &Topology, target: &Target) -> Desired {
    let pod = &scene.pods[0];
    let name = format!("default/{}", pod.name);
    Desired {
        endpoints: vec![Endpoint {
            name: name.clone(),
            interface: pod.interface.clone(),
            ..Endpoint::default()
        }],
        mirrors: vec![Mirror {
            name: "all".into(),
            endpoints: vec![name],
            directions: vec![Direction::Egress],
            rules: vec![Rule { protocol: Some(17), destination_ports: vec![PORT..=PORT], ..Rule::default() }],
            stateful: false,
            target: target.clone(),
            options: podwire_datapath::SessionOptions::default(),
        }],
        ..Desired::default()
    }
}

fn collector() -> Target {
    let remote = COLLECTOR_V4.parse().expect("an address");
    Target::Tunnel { remote, tunnel: Tunnel::Vxlan { vni: 1, port: 1111 } }
}

/// Streams from the first pod to the second while `harm` is done after a while.
fn stream(scene: &Topology, v6: bool, harm: impl FnOnce() -> Result<()>) -> Result<()> {
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let destination = if v6 { second.v6.clone() } else { second.v4.clone() };
    let stream =
        UdpStream { destination, port: PORT, count: COUNT, size: 400, gap: Duration::from_micros(200) };
    let report = stream.run(&first.netns, &second.netns, || {
        std::thread::sleep(Duration::from_millis(200));
        harm()
    })?;
    assert!(report.is_whole(), "the original: {report:?}");
    Ok(())
}

/// What arrived at the target equals what was booked as sent, whatever was done to it.
fn device(harm: &[&str], reason: Reason) -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let out = scene.local_device("tap0", 1500)?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let target = Target::Device { name: "tap0".into() };
    node.apply(&wish(&scene, &target))?;
    let before = scene.node.counter(&out, "rx", "packets")?;
    let mut arrived = None;
    stream(&scene, false, || {
        // Deleting the device takes its peer's counters along: read them when no more can come.
        if harm.contains(&"del") {
            scene.node.ip(&["link", "set", "tap0", "down"])?;
            arrived = Some(scene.node.counter(&out, "rx", "packets")? - before);
        }
        scene.node.ip(harm).map(drop)
    })?;
    let arrived = match arrived {
        Some(arrived) => arrived,
        None => scene.node.counter(&out, "rx", "packets")? - before,
    };
    let counters = node.session(&target)?;
    assert_eq!(counters.matched_packets, COUNT, "{counters:?}");
    assert_eq!(counters.sent_packets, arrived, "{counters:?}");
    assert_eq!(all_lost(&counters), COUNT - arrived, "{counters:?}");
    assert!(lost(&counters, reason) > 0, "{counters:?}");
    Ok(())
}

#[test]
fn root_target_device_goes_down() -> Result<()> {
    device(&["link", "set", "tap0", "down"], Reason::DeviceDown)
}

#[test]
fn root_target_device_is_deleted() -> Result<()> {
    device(&["link", "del", "tap0"], Reason::DeviceMissing)
}

/// The uplink goes down under a VXLAN session: its routes vanish a little later than its queue.
#[test]
fn root_uplink_goes_down() -> Result<()> {
    for v6 in [false, true] {
        let (scene, scratch) = (Topology::new()?, Scratch::new()?);
        let vxlan = scene.vxlan(1, 1111)?;
        scene.warm_up()?;
        let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
        node.apply(&wish(&scene, &collector()))?;
        stream(&scene, v6, || scene.node.ip(&["link", "set", "uplink0", "down"]).map(drop))?;
        let counters = node.session(&collector())?;
        let arrived = scene.collector.counter(&vxlan, "rx", "packets")?;
        assert_eq!(counters.matched_packets, COUNT, "{counters:?}");
        assert_eq!(counters.sent_packets, arrived, "{counters:?}");
        assert_eq!(all_lost(&counters), COUNT - arrived, "{counters:?}");
        assert!(lost(&counters, Reason::NoRoute) > 0, "{counters:?}");
    }
    Ok(())
}

/// Nobody took the private mirror device into account: it is deleted by hand, and comes back by a refresh.
fn private_mirror_device_is_deleted(hook: Hook) -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let vxlan = scene.vxlan(1, 1111)?;
    scene.warm_up()?;
    let node = Node::open(&scene.node, &scratch, hook)?;
    node.apply(&wish(&scene, &collector()))?;
    stream(&scene, false, || scene.node.ip(&["link", "del", "pw-mirror"]).map(drop))?;
    let counters = node.session(&collector())?;
    assert_eq!(counters.sent_packets, scene.collector.counter(&vxlan, "rx", "packets")?, "{counters:?}");
    let gone = lost(&counters, Reason::MirrorDeviceLost);
    // A copy that is on the device while it goes finds no route.
    let late = lost(&counters, Reason::NoRoute);
    assert!(gone > 0 && late < 10 && counters.sent_packets + gone + late == COUNT, "{counters:?}");
    node.refresh()?;
    stream(&scene, false, || Ok(()))?;
    let later = node.session(&collector())?;
    assert_eq!(later.sent_packets, counters.sent_packets + COUNT, "{later:?}");
    Ok(())
}

#[test]
fn root_private_mirror_device_is_deleted() -> Result<()> {
    private_mirror_device_is_deleted(Hook::Auto)
}

#[test]
fn root_private_mirror_device_is_deleted_under_clsact() -> Result<()> {
    private_mirror_device_is_deleted(Hook::Clsact)
}

/// A target that does not exist when the mirror is applied, and appears later.
#[test]
fn root_target_device_appears_later() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let target = Target::Device { name: "tap0".into() };
    let applied = node.apply(&wish(&scene, &target))?;
    assert_eq!(applied.sessions[0].problem.as_deref(), Some("device tap0 does not exist"));
    stream(&scene, false, || Ok(()))?;
    let counters = node.session(&target)?;
    assert_eq!(lost(&counters, Reason::DeviceMissing), COUNT, "{counters:?}");
    let out = scene.local_device("tap0", 1500)?;
    assert_eq!(node.refresh()?.sessions[0].problem, None);
    let before = scene.node.counter(&out, "rx", "packets")?;
    stream(&scene, false, || Ok(()))?;
    assert_eq!(scene.node.counter(&out, "rx", "packets")? - before, COUNT);
    Ok(())
}

/// While the collector's address is not known, the kernel keeps copies; they are booked as queued.
#[test]
fn root_copies_wait_for_the_neighbour() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    scene.vxlan(1, 1111)?;
    // The collector does not answer.
    scene.collector.ip(&["link", "set", "eth0", "arp", "off"])?;
    scene.node.ip(&["neigh", "flush", "dev", "uplink0"])?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    node.apply(&wish(&scene, &collector()))?;
    stream(&scene, false, || Ok(()))?;
    let counters = node.session(&collector())?;
    assert_eq!(counters.queued_packets, COUNT, "{counters:?}");
    assert_eq!((counters.sent_packets, all_lost(&counters)), (0, 0), "{counters:?}");
    Ok(())
}

/// The collector changes its MAC address and tells nobody: refreshes have the kernel find out.
#[test]
fn root_a_neighbour_that_changes_in_silence_is_found_again() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let vxlan = scene.vxlan(1, 1111)?;
    for knob in ["base_reachable_time_ms=200", "retrans_time_ms=50", "gc_stale_time=600"] {
        scene.node.run_ok(&["sysctl", "-qw", &format!("net.ipv4.neigh.uplink0.{knob}")])?;
    }
    scene.warm_up()?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    node.apply(&wish(&scene, &collector()))?;
    scene.collector.ip(&["link", "set", "eth0", "address", "02:00:00:00:00:77"])?;
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        node.refresh()?;
        let before = scene.collector.counter(&vxlan, "rx", "packets")?;
        stream(&scene, false, || Ok(()))?;
        if scene.collector.counter(&vxlan, "rx", "packets")? - before == COUNT {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "copies still go to the old address");
    }
    let neighbour = scene.node.ip(&["neigh", "show", "dev", "uplink0", COLLECTOR_V4])?;
    assert!(neighbour.contains("02:00:00:00:00:77"), "{neighbour}");
    Ok(())
}
