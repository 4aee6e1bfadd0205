//! What happens to an agent and to its node under traffic: hundreds of pods that come and go, deaths in the middle of a
//! change, another build, the end. And that every packet is in the books.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_harness::{
    Cluster, ClusterNode, ClusterOptions, KernelLog, Pod, RawSocket, SERVER_V4, SERVER_V6, Wiring, binary,
    eventually,
};
use podwire_tests::crowd::Crowd;
use podwire_tests::egress::{World, egress};
use podwire_tests::spoof::{self, Scene};
use podwire_tests::tool::{self, Counts, Tool};
use podwire_tests::{agents, reach};

const SEVEN: [&str; 2] = ["203.0.113.7", "2001:db8:e::7"];

fn native() -> Result<Cluster> {
    let cluster = agents::cluster(ClusterOptions::default())?;
    cluster.router_knows_pods()?;
    Ok(cluster)
}

fn seven(more: &str) -> String {
    egress("seven", &format!("egressIPs: [{}, \"{}\"], {more}", SEVEN[0], SEVEN[1]))
}

/// Numbers that look like chance and are the same each time (Knuth's multiplicative hash).
fn chance(round: usize, member: usize) -> usize {
    ((round * 1000 + member + 1) * 2_654_435_761) >> 7
}

fn in_force(node: &ClusterNode, count: usize) -> Result<()> {
    let agent = node.agent()?;
    eventually(&format!("{count} endpoints are in force"), || {
        let shown = agents::get(agent, &["endpoints"])?;
        let items = shown["items"].as_array().context("no list")?;
        Ok(items.len() == count && items.iter().all(|item| item["status"]["state"] == "InForce"))
    })
    .with_context(|| agent.log())
}

fn routes(node: &ClusterNode) -> Result<[usize; 2]> {
    let count = |family| -> Result<usize> {
        Ok(node.netns.ip(&[family, "route", "show", "proto", "112"])?.lines().count())
    };
    Ok([count("-4")?, count("-6")?])
}

/// Objects and cables come and go independently of each other; in the end the state is that of the objects, and what
/// has nothing to do with it did not notice.
#[test]
fn root_three_hundred_pods_come_and_go() -> Result<()> {
    let cluster = native()?;
    let node = &cluster.nodes[0];
    let mut crowd = Crowd::new(&cluster)?;
    let all: BTreeSet<usize> = (0..300).collect();
    crowd.connect(&all)?;
    crowd.write(&all)?;
    in_force(node, 302)?;
    let streams = reach::load(&cluster, 5000)?;
    let some = |salt: usize| all.iter().copied().filter(|it| !chance(salt, *it).is_multiple_of(5)).collect();
    crowd.connect(&some(0))?;
    for round in 1..6 {
        crowd.write(&some(round))?;
        std::thread::sleep(Duration::from_millis(chance(round, 0) as u64 % 300));
    }
    crowd.connect(&all)?;
    crowd.write(&all)?;
    in_force(node, 302)?;
    let reached = crowd.reached_by(cluster.pod("web-1-5")?, &all)?;
    let missing: Vec<_> = all.difference(&reached).collect();
    ensure!(missing.is_empty(), "not reached: {missing:?}");
    // Each pod, and the other node's pods.
    eventually("the host knows the same", || Ok(routes(node)? == [303, 303]))?;
    crowd.write(&BTreeSet::new())?;
    in_force(node, 2)?;
    eventually("the host forgets them", || Ok(routes(node)? == [3, 3]))?;
    reach::full_mesh(&cluster)?;
    reach::all_whole(streams)?;
    agents::books(&cluster)
}

/// Policies of each kind, alternating.
fn versions() -> [String; 3] {
    let mirror = tool::mirror("all", "app: web", "internal: {name: ids0}");
    [
        seven("egressNode: node-2") + &mirror,
        seven("egressNode: node-1, own: true, except: [198.18.0.0/15]"),
        tool::mirror("all", "app: web", "vxlan: {remoteIP: 198.51.100.5, vni: 7, destinationPort: 4790}")
            + &tool::mirror(
                "web",
                "pod: web-1-5",
                "erspan: {remoteIP: 198.51.100.5, version: 1, sessionID: 5}",
            ),
    ]
}

