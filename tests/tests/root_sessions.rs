//! What leaves for a session's target: numbers, times, directions, tags, cut frames, samples, rates, fragments. Read
//! by tshark, and by the receiver's own kernel.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_datapath::compile::Rule;
use podwire_datapath::core::abi::{Direction, Reason, SessionCounters};
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::core::wire::erspan::iii::Granularity;
use podwire_datapath::{Engine, Hook, Mirror, Oversize, Sampling, SessionOptions, Target};
use podwire_harness::{
    COLLECTOR_V4, COLLECTOR_V6, Capture, Page, Scratch, Topology, TopologyOptions, UdpStream,
};
use podwire_tests::node::{Node, lost};
use podwire_tests::wish::{device, internal, mirror, mirrors, tunnel};

fn vxlan(remote: &str) -> Result<Target> {
    tunnel(remote, Tunnel::Vxlan { vni: 7, port: 4789 })
}

/// ERSPAN II with every field at the top of its range.
fn erspan_ii(remote: &str) -> Result<Target> {
    tunnel(remote, Tunnel::ErspanII { session: 1023, index: 1_048_575 })
}

/// ERSPAN III with every field at the top of its range.
fn erspan_iii(remote: &str) -> Result<Target> {
    let granularity = Granularity::HundredNanoseconds;
    tunnel(remote, Tunnel::ErspanIII { session: 1023, hardware_id: 63, sgt: 0, direction: None, granularity })
}

/// A scene, a node, and a capture of what reaches the collector's underlay.
struct Stage {
    scene: Topology,
    scratch: Scratch,
    node: Option<Node>,
    capture: Option<Capture>,
}

impl Stage {
    fn new(options: TopologyOptions) -> Result<Self> {
        let (scene, scratch) = (Topology::with(options)?, Scratch::new()?);
        scene.warm_up()?;
        ensure!(scene.node.run(&["ping", "-c1", "-W2", COLLECTOR_V6])?.status.success(), "IPv6 underlay");
        let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
        Ok(Self { scene, scratch, node: Some(node), capture: None })
    }

    fn node(&self) -> Result<&Node> {
        self.node.as_ref().context("the node's agent is gone")
    }

    /// A mirror of the first pod's packets.
    fn mirror(&self, target: Target, options: SessionOptions, rules: Vec<Rule>) -> Mirror {
        Mirror { options, rules, ..mirror("m", &self.scene.pods[0], target) }
    }

    fn apply(&mut self, mirror: Mirror) -> Result<()> {
        self.node()?.apply(&mirrors(&self.scene, vec![mirror]))?;
        self.capture = Some(Capture::start(
            &self.scene.collector,
            "eth0",
            self.scratch.path(),
            "not (icmp or icmp6 or arp)",
            2000,
        )?);
        Ok(())
    }

    fn captured(&mut self) -> Result<PathBuf> {
        // The segmenting device and the user-space encapsulator are a moment behind.
        std::thread::sleep(Duration::from_millis(300));
        Ok(self.capture.take().context("no capture runs")?.stop())
    }

    /// Streams from the first pod to the second, and back with the answers of nobody.
    fn stream(&self, count: u64, size: usize, v6: bool) -> Result<()> {
        let [first, second] = &self.scene.pods[..] else { unreachable!("two pods") };
        let destination = if v6 { second.v6.clone() } else { second.v4.clone() };
        let stream = UdpStream { destination, port: 9, count, size, gap: Duration::from_micros(100) };
        let report = stream.run(&first.netns, &second.netns, || Ok(()))?;
        ensure!(report.is_whole(), "the original: {report:?}");
        Ok(())
    }

    fn fetch(&self, bytes: usize) -> Result<()> {
        let [client, server] = &self.scene.pods[..] else { unreachable!("two pods") };
        for address in [&server.v4, &server.v6] {
            Page { address: address.clone(), port: 8080, bytes }.fetch(&client.netns, &server.netns)?;
        }
        Ok(())
    }
}

fn protocol(number: u8) -> Vec<Rule> {
    vec![Rule { protocol: Some(number), ..Rule::default() }]
}

fn numbers(file: &std::path::Path, filter: &str, field: &str) -> Result<Vec<u64>> {
    let rows = Capture::fields(file, 4789, filter, &[field])?;
    rows.iter().map(|row| row[0].parse().with_context(|| format!("{field}: {row:?}"))).collect()
}

