//! What Egress does is in its books, to the packet: what left, and what was dropped and why.

use std::time::Duration;

use anyhow::{Result, ensure};
use podwire_harness::{
    ClusterOptions, Pod, SERVER_V4, SERVER_V6, StreamReport, UdpStream, Wiring, eventually,
};
use podwire_tests::agents;
use podwire_tests::egress::{World, egress};
use serde_json::json;

const SEVEN: &str = "egressIPs: [203.0.113.7, \"2001:db8:e::7\"], egressNode: node-2";
const SEVEN_ADDRESSES: [&str; 2] = ["203.0.113.7", "2001:db8:e::7"];
const COUNT: u64 = 200;
const SIZE: usize = 500;
/// Bytes of its frames: Ethernet, IP, UDP, payload; to the one server and to the other.
const FRAMES: [u64; 2] = [14 + 20 + 8 + SIZE as u64, 14 + 40 + 8 + SIZE as u64];

fn with_seven() -> Result<World> {
    let mut world = World::new(Wiring::Native)?;
    world.hold(1, &SEVEN_ADDRESSES)?;
    world.put(&egress("seven", SEVEN), "seven")?;
    Ok(world)
}

fn stream(world: &World, pod: &Pod, server: &str, size: usize) -> Result<StreamReport> {
    let (destination, gap) = (server.to_owned(), Duration::from_micros(500));
    UdpStream { destination, port: 7777, count: COUNT, size, gap }.run(
        &pod.netns,
        &world.cluster.server,
        || Ok(()),
    )
}

fn all_arrive(world: &World, pod: &str) -> Result<()> {
    for server in [SERVER_V4, SERVER_V6] {
        let report = stream(world, world.cluster.pod(pod)?, server, SIZE)?;
        ensure!(report.is_whole(), "{pod} to {server}: {report:?}");
    }
    Ok(())
}

#[test]
fn root_packets_and_bytes_of_a_policy_on_both_nodes() -> Result<()> {
    let world = with_seven()?;
    all_arrive(&world, "web-1-5")?;
    all_arrive(&world, "web-2-5")?;
    let (packets, bytes) = (2 * COUNT, COUNT * FRAMES.iter().sum::<u64>());
    let sent = world.status(0, "seven")?;
    ensure!(sent["forwarded"] == json!({"packets": packets, "bytes": bytes}), "{sent}");
    ensure!(sent["marked"] == json!({"packets": 0, "bytes": 0}), "{sent}");
    let left = world.status(1, "seven")?;
    ensure!(left["marked"] == json!({"packets": 2 * packets, "bytes": 2 * bytes}), "{left}");
    ensure!(left["forwarded"] == json!({"packets": 0, "bytes": 0}), "{left}");
    for (status, packets, bytes) in [(&sent, packets, bytes), (&left, 2 * packets, 2 * bytes)] {
        ensure!(status["packets"] == packets && status["bytes"] == bytes, "{status}");
        ensure!(status["droppedTotal"] == 0 && status["dropped"] == json!({}), "{status}");
    }
    let overlay = world.node_status(0)?["overlay"]["sent"].take();
    ensure!(overlay["packets"] == packets, "{overlay}");
    let overlay = world.node_status(1)?["overlay"]["received"].take();
    ensure!(overlay["packets"] == packets && overlay["dropped"] == 0, "{overlay}");
    agents::books(&world.cluster)
}

/// Of pods of both nodes, at the node of the policy; what the node itself sends from the address is none.
#[test]
fn root_connections_of_a_policy() -> Result<()> {
    let mut world = with_seven()?;
    ensure!(world.status(1, "seven")?["connections"] == 0, "nobody has sent yet");
    let connected = |world: &World, count: u64| {
        eventually(&format!("{count} connections"), || Ok(world.status(1, "seven")?["connections"] == count))
    };
    all_arrive(&world, "web-1-5")?;
    connected(&world, 2)?;
    all_arrive(&world, "web-2-5")?;
    connected(&world, 4)?;
    let node = &world.cluster.nodes[1];
    node.netns.run_ok(&["ping", "-c", "1", "-I", SEVEN_ADDRESSES[0], SERVER_V4])?;
    ensure!(world.status(1, "seven")?["connections"] == 4, "the node's own is not the policy's");
    ensure!(world.status(0, "seven")?["connections"].is_null(), "they are counted where they leave");

    let other = "egressIPs: [203.0.113.8, \"2001:db8:e::8\"], egressNode: node-2";
    world.put(&egress("seven", other), "seven")?;
    connected(&world, 0)
}

