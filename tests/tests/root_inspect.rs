//! The inline inspector on real traffic: every frame is judged, what is changed has right checksums, and a worker
//! that hangs, dies or falls behind costs no packet.
#![cfg(feature = "test-run")]

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_datapath::xsk::QueueLosses;
use podwire_datapath::xsk::inspect::{Inspected, OnFailure, Setup};
use podwire_datapath::{ErrorKind, Hook};
use podwire_harness::{
    Capture, RawSocket, Scratch, StreamReport, Topology, TopologyOptions, UdpStream, WebServer, eventually,
};
use podwire_tests::inspected::{Scene, fetch};
use podwire_tests::node::Node;
use podwire_tests::wish::{device, redirect, redirects};

#[test]
fn root_every_frame_is_judged() -> Result<()> {
    let scene = Scene::new()?;
    let inspector = scene.inspect(scene.setup(), |_| {})?;
    fetch(&scene.topology, 3, 1 << 20)?;
    let (counts, tallies) = (inspector.counts(), inspector.tallies());
    println!("{counts:?} {tallies:?}");
    let policy = scene.node.policy("inspect")?;
    println!("{policy:?}");
    ensure!(counts.inspected > 1000 && counts.inspected == counts.passed, "{counts:?}");
    let handed: u64 = tallies.iter().map(|tally| tally.handed).sum();
    let without: u64 =
        tallies.iter().map(|tally| tally.dead + tally.behind + tally.unbound + tally.long).sum();
    ensure!(handed == counts.inspected + counts.probes && without == 0, "{tallies:?}");
    ensure!(policy.bypassed_packets + policy.refused_packets == 0, "{policy:?}");
    let ended = inspector.stop();
    ensure!(ended.balances, "{ended:?}");
    Ok(())
}

/// Datagrams from the first pod to the second, one every 200 microseconds.
fn stream(scene: &Topology, count: u64) -> UdpStream {
    let gap = Duration::from_micros(200);
    UdpStream { destination: scene.pods[1].v4.clone(), port: 9000, count, size: 400, gap }
}

/// The longest time of which nothing came.
fn longest_hole(report: &StreamReport) -> Duration {
    let runs = report.missing.chunk_by(|one, next| one + 1 == *next);
    runs.map(|run| report.span(run)).max().unwrap_or_default()
}

/// What is sent in the time that a worker may be silent, and the time to see that it is.
const PATIENCE: Duration = Duration::from_millis(50);

#[test]
fn root_a_worker_that_hangs_is_passed_by() -> Result<()> {
    let scene = Scene::new()?;
    let hang = Arc::new(AtomicBool::new(false));
    let told = hang.clone();
    let inspector = scene.inspect(scene.setup(), move |_| {
        while told.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    })?;
    let stream = stream(&scene.topology, 5000);
    let [from, to] = &scene.topology.pods[..] else { unreachable!("two pods") };
    let running = stream.start(&from.netns, &to.netns)?;
    std::thread::sleep(Duration::from_millis(200));
    hang.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(400));
    let during = inspector.tallies();
    hang.store(false, Ordering::Relaxed);
    let report = running.finish()?;
    let after = inspector.tallies();
    let waited = report.span(&report.late);
    println!("{during:?}\n{after:?}\n{} waited, of {waited:?}", report.reordered);
    // What was in its hands comes late; nothing is lost, doubled or damaged.
    ensure!(report.is_whole(), "{report:?}");
    // At most what 50 ms brought, and the batch in its hands, waited for it; the rest went by.
    ensure!(
        report.reordered > 0 && waited <= PATIENCE + 64 * stream.gap,
        "{} of {waited:?}",
        report.reordered
    );
    ensure!(during[0].dead > 500, "{during:?}");
    ensure!(after[0].handed > during[0].handed, "it is back at work: {after:?}");
    let ended = inspector.stop();
    ensure!(ended.balances, "{ended:?}");
    Ok(())
}

