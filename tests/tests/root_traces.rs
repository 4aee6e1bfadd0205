//! Traces by the library: packets that are injected, and live ones; told by each stage of each node, and not harmed.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_core::abi::Direction;
use podwire_datapath::traceflow::{End, Goal, Request, Transport};
use podwire_datapath::{Filter, Place, TraceOptions};
use podwire_harness::{Capture, Ping, Pod, SERVER_V4, SERVER_V6, Scratch, Tagged, eventually};
use podwire_tests::traced::{ONE, TracedCluster, name, only, spoken};
use podwire_tests::watched::{egress, words};

const SEVEN: [&str; 2] = ["203.0.113.7", "2001:db8:e::7"];

/// One of each protocol.
fn transports() -> [Transport; 5] {
    [
        Transport::Tcp { source: 1000, destination: 7777, flags: 2, sequence: 5 },
        Transport::Udp { source: 1000, destination: 7777 },
        Transport::Sctp { source: 1000, destination: 7777 },
        Transport::Icmp { kind: None, code: 0, id: 7, sequence: 8 },
        Transport::Other { protocol: 99 },
    ]
}

fn address(pod: &Pod, v6: bool) -> String {
    if v6 { pod.v6.clone() } else { pod.v4.clone() }
}

/// A socket of a pod at port 7777 that waits for a moment only.
fn listen(pod: &Pod) -> Result<UdpSocket> {
    let socket = pod.netns.enter(|| UdpSocket::bind("[::]:7777").context("binding"))?;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    Ok(socket)
}