#[test]
fn root_packets_without_an_egress_node_are_counted() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    world.cluster.set_policies(&egress("seven", "egressIP: 203.0.113.7, egressNode: node-9"))?;
    eventually("the policy drops", || {
        Ok(world.status(0, "seven").is_ok_and(|status| status["state"] == "Dropping"))
    })?;
    let report = stream(&world, world.cluster.pod("web-1-5")?, SERVER_V4, SIZE)?;
    ensure!(report.received == 0, "{report:?}");
    let status = world.status(0, "seven")?;
    ensure!(status["dropped"] == json!({"NoEgressNode": COUNT}), "{status}");
    ensure!(status["droppedTotal"] == COUNT && status["packets"] == 0, "{status}");
    let agent = world.cluster.nodes[0].agent()?;
    let table = agent.cli_ok(&["get", "egresses"])?;
    let row = table.lines().find(|row| row.starts_with("seven")).unwrap_or_default();
    ensure!(row.split_whitespace().rev().take(2).eq([COUNT.to_string().as_str(), "0"]), "{table}");
    let told = agent.cli_ok(&["describe", "egress", "seven"])?;
    ensure!(told.contains(&format!("NoEgressNode: {COUNT}")), "{told}");
    agents::books(&world.cluster)
}

/// The policy's own node knows nothing of it: the node that sent counts what it sent, the other one what it dropped.
#[test]
fn root_packets_for_an_unknown_policy_are_counted() -> Result<()> {
    let world = with_seven()?;
    std::fs::write(world.cluster.nodes[1].config().join("policies.yaml"), "")?;
    eventually("node-2 forgets the policy", || {
        let shown = agents::get(world.cluster.nodes[1].agent()?, &["egresses"])?;
        Ok(shown["items"] == json!([]))
    })?;
    let report = stream(&world, world.cluster.pod("web-1-5")?, SERVER_V4, SIZE)?;
    ensure!(report.received == 0, "{report:?}");
    ensure!(world.status(0, "seven")?["forwarded"]["packets"] == COUNT, "node-1 sent them");
    let node = world.node_status(1)?;
    ensure!(node["reasons"]["EgressUnknown"] == COUNT, "{node}");
    ensure!(node["overlay"]["received"]["dropped"] == COUNT, "{node}");
    Ok(())
}

/// What is too long for the overlay is not sent, and not counted as if it were.
#[test]
fn root_packets_too_long_for_the_way_to_the_egress_node_are_counted() -> Result<()> {
    let mut world =
        World::laid(ClusterOptions { wiring: Wiring::Routed, pod_mtu: 1500, ..ClusterOptions::default() })?;
    world.hold(1, &SEVEN_ADDRESSES)?;
    world.put(&egress("seven", SEVEN), "seven")?;
    let report = stream(&world, world.cluster.pod("web-1-5")?, SERVER_V4, 1450)?;
    ensure!(report.received == 0, "{report:?}");
    let status = world.status(0, "seven")?;
    ensure!(status["dropped"] == json!({"TooBig": COUNT}) && status["packets"] == 0, "{status}");
    agents::books(&world.cluster)
}

/// A pod that no Endpoint names, while there are policies.
#[test]
fn root_packets_of_an_unknown_pod_are_counted() -> Result<()> {
    let mut world = World::new(Wiring::Routed)?;
    world.hold(1, &SEVEN_ADDRESSES)?;
    world.put(&egress("seven", SEVEN), "seven")?;
    ensure!(world.node_status(0)?["held"] == 0, "no pod is unknown yet");
    world.cluster.add_pod(0)?;
    let report = stream(&world, world.cluster.pod("web-1-7")?, SERVER_V4, SIZE)?;
    ensure!(report.received == 0, "{report:?}");
    let status = world.node_status(0)?;
    ensure!(status["held"] == COUNT && status["unmapped"] == 0, "{status}");
    let table = world.cluster.nodes[0].agent()?.cli_ok(&["get", "nodes", "-o", "wide"])?;
    ensure!(table.contains("HELD") && table.contains(&COUNT.to_string()), "{table}");
    Ok(())
}
