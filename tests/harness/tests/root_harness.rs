//! The harness itself: a scene that carries traffic, counters and captures that tell the truth, and nothing left.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use anyhow::Result;
use podwire_harness::{
    COLLECTOR_V4, COLLECTOR_V6, Capture, Iperf, KernelLog, NetNs, Page, Ping, PingReport, RawSocket, Scratch,
    Topology, TopologyOptions, UdpStream, run_ok,
};

#[test]
fn root_pods_reach_each_other_and_the_collector_through_the_node() -> Result<()> {
    let scene = Topology::new()?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    // Whatever else the kernel says on a fresh link is over before the packets are counted.
    for address in [&second.v4, &second.v6] {
        assert_eq!(first.netns.ping(address, 1, 56)?, 1, "{address}");
    }
    let before = scene.node.counter(&first.interface, "rx", "packets")?;
    for address in [&second.v4, &second.v6] {
        assert_eq!(first.netns.ping(address, 20, 1000)?, 20, "{address}");
    }
    let received = scene.node.counter(&first.interface, "rx", "packets")? - before;
    assert!((40..60).contains(&received), "40 requests, {received} packets");
    for address in [COLLECTOR_V4, COLLECTOR_V6] {
        assert_eq!(scene.node.ping(address, 3, 56)?, 3, "{address}");
    }
    assert_eq!(first.netns.ping("10.10.1.200", 1, 56)?, 0, "nobody has this address");
    Ok(())
}

#[test]
fn root_bridged_pods_are_neighbours_and_the_bridge_is_their_gateway() -> Result<()> {
    let scene = Topology::with(TopologyOptions { bridge: true, ..Default::default() })?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    for address in [&second.v4, &second.v6] {
        assert_eq!(first.netns.ping(address, 5, 56)?, 5, "{address}");
        // A neighbour's own MAC address: nobody routed in between.
        let entry = first.netns.ip(&["neigh", "show", address, "dev", "eth0"])?;
        assert!(entry.contains(&second.mac), "{address}: {entry}");
    }
    assert_eq!(first.netns.ping("192.0.2.1", 2, 56)?, 2, "the node beyond the gateway");
    Ok(())
}

/// The longest frame a capture in front of the second pod has of a page that the first one fetches there.
fn longest_segment(scene: &Topology, scratch: &Scratch) -> Result<u64> {
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let capture = Capture::start(&scene.node, &second.interface, scratch.path(), "tcp", 128)?;
    Page { address: second.v4.clone(), port: 8080, bytes: 2_000_000 }.fetch(&first.netns, &second.netns)?;
    let rows = Capture::fields(&capture.stop(), 1111, "", &["frame.len"])?;
    Ok(rows.iter().flatten().filter_map(|len| len.parse().ok()).max().unwrap_or_default())
}

#[test]
fn root_an_offload_can_be_switched() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let longest = longest_segment(&scene, &scratch)?;
    assert!(longest > 1514, "no super-packets with TSO: {longest}");
    for name in ["tso", "gso", "gro"] {
        scene.pods[1].netns.offload("eth0", name, false)?;
        scene.node.offload(&scene.pods[1].interface, name, false)?;
    }
    let longest = longest_segment(&scene, &scratch)?;
    assert!((1000..=1514).contains(&longest), "super-packets without TSO: {longest}");
    Ok(())
}

#[test]
fn root_a_capture_has_each_packet_and_tshark_reads_it() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let capture = Capture::start(&scene.node, &first.interface, scratch.path(), "icmp", 0)?;
    assert_eq!(first.netns.ping(&second.v4, 50, 64)?, 50);
    let file = capture.stop();
    assert_eq!(Capture::count(&file, 1111, "icmp.type==8")?, 50);
    assert_eq!(Capture::count(&file, 1111, "icmp.type==0")?, 50);
    let rows = Capture::fields(&file, 1111, "icmp.seq==1 && icmp.type==8", &["ip.src", "ip.dst", "ip.len"])?;
    assert_eq!(rows, [[first.v4.as_str(), &second.v4, "92"]]);
    Ok(())
}