/// Sequence numbers from 0 on, each once and in order, while two CPUs send super-packets of both families.
fn erspan_sequence(target: Target, types: &str) -> Result<()> {
    let mut stage = Stage::new(TopologyOptions { underlay_mtu: 1650, ..TopologyOptions::default() })?;
    stage.apply(stage.mirror(target.clone(), SessionOptions::default(), protocol(6)))?;
    stage.fetch(2 << 20)?;
    let file = stage.captured()?;
    let sequence = numbers(&file, types, "gre.sequence_number")?;
    assert!(sequence.len() > 2500, "{} packets", sequence.len());
    let mut sorted = sequence.clone();
    sorted.sort_unstable();
    let counters = stage.node()?.session(&target)?;
    let wrong = sorted.iter().copied().zip(0..).find(|(got, wanted)| got != wanted);
    assert_eq!(wrong, None, "a gap or a repeat among {} packets, {counters:?}", sequence.len());
    assert_eq!(counters.sent_packets, sequence.len() as u64, "{counters:?}");
    assert_eq!(counters.truncated_packets, 0, "{counters:?}");
    // Super-packets were cut up first: each frame fits the path, and its checksums are right.
    let longest = numbers(&file, types, "frame.len")?.into_iter().max();
    assert!(longest.is_some_and(|len| len <= 1664), "{longest:?}");
    assert_eq!(Capture::count(&file, 0, "tcp.checksum.status == 0 || ip.checksum.status == 0")?, 0);
    assert!(Capture::count(&file, 0, "tcp.checksum.status == 1")? > 2500);
    Ok(())
}

#[test]
fn root_erspan_ii_is_numbered_without_a_gap() -> Result<()> {
    erspan_sequence(erspan_ii(COLLECTOR_V4)?, "erspan")
}

#[test]
fn root_erspan_iii_is_numbered_without_a_gap() -> Result<()> {
    erspan_sequence(erspan_iii(COLLECTOR_V6)?, "erspan")
}

/// Fields of ERSPAN as tshark names them.
#[test]
fn root_erspan_fields_have_their_whole_ranges() -> Result<()> {
    let mut stage = Stage::new(TopologyOptions::default())?;
    for (target, version) in [(erspan_ii(COLLECTOR_V4)?, 1), (erspan_iii(COLLECTOR_V4)?, 2)] {
        // The node's own redirects are ICMP too.
        let echo =
            [8, 0].map(|kind: u16| Rule { icmp: vec![kind << 8..=kind << 8], ..protocol(1).remove(0) });
        stage.apply(stage.mirror(target, SessionOptions::default(), echo.to_vec()))?;
        let [first, second] = &stage.scene.pods[..] else { unreachable!("two pods") };
        assert_eq!(first.netns.ping(&second.v4, 5, 56)?, 5);
        let file = stage.captured()?;
        let all = |filter: &str| Capture::count(&file, 0, filter);
        assert_eq!(
            all(&format!("erspan.version == {version} && erspan.spanid == 1023 && erspan.truncated == 0"))?,
            10
        );
        if version == 1 {
            assert_eq!(all("erspan.index == 1048575")?, 10);
            continue;
        }
        assert_eq!(all("erspan.hw == 63")?, 10);
        // What the pod sends goes into the switch: direction 0.
        let [first, second] = &stage.scene.pods[..] else { unreachable!("two pods") };
        let sent = format!("erspan.direction == 0 && ip.src == {} && icmp.type == 8", first.v4);
        let received = format!("erspan.direction == 1 && ip.src == {} && icmp.type == 0", second.v4);
        assert_eq!((all(&sent)?, all(&received)?), (5, 5));
        let times = numbers(&file, "erspan", "erspan.timestamp")?;
        let steps: Vec<u64> =
            times.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) as u32 as u64).collect();
        // In units of 100 ns: five pings take more than a millisecond, and less than a minute.
        assert!(
            steps.iter().sum::<u64>() > 10_000 && steps.iter().all(|step| *step < 600_000_000),
            "{times:?}"
        );
    }
    Ok(())
}

