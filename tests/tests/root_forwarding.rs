//! podwire forwards: pods of one node and of several, nodes, the world. The checks are those that the kernel's own
//! forwarding passes in `root_cluster`.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_harness::{
    Capture, Cluster, ClusterOptions, Hop, Pod, RawSocket, SERVER_V4, SERVER_V6, Underlay, Wiring,
};
use podwire_tests::{agents, reach};

fn wired(wiring: Wiring) -> ClusterOptions {
    ClusterOptions { wiring, ..ClusterOptions::default() }
}

fn native() -> Result<Cluster> {
    agents::cluster(ClusterOptions::default())
}

#[test]
fn root_pods_of_three_nodes_reach_each_other() -> Result<()> {
    for underlay in [Underlay::Dual, Underlay::V4, Underlay::V6] {
        let cluster = agents::cluster(ClusterOptions { nodes: 3, underlay, ..wired(Wiring::Native) })?;
        reach::full_mesh(&cluster).with_context(|| format!("{underlay:?}"))?;
        agents::books(&cluster)?;
    }
    Ok(())
}

/// Pods that take their node's whole network for their link ask for each other's MAC address.
#[test]
fn root_pods_with_a_subnet_on_their_link_reach_each_other() -> Result<()> {
    let cluster = agents::cluster(wired(Wiring::NativeSubnet))?;
    reach::full_mesh(&cluster)?;
    reach::streams(&cluster)
}

#[test]
fn root_streams_arrive_to_the_byte() -> Result<()> {
    for underlay in [Underlay::V4, Underlay::V6] {
        let cluster = agents::cluster(ClusterOptions { underlay, ..wired(Wiring::Native) })?;
        reach::streams(&cluster).with_context(|| format!("{underlay:?}"))?;
        agents::books(&cluster)?;
    }
    Ok(())
}

#[test]
fn root_large_packets_arrive_in_fragments() -> Result<()> {
    for underlay in [Underlay::V4, Underlay::V6] {
        let cluster = agents::cluster(ClusterOptions { underlay, ..wired(Wiring::Native) })?;
        reach::large_packets(&cluster).with_context(|| format!("{underlay:?}"))?;
    }
    Ok(())
}

/// Between nodes nothing but VXLAN is on the underlay, and what is in it is complete.
#[test]
fn root_the_overlay_carries_what_pods_sent() -> Result<()> {
    let cluster = native()?;
    let [_, (from, to)] = reach::near_and_far(&cluster)?;
    let [here, there] = &cluster.nodes[..] else { unreachable!("two nodes") };
    let filter = "not arp and not icmp6";
    let capture = Capture::start(&cluster.switch, "node-1", here.scratch.path(), filter, 0)?;
    ensure!(from.netns.ping(&to.v4, 10, 56)? == 10);
    let file = capture.stop();
    let ports = Capture::fields(&file, 0, "udp", &["udp.dstport"])?;
    let port = ports.first().and_then(|row| row[0].parse().ok()).context("nothing on the underlay")?;
    let ends = format!("ip.addr=={} && ip.addr=={} && vxlan", here.addresses()[0], there.addresses()[0]);
    let whole = "icmp && ip.checksum.status!=0 && icmp.checksum.status!=0";
    ensure!(Capture::count(&file, port, &format!("{ends} && {whole}"))? == 20, "requests and answers");
    ensure!(Capture::count(&file, port, "icmp && !vxlan")? == 0, "pods' packets outside of the overlay");
    Ok(())
}

#[test]
fn root_each_node_is_a_hop() -> Result<()> {
    for underlay in [Underlay::V4, Underlay::V6] {
        let cluster = agents::cluster(ClusterOptions { underlay, ..wired(Wiring::Native) })?;
        for (pair, hops) in reach::near_and_far(&cluster)?.into_iter().zip([1, 2]) {
            for address in reach::addresses(pair.1) {
                reach::trace(pair, address, hops).with_context(|| format!("{underlay:?}"))?;
            }
            reach::frames(&cluster, pair, hops).with_context(|| format!("{underlay:?}"))?;
        }
    }
    Ok(())
}

/// The world is two routers away: the node and the underlay's.
#[test]
fn root_hops_to_the_world() -> Result<()> {
    let cluster = native()?;
    cluster.router_knows_pods()?;
    let [(pod, _), _] = reach::near_and_far(&cluster)?;
    for (address, router) in [(SERVER_V4, "192.0.2.254"), (SERVER_V6, "2001:db8::fe")] {
        let first = Hop::ask(&pod.netns, address, 1, 56)?;
        ensure!(matches!(first, Hop::Exceeded(node) if node.to_string() != router), "{first:?}");
        let second = Hop::ask(&pod.netns, address, 2, 56)?;
        ensure!(second == Hop::Exceeded(router.parse()?), "{second:?}");
        ensure!(Hop::ask(&pod.netns, address, 3, 56)? == Hop::Reply, "{address}");
    }
    Ok(())
}

/// Nobody holds the gateway's address; podwire answers for it, and for no other node's or pod's own.
#[test]
fn root_the_gateway_is_answered_for() -> Result<()> {
    for wiring in [Wiring::Native, Wiring::NativeSubnet] {
        let cluster = agents::cluster(wired(wiring))?;
        let [(pod, near), _] = reach::near_and_far(&cluster)?;
        let node = reach::node_of(&cluster, pod)?;
        for (v6, address) in [(false, SERVER_V4), (true, SERVER_V6)] {
            let gateway = node.gateway(pod, v6)?;
            let held = node.netns.ip(&["addr", "show"])?;
            let mut words = held.split_whitespace();
            ensure!(!words.any(|word| word.starts_with(&format!("{gateway}/"))), "{held}");
            pod.netns.ping(address, 1, 56)?;
            let mac = reach::neighbour(pod, &gateway)?;
            ensure!(mac != pod.mac && mac != near.mac, "{gateway} is at {mac}");
        }
        // To the pod's kernel an answer would mean that another has its address.
        ensure!(answer_to_probe(pod)?.is_none(), "{} is answered for", pod.v4);
    }
    Ok(())
}

