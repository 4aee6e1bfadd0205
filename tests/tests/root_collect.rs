//! Mirrors of pods by podwire's datapath, received by `podwire collect`: every packet is there, or counted.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_datapath::compile::Rule;
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::core::wire::erspan::iii::Granularity;
use podwire_datapath::{Hook, Mirror, Oversize, SessionOptions, Target};
use podwire_harness::{
    COLLECTOR_V4, COLLECTOR_V6, NetNs, Scratch, Topology, TopologyOptions, UdpStream, eventually,
};
use podwire_tests::collected::{Collecting, count, frames, packets, session};
use podwire_tests::node::Node;
use podwire_tests::wish::{endpoint, mirror, mirrors, tunnel};
use serde_json::Value;

const UDP: u8 = 17;
const GRANULARITY: Granularity = Granularity::HundredNanoseconds;

/// A mirror of UDP of both pods.
fn both(scene: &Topology, name: &str, target: Target, options: SessionOptions) -> Mirror {
    let rules = vec![Rule { protocol: Some(UDP), ..Rule::default() }];
    let endpoints = scene.pods.iter().map(|pod| endpoint(pod).name).collect();
    Mirror { rules, options, endpoints, ..mirror(name, &scene.pods[0], target) }
}

fn stream(scene: &Topology, count: u64, size: usize, v6: bool) -> Result<()> {
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let destination = if v6 { second.v6.clone() } else { second.v4.clone() };
    let stream = UdpStream { destination, port: 9, count, size, gap: Duration::from_micros(100) };
    let report = stream.run(&first.netns, &second.netns, || Ok(()))?;
    ensure!(report.is_whole(), "the original: {report:?}");
    Ok(())
}

/// How often each datagram of [`UdpStream`] is in a file under an interface's name; each byte is checked.
fn datagrams(file: &Path, name: &str, size: usize) -> Result<BTreeMap<u64, u32>> {
    let mut found = BTreeMap::new();
    for (interface, frame) in frames(file)? {
        if interface != name {
            continue;
        }
        let headers = if frame.get(12..14) == Some(&[0x86, 0xdd]) { 62 } else { 42 };
        let payload = frame.get(headers..).context("a short frame")?;
        let head = payload.get(..8).and_then(|head| head.try_into().ok()).context("a short datagram")?;
        let number = u64::from_be_bytes(head);
        let expected = |offset: usize| (number as usize).wrapping_mul(31).wrapping_add(offset) as u8;
        ensure!(payload.len() == size, "{} bytes of {size}", payload.len());
        let same = payload.iter().enumerate().skip(8).all(|(offset, byte)| *byte == expected(offset));
        ensure!(same, "datagram {number} is damaged");
        *found.entry(number).or_default() += 1;
    }
    Ok(found)
}

/// What identifies a session in the collector's words.
type About = (&'static str, Option<(&'static str, u64)>, &'static str);

fn kinds() -> Vec<(Tunnel, About)> {
    let iii =
        Tunnel::ErspanIII { session: 6, hardware_id: 3, sgt: 0, direction: None, granularity: GRANULARITY };
    vec![
        (Tunnel::Vxlan { vni: 7, port: 4789 }, ("VXLAN", Some(("vni", 7)), "vxlan-7")),
        (Tunnel::Geneve { vni: 8, port: 6081 }, ("GENEVE", Some(("vni", 8)), "geneve-8")),
        (Tunnel::Gre { key: None, sequence: false }, ("GRE", None, "gre")),
        (Tunnel::Gre { key: Some(9), sequence: true }, ("GRE", Some(("key", 9)), "gre-9")),
        (Tunnel::ErspanII { session: 5, index: 77 }, ("ERSPAN II", Some(("session", 5)), "erspan-ii-5")),
        (iii, ("ERSPAN III", Some(("session", 6)), "erspan-iii-6")),
    ]
}

