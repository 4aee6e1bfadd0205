//! `podwire capture` at pods: what is in the file is what was on the pod's own interface, and nothing else.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_harness::{Capture, RawSocket, TopologyOptions, UdpStream, eventually, run_ok};
use podwire_tests::agents;
use podwire_tests::captured::{Scene, datagrams, same, tcpdumps, transfer};

/// ARP, neighbour discovery, ICMP, UDP and TCP of both families, in both directions: the same frames as tcpdump sees in
/// the pod, byte by byte.
#[test]
fn root_a_capture_has_what_the_pods_interface_has() -> Result<()> {
    let scene = Scene::new(TopologyOptions { bridge: true, ..TopologyOptions::default() })?;
    let (first, second) = scene.pods();
    let tcpdump = Capture::start(&first.netns, "eth0", scene.scratch.path(), "", 0)?;
    let capturing = scene.capture(&["-S", "web-0"])?;
    let shown = agents::get(scene.agent()?, &["captures"])?;
    ensure!(shown["items"][0]["status"]["state"] == "Capturing", "{shown}");
    ensure!(scene.kernel_has_programs()?, "for the capture's time");
    for address in [&second.v4, &second.v6] {
        ensure!(first.netns.ping(address, 5, 100)? == 5);
        ensure!(datagrams(address, 7000, 20).run(&first.netns, &second.netns, || Ok(()))?.is_whole());
        transfer(&first.netns, &second.netns, address, 8080, 50_000)?;
    }
    ensure!(second.netns.ping(&first.v4, 3, 1400)? == 3);
    let captured = capturing.interrupt()?.ended(130)?;
    captured.is_whole()?;
    same(captured.file.plain(), tcpdumps(&tcpdump.stop())?)?;
    let mac: Vec<u8> =
        first.mac.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>()?;
    for frame in &captured.file.frames {
        let sent = frame.bytes.get(6..12) == Some(&mac[..]);
        ensure!(frame.out == Some(sent), "{frame:02x?}");
        ensure!(frame.bytes.len() == frame.length as usize);
    }
    let interface = &captured.file.interfaces[0];
    ensure!(interface.name == "default/web-0" && interface.description.contains("node-1"), "{interface:?}");
    let file = scene.file("capture.pcapng");
    let count = |filter: &str| Capture::count(&file, 1, filter);
    for filter in
        ["arp", "icmpv6.type==135", "icmp", "icmpv6.type==128", "ip && udp", "ipv6 && udp", "ip && tcp"]
    {
        ensure!(count(filter)? > 0, "{filter}");
    }
    ensure!(count("tcp.checksum.status==0 || udp.checksum.status==0")? == 0, "a checksum is wrong");
    let said = run_ok(&["capinfos", &file.to_string_lossy()])?;
    for words in ["nanosecond", "Name = default/web-0", "Number of stat entries = 1"] {
        ensure!(said.contains(words), "{words}: {said}");
    }
    // As Wireshark reads it: 1 is inbound, 2 outbound.
    let own = format!("icmp.type==8 && ip.src=={}", first.v4);
    let rows = Capture::fields(&file, 1, &own, &["frame.interface_name", "frame.packet_flags_direction"])?;
    ensure!(
        rows.len() == 5 && rows.iter().all(|row| row[0] == "default/web-0" && row[1].ends_with('2')),
        "{rows:?}"
    );
    scene.nothing_is_left()
}

