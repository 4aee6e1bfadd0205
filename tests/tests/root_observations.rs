//! What stages say of traced packets and of drops: words, names, order; and that none is lost without a count.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwire_core::abi::{Action, Component, Reason};
use podwire_datapath::{Desired, Hook, Observation, Stream, Trace, WatchOptions};
use podwire_harness::{
    ClusterOptions, Pod, RawSocket, SERVER_V4, SERVER_V6, Scratch, Tagged, Topology, TopologyOptions,
    eventually,
};
use podwire_tests::agents;
use podwire_tests::node::Node;
use podwire_tests::watched::{Watched, WatchedCluster, egress, guarded, story, trace, words};
use podwire_tests::wish::{device, mirror, redirect};

const TAG: u8 = 21;
const DELIVERED: (Component, Action) = (Component::Forwarding, Action::Delivered);
const OUT: (Component, Action) = (Component::Forwarding, Action::ForwardedOutOfNetwork);
const SEVEN: [&str; 2] = ["203.0.113.7", "2001:db8:e::7"];

fn to(destination: &str, source_port: u16) -> Result<Tagged> {
    Ok(Tagged { destination: destination.parse()?, source_port, port: 7777, tag: TAG })
}

/// Sends one traced datagram; the trace has the source port for its number.
fn send(watched: &mut [Watched], pod: &Pod, sent: &Tagged) -> Result<Trace> {
    let trace = trace(sent.source_port.into(), pod, sent)?;
    for watched in watched {
        watched.watch.watcher.trace(&trace)?;
    }
    sent.open(&pod.netns)?.send(&[0; 32])?;
    Ok(trace)
}

/// Everything that can be known of a packet is right at each stage.
fn is_of(seen: &[Observation], trace: &Trace) -> Result<()> {
    let mut last = 0;
    for seen in seen {
        let flow = &trace.flow;
        ensure!(seen.trace == Some(trace.number) && seen.tag == trace.tag, "{seen:?}");
        ensure!(seen.source == Some(flow.source) && seen.destination == Some(flow.destination), "{seen:?}");
        ensure!(seen.protocol == 17 && seen.source_port == flow.source_port, "{seen:?}");
        ensure!(seen.destination_port == flow.destination_port, "{seen:?}");
        ensure!(seen.time_ns >= last && seen.lost_before == 0, "{seen:?}");
        last = seen.time_ns;
    }
    Ok(())
}

fn mac(pod: &Pod) -> Result<[u8; 6]> {
    guarded(pod)?.mac.context("a MAC address")
}

#[test]
fn root_a_packet_is_seen_by_each_stage_of_both_nodes() -> Result<()> {
    let mut world = WatchedCluster::new()?;
    let [here, there] = &world.cluster.nodes[..] else { unreachable!("two nodes") };
    let (from, near, far) = (&here.pods[0], &here.pods[1], &there.pods[0]);
    for (v6, port) in [(false, 1000), (true, 1001)] {
        let address = |pod: &Pod| if v6 { pod.v6.clone() } else { pod.v4.clone() };
        let sent = to(&address(near), port)?;
        let trace = send(&mut world.nodes, from, &sent)?;
        let seen = story(&world.nodes[0].watch.traces, DELIVERED)?;
        ensure!(words(&seen) == ["SpoofGuard Forwarded", "Forwarding Delivered"], "{seen:?}");
        is_of(&seen, &trace)?;
        ensure!(seen[0].endpoint.as_deref() == Some(&format!("default/{}", from.name)), "{seen:?}");
        ensure!(seen[1].endpoint.as_deref() == Some(&format!("default/{}", near.name)), "{seen:?}");
        ensure!(seen[1].destination_mac == mac(near)? && seen[1].ttl == 63, "{seen:?}");

        let sent = to(&address(far), port + 2)?;
        let trace = send(&mut world.nodes, from, &sent)?;
        let sender = (Component::Forwarding, Action::Forwarded);
        let seen = story(&world.nodes[0].watch.traces, sender)?;
        ensure!(words(&seen) == ["SpoofGuard Forwarded", "Forwarding Forwarded"], "{seen:?}");
        is_of(&seen, &trace)?;
        ensure!(seen[1].tunnel_destination == Some(there.addresses()[0].parse()?), "{seen:?}");
        let seen = story(&world.nodes[1].watch.traces, DELIVERED)?;
        ensure!(words(&seen) == ["Forwarding Received", "Forwarding Delivered"], "{seen:?}");
        is_of(&seen, &trace)?;
        ensure!(seen[1].endpoint.as_deref() == Some(&format!("default/{}", far.name)), "{seen:?}");
        ensure!(seen[1].destination_mac == mac(far)? && seen[1].ttl == 62, "{seen:?}");
    }
    Ok(())
}

