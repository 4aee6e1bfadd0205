//! Mirrors on real packets: how many copies there are, what is in them, and what the original feels.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the test runner reads why a test did nothing")]

use std::time::Duration;

use anyhow::Result;
use podwire_datapath::compile::Rule;
use podwire_datapath::core::{abi::Direction, wire::encap::Tunnel};
use podwire_datapath::{Desired, Endpoint, Hook, Mirror, Target};
use podwire_harness::{COLLECTOR_V4, Capture, Pod, Scratch, Topology, TopologyOptions, UdpStream};
use podwire_tests::node::{Node, all_lost, has_tcx};

const PORT: u16 = 1111;

fn vxlan(vni: u32) -> Target {
    let remote = COLLECTOR_V4.parse().expect("an address");
    Target::Tunnel { remote, tunnel: Tunnel::Vxlan { vni, port: PORT } }
}

fn endpoint(pod: &Pod) -> Endpoint {
    Endpoint {
        name: format!("default/{}", pod.name),
        interface: pod.interface.clone(),
        ..Endpoint::default()
    }
}

fn mirror(name: &str, pod: &Pod, directions: &[Direction], rules: Vec<Rule>, target: Target) -> Mirror {
    Mirror {
        name: name.into(),
        endpoints: vec![endpoint(pod).name],
        directions: directions.to_vec(),
        rules,
        stateful: false,
        options: podwire_datapath::SessionOptions::default(),
        target,
    }
}

fn desired(pods: &[&Pod], mirrors: Vec<Mirror>) -> Desired {
    Desired { endpoints: pods.iter().map(|pod| endpoint(pod)).collect(), mirrors, ..Desired::default() }
}

/// Echo requests and replies of both families, and nothing else.
fn echo() -> Vec<Rule> {
    [(1, 8), (1, 0), (58, 128), (58, 129)]
        .into_iter()
        .map(|(protocol, kind): (u8, u16)| Rule {
            protocol: Some(protocol),
            icmp: vec![kind << 8..=kind << 8 | 255],
            ..Rule::default()
        })
        .collect()
}

fn udp(port: u16) -> Vec<Rule> {
    vec![Rule { protocol: Some(17), either_ports: vec![port..=port], ..Rule::default() }]
}

/// 100 pings are 200 copies by both directions and 100 by one, on the collector's own vxlan device.
fn pings(hook: Hook, v6: bool) -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let device = scene.vxlan(1, PORT)?;
    scene.warm_up()?;
    let node = Node::open(&scene.node, &scratch, hook)?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let destination = if v6 { &second.v6 } else { &second.v4 };
    let mut expected = 0;
    for (directions, copies) in
        [(&Direction::ALL[..], 200), (&[Direction::Ingress][..], 100), (&[Direction::Egress][..], 100)]
    {
        node.apply(&desired(&[first], vec![mirror("pings", first, directions, echo(), vxlan(1))]))?;
        assert_eq!(first.netns.ping(destination, 100, 56)?, 100, "the pod's own pings");
        expected += copies;
        assert_eq!(scene.collector.counter(&device, "rx", "packets")?, expected, "{directions:?}");
        let counters = node.session(&vxlan(1))?;
        assert_eq!(counters.sent_packets, expected, "{counters:?}");
    }
    node.apply(&Desired::default())?;
    assert_eq!(first.netns.ping(destination, 10, 56)?, 10);
    assert_eq!(scene.collector.counter(&device, "rx", "packets")?, expected, "after the mirror is gone");
    Ok(())
}

#[test]
fn root_pings_over_tcx_are_copied_exactly() -> Result<()> {
    if !has_tcx() {
        println!("SKIPPED: this kernel has no tcx links");
        return Ok(());
    }
    pings(Hook::Tcx, false)
}

#[test]
fn root_pings_of_ipv6_are_copied_exactly() -> Result<()> {
    pings(Hook::Auto, true)
}

#[test]
fn root_pings_over_clsact_are_copied_exactly() -> Result<()> {
    pings(Hook::Clsact, false)
}