/// A flow and its answers; what the classifier cannot say is looked at by the agent; a direction; a peer.
#[test]
fn root_only_what_matches_is_captured() -> Result<()> {
    let scene = Scene::new(TopologyOptions { pods: 3, ..TopologyOptions::default() })?;
    let (first, second) = scene.pods();
    let third = &scene.topology.pods[2];
    let file = scene.file("capture.pcapng");
    let cases: [(&[&str], &str, usize); 9] = [
        (&["-f", "udp,udp_dst=7000"], "udp.dstport==7000 || udp.srcport==7000", 10),
        (
            &["-f", "tcp,tcp_dst=8080,tcp_flags=+syn-ack"],
            "tcp.flags.syn==1 && tcp.flags.ack==0 && tcp.port==8080",
            1,
        ),
        (&["-f", "icmp,icmp_type=echo-request"], "icmp.type==8", 8),
        (&["-f", "icmp"], "icmp.type==8 || icmp.type==0", 16),
        (&["-f", "icmp,nw_ttl=63"], "icmp && ip.ttl==63", 8),
        (&["-f", "icmp", "--direction", "out"], "icmp.type==8", 8),
        (&["-f", "icmp", "--direction", "in"], "icmp.type==0", 8),
        (&["-D", "10.10.1.7"], "ip.addr==10.10.1.7 && icmp", 10),
        (&["-f", "ipv6,icmpv6,icmpv6_type=128"], "icmpv6.type==128", 4),
    ];
    for (words, filter, expected) in cases {
        let capturing = scene.capture(&[&["-S", "web-0"], words].concat())?;
        ensure!(first.netns.ping(&second.v4, 3, 56)? == 3);
        ensure!(first.netns.ping(&third.v4, 5, 56)? == 5);
        ensure!(first.netns.ping(&second.v6, 4, 56)? == 4);
        ensure!(datagrams(&second.v4, 7000, 10).run(&first.netns, &second.netns, || Ok(()))?.is_whole());
        ensure!(datagrams(&second.v4, 7001, 10).run(&first.netns, &second.netns, || Ok(()))?.is_whole());
        transfer(&first.netns, &second.netns, &second.v4, 8080, 1000)?;
        let captured = capturing.interrupt()?.ended(130)?;
        captured.is_whole()?;
        let matching = Capture::count(&file, 1, filter)?;
        let all = captured.file.frames.len();
        ensure!(
            (all, matching) == (expected, expected),
            "{words:?}: {all} packets, {matching} match {filter}"
        );
    }
    scene.nothing_is_left()
}

#[test]
fn root_limits_are_exact() -> Result<()> {
    let scene = Scene::new(TopologyOptions::default())?;
    let (first, second) = scene.pods();
    let flood = |count| datagrams(&second.v4, 7000, count);
    let capturing = scene.capture(&["-S", "web-0", "-f", "udp", "--count", "7"])?;
    flood(200).run(&first.netns, &second.netns, || Ok(()))?;
    let captured = capturing.finish()?.ended(0)?;
    ensure!(captured.file.frames.len() == 7, "{}", captured.said);

    // 242 bytes each: Ethernet, IP and UDP headers, and 200.
    let capturing = scene.capture(&["-S", "web-0", "-f", "udp", "--bytes", "1k"])?;
    flood(200).run(&first.netns, &second.netns, || Ok(()))?;
    let captured = capturing.finish()?.ended(0)?;
    let lengths: Vec<u32> = captured.file.frames.iter().map(|frame| frame.length).collect();
    ensure!(lengths == [242; 4], "{lengths:?}");

    let capturing = scene.capture(&["-S", "web-0", "-f", "udp", "--duration", "500ms", "--snaplen", "60"])?;
    let stream = UdpStream { gap: Duration::from_millis(2), ..flood(500) };
    stream.run(&first.netns, &second.netns, || Ok(()))?;
    let captured = capturing.finish()?.ended(0)?;
    let frames = &captured.file.frames;
    let span = frames.last().context("none")?.time - frames.first().context("none")?.time;
    ensure!((300_000_000..=500_000_000).contains(&span), "{span} ns");
    ensure!(frames.iter().all(|frame| frame.bytes.len() == 60 && frame.length == 242));
    captured.is_whole()?;
    for wrong in
        [&["--count", "0"][..], &["--bytes", "0"], &["--duration", "0"], &["--snaplen", "3"], &["-f", "tpc"]]
    {
        let output = scene.agent()?.cli(&[&["capture", "-S", "web-0"], wrong].concat())?;
        ensure!(output.status.code() == Some(2), "{wrong:?}: {output:?}");
    }
    let output = scene.agent()?.cli(&["capture", "-S", "wbe-0", "--count", "1"])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1) && said.contains("did you mean \"web-0\"?"), "{said}");
    scene.nothing_is_left()
}

