//! TrafficControl where podwire forwards: between pods of a node and across nodes, both families. The original is
//! neither lost nor doubled, copies are those of the pod's edge, and what comes back from a tool goes on as before.

use anyhow::{Context, Result, ensure};
use podwire_harness::{Capture, Cluster, ClusterOptions, Page, Pod, SERVER_V4, SERVER_V6, Wiring};
use podwire_tests::egress::{World, egress};
use podwire_tests::tool::{self, Counts, Tool};
use podwire_tests::{agents, reach};

const PINGS: u32 = 10;
/// IPv4 and IPv6.
const REQUESTS: [&str; 2] = ["icmp.type==8", "icmpv6.type==128"];

fn native() -> Result<Cluster> {
    let cluster = agents::cluster(ClusterOptions::default())?;
    cluster.router_knows_pods()?;
    Ok(cluster)
}

fn ping(from: &Pod, to: &str) -> Result<()> {
    let received = from.netns.ping(to, PINGS, 56)?;
    ensure!(received == PINGS, "{} to {to}: {received} of {PINGS} answers", from.name);
    Ok(())
}

/// The first pod sends to its neighbour, to a pod of the other node and to the server, and the other way round.
fn all_ways(cluster: &Cluster) -> Result<()> {
    let [(own, near), (_, far)] = reach::near_and_far(cluster)?;
    for (there, back) in reach::addresses(near).into_iter().zip(reach::addresses(own)) {
        ping(own, there)?;
        ping(near, back)?;
    }
    for (there, back) in reach::addresses(far).into_iter().zip(reach::addresses(own)) {
        ping(own, there)?;
        ping(far, back)?;
    }
    for server in [SERVER_V4, SERVER_V6] {
        ping(own, server)?;
    }
    Ok(())
}

/// Datagrams, pages and fragments, both ways.
fn whole(cluster: &Cluster) -> Result<()> {
    let [(own, near), (_, far)] = reach::near_and_far(cluster)?;
    let mut streams = Vec::new();
    for pair in [(own, near), (near, own), (own, far), (far, own)] {
        for address in reach::addresses(pair.1) {
            streams.push(reach::datagrams(pair, address, 600, 700)?);
            streams.push(reach::datagrams(pair, address, 100, 4000)?);
        }
    }
    reach::all_whole(streams)?;
    for (client, server) in [(own, near), (near, own), (own, far), (far, own)] {
        for address in reach::addresses(server) {
            let page = Page { address: address.to_owned(), port: 8080, bytes: 1_000_000 };
            page.fetch(&client.netns, &server.netns)
                .with_context(|| format!("{} from {}", client.name, server.name))?;
        }
    }
    Ok(())
}

/// Copies of requests in a capture: from a pod, with the hop limit that it sent, and towards one, with one or two less.
fn copies(file: &std::path::Path, port: u16, tunnel: &str) -> Result<Vec<[String; 4]>> {
    let mut rows = Vec::new();
    for (filter, limit) in REQUESTS.into_iter().zip(["ip.ttl", "ipv6.hlim"]) {
        let filter = if tunnel.is_empty() { filter.to_owned() } else { format!("{tunnel} && {filter}") };
        let last = |text: &String| text.rsplit(',').next().unwrap_or_default().to_owned();
        for row in Capture::fields(file, port, &filter, &["eth.src", "eth.dst", limit])? {
            rows.push([filter.clone(), last(&row[0]), last(&row[1]), last(&row[2])]);
        }
    }
    Ok(rows)
}