/// Changes the policies of all nodes every 50 ms until told to stop.
fn keep_changing(cluster: &Cluster, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<Result<()>> {
    let folders: Vec<PathBuf> = cluster.nodes.iter().map(ClusterNode::config).collect();
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        for text in versions().iter().cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            for folder in &folders {
                let draft = folder.join(".policies.yaml.new");
                std::fs::write(&draft, text)?;
                std::fs::rename(draft, folder.join("policies.yaml"))?;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    })
}

/// SIGKILL at any time while everything changes: no packet between pods is lost, and afterwards the state is right.
#[test]
fn root_agents_die_in_the_middle_of_changes() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    // Many deaths take minutes and are a run of their own: PODWIRE_RESTARTS=100.
    let deaths = std::env::var("PODWIRE_RESTARTS").map_or(Ok(6), |text| text.parse::<usize>())?;
    let streams = reach::load(&world.cluster, 2000 * deaths as u64)?;
    let stop = Arc::new(AtomicBool::new(false));
    let changes = keep_changing(&world.cluster, &stop);
    for death in 0..deaths {
        std::thread::sleep(Duration::from_micros(chance(death, deaths) as u64 % 400_000));
        world.cluster.kill_agent(death % 2)?;
        world.cluster.start_agent(death % 2, &[])?;
    }
    stop.store(true, Ordering::Relaxed);
    changes.join().ok().context("it panicked")??;
    world.hold(1, &SEVEN)?;
    world.put(&seven("egressNode: node-2"), "seven")?;
    world.all_come_as(SEVEN)?;
    reach::full_mesh(&world.cluster)?;
    reach::all_whole(streams)?;
    world.cluster.set_policies("")?;
    world.all_come_as_themselves()?;
    eventually("nothing is left of the policies", || {
        let netns = &world.cluster.nodes[0].netns;
        let ports = netns.run_ok(&["ip", "-o", "link"])?.contains("ids0");
        let addresses = netns.ip(&["-o", "addr", "show", "dev", "eth0"])?.contains(SEVEN[0]);
        Ok(!ports && !addresses)
    })?;
    agents::books(&world.cluster)
}

/// Another build takes over under load, while packets are mirrored, go through a tool and leave by an Egress policy.
/// `PODWIRE_OLD_BIN` names the earlier build; without it, it is the same one.
#[test]
fn root_another_build_takes_over() -> Result<()> {
    let old = std::env::var_os("PODWIRE_OLD_BIN").map_or_else(binary, PathBuf::from);
    let mut cluster = Cluster::new(ClusterOptions::default())?;
    cluster.write_objects()?;
    for node in [0, 1] {
        cluster.start_build(&old, node, &[])?;
    }
    agents::in_force(&cluster)?;
    cluster.router_knows_pods()?;
    let witness = podwire_harness::Witness::start(&cluster.server, 8081)?;
    let mut world = World { cluster, witness };
    world.hold(1, &SEVEN)?;
    let policies = seven("egressNode: node-2")
        + &tool::redirect("inspect", "pod: web-1-5", "Both", "Closed")
        + &tool::mirror("all", "node: node-1", "internal: {name: ids0}");
    world.put(&policies, "seven")?;
    tool::put(&mut world.cluster, &policies, "inspect")?;
    let tool = Tool::start(&world.cluster, "inspect")?;
    world.all_come_as(SEVEN)?;
    let streams = reach::load(&world.cluster, 9000)?;
    let before = Counts::of(&world.cluster, "inspect")?.redirected;
    for (node, build) in [(0, &binary()), (1, &binary()), (0, &old), (0, &binary())] {
        world.cluster.kill_agent(node)?;
        world.cluster.start_build(build, node, &[])?;
        agents::in_force(&world.cluster)?;
        world.all_come_as(SEVEN)?;
    }
    reach::all_whole(streams)?;
    let after = Counts::of(&world.cluster, "inspect")?.redirected;
    ensure!(after > before, "the counters began anew: {before:?}, {after:?}");
    tool.all_returned(&world.cluster)?;
    agents::books(&world.cluster)
}

