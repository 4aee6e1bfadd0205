//! Egress: which address the world sees, from which pods, and when.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use podwire_harness::{
    Capture, OTHER_SERVER_V4, OTHER_SERVER_V6, Page, SERVER_V4, SERVER_V6, UdpStream, WebServer, Wiring,
    Witness, binary, eventually,
};
use podwire_tests::egress::{World, egress, egress_of, some_arrived, sources};
use podwire_tests::watched::{WatchedCluster, egress as policy};
use podwire_tests::{agents, reach};

const SEVEN: [&str; 2] = ["203.0.113.7", "2001:db8:e::7"];
const EIGHT: [&str; 2] = ["203.0.113.8", "2001:db8:e::8"];
const NODE_2: &str = "egressNode: node-2";

fn ips(addresses: [&str; 2]) -> String {
    format!("egressIPs: [{}, \"{}\"]", addresses[0], addresses[1])
}

fn seven() -> String {
    egress("seven", &format!("{}, {NODE_2}", ips(SEVEN)))
}

/// Before and after, from pods of both nodes; a change of labels, of the addresses, and the end.
fn life_of_a_policy(wiring: Wiring) -> Result<()> {
    let mut world = World::new(wiring)?;
    world.all_come_as_themselves().context("before")?;
    world.hold(1, &[SEVEN, EIGHT].concat())?;
    world.put(&seven(), "seven")?;
    world.all_come_as(SEVEN).context("after")?;

    // What stays in the cluster keeps its address, and so does what nodes send.
    reach::full_mesh(&world.cluster)?;
    reach::nodes_and_pods(&world.cluster)?;
    reach::world(&world.cluster)?;
    let node = &world.cluster.nodes[0];
    let seen = world.witness.sees(&node.netns, SERVER_V4)?;
    ensure!(seen == Some(node.addresses()[0].parse::<IpAddr>()?), "the node itself came as {seen:?}");

    world.cluster.about("web-1-5")?.labels.insert("app".into(), "other".into());
    world.cluster.write_objects()?;
    world.comes_as_itself(world.cluster.pod("web-1-5")?, SERVER_V4).context("relabelled")?;
    world.comes_as(world.cluster.pod("web-1-6")?, SERVER_V4, SEVEN[0])?;
    world.cluster.about("web-1-5")?.labels.insert("app".into(), "web".into());

    let narrow = "{podSelector: {matchLabels: {app: web, node: node-2}}}";
    world.put(&egress_of("seven", narrow, &format!("{}, {NODE_2}", ips(SEVEN))), "seven")?;
    world.comes_as_itself(world.cluster.pod("web-1-6")?, SERVER_V6).context("narrowed")?;
    world.comes_as(world.cluster.pod("web-2-5")?, SERVER_V6, SEVEN[1])?;

    world.put(&egress("seven", &format!("{}, {NODE_2}", ips(EIGHT))), "seven")?;
    world.all_come_as(EIGHT).context("other addresses")?;
    world.cluster.set_policies("")?;
    world.all_come_as_themselves().context("deleted")?;
    agents::books(&world.cluster)
}

#[test]
fn root_a_policy_comes_changes_and_goes() -> Result<()> {
    life_of_a_policy(Wiring::Native)
}

#[test]
fn root_a_policy_beside_a_bridge_comes_changes_and_goes() -> Result<()> {
    life_of_a_policy(Wiring::Bridge)
}

#[test]
fn root_a_policy_beside_routes_comes_changes_and_goes() -> Result<()> {
    life_of_a_policy(Wiring::Routed)
}

/// A pod that starts under a policy never shows another address, from its first packet on.
#[test]
fn root_a_new_pods_first_packet_has_the_address() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    world.hold(1, &SEVEN)?;
    world.put(&seven(), "seven")?;
    for node in [0, 1] {
        for (server, address) in [SERVER_V4, SERVER_V6].into_iter().zip(SEVEN) {
            let capture = world.capture(true, "udp port 7777")?;
            world.cluster.add_pod(node)?;
            let pod = world.cluster.nodes[node].pods.last().context("a pod")?;
            let gap = Duration::from_millis(1);
            let stream = UdpStream { destination: server.into(), port: 7777, count: 3000, size: 64, gap }
                .start(&pod.netns, &world.cluster.server)?;
            world.cluster.write_objects()?;
            some_arrived(stream)?;
            let seen = sources(&capture.stop())?;
            ensure!(seen.iter().eq([address]), "{} came as {seen:?}", pod.name);
        }
    }
    Ok(())
}

