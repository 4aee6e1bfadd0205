//! Suricata as a passive IDS: it works on the copies that podwire sends as on a wire, and sees whole sessions.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the test runner reads why a test did nothing")]

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use podwire_datapath::compile::Rule;
use podwire_datapath::core::abi::Direction;
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::{Desired, Endpoint, Engine, Hook, Mirror, SessionOptions, Target};
use podwire_harness::{
    COLLECTOR_V4, COLLECTOR_V6, Capture, NetNs, Scratch, Suricata, SuricataReport, Topology, WebServer,
    run_ok,
};
use podwire_tests::node::{Node, all_lost};
use serde_json::Value;

/// The rule for pages, and those for the beginning and the end of a long connection.
const WATCHED: u64 = 1001;
const FIRST_WORDS: u64 = 1003;
const LAST_WORDS: u64 = 1004;
const RULES: &str = "\
alert http any any -> any any (msg:\"watched\"; http.uri; content:\"/allowed\"; sid:1001; rev:1;)
alert tcp any any -> any 8080 (msg:\"begins\"; flow:only_stream; content:\"these are the first words\"; sid:1003; rev:1;)
alert tcp any any -> any 8080 (msg:\"ends\"; flow:only_stream; content:\"these are the last words\"; sid:1004; rev:1;)
";

/// Says why a test does nothing, when it can do nothing.
fn skipped() -> bool {
    let skipped = !Suricata::is_installed();
    if skipped {
        println!("SKIPPED: suricata is not installed");
    }
    skipped
}

/// Bytes of a long connection.
const BULK: usize = 64 << 20;

/// What is written of it at once, and how often: some 60 MB/s in super-packets, which Suricata, the path and both
/// ends keep up with on a busy machine of two cores.
const PIECE: usize = 128 << 10;
const PACE: Duration = Duration::from_millis(2);

/// A connection that begins and ends with words that rules know.
fn bulk(client: &NetNs, server: &NetNs, address: &str) -> Result<()> {
    let address = SocketAddr::new(address.parse()?, 8080);
    let listener = server.enter(move || Ok(TcpListener::bind(address)?))?;
    let reader = std::thread::spawn(move || -> Result<u64> {
        let (mut stream, _) = listener.accept()?;
        let read = std::io::copy(&mut stream, &mut std::io::sink())?;
        // What the sender took for lost and sent again must not meet a closed socket: its RST would be seen as well.
        std::thread::sleep(Duration::from_millis(300));
        Ok(read)
    });
    let (first, last) = (b"these are the first words", b"these are the last words");
    client.enter(move || {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.write_all(first)?;
        let piece = vec![0x5a; PIECE];
        for _ in 0..BULK / PIECE {
            stream.write_all(&piece)?;
            std::thread::sleep(PACE);
        }
        stream.write_all(last)?;
        stream.shutdown(Shutdown::Write)?;
        std::io::copy(&mut stream, &mut std::io::sink())?;
        Ok(())
    })?;
    let read = reader.join().ok().context("the reader panicked")??;
    anyhow::ensure!(read == (BULK + first.len() + last.len()) as u64, "{read} bytes arrived");
    Ok(())
}

/// All that pod 0 sends and receives.
fn mirror_everything(scene: &Topology, target: &Target, engine: Engine) -> Desired {
    let pod = &scene.pods[0];
    let name = format!("default/{}", pod.name);
    Desired {
        endpoints: vec![Endpoint {
            name: name.clone(),
            interface: pod.interface.clone(),
            ..Endpoint::default()
        }],
        mirrors: vec![Mirror {
            name: "all".into(),
            endpoints: vec![name],
            directions: Direction::ALL.to_vec(),
            rules: vec![Rule::default()],
            stateful: false,
            target: target.clone(),
            options: SessionOptions { engine, ..SessionOptions::default() },
        }],
        ..Desired::default()
    }
}

/// What Suricata and tshark say of ten pages and a long connection per family, from pod 0 to pod 1.
fn watch(scene: &Topology, netns: &NetNs, port: &str, suricata: Suricata) -> Result<(SuricataReport, usize)> {
    let unfinished = traffic(scene, netns, port)?;
    Ok((suricata.stop()?, unfinished))
}

/// Ten pages and a long connection per family, from pod 0 to pod 1; of the pages, the packets that are
/// [`unfinished`].
fn traffic(scene: &Topology, netns: &NetNs, port: &str) -> Result<usize> {
    let [client, server] = &scene.pods[..] else { unreachable!("two pods") };
    let folder = Scratch::new()?;
    let capture = Capture::start(netns, port, folder.path(), "", 0)?;
    for address in [&server.v4, &server.v6] {
        let web = WebServer::start(&server.netns, address)?;
        for _ in 0..10 {
            assert_eq!(web.get(&client.netns, "/allowed")?, Some(200), "{address}");
        }
    }
    let unfinished = unfinished(&capture.stop())?;
    for address in [&server.v4, &server.v6] {
        bulk(&client.netns, &server.netns, address)?;
    }
    Ok(unfinished)
}

/// Packets that no wire would carry: longer than a segment, or with a checksum that is not theirs. Suricata passes
/// over a checksum that the kernel calls unfinished, so another has to look.
fn unfinished(capture: &Path) -> Result<usize> {
    let file = capture.to_string_lossy();
    let checks = ["ip", "tcp"].map(|protocol| format!("{protocol}.check_checksum:TRUE"));
    let count = |filter: &str| -> Result<usize> {
        let words = ["tshark", "-n", "-r", &file, "-o", &checks[0], "-o", &checks[1], "-Y", filter];
        Ok(run_ok(&words)?.lines().count())
    };
    assert!(count("tcp.checksum.status < 2")? > 0, "tshark has not looked");
    // Errors of ICMP quote the beginning of a packet.
    count("!icmp && !icmpv6 && (tcp.len > 1460 || tcp.checksum.status != 1 || ip.checksum.status == 0)")
}

/// Suricata saw whole sessions, and nothing that would not be on a wire.
fn saw_it_all((report, unfinished): &(SuricataReport, usize)) -> Result<()> {
    assert_eq!((report.flaws()?, *unfinished), (vec![], 0));
    assert_eq!(report.count(WATCHED), 20, "{:?}", report.alerts());
    // What stands in a stream may be found again when more of it has come.
    for sid in [FIRST_WORDS, LAST_WORDS] {
        assert!(report.count(sid) >= 2, "{:?}", report.alerts());
    }
    let sessions: Vec<&Value> = report.flows().filter(|flow| flow["proto"] == "TCP").collect();
    assert_eq!(sessions.len(), 22, "20 pages and two long connections");
    for flow in sessions.iter().filter(|flow| flow["dest_port"] == 8080) {
        assert_eq!(flow["tcp"]["state"], "closed", "{flow}");
        let sent = flow["flow"]["bytes_toserver"].as_u64().context("bytes")?;
        assert!(sent > BULK as u64, "{flow}");
    }
    Ok(())
}

/// A device of the user's that does what a wire does. With its offloads on, Suricata cannot read what is longer than
/// a frame and says so: its silence in the other tests means something.
#[test]
fn root_suricata_watches_a_device() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let out = scene.local_device("tap0", 1500)?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let target = Target::Device { name: "tap0".into() };
    node.apply(&mirror_everything(&scene, &target, Engine::Auto))?;
    let ids = || Suricata::ids(&scene.node, &[&out], RULES);
    let (report, unfinished) = watch(&scene, &scene.node, &out, ids()?)?;
    assert!(unfinished > 100, "{unfinished}");
    assert!(report.counter("decoder.event.afpacket.trunc_pkt")? > 0, "{:?}", report.flaws()?);
    for name in ["tx", "tso", "gso"] {
        scene.node.offload("tap0", name, false)?;
    }
    saw_it_all(&watch(&scene, &scene.node, &out, ids()?)?)?;
    assert_eq!(all_lost(&node.session(&target)?), 0);
    Ok(())
}

/// A port that podwire makes is a wire as it is.
#[test]
fn root_suricata_watches_an_internal_port() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let target = Target::Internal { name: "ids0".into() };
    node.apply(&mirror_everything(&scene, &target, Engine::Auto))?;
    let suricata = Suricata::ids(&scene.node, &["ids0"], RULES)?;
    saw_it_all(&watch(&scene, &scene.node, "ids0", suricata)?)?;
    assert_eq!(all_lost(&node.session(&target)?), 0);
    Ok(())
}