#[test]
fn root_a_ping_in_one_piece_or_not_at_all() -> Result<()> {
    let scene = Topology::with(TopologyOptions { pods: 1, ..Default::default() })?;
    for (destination, headers) in [(COLLECTOR_V4, 28), (COLLECTOR_V6, 48)] {
        let fits = Ping {
            destination: destination.to_owned(),
            count: 3,
            size: 1600 - headers,
            interval: Duration::from_millis(5),
            whole: true,
        };
        let all = PingReport { transmitted: 3, received: 3 };
        assert_eq!(fits.run(&scene.node)?, all, "{destination}");
        let longer = Ping { size: fits.size + 1, ..fits };
        assert_eq!(longer.run(&scene.node)?, PingReport { received: 0, ..all }, "{destination}");
        assert_eq!(Ping { whole: false, ..longer }.run(&scene.node)?, all, "{destination}");
    }
    Ok(())
}

#[test]
fn root_the_kernels_log_is_read_from_now_on() -> Result<()> {
    // Without its line's end the kernel holds a record back, until it knows that no more of it comes.
    let say = |text: &str| std::fs::write("/dev/kmsg", format!("{text}\n"));
    say("podwire-harness: before")?;
    let mut log = KernelLog::from_now()?;
    say("podwire-harness: after")?;
    let records = log.records()?;
    assert!(records.iter().any(|record| record.contains("podwire-harness: after")), "{records:?}");
    assert!(!records.iter().any(|record| record.contains("podwire-harness: before")), "{records:?}");
    say("WARNING: podwire-harness wrote this, not the kernel")?;
    log.check()
}

#[test]
fn root_two_namespaces_of_one_role_have_two_names() -> Result<()> {
    let (one, other) = (NetNs::new("twin")?, NetNs::new("twin")?);
    assert_ne!(one.name(), other.name());
    let chance = |netns: &NetNs| netns.name().rsplit('-').next().map(str::to_owned);
    assert_ne!(chance(&one), chance(&other), "nothing but a counter tells them apart");
    Ok(())
}

fn stream(scene: &Topology, harm: impl FnOnce() -> Result<()>) -> Result<podwire_harness::StreamReport> {
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let gap = Duration::from_micros(500);
    UdpStream { destination: second.v4.clone(), port: 7000, count: 1000, size: 300, gap }.run(
        &first.netns,
        &second.netns,
        harm,
    )
}

#[test]
fn root_a_stream_knows_what_is_missing() -> Result<()> {
    let scene = Topology::new()?;
    let whole = stream(&scene, || Ok(()))?;
    assert!(whole.is_whole() && whole.received == 1000, "{whole:?}");
    let hurt = stream(&scene, || {
        std::thread::sleep(Duration::from_millis(100));
        scene.node.ip(&["route", "replace", "blackhole", &scene.pods[1].v4])?;
        Ok(())
    })?;
    assert!(!hurt.is_whole() && hurt.received > 0 && hurt.received < hurt.sent, "{hurt:?}");
    assert_eq!((hurt.duplicates, hurt.damaged), (0, 0), "{hurt:?}");
    assert_eq!(hurt.missing.len() as u64, hurt.sent - hurt.received, "{hurt:?}");
    Ok(())
}

#[test]
fn root_the_collectors_kernel_decapsulates() -> Result<()> {
    let scene = Topology::new()?;
    let device = scene.vxlan(1, 1111)?;
    scene.warm_up()?;
    let (remote, port) = (COLLECTOR_V4, "1111");
    scene
        .node
        .ip(&["link", "add", "sender", "type", "vxlan", "id", "1", "dstport", port, "remote", remote])?;
    scene.node.run_ok(&["sysctl", "-qw", "net.ipv6.conf.sender.disable_ipv6=1"])?;
    scene.node.ip(&["link", "set", "sender", "up"])?;
    let (out, inside) =
        (RawSocket::open(&scene.node, "sender")?, RawSocket::open(&scene.collector, &device)?);
    let before = scene.collector.counter(&device, "rx", "packets")?;
    let frame = experimental_frame(200);
    for _ in 0..10 {
        out.send(&frame)?;
    }
    let got = inside.receive(Duration::from_secs(2), |got| got.starts_with(&frame[..14]))?;
    assert_eq!(got.as_deref(), Some(frame.as_slice()));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(scene.collector.counter(&device, "rx", "packets")? - before, 10);
    Ok(())
}