/// Policies change and agents die: what was sent keeps one address or the other, and nothing leaks.
#[test]
fn root_no_other_address_while_agents_die() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    world.hold(1, &[SEVEN, EIGHT].concat())?;
    world.put(&seven(), "seven")?;
    world.all_come_as(SEVEN)?;
    let capture = world.capture(true, "udp portrange 7770-7779")?;
    let mut streams = Vec::new();
    for (number, pod) in world.cluster.pods().enumerate() {
        let (port, gap) = (7770 + number as u16, Duration::from_millis(1));
        let stream = UdpStream { destination: SERVER_V4.into(), port, count: 6000, size: 64, gap };
        streams.push(stream.start(&pod.netns, &world.cluster.server)?);
    }
    for node in [0, 1] {
        world.cluster.kill_agent(node)?;
        std::thread::sleep(Duration::from_millis(300));
        world.cluster.start_agent(node, &[])?;
    }
    reach::all_whole(streams)?;
    let seen = sources(&capture.stop())?;
    ensure!(seen.iter().eq([SEVEN[0]]), "{seen:?}");
    Ok(())
}

#[test]
fn root_destinations_and_exceptions() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    world.hold(1, &SEVEN)?;
    let prefixes = format!("[{SERVER_V4}/32, \"{SERVER_V6}/128\"]");
    for (field, with, without) in [
        ("destinations", [SERVER_V4, SERVER_V6], [OTHER_SERVER_V4, OTHER_SERVER_V6]),
        ("except", [OTHER_SERVER_V4, OTHER_SERVER_V6], [SERVER_V4, SERVER_V6]),
    ] {
        world.put(&egress("seven", &format!("{}, {NODE_2}, {field}: {prefixes}", ips(SEVEN))), "seven")?;
        for pod in world.cluster.pods() {
            for (index, address) in SEVEN.iter().enumerate() {
                world.comes_as(pod, with[index], address).context(field)?;
                world.comes_as_itself(pod, without[index]).context(field)?;
            }
        }
    }
    Ok(())
}

/// Each pod keeps to one of several addresses.
#[test]
fn root_several_addresses_of_a_policy() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    let addresses = ["203.0.113.21", "203.0.113.22", "203.0.113.23"];
    world.hold(1, &addresses)?;
    world.put(&egress("many", &format!("egressIPs: [{}], {NODE_2}", addresses.join(", "))), "many")?;
    for pod in world.cluster.pods() {
        let first = world.source(pod, SERVER_V4)?.context("no answer")?;
        ensure!(addresses.contains(&first.to_string().as_str()), "{} came as {first}", pod.name);
        for _ in 0..10 {
            ensure!(world.source(pod, SERVER_V4)? == Some(first), "{} changed its address", pod.name);
        }
        // Without any address of a family that is not governed.
        world.comes_as_itself(pod, SERVER_V6)?;
    }
    Ok(())
}

/// The lower number decides, not which came first; when that policy goes the other one takes over.
#[test]
fn root_the_first_of_two_policies_applies() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    world.hold(1, &[SEVEN, EIGHT].concat())?;
    let low = egress("low", &format!("{}, {NODE_2}, priority: 5", ips(SEVEN)));
    let high = egress("high", &format!("{}, {NODE_2}, priority: 20", ips(EIGHT)));
    world.put(&high, "high")?;
    world.all_come_as(EIGHT)?;
    world.put(&(high.clone() + &low), "low")?;
    world.all_come_as(SEVEN)?;
    world.put(&high, "high")?;
    world.all_come_as(EIGHT)
}

