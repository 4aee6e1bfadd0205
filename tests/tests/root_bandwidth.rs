//! The bandwidth of an Egress policy, measured where it arrives: over seconds, what comes through is its rate.
//! Frames count with their Ethernet header.
#![allow(clippy::print_stdout, reason = "what was measured is worth reading")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwire_harness::{Iperf, NetNs, SERVER_V4, SERVER_V6, UdpStream, Wiring};
use podwire_tests::agents;
use podwire_tests::egress::{World, egress};
use serde_json::Value;

/// Bits per second.
const RATE: u64 = 20_000_000;
const SERVERS: [&str; 2] = [SERVER_V4, SERVER_V6];
/// A policy for each family, so that one says nothing of the other.
const POLICIES: [(&str, &str); 2] = [("four", "203.0.113.7"), ("six", "2001:db8:e::7")];
/// Two policies at the second node, and meters at the server.
fn world(burst: u64) -> Result<World> {
    let mut world = World::new(Wiring::Native)?;
    let mut objects = String::new();
    for (name, address) in POLICIES {
        world.hold(1, &[address])?;
        let bandwidth = format!("bandwidth: {{rate: {RATE}, burst: {burst}}}");
        objects += &egress(name, &format!("egressIPs: [\"{address}\"], egressNode: node-2, {bandwidth}"));
    }
    world.put(&objects, "six")?;
    let rules = format!("ip daddr {SERVER_V4} counter name four; ip6 daddr {SERVER_V6} counter name six;");
    let chain = format!("chain meters {{ type filter hook prerouting priority raw; {rules} }}");
    let table = format!("table inet measured {{ counter four {{ }}; counter six {{ }}; {chain}; }}");
    world.cluster.server.run_ok(&["nft", &table])?;
    Ok(world)
}

/// Bytes of the frames that arrived at the server's addresses, with their Ethernet headers.
fn arrived(server: &NetNs) -> Result<[u64; 2]> {
    let text = server.run_ok(&["nft", "-j", "list", "counters", "table", "inet", "measured"])?;
    let listed: Value = serde_json::from_str(&text)?;
    let mut bytes = [0; 2];
    for ((name, _), sum) in POLICIES.into_iter().zip(&mut bytes) {
        let counter = listed["nftables"].as_array().into_iter().flatten().map(|object| &object["counter"]);
        let counter = counter.clone().find(|counter| counter["name"] == name).context("no counter")?;
        let number = |field: &str| counter[field].as_u64().context("no number");
        *sum = number("bytes")? + 14 * number("packets")?;
    }
    Ok(bytes)
}

/// What arrives per second is the rate, within 5 %.
fn measure(server: &NetNs, settled: Duration, measured: Duration) -> Result<()> {
    std::thread::sleep(settled);
    let (before, start) = (arrived(server)?, Instant::now());
    std::thread::sleep(measured);
    let (after, passed) = (arrived(server)?, start.elapsed().as_secs_f64());
    for (family, server) in SERVERS.into_iter().enumerate() {
        let rate = (after[family] - before[family]) as f64 * 8.0 / passed;
        println!("to {server}: {:.3} Mbit/s over {passed:.2} s", rate / 1e6);
        let off = rate / RATE as f64 - 1.0;
        ensure!(off.abs() < 0.05, "to {server}: {rate:.0} bit/s, {:.1} % off", off * 100.0);
    }
    Ok(())
}

/// Twice as much as may pass is sent; what did not arrive is in the books, each datagram with its reason.
fn datagrams(pod: &str) -> Result<()> {
    let world = world(RATE / 10)?;
    let (pod, server) = (world.cluster.pod(pod)?, &world.cluster.server);
    let (settled, measured) = (Duration::from_millis(700), Duration::from_secs(5));
    let (size, gap) = (1200, Duration::from_micros(240));
    let count = 25_000;
    let mut streams = Vec::new();
    for (port, destination) in (7004..).zip(SERVERS) {
        let stream = UdpStream { destination: destination.into(), port, count, size, gap };
        streams.push(stream.start(&pod.netns, server)?);
    }
    measure(server, settled, measured)?;
    for ((stream, (name, _)), headers) in streams.into_iter().zip(POLICIES).zip([14 + 20 + 8, 14 + 40 + 8]) {
        let report = stream.finish()?;
        let status = world.status(1, name)?;
        let lost = report.sent - report.received;
        println!("{name}: {} sent, {} received, dropped {}", report.sent, report.received, status["dropped"]);
        ensure!(lost > 0 && status["dropped"]["RateExceeded"] == lost, "{lost} lost: {status}");
        ensure!(status["droppedTotal"] == lost && status["packets"] == report.received, "{status}");
        ensure!(status["bytes"] == report.received * (size as u64 + headers), "{status}");
    }
    agents::books(&world.cluster)
}

/// As much as a TCP connection gets. After losses it is silent for 200 ms at least, and a burst of a little longer makes
/// up for that. How full the bucket is at both ends of the measurement varies: by 4 % of it at most.
fn transfers(pod: &str) -> Result<()> {
    let world = world(RATE * 3 / 10)?;
    let (pod, server) = (world.cluster.pod(pod)?, &world.cluster.server);
    let (settled, measured) = (Duration::from_secs(1), Duration::from_secs(8));
    std::thread::scope(|scope| {
        let running = [0, 1].map(|family| {
            let bytes = RATE / 8 * 10;
            let (destination, port) = (SERVERS[family].to_owned(), 5201 + family as u16);
            scope.spawn(move || {
                Iperf { destination, port, bytes, udp_rate: None, cpus: None }.run(&pod.netns, server)
            })
        });
        let measured = measure(server, settled, measured);
        for transfer in running {
            transfer.join().ok().context("a transfer panicked")??;
        }
        measured
    })?;
    for (name, _) in POLICIES {
        let status = world.status(1, name)?;
        ensure!(status["dropped"]["RateExceeded"].as_u64() > Some(0), "{status}");
    }
    agents::books(&world.cluster)
}

#[test]
fn root_datagrams_of_the_egress_node_keep_to_the_rate() -> Result<()> {
    datagrams("web-2-5")
}

#[test]
fn root_datagrams_of_another_node_keep_to_the_rate() -> Result<()> {
    datagrams("web-1-5")
}

#[test]
fn root_tcp_of_the_egress_node_keeps_to_the_rate() -> Result<()> {
    transfers("web-2-5")
}

#[test]
fn root_tcp_of_another_node_keeps_to_the_rate() -> Result<()> {
    transfers("web-1-5")
}