/// Both ends of one node, and lines for eyes.
#[test]
fn root_both_ends_are_in_one_file() -> Result<()> {
    let scene = Scene::new(TopologyOptions::default())?;
    let (first, second) = scene.pods();
    let capturing = scene.capture(&["-S", "web-0", "-D", "web-1"])?;
    ensure!(first.netns.ping(&second.v4, 10, 56)? == 10);
    ensure!(first.netns.ping(&second.v6, 10, 56)? == 10);
    // Not for the other end.
    first.netns.ping("192.0.2.9", 1, 56)?;
    let captured = capturing.interrupt()?.ended(130)?;
    captured.is_whole()?;
    let names: Vec<&str> = captured.file.interfaces.iter().map(|one| one.name.as_str()).collect();
    ensure!(names == ["default/web-0", "default/web-1"]);
    for interface in 0..2 {
        let at = captured.file.frames.iter().filter(|frame| frame.interface == interface);
        let (out, way_in): (Vec<_>, Vec<_>) = at.partition(|frame| frame.out == Some(true));
        ensure!((out.len(), way_in.len()) == (20, 20), "{interface}: {} {}", out.len(), way_in.len());
    }
    ensure!(captured.file.frames.is_sorted_by_key(|frame| frame.time), "by time");

    let child = scene.agent()?.spawn(&["capture", "-S", "web-0", "-f", "icmp", "--count", "2"])?;
    eventually("it runs", || {
        Ok(agents::get(scene.agent()?, &["captures"])?["items"].as_array().is_some_and(|all| all.len() == 1))
    })?;
    ensure!(first.netns.ping(&second.v4, 1, 56)? == 1);
    let output = child.wait_with_output()?;
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = shown.lines().collect();
    ensure!(
        lines.len() == 2
            && lines[0].contains("default/web-0 out icmp 10.10.1.5 > 10.10.1.6 type 8 code 0, length 98")
            && lines[1].contains("default/web-0 in  icmp 10.10.1.6 > 10.10.1.5 type 0"),
        "{shown}"
    );
    scene.nothing_is_left()
}

/// Tags that the pod's kernel puts on, one and two, are where they were.
#[test]
fn root_vlan_tags_are_kept() -> Result<()> {
    let scene = Scene::new(TopologyOptions::default())?;
    let (first, _) = scene.pods();
    let socket = RawSocket::open(&first.netns, "eth0")?;
    let capturing = scene.capture(&["-S", "web-0", "--direction", "out"])?;
    let frame = |tags: &[u8]| {
        let head = [2, 0, 0, 0, 0, 0x99, 2, 0, 0, 0, 0, 5];
        [&head[..], tags, &[0x88, 0xb5], &[0x42; 60]].concat()
    };
    let sent = [frame(&[]), frame(&[0x81, 0, 0x20, 7]), frame(&[0x88, 0xa8, 0, 9, 0x81, 0, 0, 7])];
    sent.iter().try_for_each(|frame| socket.send(frame))?;
    let captured = capturing.interrupt()?.ended(130)?;
    captured.is_whole()?;
    let ours: Vec<Vec<u8>> =
        captured.file.plain().into_iter().filter(|frame| frame.contains(&0x42)).collect();
    ensure!(ours == sent, "{ours:02x?}");
    ensure!(captured.file.frames.iter().all(|frame| frame.length as usize == frame.bytes.len()));
    Ok(())
}

/// Super-packets of a bulk transfer are whole, as they are on the pod's interface.
#[test]
fn root_super_packets_are_whole() -> Result<()> {
    const BYTES: usize = 8 << 20;
    let scene = Scene::new(TopologyOptions::default())?;
    let (first, second) = scene.pods();
    let tcpdump = Capture::start(&first.netns, "eth0", scene.scratch.path(), "tcp", 0)?;
    let capturing = scene.capture(&["-S", "web-0", "-f", "tcp"])?;
    transfer(&first.netns, &second.netns, &second.v4, 8080, BYTES)?;
    let captured = capturing.interrupt()?.ended(130)?;
    captured.is_whole()?;
    same(captured.file.plain(), tcpdumps(&tcpdump.stop())?)?;
    let largest = captured.file.frames.iter().map(|frame| frame.bytes.len()).max().unwrap_or(0);
    ensure!(largest > 16_384, "no frame of several pieces: {largest}");
    ensure!(captured.file.frames.iter().all(|frame| frame.bytes.len() == frame.length as usize));
    let file: &Path = &scene.file("capture.pcapng");
    ensure!(Capture::count(file, 1, "tcp.checksum.status==0")? == 0, "checksums are complete");
    Ok(())
}