/// Broadcast, EtherType 88b5 (IEEE Std 802, local experiments): no protocol of the kernel answers it.
fn experimental_frame(payload: usize) -> Vec<u8> {
    let mut frame = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.extend((0..payload).map(|offset| offset as u8));
    frame
}

#[test]
fn root_raw_frames_arrive_as_sent_and_only_where_sent() -> Result<()> {
    let scene = Topology::new()?;
    let peer = scene.local_device("tap0", 1500)?;
    let (one, other) = (RawSocket::open(&scene.node, "tap0")?, RawSocket::open(&scene.node, &peer)?);
    let elsewhere = RawSocket::open(&scene.node, "uplink0")?;
    let frame = experimental_frame(1400);
    one.send(&frame)?;
    let ours = |got: &[u8]| got.starts_with(&frame[..14]);
    assert_eq!(other.receive(Duration::from_secs(2), ours)?, Some(frame.clone()));
    assert_eq!(elsewhere.receive(Duration::from_millis(200), ours)?, None);
    assert!(one.send(&experimental_frame(1501)).is_err(), "longer than the MTU");
    Ok(())
}

#[test]
fn root_iperf_counts_bytes_of_tcp_and_udp() -> Result<()> {
    let scene = Topology::new()?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    for (destination, udp_rate) in [(&second.v4, None), (&second.v6, None), (&second.v4, Some(50_000_000))] {
        let transfer =
            Iperf { destination: destination.clone(), port: 5201, bytes: 2_000_000, udp_rate, cpus: None };
        let report = transfer.run(&first.netns, &second.netns)?;
        assert!(report.sent_bytes >= 2_000_000, "{destination}: {report:?}");
        let received = report.received_bytes;
        assert!((1..=report.sent_bytes).contains(&received), "{destination}: {report:?}");
        assert!(report.bits_per_second > 0.0, "{destination}: {report:?}");
        assert_eq!(report.lost_packets, 0, "{destination}: {report:?}");
    }
    Ok(())
}

#[test]
fn root_a_page_arrives_to_the_byte_or_not_at_all() -> Result<()> {
    let scene = Topology::new()?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    for address in [&second.v4, &second.v6] {
        let page = Page { address: address.clone(), port: 8080, bytes: 5_000_000 };
        let before = scene.node.counter(&second.interface, "rx", "bytes")?;
        page.fetch(&first.netns, &second.netns)?;
        let carried = scene.node.counter(&second.interface, "rx", "bytes")? - before;
        assert!(carried > page.bytes as u64, "{carried} bytes left the server");
    }
    scene.node.ip(&["route", "replace", "blackhole", &second.v4])?;
    let page = Page { address: second.v4.clone(), port: 8080, bytes: 1000 };
    assert!(page.fetch(&first.netns, &second.netns).is_err(), "there is no way");
    Ok(())
}

#[test]
fn root_nothing_is_left_after_the_drop() -> Result<()> {
    let (scene, scratch) =
        (Topology::with(TopologyOptions { pods: 1, ..Default::default() })?, Scratch::new()?);
    let mut names = vec![scene.node.name().to_owned(), scene.collector.name().to_owned()];
    names.extend(scene.pods.iter().map(|pod| pod.netns.name().to_owned()));
    let folder = scratch.path().to_owned();
    let sleeper = scene.node.spawn(&["sleep", "60"])?;
    let left = || -> Result<Vec<String>> {
        let (namespaces, mounts) =
            (run_ok(&["ip", "netns", "list"])?, std::fs::read_to_string("/proc/mounts")?);
        let mut left: Vec<String> = names.clone();
        left.retain(|name| namespaces.split_whitespace().any(|word| word == name));
        left.extend(
            mounts.lines().filter(|line| line.contains(&*folder.to_string_lossy())).map(str::to_owned),
        );
        Ok(left)
    };
    assert_eq!(left()?.len(), names.len() + 1, "three namespaces and a bpffs while they are in use");
    drop((sleeper, scene, scratch));
    assert_eq!(left()?, Vec::<String>::new());
    assert!(!folder.exists());
    Ok(())
}