/// From another node the packet goes through the overlay to the Egress node's own address; the underlay sees neither
/// the pod's nor the Egress address leave from there.
#[test]
fn root_a_remote_egress_node_gets_packets_by_the_overlay() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    world.hold(1, &SEVEN)?;
    world.put(&seven(), "seven")?;
    world.all_come_as(SEVEN)?;
    let capture = world.capture(false, "ip")?;
    let pod = world.cluster.pod("web-1-5")?;
    Page { address: SERVER_V4.into(), port: 8080, bytes: 500_000 }
        .fetch(&pod.netns, &world.cluster.server)?;
    let file = capture.stop();
    let [outer, remote] = [0, 1].map(|node| world.cluster.nodes[node].addresses()[0].clone());
    let plain = format!("(ip.addr=={SERVER_V4} || ip.addr=={}) && !(ip.addr=={remote})", pod.v4);
    ensure!(Capture::count(&file, 0, &plain)? == 0, "past the overlay");
    let inside = format!("udp && ip.src=={outer} && ip.dst=={remote}");
    ensure!(Capture::count(&file, 0, &inside)? > 0, "nothing for the Egress node");
    Ok(())
}

/// Whether a node's uplink has an address.
fn on(world: &World, node: usize, address: &str) -> Result<bool> {
    let shown = world.cluster.nodes[node].netns.ip(&["-o", "addr", "show", "dev", "eth0"])?;
    Ok(shown.contains(&format!(" {address}/")))
}

/// podwire puts the addresses on the uplink, tells the router when they move, and takes them off again; what was
/// there before stays.
#[test]
fn root_own_addresses_come_move_and_go() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    world.hold(0, &EIGHT[..1])?;
    for (node, other) in [(1, 0), (0, 1)] {
        let fields = format!("{}, egressNode: node-{}, own: true", ips(SEVEN), node + 1);
        world.put(&egress("seven", &fields), "seven")?;
        world.all_come_as(SEVEN).with_context(|| format!("on node-{}", node + 1))?;
        for address in SEVEN {
            // The policy was ready before as well, and pods came as this: each node moves when it has read the file.
            eventually(&format!("{address} is on node-{} alone", node + 1), || {
                Ok(on(&world, node, address)? && !on(&world, other, address)?)
            })?;
        }
        world.all_come_as(SEVEN).with_context(|| format!("moved to node-{}", node + 1))?;
    }
    let fields = format!("{}, egressNode: node-1, own: true", ips(EIGHT));
    world.put(&egress("seven", &fields), "seven")?;
    world.all_come_as(EIGHT)?;
    world.cluster.set_policies("")?;
    world.all_come_as_themselves()?;
    eventually("the addresses are gone", || {
        Ok(!on(&world, 0, SEVEN[0])? && !on(&world, 0, SEVEN[1])? && !on(&world, 0, EIGHT[1])?)
    })?;
    ensure!(on(&world, 0, EIGHT[0])?, "{} was there before", EIGHT[0]);
    Ok(())
}

/// An address moves while its first node still announces it, to one that holds it without podwire: from then on
/// the neighbours hear nothing of the first.
#[test]
fn root_an_address_that_moves_at_once_stays_there() -> Result<()> {
    for _ in 0..5 {
        let mut world = World::new(Wiring::Native)?;
        let folder = world.cluster.nodes[0].scratch.path();
        let capture = Capture::start(&world.cluster.router, "eth0", folder, "arp or icmp6", 0)?;
        world.put(&egress("seven", &format!("{}, egressNode: node-1, own: true", ips(SEVEN))), "seven")?;
        world.all_come_as(SEVEN)?;
        world.hold(1, &SEVEN)?;
        world.put(&seven(), "seven")?;
        for address in SEVEN {
            eventually(&format!("{address} is on node-2 alone"), || {
                Ok(on(&world, 1, address)? && !on(&world, 0, address)?)
            })?;
        }
        let gone = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        std::thread::sleep(Duration::from_millis(3200));
        let file = capture.stop();
        let mut slow = false;
        let arp = format!("arp.isgratuitous == 1 && arp.src.proto_ipv4 == {}", SEVEN[0]);
        for filter in [arp, advertised(SEVEN[1])] {
            let times = Capture::fields(&file, 0, &filter, &["frame.time_epoch"])?;
            let times: Vec<f64> = times.iter().map(|row| Ok(row[0].parse()?)).collect::<Result<_>>()?;
            let first =
                times.first().with_context(|| format!("{filter}: the first node did not announce it"))?;
            ensure!(times.iter().all(|time| *time <= gone), "{filter}: the first node still announces it");
            // After a slow move there was nothing left to hear: it is announced for three seconds.
            slow |= gone - first > 2.9;
        }
        if !slow {
            return world.all_come_as(SEVEN);
        }
    }
    bail!("this machine is too slow: of five addresses none moved within 2.9 s")
}