/// TSO stays on; every payload byte of the connection is in the mirror.
#[test]
fn root_every_byte_of_a_tcp_stream_is_in_the_mirror() -> Result<()> {
    const BYTES: usize = 64 << 20;
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    scene.vxlan(1, PORT)?;
    scene.warm_up()?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let [client, server] = &scene.pods[..] else { unreachable!("two pods") };
    let rule = Rule { protocol: Some(6), destination_ports: vec![8080..=8080], ..Rule::default() };
    node.apply(&desired(
        &[client],
        vec![mirror("bulk", client, &[Direction::Egress], vec![rule], vxlan(1))],
    ))?;
    let capture = Capture::start(&scene.collector, "vxlan1", scratch.path(), "tcp", 128)?;
    let listener = server.netns.enter(|| Ok(std::net::TcpListener::bind("0.0.0.0:8080")?))?;
    let reader = std::thread::spawn(move || -> Result<u64> {
        let (mut stream, _) = listener.accept()?;
        Ok(std::io::copy(&mut stream, &mut std::io::sink())?)
    });
    let address = format!("{}:8080", server.v4);
    client.netns.enter(move || {
        let mut stream = std::net::TcpStream::connect(address)?;
        let block = vec![0x5a; 1 << 20];
        for _ in 0..BYTES >> 20 {
            std::io::Write::write_all(&mut stream, &block)?;
        }
        Ok(())
    })?;
    assert_eq!(reader.join().expect("the reader ends")?, BYTES as u64, "the original");
    let file = capture.stop();
    let rows = Capture::fields(&file, PORT, "tcp.dstport==8080", &["tcp.seq_raw", "tcp.len", "frame.len"])?;
    let mut pieces: Vec<(u64, u64)> = rows
        .iter()
        .filter_map(|row| Some((row[0].parse().ok()?, row[1].parse().ok()?)))
        .filter(|(_, len): &(u64, u64)| *len > 0)
        .collect();
    let start = pieces.first().expect("packets with payload").0;
    for piece in &mut pieces {
        // Sequence numbers wrap.
        piece.0 = piece.0.wrapping_sub(start) & 0xffff_ffff;
    }
    pieces.sort_unstable();
    let covered = pieces.iter().fold(0, |end, (at, len)| if *at <= end { end.max(at + len) } else { end });
    assert_eq!(covered, BYTES as u64, "bytes in the mirror without a gap");
    let largest = rows.iter().filter_map(|row| row[2].parse::<u64>().ok()).max().unwrap_or(0);
    assert!(largest > 10_000, "super-packets stay whole in the mirror: {largest}");
    let counters = node.session(&vxlan(1))?;
    assert_eq!((all_lost(&counters), counters.truncated_packets), (0, 0), "{counters:?}");
    Ok(())
}

/// Two sessions get one copy each of a packet that several mirrors want.
#[test]
fn root_each_session_gets_one_copy() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let (one, two) = (scene.vxlan(1, PORT)?, scene.vxlan(2, PORT)?);
    let out = scene.local_device("tap0", 1500)?;
    scene.warm_up()?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let tap = Target::Device { name: "tap0".into() };
    let mirrors = [("a", vxlan(1)), ("b", vxlan(1)), ("c", vxlan(2)), ("d", tap.clone())]
        .into_iter()
        .map(|(name, target)| mirror(name, first, &[Direction::Egress], echo(), target))
        .collect();
    let applied = node.apply(&desired(&[first], mirrors))?;
    assert_eq!(applied.sessions.len(), 3);
    assert_eq!(applied.sessions[0].policies, ["a", "b"], "equal targets share a session");
    let before = scene.node.counter(&out, "rx", "packets")?;
    assert_eq!(first.netns.ping(&second.v4, 50, 56)?, 50);
    assert_eq!(scene.collector.counter(&one, "rx", "packets")?, 50);
    assert_eq!(scene.collector.counter(&two, "rx", "packets")?, 50);
    assert_eq!(scene.node.counter(&out, "rx", "packets")? - before, 50);
    for target in [vxlan(1), vxlan(2), tap] {
        assert_eq!(node.session(&target)?.sent_packets, 50, "{target}");
    }
    Ok(())
}

/// A copy that is too big for the underlay is cut to it and counted; the original is not touched.
#[test]
fn root_copies_too_big_for_the_path_are_cut_and_counted() -> Result<()> {
    let options = TopologyOptions { underlay_mtu: 1500, ..TopologyOptions::default() };
    let (scene, scratch) = (Topology::with(options)?, Scratch::new()?);
    let device = scene.vxlan(1, PORT)?;
    scene.warm_up()?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    node.apply(&desired(&[first], vec![mirror("big", first, &[Direction::Egress], udp(7000), vxlan(1))]))?;
    let capture = Capture::start(&scene.collector, "eth0", scratch.path(), "udp port 1111", 0)?;
    let stream = UdpStream {
        destination: second.v4.clone(),
        port: 7000,
        count: 200,
        size: 1472,
        gap: Duration::from_micros(300),
    };
    let report = stream.run(&first.netns, &second.netns, || Ok(()))?;
    assert!(report.is_whole(), "{report:?}");
    let counters = node.session(&vxlan(1))?;
    assert_eq!((counters.sent_packets, counters.truncated_packets), (200, 200), "{counters:?}");
    assert_eq!(scene.collector.counter(&device, "rx", "packets")?, 200, "all arrive");
    let rows = Capture::fields(&capture.stop(), PORT, "", &["frame.len", "ip.len", "udp.length"])?;
    assert_eq!(rows.len(), 200);
    // The frame fills the path's MTU exactly, and the outer lengths say so.
    assert!(
        rows.iter().all(|row| row[0] == "1514" && row[1].starts_with("1500,") && row[2].starts_with("1480,")),
        "{:?}",
        rows[0]
    );
    Ok(())
}