fn hears_nothing(socket: &UdpSocket) -> Result<bool> {
    match socket.recv(&mut [0; 64]) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(true),
        Ok(_) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[test]
fn root_injected_packets_are_told_by_every_stage_and_end_there() -> Result<()> {
    let world = TracedCluster::new()?;
    let sockets = [listen(world.pod(0, 1))?, listen(world.pod(1, 0))?];
    for (v6, transport) in transports().into_iter().flat_map(|each| [(false, each), (true, each)]) {
        let near = world.packet((0, 0), &address(world.pod(0, 1), v6), transport)?;
        let seen = world.trace((0, 0), &near, &[0])?;
        let expected = ["SpoofGuard Forwarded", "Forwarding Delivered"];
        ensure!(spoken(&seen) == [expected], "{transport:?}: {seen:?}");
        ensure!(seen[0][1].endpoint.as_deref() == Some(&name(world.pod(0, 1))), "{seen:?}");

        let far = world.packet((0, 0), &address(world.pod(1, 0), v6), transport)?;
        let seen = world.trace((0, 0), &far, &[0, 1])?;
        let expected = [
            vec!["SpoofGuard Forwarded", "Forwarding Forwarded"],
            vec!["Forwarding Received", "Forwarding Delivered"],
        ];
        ensure!(spoken(&seen) == expected, "{transport:?}: {seen:?}");
        ensure!(seen[1][1].endpoint.as_deref() == Some(&name(world.pod(1, 0))), "{seen:?}");
    }
    for socket in &sockets {
        ensure!(hears_nothing(socket)?, "an injected packet reached an application");
    }
    Ok(())
}

#[test]
fn root_injected_packets_leave_under_egress() -> Result<()> {
    let mut world = TracedCluster::new()?;
    let udp = Transport::Udp { source: 1000, destination: 7777 };
    for server in [SERVER_V4, SERVER_V6] {
        let packet = world.packet((0, 0), server, udp)?;
        let seen = world.trace((0, 0), &packet, &[0])?;
        ensure!(spoken(&seen) == [["SpoofGuard Forwarded", "Forwarding ForwardedOutOfNetwork"]], "{seen:?}");
    }
    world.world.set_egresses(vec![egress("seven", &SEVEN, "node-2")?])?;
    for server in [SERVER_V4, SERVER_V6] {
        let packet = world.packet((1, 0), server, udp)?;
        let marked = ["SpoofGuard Forwarded", "Egress MarkedForSNAT", "Forwarding ForwardedOutOfNetwork"];
        let seen = world.trace((1, 0), &packet, &[1])?;
        ensure!(spoken(&seen) == [marked], "{seen:?}");

        let packet = world.packet((0, 0), server, udp)?;
        let seen = world.trace((0, 0), &packet, &[0, 1])?;
        let expected = [
            ["SpoofGuard Forwarded", "Egress ForwardedToEgressNode", "Forwarding Forwarded"],
            ["Forwarding Received", "Egress MarkedForSNAT", "Forwarding ForwardedOutOfNetwork"],
        ];
        ensure!(spoken(&seen) == expected, "{seen:?}");
    }
    Ok(())
}

#[test]
fn root_an_injected_packet_that_is_refused_says_why() -> Result<()> {
    let world = TracedCluster::new()?;
    let udp = Transport::Udp { source: 1000, destination: 7777 };
    let good = world.packet((0, 0), &world.pod(0, 1).v4, udp)?;
    let mut spoofed = good.clone();
    spoofed.source = "10.99.0.1".parse()?;
    ensure!(spoken(&world.trace((0, 0), &spoofed, &[0])?) == [["SpoofGuard Dropped SpoofedIp"]]);
    let mut spent = good.clone();
    spent.ttl = 1;
    let seen = world.trace((0, 0), &spent, &[0])?;
    ensure!(spoken(&seen) == [["SpoofGuard Forwarded", "Forwarding Dropped TtlExceeded"]], "{seen:?}");
    let mut large = good;
    large.payload = 3000;
    let seen = world.trace((0, 0), &large, &[0])?;
    ensure!(spoken(&seen) == [["SpoofGuard Forwarded", "Forwarding Dropped TooBig"]], "{seen:?}");
    Ok(())
}

/// `deliver`: the application gets the packet, and not its tag.
#[test]
fn root_an_injected_packet_can_be_delivered() -> Result<()> {
    let world = TracedCluster::new()?;
    let scratch = Scratch::new()?;
    let udp = Transport::Udp { source: 1000, destination: 7777 };
    for (v6, (node, number)) in [(0, 1), (1, 0)].into_iter().flat_map(|pod| [(false, pod), (true, pod)]) {
        let pod = world.pod(node, number);
        let socket = listen(pod)?;
        let capture = Capture::start(&pod.netns, "eth0", scratch.path(), "udp port 7777", 0)?;
        let packet = world.packet((0, 0), &address(pod, v6), udp)?;
        let running = world.begin(packet.flow(), TraceOptions::default())?;
        world.inject((0, 0), &packet, running[0].tag())?;
        let mut bytes = [0; 64];
        let len = socket.recv(&mut bytes)?;
        ensure!(bytes[..len] == *b"abcdefghijklmnopqrst", "{:?}", &bytes[..len]);
        let field = if v6 { "ipv6.tclass.dscp" } else { "ip.dsfield.dscp" };
        let file = capture.stop();
        let rows = Capture::fields(&file, 4789, "udp", &[field, "udp.checksum.status"])?;
        ensure!(rows == [["0", "1"]], "{rows:?}");
        drop(running);
    }
    Ok(())
}

fn live(place: Place, filter: Filter) -> Request {
    Request {
        live: vec![(place, filter)],
        capture: 256,
        duration: Duration::from_secs(10),
        ..Request::default()
    }
}

/// Datagrams with a DSCP value of their own, and where they are heard.
fn send(from: &Pod, to: &Pod, v6: bool, port: u16, count: u8) -> Result<()> {
    let flow = Tagged { destination: address(to, v6).parse()?, source_port: port, port: 7777, tag: 46 };
    let socket = flow.open(&from.netns)?;
    for number in 0..count {
        socket.send(&[b'p', number, 0, 0])?;
    }
    Ok(())
}

fn hook(world: &TracedCluster, node: usize, pod: usize, direction: Direction) -> Result<Place> {
    let at = world.world.nodes[node].node.attachment(&name(world.pod(node, pod)))?;
    Ok(Place::Hook { ifindex: at.ifindex, direction })
}

/// The first datagrams that match are told, on both nodes; all arrive in order, with their own DSCP value.
#[test]
fn root_live_packets_are_told_and_not_harmed() -> Result<()> {
    let world = TracedCluster::new()?;
    let scratch = Scratch::new()?;
    let from = world.pod(0, 0);
    // So that checksums are whole, and tshark can tell.
    from.netns.run(&["ethtool", "-K", "eth0", "tx", "off"])?;
    for (v6, (node, number)) in [(0, 1), (1, 0)].into_iter().flat_map(|pod| [(false, pod), (true, pod)]) {
        let to = world.pod(node, number);
        let socket = listen(to)?;
        let capture = Capture::start(&to.netns, "eth0", scratch.path(), "udp port 7777", 0)?;
        let filter =
            Filter { protocol: Some(17), destination_port: Some(7777), v6: Some(v6), ..Filter::default() };
        let goal = Goal { packets: 3, ..ONE };
        let request = Request { count: 3, ..live(hook(&world, 0, 0, Direction::Egress)?, filter) };
        let here = world.begin_on(0, &request)?;
        let elsewhere = Request { tag: Some(here.tag()), ..live(Place::OtherNodes, filter) };
        let there = world.begin_on(1, &elsewhere)?;
        send(from, to, v6, 2000, 10)?;
        for number in 0..10 {
            let mut bytes = [0; 64];
            ensure!(socket.recv(&mut bytes)? == 4 && bytes[1] == number, "order or payload");
        }
        let report = world.finish(here, goal);
        ensure!(report.over && report.lost == 0 && report.captures.len() == 3, "{report:?}");
        ensure!(report.captures.iter().all(|capture| capture.bytes.len() == capture.length as usize));
        let packets = report.story.packets();
        ensure!(packets.len() == 3, "{packets:?}");
        for packet in packets {
            let last = if node == 0 { "Forwarding Delivered" } else { "Forwarding Forwarded" };
            ensure!(words(&packet.observations) == ["SpoofGuard Forwarded", last], "{packet:?}");
        }
        if node == 1 {
            let report = world.finish(there, goal);
            ensure!(report.over, "{report:?}");
            for packet in report.story.packets() {
                let expected = ["Forwarding Received", "Forwarding Delivered"];
                ensure!(words(&packet.observations) == expected, "{packet:?}");
            }
        }
        let field = if v6 { "ipv6.tclass.dscp" } else { "ip.dsfield.dscp" };
        let rows = Capture::fields(&capture.stop(), 4789, "udp", &[field, "udp.checksum.status"])?;
        ensure!(rows.len() == 10 && rows.iter().all(|row| row[0] == "46" && row[1] == "1"), "{rows:?}");
    }
    Ok(())
}

/// The answer to a traced packet is traced as well, over both nodes, and told as an answer.
#[test]
fn root_answers_are_traced_on_request() -> Result<()> {
    let world = TracedCluster::new()?;
    let from = world.pod(0, 0);
    let goal = Goal { replies: true, ..ONE };
    let options = TraceOptions { replies: true, ..TraceOptions::default() };
    for (v6, (node, number)) in [(0, 1), (1, 0)].into_iter().flat_map(|pod| [(false, pod), (true, pod)]) {
        let to = world.pod(node, number);
        let protocol = Some(if v6 { 58 } else { 1 });
        let kind = Some(if v6 { 128 } else { 8 });
        let filter = Filter { protocol, icmp_type: kind, v6: Some(v6), ..Filter::default() };
        let request = Request { options, ..live(hook(&world, 0, 0, Direction::Egress)?, filter) };
        let here = world.begin_on(0, &request)?;
        let request = Request { options, tag: Some(here.tag()), ..live(Place::OtherNodes, filter) };
        let there = world.begin_on(1, &request)?;
        Ping { destination: address(to, v6), count: 3, ..Ping::default() }.run(&from.netns)?;
        let report = world.finish(here, goal);
        ensure!(report.over, "{report:?}");
        let packets = report.story.packets();
        ensure!(packets.len() == 2 && !packets[0].reply && packets[1].reply, "{packets:?}");
        let answer = words(&packets[1].observations);
        if node == 0 {
            ensure!(answer == ["SpoofGuard Forwarded", "Forwarding Delivered"], "{answer:?}");
        } else {
            ensure!(answer == ["Forwarding Received", "Forwarding Delivered"], "{answer:?}");
            let report = world.finish(there, goal);
            let packets = report.story.packets();
            ensure!(packets.len() == 2, "{packets:?}");
            let answer = words(&packets[1].observations);
            ensure!(answer == ["SpoofGuard Forwarded", "Forwarding Forwarded"], "{answer:?}");
        }
    }
    Ok(())
}

/// `droppedOnly`: what passed is not told; of what is dropped, the way up to the drop.
#[test]
fn root_only_drops_are_told_on_request() -> Result<()> {
    let mut world = TracedCluster::new()?;
    world.world.set_egresses(vec![egress("nowhere", &["203.0.113.9"], "node-9")?])?;
    let options = TraceOptions { dropped_only: true, ..TraceOptions::default() };
    let filter = Filter { protocol: Some(17), ..Filter::default() };
    let request =
        Request { options, count: u32::MAX, ..live(hook(&world, 0, 0, Direction::Egress)?, filter) };
    let running = world.begin_on(0, &request)?;
    let (from, near) = (world.pod(0, 0), world.pod(0, 1));
    let socket = listen(near)?;
    send(from, near, false, 2000, 5)?;
    for _ in 0..5 {
        socket.recv(&mut [0; 64])?;
    }
    let out = Tagged { destination: SERVER_V4.parse()?, source_port: 2001, port: 7777, tag: 0 };
    out.open(&from.netns)?.send(b"out")?;
    let report = world.finish(running, Goal { dropped_only: true, ..ONE });
    ensure!(report.over, "{report:?}");
    let packet = only(&report)?;
    let expected = ["SpoofGuard Forwarded", "Egress Dropped NoEgressNode"];
    ensure!(words(&packet.observations) == expected, "{packet:?}");
    ensure!(matches!(packet.end(), Some(End::Dropped(_))));
    Ok(())
}

/// One in three.
#[test]
fn root_samples_are_taken() -> Result<()> {
    let world = TracedCluster::new()?;
    let filter = Filter { protocol: Some(17), ..Filter::default() };
    let request = Request { count: 3, sampling: 3, ..live(hook(&world, 0, 0, Direction::Egress)?, filter) };
    let running = world.begin_on(0, &request)?;
    let _socket = listen(world.pod(0, 1))?;
    send(world.pod(0, 0), world.pod(0, 1), false, 2000, 30)?;
    let report = world.finish(running, Goal { packets: 3, ..ONE });
    let numbers: Vec<u8> =
        report.captures.iter().filter_map(|capture| capture.bytes.iter().rev().nth(2).copied()).collect();
    ensure!(numbers == [0, 3, 6], "{numbers:?}");
    Ok(())
}

/// Where a pod receives, whoever sends.
#[test]
fn root_what_a_pod_receives_can_be_traced() -> Result<()> {
    let world = TracedCluster::new()?;
    let to = world.pod(0, 1);
    let _socket = listen(to)?;
    world.world.nodes[0].node.set_traced(&[&name(to)])?;
    let filter = Filter { protocol: Some(17), ..Filter::default() };
    for sender in [(0, 0), (1, 0)] {
        let request = live(hook(&world, 0, 1, Direction::Ingress)?, filter);
        let running = world.begin_on(0, &request)?;
        send(world.pod(sender.0, sender.1), to, false, 2000, 2)?;
        let report = world.finish(running, ONE);
        ensure!(report.over && report.captures.len() == 1, "{report:?}");
        ensure!(words(&only(&report)?.observations) == ["Forwarding Delivered"], "{report:?}");
    }
    world.world.nodes[0].node.set_traced(&[])?;
    Ok(())
}

/// A trace that is dropped takes no tag to an application, and leaves no rows.
#[test]
fn root_a_trace_that_is_dropped_leaves_nothing() -> Result<()> {
    let world = TracedCluster::new()?;
    let scratch = Scratch::new()?;
    let (from, to) = (world.pod(0, 0), world.pod(0, 1));
    let _socket = listen(to)?;
    let capture = Capture::start(&to.netns, "eth0", scratch.path(), "udp port 7777", 0)?;
    let filter = Filter { protocol: Some(17), ..Filter::default() };
    for round in 0..20 {
        let request = Request { count: u32::MAX, ..live(hook(&world, 0, 0, Direction::Egress)?, filter) };
        let running = world.begin_on(0, &request)?;
        send(from, to, false, 2000 + round, 3)?;
        drop(running);
        send(from, to, false, 2000 + round, 3)?;
    }
    let rows = Capture::fields(&capture.stop(), 4789, "udp", &["ip.dsfield.dscp"])?;
    ensure!(rows.len() == 120 && rows.iter().all(|row| row[0] == "46"), "{} {rows:?}", rows.len());
    ensure!(world.tracers[0].running() == 0);
    eventually("rows are gone", || Ok(world.tracers[0].with_watcher(|watcher| watcher.rows()) == 0))
}