/// Each kind of tunnel, with a session over IPv4 and one over IPv6 at once: all frames of both pods.
#[test]
fn root_each_tunnel_is_received_whole() -> Result<()> {
    const COUNT: u64 = 300;
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    scene.warm_up()?;
    ensure!(scene.node.ping(COLLECTOR_V6, 1, 8)? == 1, "IPv6 underlay");
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let file = scratch.path().join("all.pcapng");
    // By AF_XDP, and by packet sockets.
    let sources = [None, Some("--af-packet")];
    for ((kind, (word, id, name)), source) in
        kinds().into_iter().flat_map(|kind| sources.map(|source| (kind, source)))
    {
        let targets = [tunnel(COLLECTOR_V4, kind)?, tunnel(COLLECTOR_V6, kind)?];
        let wishes = targets.iter().zip(["v4", "v6"]);
        let wishes =
            wishes.map(|(target, name)| both(&scene, name, target.clone(), SessionOptions::default()));
        node.apply(&mirrors(&scene, wishes.collect()))?;
        let path = file.to_string_lossy();
        let words: Vec<&str> = ["-w", &path, "--reorder", "64"].into_iter().chain(source).collect();
        let collecting = Collecting::start(&scene.collector, scratch.path(), &words)?;
        let before: Vec<u64> =
            targets.iter().map(|target| Ok(node.session(target)?.sent_packets)).collect::<Result<_>>()?;
        stream(&scene, COUNT, 400, word.len() % 2 == 0)?;
        let summary = collecting.stop()?;
        for ((target, v6), before) in targets.iter().zip([false, true]).zip(before) {
            let sent = node.session(target)?.sent_packets - before;
            assert_eq!(sent, 2 * COUNT, "{target}");
            let one = session(&summary, word, id, v6)?;
            assert_eq!((one["frames"].as_u64(), count(one, "lost")), (Some(sent), 0), "{one:#}");
            assert_eq!(one["delivered"], sent, "{one:#}");
            assert_eq!(one["numbers"].is_object(), id.is_some_and(|(kind, _)| kind != "vni"), "{one:#}");
            if word == "ERSPAN III" {
                let latency = &one["latency"];
                assert_eq!((&latency["frames"], &latency["ahead"]), (&sent.into(), &0.into()), "{latency}");
                assert!(latency["p50Ns"].as_u64().is_some_and(|time| time < 1_000_000_000), "{latency}");
            }
            let talkers = one["talkers"].as_array().context("talkers")?;
            assert_eq!((talkers.len(), &talkers[0]["frames"]), (1, &sent.into()), "{one:#}");
        }
        // Both sessions have one name, and an interface each.
        assert_eq!(packets(&file)? as u64, 4 * COUNT, "{word}");
        let found = datagrams(&file, name, 400)?;
        assert!(found.len() as u64 == COUNT && found.values().all(|times| *times == 4), "{word}: {found:?}");
        no_answers(&scene)?;
    }
    Ok(())
}

/// The collector's kernel did not tell the sender that nobody listens.
fn no_answers(scene: &Topology) -> Result<()> {
    let text = scene.collector.run_ok(&["cat", "/proc/net/snmp", "/proc/net/snmp6"])?;
    let mut icmp = text.lines().filter(|line| line.starts_with("Icmp:"));
    let (names, values) = (icmp.next().context("names")?, icmp.next().context("values")?);
    let named = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "OutDestUnreachs");
    assert_eq!(named.context("OutDestUnreachs")?.1, "0");
    let v6 = text.lines().find(|line| line.starts_with("Icmp6OutDestUnreachs")).context("Icmp6")?;
    assert!(v6.ends_with(" 0") || v6.ends_with("\t0"), "{v6}");
    Ok(())
}

/// The path loses one in thirteen or so: what is missing is known to the frame.
#[test]
fn root_what_the_path_loses_is_counted_exactly() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let middle = bridge(&scene)?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let file = scratch.path().join("order.pcapng");
    for kind in [
        Tunnel::Gre { key: Some(9), sequence: true },
        Tunnel::ErspanII { session: 5, index: 77 },
        Tunnel::ErspanIII { session: 6, hardware_id: 3, sgt: 0, direction: None, granularity: GRANULARITY },
    ] {
        let target = tunnel(COLLECTOR_V4, kind)?;
        node.apply(&mirrors(
            &scene,
            vec![Mirror {
                endpoints: vec![endpoint(&scene.pods[0]).name],
                ..both(&scene, "m", target.clone(), SessionOptions::default())
            }],
        ))?;
        let path = file.to_string_lossy();
        let words = ["-w", &path, "--reorder", "512", "--reorder-time", "500ms"];
        let collecting = Collecting::start(&scene.collector, scratch.path(), &words)?;
        let before = node.session(&target)?.sent_packets;
        // The first and the last ones arrive, so that every gap lies between two of them.
        stream(&scene, 20, 200, false)?;
        lose(&middle)?;
        stream(&scene, 3000, 200, false)?;
        middle.run_ok(&["nft", "delete", "table", "netdev", "lossy"])?;
        stream(&scene, 20, 200, false)?;
        let summary = collecting.stop()?;
        let sent = node.session(&target)?.sent_packets - before;
        assert_eq!(sent, 3040);
        let one = &summary["sessions"][0];
        let of = |field: &str| count(one, field);
        assert_eq!(of("released") + of("lost"), sent, "{one:#}");
        assert!(of("lost") > 100 && of("lost") < 500, "{one:#}");
        assert_eq!((of("late"), of("duplicates"), of("restarts"), of("waiting")), (0, 0, 0, 0), "{one:#}");
        assert_eq!(packets(&file)? as u64, of("released"));
        let order = numbers(&file)?;
        // Three streams, each with numbers of its own.
        assert_eq!(order.windows(2).filter(|pair| pair[0] >= pair[1]).count(), 2, "in order");
    }
    Ok(())
}