/// Where the collector's Suricata listens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listens {
    /// On the kernel's device, which takes the VXLAN header off.
    BehindVxlan,
    /// On the underlay; it takes the header off itself.
    OnTheWire,
}

/// What comes through a tunnel to the collector. `wire`: the veth pair that stands for the underlay gets what a wire
/// has, frames of its size with their checksums finished, as no network card passes on 64 KiB at once. Without it,
/// podwire has to finish all that itself.
fn tunnel(remote: &str, tunnel: Tunnel, engine: Engine, wire: bool, listens: Listens) -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let device = scene.vxlan(1, 4789)?;
    if wire {
        for name in ["tx", "tso", "gso", "tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"] {
            scene.node.offload("uplink0", name, false)?;
        }
    }
    scene.warm_up()?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let target = Target::Tunnel { remote: remote.parse()?, tunnel };
    let port = if listens == Listens::BehindVxlan { device.as_str() } else { "eth0" };
    // It looks before the first copy leaves and until after the last that is counted.
    let suricata = Suricata::ids_without_offloads(&scene.collector, &[port], RULES)?;
    node.apply(&mirror_everything(&scene, &target, engine))?;
    let overflowed = overflows()?;
    let unfinished = traffic(&scene, &scene.collector, port)?;
    let overflowed = overflows()? - overflowed;
    let queue_drops = node.counters()?.segment_queue_drops;
    let counters = node.session(&target)?;
    let report = suricata.stop()?;
    let last = node.session(&target)?.sent_packets;
    assert_eq!((all_lost(&counters), counters.truncated_packets), (0, 0), "{counters:?}");
    // What the wire cuts up by itself is not podwire's to count.
    if !wire {
        let counter = match (tunnel, listens) {
            (Tunnel::ErspanII { .. }, _) => "decoder.erspan",
            (_, Listens::OnTheWire) => "decoder.vxlan",
            (_, Listens::BehindVxlan) => "decoder.pkts",
        };
        let decoded = report.counter(counter)?;
        // The device behind the tunnel has packets of its own.
        let most = if listens == Listens::BehindVxlan { u64::MAX } else { last };
        assert!((counters.sent_packets..=most).contains(&decoded), "{decoded} decoded: {counters:?}");
    }
    assert_eq!(
        (queue_drops, overflowed),
        (0, 0),
        "dropped by the segmenting device, and by the CPUs' backlogs: the machine is too slow for this load"
    );
    saw_it_all(&(report, unfinished))?;
    Ok(())
}