/// A VLAN tag stays in the frame, and ERSPAN says which it is.
#[test]
fn root_erspan_takes_vlan_and_priority_from_the_frame() -> Result<()> {
    let mut stage = Stage::new(TopologyOptions::default())?;
    stage.apply(stage.mirror(erspan_ii(COLLECTOR_V4)?, SessionOptions::default(), Vec::new()))?;
    let pod = &stage.scene.pods[0];
    let raw = podwire_harness::RawSocket::open(&pod.netns, "eth0")?;
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 5, 0x81, 0x00, 0xa0 | 0x01, 0x23, 0x88, 0xb5];
    frame.resize(80, 0x55);
    raw.send(&frame)?;
    let file = stage.captured()?;
    // Priority 5, VLAN 0x123, and the tag is preserved in the frame (3).
    let filter = "erspan.vlan == 291 && erspan.cos == 5 && erspan.encap == 3 && vlan.id == 291";
    assert_eq!(Capture::count(&file, 0, filter)?, 1);
    Ok(())
}

/// Full-size frames do not fit an underlay of the same MTU: they are cut, which ERSPAN says by a bit.
#[test]
fn root_cut_frames_carry_the_truncated_bit() -> Result<()> {
    let mut stage = Stage::new(TopologyOptions { underlay_mtu: 1500, ..TopologyOptions::default() })?;
    let target = erspan_ii(COLLECTOR_V4)?;
    stage.apply(stage.mirror(target.clone(), SessionOptions::default(), protocol(17)))?;
    stage.stream(50, 1472, false)?;
    stage.stream(50, 100, false)?;
    let file = stage.captured()?;
    assert_eq!(Capture::count(&file, 0, "erspan.truncated == 1 && frame.len == 1514")?, 50);
    assert_eq!(Capture::count(&file, 0, "erspan.truncated == 0 && frame.len < 300")?, 50);
    let counters = stage.node()?.session(&target)?;
    assert_eq!((counters.truncated_packets, counters.sent_packets), (50, 100), "{counters:?}");
    Ok(())
}

/// The same cut asked for, by each engine: the copy has the first bytes, the original everything.
#[test]
fn root_truncate_sends_the_head_of_each_frame() -> Result<()> {
    for (engine, remote, v6) in [
        (Engine::Clone, COLLECTOR_V4, false),
        (Engine::Snap, COLLECTOR_V4, true),
        (Engine::Snap, COLLECTOR_V6, false),
        (Engine::Segment, COLLECTOR_V4, true),
    ] {
        let mut stage = Stage::new(TopologyOptions::default())?;
        let options = SessionOptions { truncate: Some(128), engine, ..SessionOptions::default() };
        let target = vxlan(remote)?;
        stage.apply(stage.mirror(target.clone(), options, protocol(17)))?;
        stage.stream(100, 1200, v6)?;
        let file = stage.captured()?;
        let outer = if remote == COLLECTOR_V4 { 50 } else { 70 };
        let filter = format!("vxlan.vni == 7 && frame.len == {}", outer + 128);
        assert_eq!(Capture::count(&file, 4789, &filter)?, 100, "{engine:?} to {remote}");
        let counters = stage.node()?.session(&target)?;
        assert_eq!(
            (counters.truncated_packets, counters.sent_packets),
            (100, 100),
            "{engine:?}: {counters:?}"
        );
    }
    Ok(())
}

/// Without an agent nobody takes snapshots: clones are cut instead, and nothing is lost.
#[test]
fn root_snapshots_become_clones_without_an_agent() -> Result<()> {
    let mut stage = Stage::new(TopologyOptions::default())?;
    let options = SessionOptions { truncate: Some(128), ..SessionOptions::default() };
    let target = vxlan(COLLECTOR_V4)?;
    stage.apply(stage.mirror(target.clone(), options, protocol(17)))?;
    stage.stream(10, 1200, false)?;
    let before = stage.node()?.session(&target)?;
    assert_eq!(before.handed_packets, 10, "{before:?}");
    stage.node = None;
    std::thread::sleep(Duration::from_millis(1100));
    stage.stream(50, 1200, false)?;
    let file = stage.captured()?;
    assert_eq!(Capture::count(&file, 4789, "vxlan.vni == 7 && frame.len == 178")?, 60);
    Ok(())
}

#[test]
fn root_samples_are_one_in_so_many() -> Result<()> {
    let mut stage = Stage::new(TopologyOptions::default())?;
    let target = vxlan(COLLECTOR_V4)?;
    let sampling = Some(Sampling { one_in: 10, by_flow: false });
    let options = SessionOptions { sampling, ..SessionOptions::default() };
    stage.apply(stage.mirror(target.clone(), options, protocol(17)))?;
    stage.stream(2000, 100, false)?;
    let counters = stage.node()?.session(&target)?;
    assert_eq!(counters.matched_packets, 2000, "{counters:?}");
    // Each CPU counts for itself.
    assert!((198..=204).contains(&counters.sent_packets), "{counters:?}");
    assert_eq!(counters.sampled_out_packets, 2000 - counters.sent_packets, "{counters:?}");
    Ok(())
}

