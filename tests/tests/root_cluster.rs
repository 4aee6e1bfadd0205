//! The scene of several nodes itself, with the kernel as the forwarder: what tests ask of podwire, Linux does here.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_harness::{
    Capture, Cluster, ClusterOptions, Hop, OTHER_SERVER_V4, SERVER_V4, SERVER_V6, UdpStream, Underlay,
    Wiring, Witness,
};
use podwire_tests::{egress, reach};

fn forwarded(options: ClusterOptions) -> Result<Cluster> {
    let cluster = Cluster::new(options)?;
    cluster.forward()?;
    Ok(cluster)
}

fn host(wiring: Wiring) -> ClusterOptions {
    ClusterOptions { wiring, ..ClusterOptions::default() }
}

#[test]
fn root_routed_pods_of_three_nodes_reach_each_other() -> Result<()> {
    for underlay in [Underlay::Dual, Underlay::V4, Underlay::V6] {
        let cluster = forwarded(ClusterOptions { nodes: 3, underlay, ..host(Wiring::Routed) })?;
        reach::full_mesh(&cluster).with_context(|| format!("{underlay:?}"))?;
    }
    Ok(())
}

#[test]
fn root_bridged_pods_of_two_nodes_reach_each_other() -> Result<()> {
    for underlay in [Underlay::Dual, Underlay::V6] {
        let cluster = forwarded(ClusterOptions { underlay, ..host(Wiring::Bridge) })?;
        reach::full_mesh(&cluster).with_context(|| format!("{underlay:?}"))?;
    }
    Ok(())
}

#[test]
fn root_without_a_forwarder_nothing_leaves_a_node() -> Result<()> {
    let cluster = Cluster::new(host(Wiring::Routed))?;
    let [(from, near), (_, far)] = reach::near_and_far(&cluster)?;
    ensure!(from.netns.ping(&near.v4, 1, 56)? == 1, "by the node's own routes");
    ensure!(from.netns.ping(&far.v4, 1, 56)? == 0, "there is no way");
    ensure!(reach::full_mesh(&cluster).is_err(), "the check that tests rely on sees it");
    let native = Cluster::new(ClusterOptions::default())?;
    let [(from, near), _] = reach::near_and_far(&native)?;
    ensure!(from.netns.ping(&near.v4, 1, 56)? == 0, "podwire is not there");
    Ok(())
}

#[test]
fn root_streams_and_large_packets_pass_the_kernel() -> Result<()> {
    for wiring in [Wiring::Routed, Wiring::Bridge] {
        let cluster = forwarded(host(wiring))?;
        reach::streams(&cluster).with_context(|| format!("{wiring:?}"))?;
        reach::large_packets(&cluster).with_context(|| format!("{wiring:?}"))?;
    }
    Ok(())
}

#[test]
fn root_each_node_is_a_hop() -> Result<()> {
    let cluster = forwarded(host(Wiring::Routed))?;
    for (pair, hops) in reach::near_and_far(&cluster)?.into_iter().zip([1, 2]) {
        for address in reach::addresses(pair.1) {
            reach::trace(pair, address, hops)?;
            ensure!(reach::trace(pair, address, hops + 1).is_err(), "one hop more is noticed");
        }
        reach::frames(&cluster, pair, hops)?;
        ensure!(reach::frames(&cluster, pair, hops - 1).is_err(), "a hop limit that is not right is noticed");
    }
    Ok(())
}

#[test]
fn root_nodes_pods_and_the_world() -> Result<()> {
    for wiring in [Wiring::Routed, Wiring::Bridge] {
        let cluster = forwarded(host(wiring))?;
        let [(pod, _), _] = reach::near_and_far(&cluster)?;
        ensure!(pod.netns.ping(SERVER_V4, 1, 56)? == 0, "the router knows no pods");
        cluster.router_knows_pods()?;
        reach::world(&cluster)?;
        reach::nodes_and_pods(&cluster)?;
    }
    Ok(())
}