/// Starts the counting example beside the pods.
fn example(scene: &Scene) -> Result<Child> {
    let program = podwire_harness::binary().parent().context("a folder")?.join("examples/inspect_count");
    let mut child = scene
        .topology
        .node
        .command(&program.to_string_lossy())
        .args(["ips-in", "ips-out", "0"])
        .arg(scene.scratch.bpf().join("podwire"))
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the example")?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
    ensure!(line == "at work\n", "the example says {line:?}");
    Ok(child)
}

#[test]
fn root_workers_die_under_load() -> Result<()> {
    let deaths: u64 = std::env::var("PODWIRE_RESTARTS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let scene = Scene::new()?;
    let stream = stream(&scene.topology, deaths * 1500);
    let [from, to] = &scene.topology.pods[..] else { unreachable!("two pods") };
    let mut child = example(&scene)?;
    let running = stream.start(&from.netns, &to.netns)?;
    for death in 0..deaths {
        std::thread::sleep(Duration::from_millis(80));
        if death % 2 == 0 {
            // It hangs first, and dies of it.
            kill(Pid::from_raw(child.id() as i32), Signal::SIGSTOP)?;
            std::thread::sleep(Duration::from_millis(80));
        }
        child.kill()?;
        child.wait()?;
        child = example(&scene)?;
    }
    child.kill()?;
    child.wait()?;
    let report = running.finish()?;
    let hole = longest_hole(&report);
    println!("{deaths} deaths, {} of {} missing, longest hole {hole:?}", report.missing.len(), report.sent);
    ensure!(report.duplicates == 0 && report.damaged == 0, "{report:?}");
    ensure!(hole <= PATIENCE, "nothing came for {hole:?}");
    // What was in a dead worker's hands is all that is missing, and it is known how much that was.
    let inspector = scene.inspect(scene.setup(), |_| {})?;
    let tally = inspector.tallies()[0];
    println!("{tally:?}");
    ensure!(
        report.missing.len() as u64 <= tally.lost_with_worker,
        "{} missing: {tally:?}",
        report.missing.len()
    );
    let ended = inspector.stop();
    ensure!(ended.balances, "{ended:?}");
    Ok(())
}

/// Sends a text from a pod to an address, and says what arrives within 300 ms.
fn say(scene: &Topology, address: &str, text: &str) -> Result<Option<String>> {
    let [from, to] = &scene.pods[..] else { unreachable!("two pods") };
    let any = if address.contains(':') { "[::]" } else { "0.0.0.0" };
    let receiver = to.netns.enter(move || Ok(UdpSocket::bind(format!("{any}:9001"))?))?;
    receiver.set_read_timeout(Some(Duration::from_millis(300)))?;
    let to = if address.contains(':') { format!("[{address}]:9001") } else { format!("{address}:9001") };
    let text = text.to_owned();
    from.netns.enter(move || {
        let socket = UdpSocket::bind(format!("{any}:0"))?;
        socket.send_to(text.as_bytes(), to)?;
        Ok(())
    })?;
    let mut buffer = [0; 2048];
    let heard = receiver.recv(&mut buffer).ok();
    Ok(heard.map(|len| String::from_utf8_lossy(&buffer[..len]).into_owned()))
}

fn position(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

#[test]
fn root_what_holds_a_pattern_is_blocked() -> Result<()> {
    let scene = Scene::new()?;
    let inspector = scene.inspect(scene.setup(), |frame| {
        if position(frame.bytes(), b"forbidden").is_some() {
            frame.discard();
        }
    })?;
    let server = &scene.topology.pods[1];
    for address in [&server.v4, &server.v6] {
        ensure!(say(&scene.topology, address, "allowed words")?.as_deref() == Some("allowed words"));
        ensure!(say(&scene.topology, address, "some forbidden words")?.is_none());
    }
    let ended = inspector.stop();
    ensure!(ended.counts.dropped == 2 && ended.balances, "{ended:?}");
    Ok(())
}

#[test]
fn root_the_example_blocks_patterns() -> Result<()> {
    let scene = Scene::new()?;
    let program = podwire_harness::binary().parent().context("a folder")?.join("examples/inspect_block");
    let mut child = scene
        .topology
        .node
        .command(&program.to_string_lossy())
        .args(["ips-in", "ips-out", "3", "forbidden", "evil"])
        .env("PODWIRE_BPFFS", scene.scratch.bpf().join("podwire"))
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the example")?;
    let mut lines = BufReader::new(child.stdout.take().context("its output")?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let server = &scene.topology.pods[1];
    ensure!(say(&scene.topology, &server.v4, "good")?.as_deref() == Some("good"));
    ensure!(say(&scene.topology, &server.v6, "an evil one")?.is_none());
    ensure!(child.wait()?.success());
    line.clear();
    lines.read_line(&mut line)?;
    ensure!(line.contains("dropped: 1,"), "{line}");
    Ok(())
}

/// In place, and with more bytes than before; the receiver's kernel takes what has right checksums only.
#[test]
fn root_what_is_changed_has_right_checksums() -> Result<()> {
    let scene = Scene::new()?;
    let inspector = scene.inspect(scene.setup(), |frame| {
        if let Some(at) = position(frame.bytes(), b"secret") {
            frame.change()[at..at + 6].copy_from_slice(b"public");
        }
        if position(frame.bytes(), b"longer").is_some() && frame.bytes()[12..14] == [8, 0] {
            let mut bytes = frame.bytes().to_vec();
            bytes.extend_from_slice(b" and longer");
            for field in [16, 38] {
                let len = u16::from_be_bytes([bytes[field], bytes[field + 1]]) + 11;
                bytes[field..field + 2].copy_from_slice(&len.to_be_bytes());
            }
            frame.replace(bytes);
        }
    })?;
    let [client, server] = &scene.topology.pods[..] else { unreachable!("two pods") };
    let capture = Capture::start(&server.netns, "eth0", scene.scratch.path(), "udp or tcp", 2000)?;
    for address in [&server.v4, &server.v6] {
        let heard = say(&scene.topology, address, "a secret word")?;
        ensure!(heard.as_deref() == Some("a public word"), "{heard:?}");
        let page = WebServer::start(&server.netns, address)?;
        ensure!(page.get(&client.netns, "/secret")? == Some(200), "{address}");
    }
    let heard = say(&scene.topology, &server.v4, "this is longer")?;
    ensure!(heard.as_deref() == Some("this is longer and longer"), "{heard:?}");
    let file = capture.stop();
    let from = format!("(ip.src == {} || ipv6.src == {})", client.v4, client.v6);
    let wrong = format!(
        "{from} && (tcp.checksum.status == 0 || udp.checksum.status == 0 || ip.checksum.status == 0)"
    );
    ensure!(Capture::count(&file, 0, &wrong)? == 0, "frames with wrong checksums");
    let asked = Capture::fields(&file, 0, "http.request", &["http.request.uri"])?;
    ensure!(asked.iter().all(|row| row[0] == "/public") && asked.len() == 2, "{asked:?}");
    let ended = inspector.stop();
    ensure!(ended.counts.changed >= 5 && ended.counts.lost == 0 && ended.balances, "{ended:?}");
    Ok(())
}

#[test]
fn root_a_slow_inspector_is_passed_by() -> Result<()> {
    let scene = Scene::new()?;
    let mut setup = scene.setup();
    setup.options.buffers = 64;
    let inspector = scene.inspect(setup, |_| std::thread::sleep(Duration::from_micros(500)))?;
    let stream = stream(&scene.topology, 5000);
    let [from, to] = &scene.topology.pods[..] else { unreachable!("two pods") };
    let report = stream.run(&from.netns, &to.netns, || Ok(()))?;
    let ended = inspector.stop();
    println!("{ended:?}");
    ensure!(report.is_whole(), "{report:?}");
    let tally = ended.tallies[0];
    ensure!(tally.behind > 1000 && tally.handed > 1000, "{tally:?}");
    ensure!(tally.kernel == QueueLosses::default() && ended.balances, "{ended:?}");
    Ok(())
}

#[test]
fn root_frames_are_dropped_and_counted_where_that_is_asked_for() -> Result<()> {
    let scene = Scene::new()?;
    let mut setup = scene.setup();
    setup.on_failure = OnFailure::Drop;
    let hang = Arc::new(AtomicBool::new(false));
    let told = hang.clone();
    let inspector = scene.inspect(setup, move |_| {
        while told.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    })?;
    let stream = stream(&scene.topology, 4000);
    let [from, to] = &scene.topology.pods[..] else { unreachable!("two pods") };
    let running = stream.start(&from.netns, &to.netns)?;
    std::thread::sleep(Duration::from_millis(200));
    hang.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(300));
    hang.store(false, Ordering::Relaxed);
    let report = running.finish()?;
    let ended = inspector.stop();
    let tally = ended.tallies[0];
    ensure!(tally.dropped > 500 && tally.dropped >= report.missing.len() as u64, "{tally:?}");
    // Beside the stream a neighbour's question may have been dropped.
    ensure!(tally.dropped <= report.missing.len() as u64 + 4, "{tally:?} {}", report.missing.len());
    Ok(())
}

/// Frames of three buffers, in and out.
#[test]
fn root_jumbo_frames_are_judged_whole() -> Result<()> {
    let options = TopologyOptions { pod_mtu: 9000, underlay_mtu: 9100, ..TopologyOptions::default() };
    let scene = Scene::with(options)?;
    let longest = Arc::new(AtomicUsize::new(0));
    let seen = longest.clone();
    let inspector = scene.inspect(scene.setup(), move |frame| {
        seen.fetch_max(frame.bytes().len(), Ordering::Relaxed);
        if let Some(at) = position(frame.bytes(), b"secret") {
            frame.change()[at..at + 6].copy_from_slice(b"public");
        }
    })?;
    fetch(&scene.topology, 2, 1 << 20)?;
    ensure!(longest.load(Ordering::Relaxed) == 9014, "{longest:?}");
    let [from, to] = &scene.topology.pods[..] else { unreachable!("two pods") };
    let stream = UdpStream { size: 8900, ..stream(&scene.topology, 2000) };
    let report = stream.run(&from.netns, &to.netns, || Ok(()))?;
    ensure!(report.is_whole(), "{report:?}");
    for address in [&to.v4, &to.v6] {
        let long = format!("{}secret{}", "x".repeat(1000), "y".repeat(900));
        let heard = say(&scene.topology, address, &long)?;
        ensure!(heard == Some(long.replace("secret", "public")), "{heard:?}");
    }
    let ended = inspector.stop();
    println!("{ended:?}");
    ensure!(ended.tallies[0].kernel == QueueLosses::default(), "{ended:?}");
    ensure!(ended.tallies[0].behind == 0 && ended.counts.lost == 0 && ended.balances, "{ended:?}");
    Ok(())
}

/// Devices of the tool's own, with two queues each.
#[test]
fn root_each_queue_has_a_worker() -> Result<()> {
    let (topology, scratch) = (Topology::new()?, Scratch::new()?);
    let netns = &topology.node;
    for (near, far) in [("near-in", "far-in"), ("near-out", "far-out")] {
        let words = format!(
            "link add {near} numrxqueues 2 numtxqueues 2 type veth peer name {far} numrxqueues 2 numtxqueues 2"
        );
        netns.ip(&words.split(' ').collect::<Vec<_>>())?;
        for end in [near, far] {
            netns.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{end}.disable_ipv6=1")])?;
            netns.ip(&["link", "set", end, "arp", "off", "up"])?;
            netns.run_ok(&["ethtool", "-L", end, "rx", "2", "tx", "2"])?;
        }
        netns.run_ok(&["ethtool", "-K", near, "tso", "off", "gso", "off", "tx", "off"])?;
    }
    let node = Node::open(netns, &scratch, Hook::Auto)?;
    let wish = redirect("inspect", &topology.pods[0], device("near-in"), device("near-out"));
    node.apply(&redirects(&topology, vec![wish]))?;
    let setup = Setup { bpffs: scratch.bpf().join("podwire"), ..Setup::new("far-in", "far-out") };
    let inspector = netns.enter(move || Ok(setup.start(|_| |_: &mut Inspected<'_>| {})?))?;
    fetch(&topology, 20, 100_000)?;
    let ended = inspector.stop();
    println!("{ended:?}");
    ensure!(ended.tallies.len() == 2 && ended.tallies.iter().all(|tally| tally.handed > 20), "{ended:?}");
    ensure!(ended.counts.passed == ended.counts.inspected && ended.balances, "{ended:?}");
    Ok(())
}

#[test]
fn root_what_cannot_be_is_refused_by_name() -> Result<()> {
    let scene = Scene::new()?;
    let refused = |setup: Setup| -> Result<(ErrorKind, String)> {
        scene.topology.node.enter(move || match setup.start(|_| |_: &mut Inspected<'_>| {}) {
            Ok(_) => anyhow::bail!("it started"),
            Err(error) => Ok((error.kind(), error.to_string())),
        })
    };
    let same = refused(Setup { output: "ips-in".into(), ..scene.setup() })?;
    ensure!(same.0 == ErrorKind::Invalid && same.1.contains("come back to where they are taken"), "{same:?}");
    let none = refused(Setup { input: "nowhere".into(), ..scene.setup() })?;
    ensure!(none.1.contains("interface nowhere"), "{none:?}");
    let loopback = refused(Setup { output: "lo".into(), ..scene.setup() })?;
    ensure!(loopback.0 == ErrorKind::Unsupported, "{loopback:?}");
    // A program of somebody else's stays.
    let running = scene.inspect(scene.setup(), |_| {})?;
    let other = refused(Setup { bpffs: scene.scratch.bpf().join("other"), ..scene.setup() })?;
    ensure!(other.0 == ErrorKind::Busy, "{other:?}");
    fetch(&scene.topology, 1, 1000)?;
    ensure!(running.counts().inspected > 0);
    running.stop();
    Ok(())
}

/// The output goes down and comes up again: what it did not take is counted, nothing old is sent, and the inspector
/// is at work again.
#[test]
fn root_an_output_that_comes_back_is_used_again() -> Result<()> {
    let scene = Scene::new()?;
    let inspector = scene.inspect(scene.setup(), |_| {})?;
    let stream = stream(&scene.topology, 15_000);
    let [from, to] = &scene.topology.pods[..] else { unreachable!("two pods") };
    let report = stream.run(&from.netns, &to.netns, || {
        std::thread::sleep(Duration::from_millis(300));
        scene.topology.node.ip(&["link", "set", "ips-out", "down"])?;
        std::thread::sleep(Duration::from_millis(1300));
        scene.topology.node.ip(&["link", "set", "ips-out", "up"])?;
        Ok(())
    })?;
    ensure!(report.duplicates == 0 && report.damaged == 0, "{report:?}");
    // The end of the stream is whole again.
    let last = report.missing.last().copied().unwrap_or_default();
    ensure!(last < 13_000, "{last} is missing");
    let ended = inspector.stop();
    println!("{ended:?}, {} missing", report.missing.len());
    let counts = ended.counts;
    ensure!(counts.lost > 1000 && ended.balances, "{ended:?}");
    ensure!(counts.inspected == counts.passed + counts.lost, "{ended:?}");
    ensure!(
        counts.lost.abs_diff(report.missing.len() as u64) <= 8,
        "{} missing: {ended:?}",
        report.missing.len()
    );
    Ok(())
}

/// A pod's frames with the EtherType of podwire's own probes are judged like all others.
#[test]
fn root_frames_that_look_like_probes_are_judged() -> Result<()> {
    let scene = Scene::new()?;
    let inspector = scene.inspect(scene.setup(), |frame| frame.discard())?;
    let raw = RawSocket::open(&scene.topology.pods[0].netns, "eth0")?;
    let mut frame = [0u8; 60];
    frame[..6].copy_from_slice(&[2, b'p', b'w', 0, 0, 2]);
    frame[6..12].copy_from_slice(&[2, b'p', b'w', 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..20].copy_from_slice(b"secret");
    for _ in 0..5 {
        raw.send(&frame)?;
    }
    eventually("all are judged", || Ok(inspector.counts().dropped >= 5))?;
    let ended = inspector.stop();
    ensure!(ended.counts.probes == 0 && ended.counts.passed == 0, "{ended:?}");
    Ok(())
}

/// Another interface of the same name is another port: what was pinned for the first is no program of the second.
#[test]
fn root_a_port_that_was_made_anew_is_served() -> Result<()> {
    let scene = Scene::new()?;
    let child = example(&scene)?;
    fetch(&scene.topology, 1, 1000)?;
    drop(podwire_harness::Background::new(child));
    let netns = &scene.topology.node;
    netns.ip(&["link", "set", "ips-in", "down"])?;
    netns.ip(&["link", "set", "ips-in", "name", "old-in"])?;
    netns.ip(&["link", "add", "ips-in", "type", "veth", "peer", "name", "far-in"])?;
    netns.ip(&["link", "set", "ips-in", "up"])?;
    netns.ip(&["link", "set", "far-in", "up"])?;
    let inspector = scene.inspect(scene.setup(), |_| {})?;
    let raw = RawSocket::open(netns, "far-in")?;
    for _ in 0..5 {
        raw.send(&[0xff; 60])?;
    }
    eventually("they are judged", || Ok(inspector.counts().inspected >= 5))?;
    inspector.stop();
    Ok(())
}

/// More queues than the output sends by: refused, with the numbers.
#[test]
fn root_each_queue_needs_one_of_the_output() -> Result<()> {
    let (topology, scratch) = (Topology::new()?, Scratch::new()?);
    let netns = &topology.node;
    for (near, far, queues) in [("near-in", "far-in", "2"), ("near-out", "far-out", "1")] {
        let words = format!(
            "link add {near} numrxqueues 2 numtxqueues 2 type veth peer name {far} numrxqueues 2 numtxqueues 2"
        );
        netns.ip(&words.split(' ').collect::<Vec<_>>())?;
        for end in [near, far] {
            netns.ip(&["link", "set", end, "up"])?;
            netns.run_ok(&["ethtool", "-L", end, "rx", queues, "tx", queues])?;
        }
    }
    let setup = Setup { bpffs: scratch.bpf().join("podwire"), ..Setup::new("far-in", "far-out") };
    let error = netns.enter(move || match setup.start(|_| |_: &mut Inspected<'_>| {}) {
        Ok(_) => anyhow::bail!("it started"),
        Err(error) => Ok(error.to_string()),
    })?;
    ensure!(error.contains("far-in receives by 2 queues, far-out sends by 1"), "{error}");
    ensure!(!netns.ip(&["link", "show", "far-in"])?.contains("xdp"), "nothing is left");
    Ok(())
}

/// Ports that podwire did not make, behind a sender with every offload on: frames are cut and complete nevertheless.
#[test]
fn root_frames_of_any_veth_are_cut_and_complete() -> Result<()> {
    let (topology, scratch) = (Topology::new()?, Scratch::new()?);
    let netns = &topology.node;
    for (near, far) in [("near-in", "far-in"), ("near-out", "far-out")] {
        netns.ip(&["link", "add", near, "type", "veth", "peer", "name", far])?;
        for end in [near, far] {
            netns.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{end}.disable_ipv6=1")])?;
            netns.ip(&["link", "set", end, "arp", "off", "up"])?;
        }
    }
    let setup = Setup { bpffs: scratch.bpf().join("podwire"), ..Setup::new("far-in", "far-out") };
    let longest = Arc::new(AtomicUsize::new(0));
    let seen = longest.clone();
    let inspector = netns.enter(move || {
        Ok(setup.start(move |_| {
            let seen = seen.clone();
            move |frame: &mut Inspected<'_>| {
                seen.fetch_max(frame.bytes().len(), Ordering::Relaxed);
            }
        })?)
    })?;
    let node = Node::open(netns, &scratch, Hook::Auto)?;
    let wish = redirect("inspect", &topology.pods[0], device("near-in"), device("near-out"));
    node.apply(&redirects(&topology, vec![wish]))?;
    fetch(&topology, 3, 1 << 20)?;
    let ended = inspector.stop();
    ensure!(longest.load(Ordering::Relaxed) == 1514, "{longest:?}");
    ensure!(ended.counts.passed > 1000 && ended.balances, "{ended:?}");
    Ok(())
}
