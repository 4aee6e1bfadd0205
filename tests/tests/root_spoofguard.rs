//! Pods that send in another's name: nothing of it leaves, each packet is counted with its reason, and what is a pod's
//! own to send passes. The tables of frames are in `podwire_tests::spoof`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use podwire_harness::{Capture, Cluster, ClusterOptions, RawSocket, SERVER_V4, SERVER_V6, Wiring};
use podwire_tests::spoof::{self, Attempt, Books, Fate, Frame, Scene, TIMES};
use podwire_tests::{agents, reach};

fn wired(wiring: Wiring) -> ClusterOptions {
    ClusterOptions { wiring, ..ClusterOptions::default() }
}

/// The first pod, which has found the MAC address that it sends to.
fn scene<'a>(cluster: &'a Cluster, destination: [&'a str; 2]) -> Result<Scene<'a>> {
    let [(own, neighbour), _] = reach::near_and_far(cluster)?;
    let gateway = reach::node_of(cluster, own)?.gateway(own, false)?;
    own.netns.ping(&neighbour.v4, 1, 56)?;
    own.netns.ping(SERVER_V4, 1, 56)?;
    let near = destination[0] == neighbour.v4;
    let to = match cluster.options().wiring {
        Wiring::Bridge if near => neighbour.mac.clone(),
        _ => reach::neighbour(own, &gateway)?,
    };
    Ok(Scene { own, neighbour, to, gateway, destination })
}

/// Captures wherever a frame of the first pod could come out.
fn captures(cluster: &Cluster) -> Result<Vec<Capture>> {
    let [(_, near), (_, far)] = reach::near_and_far(cluster)?;
    let folder = cluster.nodes[0].scratch.path();
    let places =
        [(&near.netns, "eth0"), (&far.netns, "eth0"), (&cluster.switch, "node-1"), (&cluster.server, "eth0")];
    places.into_iter().map(|(netns, device)| Capture::start(netns, device, folder, "", 0)).collect()
}

/// How often each frame stands in all captures together.
fn seen(files: &[PathBuf], frames: &[Frame]) -> Result<Vec<u64>> {
    let mut all = vec![0; frames.len()];
    for file in files {
        for (sum, count) in all.iter_mut().zip(spoof::seen(file, frames)?) {
            *sum += count;
        }
    }
    Ok(all)
}

/// Sends a table and returns the rows that did not go as they should.
fn faults(cluster: &Cluster, scene: &Scene<'_>, table: &[Attempt]) -> Result<Vec<String>> {
    let agent = reach::node_of(cluster, scene.own)?.agent()?;
    let frames = spoof::frames(scene, table)?;
    let captures = captures(cluster)?;
    let mut books = Books::open(agent, scene.own, "dropped")?;
    let mut faults = Vec::new();
    for (Attempt { name, fate, .. }, frame) in table.iter().zip(&frames) {
        let expected = if fate.is_dropped() { TIMES } else { 0 };
        let counted = books.send(frame, expected)?;
        if !spoof::agrees(*fate, &counted) {
            faults.push(format!("{name}: counted {counted:?}, not {fate:?}"));
        }
    }
    let files: Vec<PathBuf> = captures.into_iter().map(Capture::stop).collect();
    let wrong = |fate: Fate, count: u64| match fate {
        Fate::Dropped(_) | Fate::DroppedAnyhow => count > 0,
        Fate::Passes => false,
        Fate::Arrives => count < TIMES,
    };
    for (name, count) in spoof::rows(table, &seen(&files, &frames)?, wrong) {
        faults.push(format!("{name}: seen {count} times"));
    }
    Ok(faults)
}

fn no_faults(cluster: &Cluster, table: &[Attempt]) -> Result<()> {
    let [(_, near), (_, far)] = reach::near_and_far(cluster)?;
    for destination in [[&*near.v4, &near.v6], [&far.v4, &far.v6], [SERVER_V4, SERVER_V6]] {
        let faults = faults(cluster, &scene(cluster, destination)?, table)?;
        ensure!(faults.is_empty(), "to {destination:?}:\n{}", faults.join("\n"));
    }
    agents::books(cluster)
}

/// A bridge that carries whatever comes: it believes no stolen MAC address, and does not look into IP headers.
fn credulous_bridge(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes[0];
    for pod in &node.pods {
        let entry =
            ["bridge", "fdb", "replace", &pod.mac, "dev", &pod.interface, "master", "static", "sticky"];
        node.netns.run_ok(&entry)?;
    }
    for knob in ["iptables", "ip6tables"] {
        // It may not be built in, and then nobody looks.
        node.netns.run(&["sysctl", "-qw", &format!("net.bridge.bridge-nf-call-{knob}=0")])?;
    }
    Ok(())
}

/// The tables, the sender and the captures are right: without podwire every frame reaches the node, and a bridge
/// carries nearly all of them to the neighbour.
#[test]
fn root_without_a_guard_everything_passes() -> Result<()> {
    let cluster = Cluster::new(wired(Wiring::Bridge))?;
    credulous_bridge(&cluster)?;
    let [(own, near), _] = reach::near_and_far(&cluster)?;
    let scene = scene(&cluster, [&near.v4, &near.v6])?;
    let folder = cluster.nodes[0].scratch.path();
    for table in [spoof::forbidden()?, spoof::legal()?, spoof::allowed_addresses()?] {
        let frames = spoof::frames(&scene, &table)?;
        let node = Capture::start(&cluster.nodes[0].netns, &own.interface, folder, "", 0)?;
        let neighbour = Capture::start(&near.netns, "eth0", folder, "", 0)?;
        let socket = RawSocket::open(&own.netns, "eth0")?;
        frames.iter().try_for_each(|frame| spoof::send(&socket, frame))?;
        let missing = spoof::rows(&table, &spoof::seen(&node.stop(), &frames)?, |_, count| count < TIMES);
        ensure!(missing.is_empty(), "did not reach the node: {missing:?}");
        let lost = spoof::rows(&table, &spoof::seen(&neighbour.stop(), &frames)?, |_, count| count < TIMES);
        // A bridge keeps what is for bridges alone, and what has no station's source address.
        ensure!(lost.len() * 10 <= table.len(), "did not reach the neighbour: {lost:?}");
    }
    Ok(())
}

/// Nothing in another's name leaves, and all of the pod's own does.
fn guarded(wiring: Wiring) -> Result<()> {
    let cluster = agents::cluster(wired(wiring))?;
    no_faults(&cluster, &spoof::forbidden()?)?;
    // Whom all this was for still has the right neighbours.
    reach::full_mesh(&cluster)?;
    no_faults(&cluster, &spoof::legal()?)
}

#[test]
fn root_a_guard_where_podwire_forwards() -> Result<()> {
    guarded(Wiring::Native)
}

#[test]
fn root_a_guard_beside_a_bridge() -> Result<()> {
    guarded(Wiring::Bridge)
}

#[test]
fn root_a_guard_beside_routes() -> Result<()> {
    guarded(Wiring::Routed)
}

#[test]
fn root_allowed_addresses_pass_and_no_others() -> Result<()> {
    let table = spoof::allowed_addresses()?;
    let mut cluster = agents::cluster(wired(Wiring::Native))?;
    let name = cluster.nodes[0].pods[0].name.clone();
    cluster.about(&name)?.allowed = spoof::ALLOWED.map(str::to_owned).to_vec();
    cluster.write_objects()?;
    let node = &cluster.nodes[0];
    podwire_harness::eventually("the addresses are in force", || {
        let scene = scene(&cluster, [&node.pods[1].v4, &node.pods[1].v6])?;
        let frames = spoof::frames(&scene, &table[..1])?;
        Ok(Books::open(node.agent()?, scene.own, "dropped")?.send(&frames[0], 0)?.is_empty())
    })?;
    no_faults(&cluster, &table)
}

/// What would be dropped is counted, and passes as if there were no guard; with the guard off nobody counts.
fn lenient(guard: &'static str) -> Result<()> {
    let table = spoof::forbidden()?;
    let mut cluster = Cluster::new(wired(Wiring::Bridge))?;
    cluster.forward()?;
    credulous_bridge(&cluster)?;
    let name = cluster.nodes[0].pods[0].name.clone();
    cluster.about(&name)?.guard = guard;
    cluster.start()?;
    agents::in_force(&cluster)?;
    let node = &cluster.nodes[0];
    let scene = scene(&cluster, [&node.pods[1].v4, &node.pods[1].v6])?;
    let frames = spoof::frames(&scene, &table)?;
    let capture = Capture::start(&node.pods[1].netns, "eth0", node.scratch.path(), "", 0)?;
    let agent = node.agent()?;
    let before = spoof::counted(agent, scene.own, "dropped")?;
    let mut books = Books::open(agent, scene.own, "observed")?;
    for (Attempt { name, fate, .. }, frame) in table.iter().zip(&frames) {
        let (fate, expected) = if guard == "Off" { (Fate::Passes, 0) } else { (*fate, TIMES) };
        let counted = books.send(frame, expected)?;
        ensure!(spoof::agrees(fate, &counted), "{name}: {counted:?}, not {fate:?}");
    }
    ensure!(spoof::counted(agent, scene.own, "dropped")? == before, "dropped all the same");
    let counts = spoof::seen(&capture.stop(), &frames)?;
    let lost = spoof::rows(&table, &counts, |_, count| count < TIMES);
    ensure!(lost.len() * 10 <= table.len(), "did not pass: {lost:?}");
    Ok(())
}

#[test]
fn root_a_guard_that_only_observes() -> Result<()> {
    lenient("Observe")
}

#[test]
fn root_a_guard_that_is_off() -> Result<()> {
    lenient("Off")
}