/// An unsolicited advertisement.
fn advertised(address: &str) -> String {
    format!("icmpv6.nd.na.flag.s == 0 && icmpv6.nd.na.target_address == {address}")
}

/// Rather nothing than another address: the node of the policy is none that is known.
#[test]
fn root_without_an_egress_node_nothing_leaves() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    world.all_come_as_themselves()?;
    world.cluster.set_policies(&egress("seven", &format!("{}, egressNode: node-9", ips(SEVEN))))?;
    for pod in world.cluster.pods() {
        for server in [SERVER_V4, SERVER_V6] {
            let what = format!("{} does not reach {server}", pod.name);
            eventually(&what, || Ok(world.source(pod, server)?.is_none()))?;
        }
    }
    let capture = world.capture(true, "ip or ip6")?;
    for pod in world.cluster.pods() {
        ensure!(pod.netns.ping(SERVER_V4, 5, 56)? == 0, "{}", pod.name);
    }
    let file = capture.stop();
    ensure!(Capture::count(&file, 0, "icmp.type==8")? == 0, "requests reached the server");
    reach::full_mesh(&world.cluster).context("in the cluster all goes on")
}

/// The same where the policy's node has no nftables; with them, it begins by itself.
#[test]
fn root_without_nft_nothing_leaves() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    let node = &world.cluster.nodes[1];
    let (bare, folder) = (node.scratch.path().join("bare"), node.scratch.path().join("programs"));
    std::fs::create_dir(&folder)?;
    let script = format!("#!/bin/sh\nPATH={} exec {} \"$@\"\n", folder.display(), binary().display());
    std::fs::write(&bare, script)?;
    std::fs::set_permissions(&bare, std::fs::Permissions::from_mode(0o755))?;
    world.cluster.kill_agent(1)?;
    world.cluster.start_build(&bare, 1, &[])?;
    agents::in_force(&world.cluster)?;
    world.hold(1, &SEVEN)?;
    world.cluster.set_policies(&seven())?;
    let agent = world.cluster.nodes[1].agent()?;
    eventually("the policy drops", || {
        let Ok(shown) = agents::get(agent, &["egresses", "seven"]) else { return Ok(false) };
        let status = &shown["status"];
        Ok(status["state"] == "Dropping" && status["reason"].to_string().contains("nothing translates"))
    })?;
    let problems = agents::get(agent, &["nodes", "node-2"])?["status"]["networkProblems"].to_string();
    ensure!(problems.contains("install the package nftables"), "{problems}");
    for pod in world.cluster.pods() {
        for server in [SERVER_V4, SERVER_V6] {
            let what = format!("{} does not reach {server}", pod.name);
            eventually(&what, || Ok(world.source(pod, server)?.is_none()))?;
        }
    }
    let nft = world.cluster.nodes[1].netns.run_ok(&["sh", "-c", "command -v nft"])?;
    std::os::unix::fs::symlink(nft.trim(), folder.join("nft"))?;
    world.all_come_as(SEVEN)
}

#[test]
fn root_get_shows_what_an_egress_does() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    world.hold(1, &SEVEN)?;
    world.put(&seven(), "seven")?;
    for node in &world.cluster.nodes {
        let shown = agents::get(node.agent()?, &["egresses", "seven"])?;
        ensure!(shown["kind"] == "Egress" && shown["spec"]["egressIPs"][0] == SEVEN[0], "{shown}");
        ensure!(shown["status"]["inForce"] == true, "{shown}");
        ensure!(shown["status"]["egressNode"] == "node-2", "{shown}");
        let endpoints: Vec<String> = node.pods.iter().map(|pod| format!("default/{}", pod.name)).collect();
        ensure!(shown["status"]["endpoints"] == serde_json::json!(endpoints), "{shown}");
        let table = node.agent()?.cli_ok(&["get", "egresses"])?;
        ensure!(table.contains("seven") && table.contains("node-2"), "{table}");
    }
    Ok(())
}