#[test]
fn root_long_packets_of_a_pod_are_told_off() -> Result<()> {
    let mut cluster = forwarded(ClusterOptions { pod_mtu: 1500, ..host(Wiring::Routed) })?;
    let [_, far] = reach::near_and_far(&cluster)?;
    reach::path_mtu(far, 1500 - cluster.overlay_headers())?;
    cluster.add_pod_with_mtu(0, 1300)?;
    let [(from, _), _] = reach::near_and_far(&cluster)?;
    reach::path_mtu((from, cluster.pod("web-1-7")?), 1300)?;
    let hop = Hop::ask(&from.netns, SERVER_V6, 1, 56)?;
    ensure!(matches!(hop, Hop::Exceeded(_)), "{hop:?}");
    Ok(())
}

#[test]
fn root_nodes_and_pods_come_and_go() -> Result<()> {
    let mut cluster = forwarded(host(Wiring::Routed))?;
    let streams = reach::load(&cluster, 3000)?;
    cluster.add_node()?;
    cluster.add_pod(0)?;
    cluster.forward()?;
    reach::full_mesh(&cluster)?;
    reach::all_whole(streams)?;
    let gone = cluster.nodes[2].pods[0].v4.clone();
    cluster.remove_last_node()?;
    cluster.remove_last_pod(0)?;
    reach::full_mesh(&cluster)?;
    ensure!(cluster.nodes[0].pods[0].netns.ping(&gone, 1, 56)? == 0, "{gone} is gone");
    Ok(())
}

/// A rule of nftables instead of an Egress: what the server is asked is what it saw.
#[test]
fn root_the_server_tells_who_came() -> Result<()> {
    let cluster = forwarded(host(Wiring::Routed))?;
    let witness = Witness::start(&cluster.server, 8081)?;
    let node = &cluster.nodes[0];
    let pod = &node.pods[0];
    ensure!(witness.sees(&pod.netns, SERVER_V4)?.is_none(), "there is no way back yet");
    cluster.router_knows_pods()?;
    for (server, own) in [(SERVER_V4, &pod.v4), (OTHER_SERVER_V4, &pod.v4), (SERVER_V6, &pod.v6)] {
        ensure!(witness.sees(&pod.netns, server)? == Some(own.parse::<IpAddr>()?), "{server}");
    }
    for (server, pods, address) in
        [(SERVER_V4, node.cidr_v4(), "203.0.113.7"), (SERVER_V6, node.cidr_v6(), "2001:db8:e::7")]
    {
        cluster.translate(node, &pods, address)?;
        ensure!(witness.sees(&pod.netns, server)? == Some(address.parse::<IpAddr>()?), "{server}");
        let entry = cluster.router.ip(&["neigh", "show", address, "dev", "eth0"])?;
        ensure!(entry.contains("lladdr"), "the router asked for it: {entry}");
    }
    let other = &cluster.nodes[1].pods[0];
    ensure!(witness.sees(&other.netns, SERVER_V4)? == Some(other.v4.parse::<IpAddr>()?), "another node");

    // A capture at the server shows each source, and that of one that should not be there.
    let capture = Capture::start(&cluster.server, "eth0", node.scratch.path(), "udp port 7777", 0)?;
    let streams = [&pod.netns, &other.netns].map(|netns| {
        let gap = Duration::from_millis(1);
        UdpStream { destination: SERVER_V4.into(), port: 7777, count: 20, size: 64, gap }.run(
            netns,
            &cluster.server,
            || Ok(()),
        )
    });
    for stream in streams {
        ensure!(stream?.is_whole(), "datagrams to the server");
    }
    let seen = egress::sources(&capture.stop())?;
    ensure!(seen.iter().eq(["10.10.2.5", "203.0.113.7"]), "{seen:?}");
    Ok(())
}
