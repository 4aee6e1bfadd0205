//! The inline inspector on real traffic: every frame is judged, what is changed has right checksums, and a worker
//! that hangs, dies or falls behind costs no packet.
#![cfg(feature = "test-run")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_datapath::Hook;
use podwire_datapath::xsk::inspect::{Inspected, Running, Setup};
use podwire_harness::{Page, Scratch, StreamReport, Topology, UdpStream};
use podwire_tests::node::Node;
use podwire_tests::wish::{internal, redirect, redirects};

/// The same page over both families.
fn fetch(scene: &Topology, times: usize, bytes: usize) -> Result<()> {
    let [client, server] = &scene.pods[..] else { unreachable!("two pods") };
    for address in [&server.v4, &server.v6] {
        for _ in 0..times {
            Page { address: address.clone(), port: 8080, bytes }.fetch(&client.netns, &server.netns)?;
        }
    }
    Ok(())
}

/// Two pods, a redirect of the first one's packets through `ips-in` and `ips-out`.
struct Scene {
    node: Node,
    topology: Topology,
    scratch: Scratch,
}

impl Scene {
    fn new() -> Result<Self> {
        let (topology, scratch) = (Topology::new()?, Scratch::new()?);
        let node = Node::open(&topology.node, &scratch, Hook::Auto)?;
        let wish = redirect("inspect", &topology.pods[0], internal("ips-in"), internal("ips-out"));
        node.apply(&redirects(&topology, vec![wish]))?;
        Ok(Self { node, topology, scratch })
    }

    fn setup(&self) -> Setup {
        Setup { bpffs: self.scratch.bpf().join("podwire"), ..Setup::new("ips-in", "ips-out") }
    }

    fn inspect(
        &self,
        setup: Setup,
        judge: impl FnMut(&mut Inspected<'_>) + Send + Clone + 'static,
    ) -> Result<Running> {
        self.topology.node.enter(move || Ok(setup.start(|_| judge.clone())?))
    }
}

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

/// The longest time for which nothing came.
fn longest_hole(report: &StreamReport, gap: Duration) -> Duration {
    let runs = report.missing.chunk_by(|one, next| one + 1 == *next);
    let longest = runs.map(<[u64]>::len).max().unwrap_or_default();
    gap.saturating_mul(longest as u32)
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
    println!("{during:?}\n{after:?}\nreordered {}", report.reordered);
    // What was in its hands comes late; nothing is lost, doubled or damaged.
    ensure!(report.is_whole(), "{report:?}");
    // At most what 50 ms brought waited for it; the rest went by.
    ensure!(
        report.reordered as u32 <= (PATIENCE.as_micros() / 200) as u32 + 64,
        "{} waited",
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
    let hole = longest_hole(&report, stream.gap);
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