#[test]
fn root_a_packet_under_egress_is_seen_with_its_address() -> Result<()> {
    let mut world = WatchedCluster::new()?;
    world.set_egresses(vec![egress("seven", &SEVEN, "node-2")?])?;
    let (away, at_home) = (&world.cluster.nodes[0].pods[0], &world.cluster.nodes[1].pods[0]);
    for ((server, address), port) in [SERVER_V4, SERVER_V6].into_iter().zip(SEVEN).zip([1000, 1001]) {
        let address: Option<IpAddr> = Some(address.parse()?);
        let of_policy =
            |seen: &Observation| seen.policy.as_deref() == Some("seven") && seen.egress_ip == address;

        let trace = send(&mut world.nodes, at_home, &to(server, port)?)?;
        let seen = story(&world.nodes[1].watch.traces, OUT)?;
        let marked = ["SpoofGuard Forwarded", "Egress MarkedForSNAT", "Forwarding ForwardedOutOfNetwork"];
        ensure!(words(&seen) == marked, "{seen:?}");
        is_of(&seen, &trace)?;
        ensure!(of_policy(&seen[1]) && seen[1].egress_node.is_none(), "{seen:?}");

        let trace = send(&mut world.nodes, away, &to(server, port + 2)?)?;
        let seen = story(&world.nodes[0].watch.traces, (Component::Forwarding, Action::Forwarded))?;
        let forwarded = ["SpoofGuard Forwarded", "Egress ForwardedToEgressNode", "Forwarding Forwarded"];
        ensure!(words(&seen) == forwarded, "{seen:?}");
        is_of(&seen, &trace)?;
        ensure!(of_policy(&seen[1]) && seen[1].egress_node.as_deref() == Some("node-2"), "{seen:?}");
        let seen = story(&world.nodes[1].watch.traces, OUT)?;
        let marked = ["Forwarding Received", "Egress MarkedForSNAT", "Forwarding ForwardedOutOfNetwork"];
        ensure!(words(&seen) == marked, "{seen:?}");
        is_of(&seen, &trace)?;
        ensure!(of_policy(&seen[1]), "{seen:?}");
    }
    Ok(())
}

/// Routes between two pods, one of them under a mirror and a redirect through a wire that gives everything back.
fn through_a_tool(scene: &Topology) -> Result<Desired> {
    let out = scene.local_device("tool0", 1500)?;
    scene.local_device("copy0", 1500)?;
    let pod = &scene.pods[0];
    let endpoints = scene.pods.iter().map(guarded).collect::<Result<_>>()?;
    let mirrors = vec![mirror("copied", pod, device("copy0"))];
    let redirects = vec![redirect("inspected", pod, device("tool0"), device(&out))];
    Ok(Desired { endpoints, mirrors, redirects, ..Desired::default() })
}