/// Packets that the machine's CPUs could not keep until they had time (`softnet_stat`, second column).
fn overflows() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/net/softnet_stat")?;
    let dropped = stat.lines().filter_map(|line| line.split_whitespace().nth(1));
    dropped.map(|count| Ok(u64::from_str_radix(count, 16)?)).sum()
}

const VXLAN: Tunnel = Tunnel::Vxlan { vni: 1, port: 4789 };
const ERSPAN: Tunnel = Tunnel::ErspanII { session: 7, index: 3 };

#[test]
fn root_suricata_watches_behind_vxlan_over_a_wire() -> Result<()> {
    tunnel(COLLECTOR_V4, VXLAN, Engine::Auto, true, Listens::BehindVxlan)
}

#[test]
fn root_suricata_watches_behind_vxlan_by_segments() -> Result<()> {
    tunnel(COLLECTOR_V4, VXLAN, Engine::Segment, false, Listens::BehindVxlan)
}

#[test]
fn root_suricata_decodes_vxlan() -> Result<()> {
    tunnel(COLLECTOR_V4, VXLAN, Engine::Segment, false, Listens::OnTheWire)
}

#[test]
fn root_suricata_decodes_erspan() -> Result<()> {
    tunnel(COLLECTOR_V4, ERSPAN, Engine::Auto, false, Listens::OnTheWire)
}

#[test]
fn root_suricata_decodes_erspan_over_ipv6() -> Result<()> {
    tunnel(COLLECTOR_V6, ERSPAN, Engine::Auto, false, Listens::OnTheWire)
}