/// Antrea's own kind: an address of a pool is put on a node that all agents choose alike.
#[test]
fn root_antreas_egress_works() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    let antrea = "apiVersion: crd.antrea.io/v1beta1\nkind: Egress\nmetadata: {name: antrea}\n\
                  spec: {appliedTo: {podSelector: {matchLabels: {app: web}}},\n  \
                  egressIP: 203.0.113.9, externalIPPool: pool}\n";
    world.put(antrea, "antrea")?;
    for pod in world.cluster.pods() {
        world.comes_as(pod, SERVER_V4, "203.0.113.9")?;
    }
    let mut chosen = Vec::new();
    for node in &world.cluster.nodes {
        chosen.push(agents::get(node.agent()?, &["egresses", "antrea"])?["status"]["egressNode"].clone());
    }
    ensure!(chosen[0].is_string() && chosen[0] == chosen[1], "{chosen:?}");
    Ok(())
}

/// Who asks from outside gets the answer from the address that it asked, though what the pod opens by itself leaves
/// by another node.
#[test]
fn root_answers_leave_as_the_questions_came() -> Result<()> {
    for wiring in [Wiring::Native, Wiring::Routed] {
        let mut world = World::new(wiring)?;
        world.hold(1, &SEVEN)?;
        world.put(&seven(), "seven")?;
        world.all_come_as(SEVEN)?;
        for pod in ["web-1-5", "web-2-5"] {
            let pod = world.cluster.pod(pod)?;
            for address in [&pod.v4, &pod.v6] {
                let web = WebServer::start(&pod.netns, address)?;
                for _ in 0..5 {
                    let status =
                        web.get(&world.cluster.server, "/allowed").with_context(|| format!("{wiring:?}"))?;
                    ensure!(status == Some(200), "{address} said {status:?}");
                }
                ensure!(world.cluster.server.ping(address, 3, 56)? == 3, "{address}");
            }
        }
        world.all_come_as(SEVEN).context("afterwards")?;
    }
    Ok(())
}

/// As many addresses as the default mark has numbers for, all in one map of each family; one more is refused by name.
#[test]
fn root_thousands_of_addresses() -> Result<()> {
    const EACH: u32 = 16;
    const NUMBERS: u32 = 4094;
    let mut world = WatchedCluster::new()?;
    let witness = Witness::start(&world.cluster.server, 8081)?;
    let mut policies =
        vec![podwire_datapath::Egress { ips: Vec::new(), ..policy("seven", &SEVEN, "node-1")? }];
    let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from(0x64_40_00_00 + number));
    let count = NUMBERS - SEVEN.len() as u32;
    for first in (0..count).step_by(EACH as usize) {
        let ips = (first..count.min(first + EACH)).map(address).collect();
        let nobody = vec![String::new()];
        let more = policy(&format!("other-{first}"), &[], "node-1")?;
        policies.push(podwire_datapath::Egress { endpoints: nobody, ips, own: false, ..more });
    }
    policies[0].ips = SEVEN.iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
    // The last number is that of the policy under test.
    policies.rotate_left(1);
    world.set_egresses(policies.clone())?;
    let node = &world.cluster.nodes[0];
    let table = node.netns.run_ok(&["nft", "-j", "list", "table", "inet", "podwire"])?;
    let listed = (0..count).filter(|number| table.contains(&format!("\"{}\"", address(*number)))).count();
    ensure!(listed as u32 == count, "{listed} of {count} are mapped");
    for (server, address) in [SERVER_V4, SERVER_V6].into_iter().zip(SEVEN) {
        let seen = witness.sees(&node.pods[0].netns, server)?;
        ensure!(seen == Some(address.parse()?), "{seen:?}");
    }
    let last = policies.last_mut().context("a policy")?;
    last.ips.push("203.0.113.9".parse()?);
    let refused = world.set_egresses(policies).err().context("one address too many was accepted")?;
    ensure!(refused.to_string().contains("4094"), "{refused}");
    let seen = witness.sees(&world.cluster.nodes[0].pods[0].netns, SERVER_V4)?;
    ensure!(seen == Some(SEVEN[0].parse()?), "after a refusal: {seen:?}");
    Ok(())
}