#[test]
fn root_a_mirrored_and_redirected_packet_is_seen_throughout() -> Result<()> {
    let scene = Topology::with(TopologyOptions::default())?;
    let scratch = Scratch::new()?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    node.apply(&through_a_tool(&scene)?)?;
    let watch = node.watch(WatchOptions::default())?;
    let mut watched = [Watched { node, watch }];
    let [from, to_pod] = &scene.pods[..] else { unreachable!("two pods") };
    let away = (Component::TrafficControl, Action::Returned);
    for (destination, port) in [(&to_pod.v4, 1000), (&to_pod.v6, 1001)] {
        let trace = send(&mut watched, from, &to(destination, port)?)?;
        let seen = story(&watched[0].watch.traces, away)?;
        let all = [
            "TrafficControl Mirrored",
            "SpoofGuard Forwarded",
            "TrafficControl Redirected",
            "TrafficControl Returned",
        ];
        ensure!(words(&seen) == all, "{seen:?}");
        is_of(&seen, &trace)?;
        let policies: Vec<_> = seen.iter().map(|seen| seen.policy.as_deref()).collect();
        ensure!(policies == [Some("copied"), None, Some("inspected"), Some("inspected")], "{seen:?}");

        let back = to(if port == 1000 { &from.v4 } else { &from.v6 }, port)?;
        let trace = send(&mut watched, to_pod, &back)?;
        let seen = story(&watched[0].watch.traces, DELIVERED)?;
        let all = [
            "SpoofGuard Forwarded",
            "TrafficControl Redirected",
            "TrafficControl Returned",
            "TrafficControl Mirrored",
            "Forwarding Delivered",
        ];
        ensure!(words(&seen) == all, "{seen:?}");
        is_of(&seen, &trace)?;
    }
    Ok(())
}

/// A flow that the pod may not send: traced, or seen among the drops.
#[test]
fn root_a_drop_is_seen_with_its_reason() -> Result<()> {
    let mut world = WatchedCluster::new()?;
    let (from, near) = (&world.cluster.nodes[0].pods[0], &world.cluster.nodes[0].pods[1]);
    // The gateway is known before: asking for it with a foreign address would be dropped as well.
    ensure!(from.netns.ping(&near.v4, 1, 56)? == 1);
    // An address that the guard does not know.
    from.netns.ip(&["addr", "add", "10.10.9.9/32", "dev", "eth0"])?;
    from.netns.ip(&[
        "route",
        "replace",
        &format!("{}/32", near.v4),
        "via",
        "169.254.1.1",
        "dev",
        "eth0",
        "onlink",
        "src",
        "10.10.9.9",
    ])?;
    let sent = to(&near.v4, 1000)?;
    let mut forged = trace(1, from, &sent)?;
    forged.flow.source = "10.10.9.9".parse()?;
    world.nodes[0].watch.watcher.trace(&forged)?;
    let socket = sent.open(&from.netns)?;
    socket.send(&[0; 32])?;
    let seen = story(&world.nodes[0].watch.traces, (Component::SpoofGuard, Action::Dropped))?;
    ensure!(words(&seen) == ["SpoofGuard Dropped SpoofedIp"], "{seen:?}");
    is_of(&seen, &forged)?;

    // Not traced any more, and nobody wants drops: nothing is told.
    let watch = &mut world.nodes[0].watch;
    watch.watcher.untrace(&forged)?;
    socket.send(&[0; 32])?;
    ensure!(watch.traces.next(Duration::from_millis(100)).is_none());
    ensure!(watch.drops.account()?.generated == 0 && watch.traces.account()?.generated == 1);

    watch.watcher.watch_drops(Some(100))?;
    socket.send(&[0; 32])?;
    let seen = watch.drops.next(Duration::from_secs(5)).context("no drop was seen")?;
    ensure!(seen.trace.is_none() && seen.reason == Some(Reason::SpoofedIp), "{seen:?}");
    ensure!(seen.source == Some(forged.flow.source), "{seen:?}");

    // A time to live that ends here.
    let spent = to(&near.v4, 1001)?;
    from.netns.ip(&[
        "route",
        "replace",
        &format!("{}/32", near.v4),
        "via",
        "169.254.1.1",
        "dev",
        "eth0",
        "onlink",
    ])?;
    let trace = trace(2, from, &spent)?;
    watch.watcher.trace(&trace)?;
    let socket = spent.open(&from.netns)?;
    socket.set_ttl(1)?;
    let _ = socket.send(&[0; 32]);
    let seen = story(&watch.traces, (Component::Forwarding, Action::Dropped))?;
    ensure!(words(&seen) == ["SpoofGuard Forwarded", "Forwarding Dropped TtlExceeded"], "{seen:?}");
    Ok(())
}