/// Everything of a node's network that can be listed.
fn everything(node: &ClusterNode) -> Result<BTreeMap<&'static str, BTreeSet<String>>> {
    let lists: [(&str, &[&str]); 9] = [
        ("devices", &["ip", "-d", "-o", "link"]),
        ("addresses", &["ip", "-o", "addr"]),
        ("routes", &["ip", "route", "show", "table", "all"]),
        ("IPv6 routes", &["ip", "-6", "route", "show", "table", "all"]),
        ("rules", &["ip", "rule"]),
        ("neighbours", &["ip", "neigh", "show", "nud", "permanent"]),
        ("nftables", &["nft", "list", "ruleset"]),
        ("filters", &["tc", "filter", "show", "dev", "veth-1-5", "ingress"]),
        (
            "switches",
            &[
                "sysctl",
                "-a",
                "-r",
                "^net.ipv[46].(ip_forward|conf.(all|default|eth0|veth-1-5).(forwarding|rp_filter|arp_.*|proxy_.*|disable_ipv6))",
            ],
        ),
    ];
    let mut found = BTreeMap::new();
    for (name, words) in lists {
        // Counters of what others have, and what the kernel says of its multicast queues, move by themselves.
        let lines = node.netns.run_ok(words)?;
        let lines =
            lines.lines().map(|line| line.split(" mcast_").next().unwrap_or_default().trim().to_owned());
        found.insert(name, lines.collect());
    }
    Ok(found)
}

/// After `podwire cleanup` the node's network is as it was before, and what others made is untouched.
#[test]
fn root_cleanup_leaves_nothing_and_touches_nothing_else() -> Result<()> {
    let mut cluster = Cluster::new(ClusterOptions::default())?;
    cluster.router_knows_pods()?;
    let netns = &cluster.nodes[0].netns;
    for words in [
        "route add 10.99.0.0/16 via 192.0.2.254 proto static",
        "route add 10.10.1.5/32 dev veth-1-5 metric 77 proto static",
        "-6 route add fd00:10:1::5/128 dev veth-1-5 metric 77 proto static",
        "route add 10.10.2.0/24 via 192.0.2.2 metric 99 proto bird",
        "neigh add 192.0.2.77 lladdr 02:00:00:00:00:77 dev eth0 nud permanent",
        "addr add 203.0.113.200/32 dev eth0",
        "addr add 203.0.113.7/32 dev eth0",
        "link add vx9 type vxlan id 9 dstport 4799 dev eth0",
        "link add ids9 type bridge",
    ] {
        netns.ip(&words.split(' ').collect::<Vec<_>>())?;
    }
    netns.run_ok(&[
        "nft",
        "add table inet others; add chain inet others post { type nat hook postrouting priority srcnat; }",
    ])?;
    netns.run_ok(&["tc", "qdisc", "add", "dev", "veth-1-5", "clsact"])?;
    let foreign = "tc filter add dev veth-1-5 ingress prio 50 protocol all u32 match u32 0 0 classid 1:9";
    netns.run_ok(&foreign.split(' ').collect::<Vec<_>>())?;
    let before = everything(&cluster.nodes[0])?;
    cluster.start()?;
    agents::in_force(&cluster)?;
    let policies = seven("egressNode: node-1, own: true")
        + &tool::redirect("inspect", "pod: web-1-5", "Both", "Open")
        + &tool::mirror("all", "app: web", "internal: {name: ids0}")
        + &tool::mirror("far", "app: web", "erspan: {remoteIP: 198.51.100.5, version: 1, sessionID: 5}");
    tool::put(&mut cluster, &policies, "inspect")?;
    let _tool = Tool::start(&cluster, "inspect")?;
    reach::full_mesh(&cluster)?;
    reach::world(&cluster)?;
    ensure!(everything(&cluster.nodes[0])? != before, "podwire does something");
    cluster.kill_agent(0)?;
    let node = &cluster.nodes[0];
    let (build, pins) = (binary(), node.scratch.bpf().join("podwire"));
    node.netns.run_ok(&[&build.to_string_lossy(), "cleanup", "--bpffs", &pins.to_string_lossy()])?;
    let after = everything(node)?;
    for (name, lines) in &before {
        let gone: Vec<_> = lines.difference(&after[name]).collect();
        let new: Vec<_> = after[name].difference(lines).collect();
        ensure!(gone.is_empty() && new.is_empty(), "{name}: gone {gone:#?}, new {new:#?}");
    }
    ensure!(!pins.exists(), "pins are left");
    Ok(())
}

