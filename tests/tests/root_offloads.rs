//! Super-packets of every kind, offloads on and off, jumbo frames and pods that tunnel themselves: a mirror carries
//! every byte of them, and what is promised to be wire-true is.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use podwire_datapath::compile::Rule;
use podwire_datapath::core::abi::Direction;
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::{Engine, Hook, Mirror, SessionOptions, Target};
use podwire_harness::{COLLECTOR_V4, Capture, Page, Scratch, Topology, TopologyOptions};
use podwire_tests::node::{Node, all_lost};
use podwire_tests::wish::{mirror, mirrors, tunnel};

const BYTES: usize = 4 << 20;

fn vxlan() -> Result<Target> {
    tunnel(COLLECTOR_V4, Tunnel::Vxlan { vni: 1, port: 4789 })
}

/// A mirror of what the first pod sends.
fn apply(scene: &Topology, node: &Node, protocol: u8, engine: Engine) -> Result<()> {
    let wish = Mirror {
        directions: vec![Direction::Egress],
        rules: vec![Rule { protocol: Some(protocol), ..Rule::default() }],
        options: SessionOptions { engine, ..SessionOptions::default() },
        ..mirror("m", &scene.pods[0], vxlan()?)
    };
    node.apply(&mirrors(scene, vec![wish])).map(drop)
}

/// Bytes of the page that stand in a capture without a gap.
fn covered(file: &Path) -> Result<u64> {
    let rows = Capture::fields(file, 4789, "tcp.srcport == 8080 && tcp.len > 0", &["tcp.seq", "tcp.len"])?;
    let mut pieces: Vec<(u64, u64)> =
        rows.iter().filter_map(|row| Some((row[0].parse().ok()?, row[1].parse().ok()?))).collect();
    pieces.sort_unstable();
    Ok(pieces.iter().fold(1, |end, (at, len)| if *at <= end { end.max(at + len) } else { end }) - 1)
}

fn checksums_are_right(file: &Path) -> Result<()> {
    let wrong = "tcp.checksum.status == 0 || udp.checksum.status == 0 || ip.checksum.status == 0";
    ensure!(Capture::count(file, 4789, wrong)? == 0, "wrong checksums");
    ensure!(
        Capture::count(file, 4789, "tcp.checksum.status == 1 || udp.checksum.status == 1")? > 0,
        "no checksum was looked at"
    );
    Ok(())
}

fn offloads(scene: &Topology, on: bool) -> Result<()> {
    for pod in &scene.pods {
        for name in ["tso", "gso", "gro", "tx"] {
            pod.netns.offload("eth0", name, on)?;
            scene.node.offload(&pod.interface, name, on)?;
        }
    }
    Ok(())
}

/// The first pod serves a page over TCP; its copy is whole.
fn tcp(pod_mtu: u32, underlay_mtu: u32, engine: Engine, on: bool) -> Result<()> {
    let scene = Topology::with(TopologyOptions { pod_mtu, underlay_mtu, ..TopologyOptions::default() })?;
    let scratch = Scratch::new()?;
    scene.warm_up()?;
    offloads(&scene, on)?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    apply(&scene, &node, 6, engine)?;
    let device = scene.vxlan(1, 4789)?;
    // The receiver's kernel would join the pieces again before it shows them.
    scene.collector.offload(&device, "gro", false)?;
    // tcpdump's buffer holds the fewer frames the longer they may be.
    let snap = if engine == Engine::Clone && on { 70_000 } else { pod_mtu + 100 };
    let capture = Capture::start(&scene.collector, &device, scratch.path(), "tcp", snap)?;
    let (server, client) = (&scene.pods[0], &scene.pods[1]);
    Page { address: server.v4.clone(), port: 8080, bytes: BYTES }.fetch(&client.netns, &server.netns)?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    let file = capture.stop();
    let counters = node.session(&vxlan()?)?;
    ensure!(all_lost(&counters) == 0 && counters.truncated_packets == 0, "{counters:?}");
    let covered = covered(&file)?;
    ensure!(covered > BYTES as u64, "{covered} bytes without a gap, {counters:?}");
    if engine == Engine::Segment || !on {
        checksums_are_right(&file)?;
        let longest = Capture::fields(&file, 4789, "tcp", &["frame.len"])?;
        let longest = longest.iter().filter_map(|row| row[0].parse::<u32>().ok()).max();
        ensure!(longest.is_some_and(|len| len <= pod_mtu + 14), "{longest:?}");
    }
    Ok(())
}