/// Sends as fast as the socket takes it.
fn flood(from: &Pod, sent: &Tagged, packets: u64) -> Result<()> {
    let socket = sent.open(&from.netns)?;
    for _ in 0..packets {
        // Nobody listens at the far end: each time that the socket hears of it, it sends nothing.
        while socket.send(&[0; 32]).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {}
    }
    Ok(())
}

fn take_all(stream: &Stream) -> Vec<Observation> {
    std::iter::from_fn(|| stream.next(Duration::from_millis(500))).collect()
}

/// Numbers of each CPU rise, and each gap is the number of those that were lost there.
fn gaps(seen: &[Observation], cpu: u32) -> Result<u64> {
    let mut gaps = 0;
    let mut last: Option<&Observation> = None;
    for seen in seen.iter().filter(|seen| seen.cpu == cpu) {
        if let Some(last) = last {
            ensure!(seen.sequence > last.sequence, "{last:?}, then {seen:?}");
            gaps += seen.sequence - last.sequence - 1;
        }
        last = Some(seen);
    }
    Ok(gaps)
}

/// A reader that is not read overflows: what was delivered and what was counted as lost is all there was.
#[test]
fn root_what_does_not_fit_is_counted() -> Result<()> {
    const PACKETS: u64 = 40_000;
    let world = WatchedCluster::new()?;
    let Watched { node, .. } = &world.nodes[0];
    let mut watch = node.watch(WatchOptions { queue: 256 })?;
    let (from, near) = (&world.cluster.nodes[0].pods[0], &world.cluster.nodes[0].pods[1]);
    let sent = to(&near.v4, 1000)?;
    watch.watcher.trace(&trace(1, from, &sent)?)?;
    flood(from, &sent, PACKETS)?;
    eventually("the reader is done", || Ok(watch.traces.account()?.is_balanced()))?;
    let before = watch.traces.account()?;
    ensure!(before.generated == 2 * PACKETS, "two stages each: {before:?}");
    ensure!(before.waiting == 256 && before.delivered == 0, "{before:?}");
    ensure!(before.queue_full + before.ring_full == 2 * PACKETS - 256, "{before:?}");
    let seen = take_all(&watch.traces);
    let after = watch.traces.account()?;
    ensure!(seen.len() == 256 && after.is_balanced(), "{after:?}");
    ensure!(after.delivered == 256 && after.waiting == 0, "{after:?}");
    // With room again, nothing more is lost.
    flood(from, &sent, 100)?;
    let more = take_all(&watch.traces);
    let end = watch.traces.account()?;
    ensure!(more.len() == 200 && end.lost() == after.lost() && end.is_balanced(), "{end:?}");
    let all = [seen, more].concat();
    let lost = (0..64).map(|cpu| gaps(&all, cpu)).sum::<Result<u64>>()?;
    ensure!(lost <= end.lost(), "{lost} are missing between those seen, {end:?}");
    Ok(())
}