/// What the books say of a pod: (received, dropped) of what it sent, (received, passed) of what it got.
fn booked(node: &ClusterNode, pod: &Pod) -> Result<[u64; 4]> {
    let shown = agents::get(node.agent()?, &["endpoint", &pod.name])?;
    let number = |way: &str, what: &str| {
        shown["status"][way][what]["packets"].as_u64().with_context(|| format!("{way} {what}: {shown}"))
    };
    for way in ["egress", "ingress"] {
        for unit in ["packets", "bytes"] {
            let part = |what: &str| shown["status"][way][what][unit].as_u64().unwrap_or_default();
            let sum = part("passed") + part("redirected") + part("dropped");
            ensure!(part("received") == sum, "{way} {unit}: {shown}");
        }
    }
    Ok([
        number("egress", "received")?,
        number("egress", "dropped")?,
        number("ingress", "received")?,
        number("ingress", "passed")?,
    ])
}

/// By the pods' own cables: what they sent was received at the hook, what was passed at the hook came to them, and what
/// was dropped has its reasons.
#[test]
fn root_every_packet_is_in_the_books() -> Result<()> {
    let mut cluster = native()?;
    let mut log = KernelLog::from_now()?;
    // Both hooks look at everything that way.
    tool::put(&mut cluster, &tool::mirror("all", "app: web", "internal: {name: ids0}"), "all")?;
    reach::full_mesh(&cluster)?;
    let all = |cluster: &Cluster| -> Result<Vec<([u64; 4], u64, u64)>> {
        let mut found = Vec::new();
        for node in &cluster.nodes {
            for pod in &node.pods {
                let [tx, rx] = [
                    pod.netns.counter("eth0", "tx", "packets")?,
                    pod.netns.counter("eth0", "rx", "packets")?,
                ];
                found.push((booked(node, pod)?, tx, rx));
            }
        }
        Ok(found)
    };
    let (before, reasons) = (all(&cluster)?, agents::reasons(&cluster.nodes[0])?);
    let streams = reach::load(&cluster, 2000)?;
    let [(own, neighbour), (_, far)] = reach::near_and_far(&cluster)?;
    let gateway = cluster.nodes[0].gateway(own, false)?;
    let to = reach::neighbour(own, &gateway)?;
    let scene = Scene { own, neighbour, to, gateway, destination: [&far.v4, &far.v6] };
    let socket = RawSocket::open(&own.netns, "eth0")?;
    for table in [spoof::forbidden()?, spoof::legal()?] {
        spoof::frames(&scene, &table)?.iter().try_for_each(|frame| spoof::send(&socket, frame))?;
    }
    reach::large_packets(&cluster)?;
    reach::world(&cluster)?;
    reach::nodes_and_pods(&cluster)?;
    for server in [SERVER_V4, SERVER_V6] {
        own.netns.ping(server, 10, 56)?;
    }
    reach::all_whole(streams)?;
    let mut last = String::new();
    eventually("the books say what the cables say", || {
        let after = all(&cluster)?;
        let wrong: Vec<String> = after
            .iter()
            .zip(&before)
            .filter_map(|(now, then)| {
                let (sent, got) = (now.1 - then.1, now.2 - then.2);
                let [received, _, _, passed] = [0, 1, 2, 3].map(|at| now.0[at] - then.0[at]);
                (received != sent || passed != got)
                    .then(|| format!("sent {sent}, received {received}; passed {passed}, got {got}"))
            })
            .collect();
        last = wrong.join("\n");
        Ok(wrong.is_empty())
    })
    .with_context(|| last.clone())?;
    let after = all(&cluster)?;
    let dropped: u64 = after.iter().zip(&before).take(2).map(|(now, then)| now.0[1] - then.0[1]).sum();
    let now = agents::reasons(&cluster.nodes[0])?;
    let guard = [
        "SpoofedMac",
        "SpoofedIp",
        "SpoofedArp",
        "SpoofedNdp",
        "RouterMessage",
        "DhcpServer",
        "EtherTypeRefused",
        "Unreadable",
    ];
    let by_reason: u64 = guard.iter().map(|reason| now[*reason] - reasons[*reason]).sum();
    ensure!(dropped == by_reason && dropped > 0, "{dropped} dropped, {by_reason} by reason");
    log.check()?;
    agents::books(&cluster)
}