#[test]
fn root_tcp_is_whole_with_offloads_on_and_off() -> Result<()> {
    for engine in [Engine::Clone, Engine::Segment] {
        for on in [true, false] {
            tcp(1500, 1600, engine, on).with_context(|| format!("{engine:?}, offloads {on}"))?;
        }
    }
    Ok(())
}

#[test]
fn root_jumbo_frames_are_whole() -> Result<()> {
    for engine in [Engine::Clone, Engine::Segment] {
        for on in [true, false] {
            tcp(9000, 9100, engine, on).with_context(|| format!("{engine:?}, offloads {on}"))?;
        }
    }
    Ok(())
}

/// Sends twenty super-packets of forty datagrams (`UDP_SEGMENT`).
const SEND: &str = r"
import socket, sys
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(17, 103, 1400)
for number in range(20):
    s.sendto(bytes(40 * 1400), (sys.argv[1], 9))
";

/// Each datagram of a UDP super-packet is in the mirror, with room on the underlay and without.
#[test]
fn root_udp_super_packets_are_whole() -> Result<()> {
    for (engine, underlay_mtu) in [(Engine::Clone, 1600), (Engine::Segment, 1600), (Engine::Clone, 1450)] {
        let scene = Topology::with(TopologyOptions { underlay_mtu, ..TopologyOptions::default() })?;
        let scratch = Scratch::new()?;
        scene.warm_up()?;
        let device = scene.vxlan(1, 4789)?;
        let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
        apply(&scene, &node, 17, engine)?;
        let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
        let before = scene.collector.counter(&device, "rx", "packets")?;
        let capture = Capture::start(&scene.collector, &device, scratch.path(), "udp", 2000)?;
        for address in [&second.v4, &second.v6] {
            first.netns.run_ok(&["python3", "-c", SEND, address])?;
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        let file = capture.stop();
        let counters = node.session(&vxlan()?)?;
        ensure!(all_lost(&counters) == 0, "{engine:?} {underlay_mtu}: {counters:?}");
        if engine == Engine::Segment {
            checksums_are_right(&file)?;
        }
        if engine == Engine::Segment || underlay_mtu == 1450 {
            // Cut up, and, where there is no room, each piece cut and counted.
            let arrived = scene.collector.counter(&device, "rx", "packets")? - before;
            ensure!(arrived == 1600 && counters.taken_packets == 1600, "{arrived} {counters:?}");
            let cut = if underlay_mtu == 1450 { 1600 } else { 0 };
            ensure!(counters.truncated_packets == cut, "{engine:?} {underlay_mtu}: {counters:?}");
        } else {
            ensure!(counters.truncated_packets == 0 && counters.sent_packets == 40, "{counters:?}");
        }
    }
    Ok(())
}

/// A pod that runs a tunnel of its own: its super-packets have outer headers already.
#[test]
fn root_pods_that_tunnel_are_mirrored_whole() -> Result<()> {
    let scene = Topology::with(TopologyOptions { underlay_mtu: 1700, ..TopologyOptions::default() })?;
    let scratch = Scratch::new()?;
    scene.warm_up()?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    for (pod, remote, address) in [(first, &second.v4, "10.99.0.1/24"), (second, &first.v4, "10.99.0.2/24")] {
        let words = ["link", "add", "own0", "type", "vxlan", "id", "99", "remote", remote, "dstport", "4789"];
        pod.netns.ip(&words)?;
        pod.netns.ip(&["addr", "add", address, "dev", "own0"])?;
        pod.netns.ip(&["link", "set", "own0", "mtu", "1450", "up"])?;
    }
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    apply(&scene, &node, 17, Engine::Auto)?;
    let capture = Capture::start(&scene.collector, "eth0", scratch.path(), "udp", 2000)?;
    Page { address: "10.99.0.1".into(), port: 8080, bytes: BYTES }.fetch(&second.netns, &first.netns)?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    let file = capture.stop();
    let counters = node.session(&vxlan()?)?;
    ensure!(all_lost(&counters) == 0 && counters.truncated_packets == 0, "{counters:?}");
    let covered = covered(&file)?;
    ensure!(covered > BYTES as u64, "{covered} bytes without a gap, {counters:?}");
    Ok(())
}