/// What comes back when a pod asks whether somebody has its own address (RFC 5227, section 2.1.1).
fn answer_to_probe(pod: &Pod) -> Result<Option<Vec<u8>>> {
    let mac: Vec<u8> = pod.mac.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let own = pod.v4.parse::<Ipv4Addr>()?.octets();
    let head = [&[0xff; 6], &mac[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    let probe = [&head[..], &mac[..], &[0; 10], &own[..]].concat();
    let socket = RawSocket::open(&pod.netns, "eth0")?;
    socket.send(&probe)?;
    socket.receive(Duration::from_millis(500), |frame| {
        frame.get(12..14) == Some(&[8, 6]) && frame.get(20..22) == Some(&[0, 2])
    })
}

#[test]
fn root_long_packets_of_a_pod_are_told_off() -> Result<()> {
    for underlay in [Underlay::V4, Underlay::V6] {
        let options = ClusterOptions { pod_mtu: 1500, underlay, ..wired(Wiring::Native) };
        let mut cluster = agents::cluster(options)?;
        let [_, far] = reach::near_and_far(&cluster)?;
        reach::path_mtu(far, 1500 - cluster.overlay_headers()).with_context(|| format!("{underlay:?}"))?;
        // A pod with a shorter interface, of the same node and of the other one.
        cluster.add_pod_with_mtu(0, 1300)?;
        cluster.add_pod_with_mtu(1, 1300)?;
        cluster.write_objects()?;
        agents::in_force(&cluster)?;
        let [(from, _), _] = reach::near_and_far(&cluster)?;
        for name in ["web-1-7", "web-2-7"] {
            reach::path_mtu((from, cluster.pod(name)?), 1300).with_context(|| name.to_owned())?;
        }
    }
    Ok(())
}

#[test]
fn root_nodes_pods_and_the_world() -> Result<()> {
    for underlay in [Underlay::Dual, Underlay::V6] {
        let cluster = agents::cluster(ClusterOptions { underlay, ..wired(Wiring::Native) })?;
        cluster.router_knows_pods()?;
        reach::nodes_and_pods(&cluster).with_context(|| format!("{underlay:?}"))?;
        reach::world(&cluster).with_context(|| format!("{underlay:?}"))?;
        agents::books(&cluster)?;
    }
    Ok(())
}

/// What runs does not notice who comes and goes; who comes is reached, who is gone is not.
#[test]
fn root_nodes_and_pods_come_and_go_under_load() -> Result<()> {
    let mut cluster = native()?;
    let streams = reach::load(&cluster, 10_000)?;
    cluster.add_pod(0)?;
    cluster.add_node()?;
    cluster.write_objects()?;
    cluster.start_agent(2, &[])?;
    agents::in_force(&cluster)?;
    reach::full_mesh(&cluster)?;
    let gone = [cluster.pod("web-3-5")?.v4.clone(), cluster.pod("web-1-7")?.v6.clone()];
    cluster.remove_last_node()?;
    cluster.remove_last_pod(0)?;
    cluster.write_objects()?;
    agents::in_force(&cluster)?;
    reach::full_mesh(&cluster)?;
    for address in &gone {
        ensure!(cluster.pod("web-1-5")?.netns.ping(address, 1, 56)? == 0, "{address} is gone");
    }
    // The same names and addresses come again, by another cable.
    cluster.add_pod(0)?;
    cluster.write_objects()?;
    agents::in_force(&cluster)?;
    reach::full_mesh(&cluster)?;
    reach::all_whole(streams)
}

#[test]
fn root_agents_die_and_come_back_under_load() -> Result<()> {
    let mut cluster = native()?;
    // A hundred deaths take minutes and are a run of their own: PODWIRE_RESTARTS=100.
    let restarts = std::env::var("PODWIRE_RESTARTS").map_or(Ok(3), |text| text.parse::<usize>())?;
    let streams = reach::load(&cluster, 2700 * restarts as u64)?;
    for index in (0..restarts).map(|count| count % 2) {
        cluster.kill_agent(index)?;
        reach::full_mesh(&cluster).context("without an agent")?;
        cluster.start_agent(index, &[])?;
    }
    reach::full_mesh(&cluster)?;
    reach::all_whole(streams)?;
    agents::books(&cluster)
}

/// Where the CNI forwards, podwire changes nothing about who reaches whom.
#[test]
fn root_beside_a_cni_everything_goes_on() -> Result<()> {
    for wiring in [Wiring::Bridge, Wiring::Routed] {
        let mut cluster = agents::cluster(wired(wiring))?;
        cluster.router_knows_pods()?;
        let streams = reach::load(&cluster, 5000)?;
        cluster.kill_agent(0)?;
        cluster.start_agent(0, &[])?;
        reach::full_mesh(&cluster).with_context(|| format!("{wiring:?}"))?;
        reach::world(&cluster).with_context(|| format!("{wiring:?}"))?;
        reach::large_packets(&cluster).with_context(|| format!("{wiring:?}"))?;
        reach::all_whole(streams)?;
        agents::books(&cluster)?;
    }
    Ok(())
}