/// Of 40 flows of both directions some are taken, each of them whole.
#[test]
fn root_samples_of_flows_take_them_whole() -> Result<()> {
    let mut stage = Stage::new(TopologyOptions::default())?;
    let sampling = Some(Sampling { one_in: 4, by_flow: true });
    let options = SessionOptions { sampling, ..SessionOptions::default() };
    stage.apply(stage.mirror(vxlan(COLLECTOR_V4)?, options, protocol(6)))?;
    for _ in 0..20 {
        stage.fetch(100)?;
    }
    let file = stage.captured()?;
    let streams = numbers(&file, "tcp", "tcp.stream")?;
    let opened = numbers(&file, "tcp.flags.syn == 1 && tcp.flags.ack == 0", "tcp.stream")?;
    let answered = numbers(&file, "tcp.flags.syn == 1 && tcp.flags.ack == 1", "tcp.stream")?;
    let ended = numbers(&file, "tcp.flags.fin == 1", "tcp.stream")?;
    let count = opened.len() as u64;
    assert!((2..30).contains(&count), "{count} of 40 flows");
    assert_eq!(answered.len() as u64, count, "both directions");
    assert_eq!(ended.len() as u64, 2 * count, "to their ends");
    assert_eq!(streams.iter().max(), Some(&(count - 1)));
    Ok(())
}

#[test]
fn root_the_rate_is_kept() -> Result<()> {
    let mut stage = Stage::new(TopologyOptions::default())?;
    let target = vxlan(COLLECTOR_V4)?;
    let options = SessionOptions { rate_limit: Some(500), ..SessionOptions::default() };
    stage.apply(stage.mirror(target.clone(), options, protocol(17)))?;
    let started = std::time::Instant::now();
    stage.stream(6000, 100, false)?;
    let seconds = started.elapsed().as_secs_f64();
    let counters = stage.node()?.session(&target)?;
    let limited = lost(&counters, Reason::RateLimited);
    assert_eq!(counters.sent_packets + limited, 6000, "{counters:?}");
    // 500 a second, and what a burst may have besides; the stream itself took less time than was measured.
    assert!(counters.sent_packets as f64 <= 500.0 * seconds + 30.0, "{seconds} s: {counters:?}");
    assert!(counters.sent_packets >= 250 && limited > 0, "{seconds} s: {counters:?}");
    Ok(())
}

/// Frames that do not fit: the kernel of the receiver puts the fragments together.
fn fragments(remote: &str) -> Result<SessionCounters> {
    let mut stage = Stage::new(TopologyOptions { underlay_mtu: 1500, ..TopologyOptions::default() })?;
    let options = SessionOptions { oversize: Oversize::Fragment, ..SessionOptions::default() };
    let target = vxlan(remote)?;
    let collector = &stage.scene.collector;
    let node = if remote == COLLECTOR_V4 { "192.0.2.1" } else { "2001:db8::1" };
    let words = [
        "link",
        "add",
        "vx7",
        "type",
        "vxlan",
        "id",
        "7",
        "remote",
        node,
        "dstport",
        "4789",
        "udp6zerocsumrx",
    ];
    collector.ip(&words)?;
    collector.run_ok(&["sysctl", "-qw", "net.ipv6.conf.vx7.disable_ipv6=1"])?;
    collector.ip(&["link", "set", "vx7", "mtu", "1500", "up"])?;
    stage.apply(stage.mirror(target.clone(), options, protocol(17)))?;
    let inner = Capture::start(&stage.scene.collector, "vx7", stage.scratch.path(), "udp", 2000)?;
    stage.stream(100, 1472, false)?;
    stage.captured()?;
    let inner = inner.stop();
    let whole = "udp.dstport == 9 && frame.len == 1514 && udp.checksum.status == 1";
    assert_eq!(Capture::count(&inner, 0, whole)?, 100);
    stage.node()?.session(&target)
}