/// Both pods of the first node are mirrored: what one sends to the other is copied twice, as it left and as it arrived.
fn edges(cluster: &Cluster, rows: &[[String; 4]]) -> Result<()> {
    let [(own, near), (_, far)] = reach::near_and_far(cluster)?;
    let left = |from: &Pod| rows.iter().filter(|row| row[1] == from.mac && row[3] == "64").count();
    let came = |to: &Pod, limit: &str| rows.iter().filter(|row| row[2] == to.mac && row[3] == limit).count();
    let times = 2 * PINGS as usize;
    // Its own to its neighbour, to the pod far away and to the server; the neighbour's to it.
    ensure!(left(own) == 3 * times && left(near) == times, "left: {} {}", left(own), left(near));
    ensure!(
        came(near, "63") == times && came(own, "63") == times,
        "near: {} {}",
        came(near, "63"),
        came(own, "63")
    );
    ensure!(came(own, "62") == times, "far: {}", came(own, "62"));
    ensure!(rows.len() == 7 * times, "{} copies; none of {}'s own", rows.len(), far.name);
    Ok(())
}

fn mirrored(target: &str, port: u16, tunnel: &str) -> Result<()> {
    let mut cluster = native()?;
    let policies = tool::mirror("all", "node: node-1", target);
    tool::put(&mut cluster, &policies, "all")?;
    let [(own, ..), _] = reach::near_and_far(&cluster)?;
    // The first copy would wait for the collector's address.
    own.netns.ping(SERVER_V4, 1, 56)?;
    let folder = cluster.nodes[0].scratch.path();
    // The server has nobody at the tunnel's end, and says so.
    let (netns, device, filter) = if tunnel.is_empty() {
        (&cluster.nodes[0].netns, "ids0", "")
    } else {
        (&cluster.server, "eth0", "dst host 198.51.100.5")
    };
    let capture = Capture::start(netns, device, folder, filter, 0)?;
    all_ways(&cluster)?;
    let file = capture.stop();
    edges(&cluster, &copies(&file, port, tunnel)?)?;
    for wrong in ["icmp.checksum.status==0", "ip.checksum.status==0", "icmpv6.checksum.status==0"] {
        ensure!(Capture::count(&file, port, wrong)? == 0, "{wrong}");
    }
    whole(&cluster)?;
    let status = tool::status(&cluster, "all")?;
    let copies = &status["copies"];
    ensure!(copies["lostTotal"] == 0 && copies["matched"].as_u64() > Some(1000), "{status}");
    agents::books(&cluster)
}

#[test]
fn root_a_mirror_to_an_internal_port() -> Result<()> {
    mirrored("internal: {name: ids0}", 0, "")
}

#[test]
fn root_a_mirror_through_vxlan() -> Result<()> {
    mirrored("vxlan: {remoteIP: 198.51.100.5, vni: 7, destinationPort: 4790}", 4790, "vxlan")
}

#[test]
fn root_a_mirror_through_erspan() -> Result<()> {
    mirrored("erspan: {remoteIP: 198.51.100.5, version: 1, sessionID: 5}", 0, "erspan")
}

fn redirected(direction: &str) -> Result<()> {
    let mut cluster = native()?;
    let policies = tool::redirect("inspect", "pod: web-1-5", direction, "Closed");
    tool::put(&mut cluster, &policies, "inspect")?;
    let tool = Tool::start(&cluster, "inspect")?;
    let [(own, near), (_, far)] = reach::near_and_far(&cluster)?;
    let folder = cluster.nodes[0].scratch.path();
    let capture = Capture::start(&tool.netns, "ips-in", folder, "icmp or icmp6", 0)?;
    all_ways(&cluster)?;
    let rows = copies(&capture.stop(), 0, "")?;
    // Of requests: its own three, its neighbour's and the far one's; by both families.
    let (leaving, arriving) = (6 * PINGS as usize, 4 * PINGS as usize);
    let wanted = match direction {
        "Egress" => leaving,
        "Ingress" => arriving,
        _ => leaving + arriving,
    };
    ensure!(rows.len() == wanted, "the tool saw {} requests, not {wanted}", rows.len());
    for (pair, hops) in [((own, near), 1), ((near, own), 1), ((own, far), 2), ((far, own), 2)] {
        reach::frames(&cluster, pair, hops).with_context(|| format!("{} to {}", pair.0.name, pair.1.name))?;
    }
    whole(&cluster)?;
    reach::nodes_and_pods(&cluster)?;
    tool.all_returned(&cluster)?;
    agents::books(&cluster)
}