/// Floods of drops and of foreign packets with the same DSCP take nothing from traces.
#[test]
fn root_a_flood_takes_nothing_from_a_trace() -> Result<()> {
    const TRACES: u16 = 500;
    let mut world = WatchedCluster::new()?;
    let (from, near) = (&world.cluster.nodes[0].pods[0], &world.cluster.nodes[0].pods[1]);
    let watch = &mut world.nodes[0].watch;
    watch.watcher.watch_drops(Some(1_000_000))?;
    for port in 0..TRACES {
        watch.watcher.trace(&trace(u32::from(port) + 1, from, &to(&near.v4, 10_000 + port)?)?)?;
    }
    let end = Instant::now() + Duration::from_secs(4);
    let raw = RawSocket::open(&from.netns, "eth0")?;
    // The pod's address, another MAC: dropped by the guard.
    let mut forged = [0xff; 60];
    forged[6..14].copy_from_slice(&[2, 9, 9, 9, 9, 9, 8, 0]);
    std::thread::scope(|scope| -> Result<()> {
        let drops = scope.spawn(|| {
            let mut sent = 0u64;
            while Instant::now() < end {
                sent += u64::from(raw.send(&forged).is_ok());
            }
            sent
        });
        let foreign = scope.spawn(|| -> Result<()> {
            while Instant::now() < end {
                flood(from, &to(&near.v4, 999)?, 1000)?;
            }
            Ok(())
        });
        for port in 0..TRACES {
            flood(from, &to(&near.v4, 10_000 + port)?, 1)?;
        }
        foreign.join().map_err(|_| anyhow::anyhow!("the flood panicked"))??;
        let sent = drops.join().map_err(|_| anyhow::anyhow!("the flood panicked"))?;
        let seen = take_all(&watch.traces);
        let traces = watch.traces.account()?;
        ensure!(traces.lost() == 0 && traces.is_balanced(), "{traces:?}");
        for number in 1..=u32::from(TRACES) {
            let of_trace: Vec<_> = seen.iter().filter(|seen| seen.trace == Some(number)).cloned().collect();
            let whole = ["SpoofGuard Forwarded", "Forwarding Delivered"];
            ensure!(words(&of_trace) == whole, "{number}: {of_trace:?}");
        }
        ensure!(seen.len() == 2 * usize::from(TRACES), "{} observations", seen.len());
        let dropped = take_all(&watch.drops);
        let drops = watch.drops.account()?;
        ensure!(drops.generated >= sent && drops.is_balanced(), "{sent} sent, {drops:?}");
        ensure!(dropped.len() as u64 == drops.delivered && drops.lost() > 0, "the flood was none: {drops:?}");
        Ok(())
    })
}

/// More drops than are wanted are counted, not told; a trace ends by itself.
#[test]
fn root_rates_and_deadlines_are_kept() -> Result<()> {
    let mut world = WatchedCluster::new()?;
    let (from, near) = (&world.cluster.nodes[0].pods[0], &world.cluster.nodes[0].pods[1]);
    let watch = &mut world.nodes[0].watch;
    watch.watcher.watch_drops(Some(100))?;
    let raw = RawSocket::open(&from.netns, "eth0")?;
    let mut forged = [0xff; 60];
    forged[6..14].copy_from_slice(&[2, 9, 9, 9, 9, 9, 8, 0]);
    let start = Instant::now();
    for _ in 0..2000 {
        raw.send(&forged)?;
    }
    let windows = start.elapsed().as_millis() as u64 / 100 + 2;
    eventually("the reader is done", || Ok(watch.drops.account()?.is_balanced()))?;
    let drops = watch.drops.account()?;
    ensure!(drops.generated == 2000 && drops.ring_full + drops.queue_full == 0, "{drops:?}");
    let told = drops.waiting + drops.delivered;
    let cpus = std::thread::available_parallelism()?.get() as u64;
    ensure!(told >= 10 && told <= 10 * windows * cpus, "{told} in {windows} windows: {drops:?}");

    let sent = to(&near.v4, 1000)?;
    let short = Trace { duration: Duration::from_millis(300), ..trace(1, from, &sent)? };
    watch.watcher.trace(&short)?;
    let socket = sent.open(&from.netns)?;
    socket.send(&[0; 32])?;
    story(&watch.traces, DELIVERED)?;
    std::thread::sleep(Duration::from_millis(300));
    let _ = socket.send(&[0; 32]);
    ensure!(watch.traces.next(Duration::from_millis(300)).is_none(), "a trace outlived its deadline");
    ensure!(watch.watcher.traces() == 0);
    Ok(())
}