/// Puts a bridge between the node and the collector: what it drops, nobody else knows of.
fn bridge(scene: &Topology) -> Result<NetNs> {
    let (middle, collector) = (NetNs::new("middle")?, &scene.collector);
    collector.ip(&["link", "set", "eth0", "netns", middle.name()])?;
    middle.ip(&["link", "set", "eth0", "name", "near", "mtu", "1600"])?;
    let far = ["far", "mtu", "1600", "type", "veth", "peer", "name", "eth0", "mtu", "1600"];
    middle.ip(&[&["link", "add"][..], &far, &["netns", collector.name()]].concat())?;
    middle.ip(&["link", "add", "br0", "mtu", "1600", "type", "bridge", "mcast_snooping", "0"])?;
    for port in ["near", "far"] {
        middle.ip(&["link", "set", port, "master", "br0", "up"])?;
    }
    middle.ip(&["link", "set", "br0", "up"])?;
    collector.ip(&["addr", "add", &format!("{COLLECTOR_V4}/24"), "dev", "eth0"])?;
    collector.ip(&["link", "set", "eth0", "up"])?;
    scene.node.ip(&["neigh", "flush", "dev", "uplink0"])?;
    eventually("the bridge forwards", || Ok(scene.node.ping(COLLECTOR_V4, 1, 8)? == 1))?;
    Ok(middle)
}

fn lose(middle: &NetNs) -> Result<()> {
    for words in [
        &["add", "table", "netdev", "lossy"][..],
        &["add", "chain", "netdev", "lossy", "in", "{ type filter hook ingress device near priority 0; }"],
        &["add", "rule", "netdev", "lossy", "in", "ip protocol gre numgen random mod 13 0 drop"],
    ] {
        middle.run_ok(&[&["nft"], words].concat())?;
    }
    Ok(())
}

fn numbers(file: &Path) -> Result<Vec<u64>> {
    let number =
        |frame: &[u8]| frame.get(42..50).and_then(|head| head.try_into().ok()).map(u64::from_be_bytes);
    frames(file)?.iter().map(|(_, frame)| number(frame).context("a short frame")).collect()
}

/// Frames that do not fit the underlay come in fragments, and are whole in the file.
#[test]
fn root_fragments_are_put_together() -> Result<()> {
    let options = TopologyOptions { underlay_mtu: 1500, ..TopologyOptions::default() };
    for remote in [COLLECTOR_V4, COLLECTOR_V6] {
        let (scene, scratch) = (Topology::with(options)?, Scratch::new()?);
        ensure!(scene.node.ping(remote, 1, 8)? == 1, "the underlay");
        let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
        let target = tunnel(remote, Tunnel::Vxlan { vni: 7, port: 4789 })?;
        let session = SessionOptions { oversize: Oversize::Fragment, ..SessionOptions::default() };
        node.apply(&mirrors(&scene, vec![both(&scene, "m", target, session)]))?;
        let file = scratch.path().join("whole.pcapng");
        let collecting =
            Collecting::start(&scene.collector, scratch.path(), &["-w", &file.to_string_lossy()])?;
        stream(&scene, 100, 1472, false)?;
        let summary = collecting.stop()?;
        let parts = &summary["fragments"];
        assert_eq!((&parts["packets"], &parts["used"]), (&200.into(), &400.into()), "{summary:#}");
        let found = datagrams(&file, "vxlan-7", 1472)?;
        assert!(found.len() == 100 && found.values().all(|times| *times == 2), "{found:?}");
        assert_eq!(packets(&file)?, 200);
    }
    Ok(())
}

/// Jumbo frames are received whole, and cut ones are counted as cut.
#[test]
fn root_jumbo_and_cut_frames() -> Result<()> {
    let jumbo = TopologyOptions { pod_mtu: 8900, underlay_mtu: 9000, ..TopologyOptions::default() };
    let cut = TopologyOptions { underlay_mtu: 1500, ..TopologyOptions::default() };
    for (options, size, truncated) in [(jumbo, 8800, 0), (cut, 1472, 100)] {
        let (scene, scratch) = (Topology::with(options)?, Scratch::new()?);
        scene.warm_up()?;
        let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
        let target = tunnel(COLLECTOR_V4, Tunnel::ErspanII { session: 5, index: 1 })?;
        node.apply(&mirrors(&scene, vec![both(&scene, "m", target, SessionOptions::default())]))?;
        let file = scratch.path().join("x.pcapng");
        let collecting =
            Collecting::start(&scene.collector, scratch.path(), &["-w", &file.to_string_lossy()])?;
        stream(&scene, 50, size, false)?;
        let summary = collecting.stop()?;
        let one: &Value = &summary["sessions"][0];
        assert_eq!((&one["frames"], &one["truncated"]), (&100.into(), &truncated.into()), "{one:#}");
        assert_eq!(count(one, "lost"), 0, "{one:#}");
        if truncated == 0 {
            assert_eq!(datagrams(&file, "erspan-ii-5", size)?.len(), 50);
        } else {
            // The sender's cut: all of them end at the underlay's MTU.
            assert!(frames(&file)?.iter().all(|(_, frame)| frame.len() == 1500 - 20 - 8 - 8));
        }
        assert_eq!(packets(&file)?, 100);
    }
    Ok(())
}