#[test]
fn root_what_does_not_fit_is_sent_in_fragments() -> Result<()> {
    for remote in [COLLECTOR_V4, COLLECTOR_V6] {
        let counters = fragments(remote)?;
        assert_eq!((counters.sent_packets, counters.truncated_packets), (100, 0), "{counters:?}");
    }
    Ok(())
}

#[test]
fn root_what_does_not_fit_is_dropped_and_counted() -> Result<()> {
    let mut stage = Stage::new(TopologyOptions { underlay_mtu: 1500, ..TopologyOptions::default() })?;
    let options = SessionOptions { oversize: Oversize::Drop, ..SessionOptions::default() };
    let target = vxlan(COLLECTOR_V4)?;
    stage.apply(stage.mirror(target.clone(), options, protocol(17)))?;
    stage.stream(30, 1472, false)?;
    stage.stream(20, 100, false)?;
    let counters = stage.node()?.session(&target)?;
    assert_eq!((counters.sent_packets, lost(&counters, Reason::TooBig)), (20, 30), "{counters:?}");
    Ok(())
}

/// 100 pings over each family are 200 frames at an internal port.
#[test]
fn root_pings_arrive_at_an_internal_port() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let rules = [(1, 8), (1, 0), (58, 128), (58, 129)].map(|(number, kind): (u8, u16)| Rule {
        protocol: Some(number),
        icmp: vec![kind << 8..=kind << 8 | 255],
        ..Rule::default()
    });
    let wish = Mirror { rules: rules.to_vec(), ..mirror("ids", first, internal("ids0")) };
    node.apply(&mirrors(&scene, vec![wish]))?;
    for (number, address) in [&second.v4, &second.v6].into_iter().enumerate() {
        assert_eq!(first.netns.ping(address, 100, 56)?, 100);
        assert_eq!(scene.node.counter("ids0", "rx", "packets")?, 200 * (number as u64 + 1));
    }
    let counters = node.session(&internal("ids0"))?;
    assert_eq!(counters.sent_packets, 400, "{counters:?}");
    Ok(())
}

/// Everything that a reader of an internal port sees of a bulk transfer with all offloads on is cut to size, its
/// checksums are right, and no byte is missing.
#[test]
fn root_an_internal_port_shows_the_wire() -> Result<()> {
    const BYTES: usize = 16 << 20;
    let mut stage = Stage::new(TopologyOptions::default())?;
    let wish = stage.mirror(internal("ids0"), SessionOptions::default(), protocol(6));
    stage.node()?.apply(&mirrors(&stage.scene, vec![wish]))?;
    stage.capture = Some(Capture::start(&stage.scene.node, "ids0", stage.scratch.path(), "tcp", 2000)?);
    stage.fetch(BYTES)?;
    let file = stage.captured()?;
    assert_eq!(numbers(&file, "tcp", "frame.len")?.into_iter().max(), Some(1514));
    let shown = [
        "frame.number",
        "frame.time_relative",
        "frame.len",
        "tcp.srcport",
        "tcp.seq",
        "tcp.len",
        "tcp.flags.str",
    ];
    let sums = ["tcp.checksum", "tcp.checksum_calculated", "tcp.analysis.flags"];
    let wrong = Capture::fields(&file, 0, "tcp.checksum.status == 0", &[&shown[..], &sums].concat())?;
    assert!(wrong.is_empty(), "wrong checksums: {wrong:?}");
    assert!(Capture::count(&file, 0, "tcp.checksum.status == 1")? > 20_000);
    for stream in 0..2 {
        let filter = format!("tcp.stream == {stream} && tcp.srcport == 8080 && tcp.len > 0");
        let rows = Capture::fields(&file, 0, &filter, &["tcp.seq", "tcp.len"])?;
        let mut pieces: Vec<(u64, u64)> =
            rows.iter().filter_map(|row| Some((row[0].parse().ok()?, row[1].parse().ok()?))).collect();
        pieces.sort_unstable();
        let covered =
            pieces.iter().fold(1, |end, (at, len)| if *at <= end { end.max(at + len) } else { end });
        assert!(covered > BYTES as u64, "stream {stream}: {covered} bytes without a gap");
    }
    Ok(())
}