/// A second watcher ends what the first one began, and begins at zero.
#[test]
fn root_a_new_watcher_begins_anew() -> Result<()> {
    let mut world = WatchedCluster::new()?;
    let (from, near) = (&world.cluster.nodes[0].pods[0], &world.cluster.nodes[0].pods[1]);
    let sent = to(&near.v4, 1000)?;
    let Watched { node, watch } = &mut world.nodes[0];
    let old = trace(1, from, &sent)?;
    watch.watcher.trace(&old)?;
    flood(from, &sent, 10)?;
    let mut watch = node.watch(WatchOptions::default())?;
    flood(from, &sent, 10)?;
    ensure!(watch.traces.next(Duration::from_millis(300)).is_none(), "an earlier watcher's trace goes on");
    watch.watcher.trace(&Trace { number: 2, ..old })?;
    flood(from, &sent, 10)?;
    let seen = take_all(&watch.traces);
    ensure!(seen.len() == 20 && seen.iter().all(|seen| seen.trace == Some(2)), "{seen:?}");
    ensure!(watch.traces.account()?.is_balanced(), "{:?}", watch.traces.account()?);
    Ok(())
}

/// What `podwire observe` shows of a drop, then and later, and what the node says of its observations.
#[test]
fn root_the_command_shows_drops() -> Result<()> {
    let mut cluster = agents::cluster(ClusterOptions { nodes: 1, ..ClusterOptions::default() })?;
    let name = cluster.nodes[0].pods[0].name.clone();
    cluster.about(&name)?.guard = "Enforce";
    cluster.write_objects()?;
    let agent = cluster.nodes[0].agent()?;
    eventually("the guard is on", || {
        let shown = agents::get(agent, &["endpoints", &name])?;
        Ok(shown["status"]["guard"]["mode"] == "Enforce")
    })?;
    let raw = RawSocket::open(&cluster.nodes[0].pods[0].netns, "eth0")?;
    let mut follower = agent.spawn(&["observe", "--follow", "--reason", "spoofedmac", "-o", "json"])?;
    let mut forged = [0xff; 60];
    forged[6..14].copy_from_slice(&[2, 9, 9, 9, 9, 9, 8, 0]);
    for _ in 0..3 {
        raw.send(&forged)?;
    }
    let output = follower.stdout.take().context("no output")?;
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(output));
    for _ in 0..3 {
        let line = lines.next().context("the feed ended")??;
        let seen: serde_json::Value = serde_json::from_str(&line)?;
        ensure!(seen["component"] == "SpoofGuard" && seen["action"] == "Dropped", "{seen}");
        ensure!(seen["reason"] == "SpoofedMac" && seen["node"] == "node-1", "{seen}");
        ensure!(seen["pod"] == format!("default/{name}") && seen["length"] == 60, "{seen}");
    }
    follower.kill()?;
    follower.wait()?;
    let table = agent.cli_ok(&["observe", "--pod", &name])?;
    ensure!(table.matches("SpoofedMac").count() == 3 && table.starts_with("TIME"), "{table}");
    ensure!(agent.cli_ok(&["observe", "--component", "egress", "-o", "json"])?.is_empty());
    eventually("the account is up to date", || {
        let shown = agents::get(agent, &["nodes", "node-1"])?;
        let drops = &shown["status"]["observations"]["drops"];
        let generated = drops["generated"].as_u64().context("no account")?;
        Ok(generated >= 3 && drops["delivered"] == generated)
    })
}

/// A watch that begins ends the one before: a ring has one reader, and nothing hangs on the other.
#[test]
fn root_a_later_watch_takes_over() -> Result<()> {
    let world = WatchedCluster::new()?;
    let Watched { node, watch: first } = &world.nodes[0];
    let (from, near) = (&world.cluster.nodes[0].pods[0], &world.cluster.nodes[0].pods[1]);
    let sent = to(&near.v4, 1000)?;
    for number in 1..=20 {
        let mut watch = node.watch(WatchOptions::default())?;
        watch.watcher.trace(&trace(number, from, &sent)?)?;
        flood(from, &sent, 2000)?;
        ensure!(watch.captures.next().is_none());
        eventually("all is told", || Ok(watch.traces.account()?.waiting == 4000))?;
        ensure!(take_all(&watch.traces).len() == 4000 && watch.traces.account()?.is_balanced());
    }
    ensure!(first.traces.next(Duration::from_millis(100)).is_none(), "the first is told nothing");
    Ok(())
}