#[test]
fn root_what_a_pod_sends_goes_through_a_tool() -> Result<()> {
    redirected("Egress")
}

#[test]
fn root_what_a_pod_gets_goes_through_a_tool() -> Result<()> {
    redirected("Ingress")
}

#[test]
fn root_both_go_through_a_tool() -> Result<()> {
    redirected("Both")
}

/// Both pods of the node have one tool, and a mirror besides: a packet from one to the other passes the tool once.
#[test]
fn root_once_through_the_tool_of_both_pods() -> Result<()> {
    let mut cluster = native()?;
    let policies = tool::redirect("inspect", "node: node-1", "Both", "Closed")
        + &tool::mirror("all", "node: node-1", "internal: {name: ids0}");
    tool::put(&mut cluster, &policies, "inspect")?;
    let tool = Tool::start(&cluster, "inspect")?;
    let folder = cluster.nodes[0].scratch.path();
    let node = &cluster.nodes[0].netns;
    let captures = [
        Capture::start(&tool.netns, "ips-in", folder, "icmp or icmp6", 0)?,
        Capture::start(node, "ids0", folder, "icmp or icmp6", 0)?,
    ];
    all_ways(&cluster)?;
    let [inspected, mirrored] = captures.map(Capture::stop);
    let rows = copies(&inspected, 0, "")?;
    ensure!(rows.len() == 10 * PINGS as usize, "the tool saw {} requests", rows.len());
    edges(&cluster, &copies(&mirrored, 0, "")?)?;
    whole(&cluster)?;
    tool.all_returned(&cluster)?;
    agents::books(&cluster)
}

/// When the tool is gone: open, everything goes on by itself; closed, nothing does, and all is counted.
fn gone(failure: &str, passes: u32, count: impl Fn(Counts) -> u64) -> Result<()> {
    let mut cluster = native()?;
    let policies = tool::redirect("inspect", "pod: web-1-5", "Both", failure);
    tool::put(&mut cluster, &policies, "inspect")?;
    let tool = Tool::start(&cluster, "inspect")?;
    all_ways(&cluster)?;
    let counted = || Counts::of(&cluster, "inspect").map(&count);
    let before = counted()?;
    tool.netns.ip(&["link", "set", "ips-in", "down"])?;
    let [(own, near), (_, far)] = reach::near_and_far(&cluster)?;
    for address in [&near.v4, &near.v6, &far.v4, &far.v6] {
        let received = own.netns.ping(address, PINGS, 56)?;
        ensure!(received == passes, "{failure}, {address}: {received}");
    }
    ensure!(counted()? >= before + 4 * u64::from(PINGS), "{failure}: {before} {}", counted()?);
    agents::books(&cluster)
}

#[test]
fn root_a_tool_that_is_gone_open() -> Result<()> {
    gone("Open", PINGS, |counts| counts.bypassed)
}

#[test]
fn root_a_tool_that_is_gone_closed() -> Result<()> {
    gone("Closed", 0, |counts| counts.refused)
}

/// What comes back from the tool still leaves with the address of its Egress policy, here and on another node.
#[test]
fn root_through_a_tool_and_out_by_egress() -> Result<()> {
    const SEVEN: [&str; 2] = ["203.0.113.7", "2001:db8:e::7"];
    for node in [0, 1] {
        let mut world = World::new(Wiring::Native)?;
        world.hold(node, &SEVEN)?;
        let fields = format!("egressIPs: [{}, \"{}\"], egressNode: node-{}", SEVEN[0], SEVEN[1], node + 1);
        let policies =
            tool::redirect("inspect", "node: node-1", "Both", "Closed") + &egress("seven", &fields);
        world.put(&policies, "seven")?;
        tool::put(&mut world.cluster, &policies, "inspect")?;
        let tool = Tool::start(&world.cluster, "inspect")?;
        world.all_come_as(SEVEN)?;
        reach::full_mesh(&world.cluster)?;
        tool.all_returned(&world.cluster)?;
        agents::books(&world.cluster)?;
    }
    Ok(())
}