/// Two policies with one target share its session; a packet that both want goes there once, and both count it.
#[test]
fn root_shared_sessions_get_one_copy_and_policies_count() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let out = scene.local_device("tap0", 1500)?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let all = Mirror { rules: protocol(1), ..mirror("all", first, device("tap0")) };
    let sent = Mirror { name: "sent".into(), directions: vec![Direction::Egress], ..all.clone() };
    node.apply(&mirrors(&scene, vec![all, sent]))?;
    let before = scene.node.counter(&out, "rx", "packets")?;
    assert_eq!(first.netns.ping(&second.v4, 30, 56)?, 30);
    assert_eq!(scene.node.counter(&out, "rx", "packets")? - before, 60);
    assert_eq!(node.policy("all")?.matched_packets, 60);
    assert_eq!(node.policy("sent")?.matched_packets, 30);
    Ok(())
}

/// Packets of the node's own sockets that go to the collector.
fn of_the_stack(scene: &Topology) -> Result<u64> {
    let listing = scene.node.run_ok(&["nft", "list", "counter", "inet", "watch", "out"])?;
    let number = listing.split_whitespace().skip_while(|word| *word != "packets").nth(1);
    number.context("no counter")?.parse().context("a number")
}

/// Snapshots leave by AF_XDP, whole and in order, while nobody would miss them on their way; by sockets as soon as
/// somebody listens on the uplink.
#[test]
fn root_snapshots_leave_past_the_stack_while_nobody_listens() -> Result<()> {
    for (remote, outer) in [(COLLECTOR_V4, 50), (COLLECTOR_V6, 70)] {
        let mut stage = Stage::new(TopologyOptions::default())?;
        let rules = "table inet watch { counter out { }; chain c { type filter hook output priority 0; \
                     udp dport 4789 counter name out; }; }";
        stage.scene.node.run_ok(&["nft", rules])?;
        let options =
            SessionOptions { truncate: Some(128), engine: Engine::Snap, ..SessionOptions::default() };
        let target = vxlan(remote)?;
        stage.apply(stage.mirror(target.clone(), options, protocol(17)))?;
        stage.stream(500, 1200, false)?;
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(of_the_stack(&stage.scene)?, 0, "{remote}");
        let listener = Capture::start(&stage.scene.node, "uplink0", stage.scratch.path(), "udp", 200)?;
        std::thread::sleep(Duration::from_millis(700));
        stage.stream(500, 1200, false)?;
        let file = stage.captured()?;
        let heard = Capture::count(&listener.stop(), 4789, "vxlan")?;
        assert_eq!((of_the_stack(&stage.scene)?, heard), (500, 500), "{remote}");
        let filter = format!("vxlan.vni == 7 && frame.len == {}", outer + 128);
        assert_eq!(Capture::count(&file, 4789, &filter)?, 1000, "{remote}");
        assert_eq!(Capture::count(&file, 4789, "ip.checksum.status == 0")?, 0, "{remote}");
        let counters = stage.node()?.session(&target)?;
        assert_eq!(
            (counters.sent_packets, counters.lost_packets.iter().sum::<u64>()),
            (1000, 0),
            "{counters:?}"
        );
    }
    Ok(())
}

/// The uplink goes away under snapshots that leave past the stack: what did not arrive is counted as lost.
#[test]
fn root_snapshots_are_counted_when_the_uplink_goes_down() -> Result<()> {
    let mut stage = Stage::new(TopologyOptions::default())?;
    let options = SessionOptions { truncate: Some(128), engine: Engine::Snap, ..SessionOptions::default() };
    let target = vxlan(COLLECTOR_V4)?;
    stage.apply(stage.mirror(target.clone(), options, protocol(17)))?;
    let [first, second] = &stage.scene.pods[..] else { unreachable!("two pods") };
    let gap = Duration::from_micros(200);
    let stream = UdpStream { destination: second.v4.clone(), port: 9, count: 5000, size: 400, gap };
    let report = stream.run(&first.netns, &second.netns, || {
        std::thread::sleep(Duration::from_millis(400));
        stage.scene.node.ip(&["link", "set", "uplink0", "down"])?;
        Ok(())
    })?;
    ensure!(report.is_whole(), "the original: {report:?}");
    let file = stage.captured()?;
    let arrived = Capture::count(&file, 4789, "vxlan.vni == 7")? as u64;
    let counters = stage.node()?.session(&target)?;
    let lost = counters.lost_packets.iter().sum::<u64>();
    assert_eq!(counters.sent_packets + lost, 5000, "{counters:?}");
    assert!(arrived > 500 && lost > 500, "{arrived} arrived: {counters:?}");
    assert_eq!(arrived, counters.sent_packets, "{counters:?}");
    Ok(())
}
