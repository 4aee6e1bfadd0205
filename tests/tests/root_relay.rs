//! The user-space encapsulator sends in batches: what becomes of one message is no other's, and each session's order stays.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use anyhow::{Result, ensure};
use podwire_datapath::compile::Rule;
use podwire_datapath::core::abi::{Direction, Reason};
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::{Desired, Endpoint, Hook, Mirror, SessionOptions, Target};
use podwire_harness::{COLLECTOR_V4, COLLECTOR_V6, Capture, Scratch, Topology, UdpStream, eventually};
use podwire_tests::node::{Node, all_lost, lost};

const COUNT: u64 = 3000;

fn wish(scene: &Topology, targets: &[Target]) -> Desired {
    let pod = &scene.pods[0];
    let name = format!("default/{}", pod.name);
    let endpoint = Endpoint { name: name.clone(), interface: pod.interface.clone(), ..Endpoint::default() };
    let mirrors = targets.iter().enumerate().map(|(number, target)| Mirror {
        name: number.to_string(),
        endpoints: vec![name.clone()],
        directions: vec![Direction::Egress],
        rules: vec![Rule { protocol: Some(17), destination_ports: vec![7000..=7000], ..Rule::default() }],
        stateful: false,
        target: target.clone(),
        options: SessionOptions { truncate: Some(100), ..SessionOptions::default() },
    });
    Desired { mirrors: mirrors.collect(), endpoints: vec![endpoint], ..Desired::default() }
}

/// Sessions of both families and protocols share the batches with one that no route leads to.
#[test]
fn root_a_session_without_a_route_takes_nothing_from_the_others() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    scene.warm_up()?;
    ensure!(scene.node.ping(COLLECTOR_V6, 1, 8)? == 1);
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let tunnel =
        |remote: &str, tunnel| Target::Tunnel { remote: remote.parse().expect("an address"), tunnel };
    let good = [
        tunnel(COLLECTOR_V4, Tunnel::ErspanII { session: 5, index: 1 }),
        tunnel(COLLECTOR_V6, Tunnel::ErspanII { session: 6, index: 1 }),
        tunnel(COLLECTOR_V4, Tunnel::Vxlan { vni: 7, port: 1111 }),
        tunnel(COLLECTOR_V6, Tunnel::Vxlan { vni: 8, port: 1111 }),
    ];
    let bad = tunnel("198.51.100.77", Tunnel::Vxlan { vni: 9, port: 1111 });
    let applied = node.apply(&wish(&scene, &[&good[..2], &[bad.clone()], &good[2..]].concat()))?;
    ensure!(
        applied.sessions.iter().all(|session| session.engine.as_str() == "snap"),
        "{:?}",
        applied.sessions
    );
    let capture = Capture::start(
        &scene.collector,
        "eth0",
        scratch.path(),
        "ip proto 47 or ip6 proto 47 or udp port 1111",
        0,
    )?;
    let before = scene.collector.counter("eth0", "rx", "packets")?;
    let stream = UdpStream {
        destination: second.v4.clone(),
        port: 7000,
        count: COUNT,
        size: 400,
        gap: Duration::from_micros(20),
    };
    ensure!(stream.run(&first.netns, &second.netns, || Ok(()))?.is_whole());
    eventually("all is sent", || {
        let counters = node.session(&good[3])?;
        Ok(counters.taken_packets == COUNT)
    })?;
    for target in &good {
        let counters = node.session(target)?;
        ensure!((counters.sent_packets, all_lost(&counters)) == (COUNT, 0), "{target}: {counters:?}");
    }
    let counters = node.session(&bad)?;
    ensure!(
        (counters.sent_packets, lost(&counters, Reason::NoRoute)) == (0, COUNT),
        "all of it for one reason: {counters:?}"
    );
    // tcpdump may miss some of such a burst; the device does not.
    let arrived = scene.collector.counter("eth0", "rx", "packets")? - before;
    ensure!((4 * COUNT..4 * COUNT + 50).contains(&arrived), "{arrived} arrived");
    let file = capture.stop();
    for (session, family) in [(5, "ip"), (6, "ipv6")] {
        let filter = format!("{family} && erspan.spanid=={session}");
        let rows = Capture::fields(&file, 1111, &filter, &["gre.sequence_number"])?;
        let numbers: Vec<u64> = rows.iter().filter_map(|row| row[0].parse().ok()).collect();
        ensure!(numbers.len() as u64 > COUNT / 2, "session {session}: {} packets", numbers.len());
        ensure!(
            numbers.is_sorted_by(|one, next| one < next),
            "session {session}: in their order, none twice"
        );
    }
    Ok(())
}
