//! The demo: two pods, a node and a collector in namespaces; the daemon mirrors chosen traffic of one pod through
//! VXLAN; what is mirrored is shown as it happens. Ends by itself, and undoes everything, also on Ctrl-C.
#![expect(clippy::print_stdout, reason = "the demo is what it prints")]

use std::io::{IsTerminal, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwire_harness::{Agent, COLLECTOR_V4, Capture, NODE_V4, Scratch, Topology};
use podwire_tests::pcapng;
use serde_json::Value;

const SHOW: Duration = Duration::from_secs(12);
const VNI: u32 = 1;
const PORT: u16 = 4789;

fn main() -> Result<()> {
    let end = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&end);
    // Everything is undone by dropping it; a signal only ends the show early.
    podwire_tests::signals::on_end(move || seen.store(true, Ordering::Relaxed))?;
    let capture = show(&end)?;
    println!();
    println!("The collector's capture: {}", capture.display());
    println!("Open it with Wireshark, or: tshark -r {} -Y vxlan", capture.display());
    println!("Everything else is undone.");
    Ok(())
}

fn show(end: &Arc<AtomicBool>) -> Result<PathBuf> {
    println!("Two pods, a node and a collector, each in its own network namespace:");
    println!();
    println!("  web-0 10.10.1.5 ── veth-web-0 ┐");
    println!("                                ├ node {NODE_V4} ── uplink0 ══ collector {COLLECTOR_V4}");
    println!("  web-1 10.10.1.6 ── veth-web-1 ┘");
    println!();
    let scratch = Scratch::new()?;
    let scene = Topology::new()?;
    let device = scene.vxlan(VNI, PORT)?;
    scene.warm_up()?;
    let config = scratch.path().join("config");
    std::fs::create_dir_all(&config)?;
    std::fs::write(config.join("demo.yaml"), OBJECTS)?;
    println!("What the daemon is told ('podwire apply' would do as well):");
    println!();
    for line in OBJECTS.lines() {
        println!("  {line}");
    }
    println!();
    let agent = Agent::start(&scene.node, scratch.path(), &[])?;
    let capture = Capture::start(&scene.collector, "eth0", scratch.path(), "udp port 4789", 0)?;
    let traffic = Traffic::start(&scene, end)?;
    println!(
        "web-0 now fetches pages from web-1 over HTTP and pings it. Only HTTP is asked for, in both directions:"
    );
    println!();
    watch(&agent, &scene, &device, &traffic, end)?;
    traffic.stop();
    std::thread::sleep(Duration::from_millis(200));
    summary(&agent, &scene, &device, &traffic)?;
    let captured = capture.stop();
    let file = std::env::temp_dir().join("podwire-demo.pcapng");
    pcapng::convert(
        &captured,
        &file,
        "collector eth0",
        "copies of web-0's HTTP traffic, sent by podwire over VXLAN",
    )?;
    agent.stop();
    Ok(file)
}

const OBJECTS: &str = "\
apiVersion: podwire.io/v1alpha1
kind: Endpoint
metadata: {name: web-0, labels: {app: web}}
spec: {interface: veth-web-0, ips: [10.10.1.5]}
---
apiVersion: podwire.io/v1alpha1
kind: TrafficControl
metadata: {name: mirror-http}
spec:
  appliedTo: {podSelector: {matchLabels: {app: web}}}
  direction: Both
  action: Mirror
  match:
    - {protocol: TCP, ports: [8080]}
  targetPort: {vxlan: {remoteIP: 192.0.2.9, vni: 1}}
";

/// A row a second: redrawn on a terminal, appended elsewhere.
fn watch(agent: &Agent, scene: &Topology, device: &str, traffic: &Traffic, end: &AtomicBool) -> Result<()> {
    let terminal = std::io::stdout().is_terminal();
    println!(
        "{:>6} {:>12} {:>8} {:>14} {:>12} {:>8} {:>18}",
        "TIME", "HTTP PAGES", "PINGS", "COPIES WANTED", "COPIES SENT", "LOST", "COLLECTOR GOT"
    );
    let start = Instant::now();
    while start.elapsed() < SHOW && !end.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(if terminal { 250 } else { 2000 }));
        let copies = copies(agent)?;
        let line = format!(
            "{:>5.1}s {:>12} {:>8} {:>14} {:>12} {:>8} {:>18}",
            start.elapsed().as_secs_f32(),
            traffic.pages.load(Ordering::Relaxed),
            traffic.pings.load(Ordering::Relaxed),
            copies["matched"].to_string(),
            copies["sent"].to_string(),
            copies["lostTotal"].to_string(),
            scene.collector.counter(device, "rx", "packets")?,
        );
        if terminal {
            print!("\r{line}");
            std::io::stdout().flush()?;
        } else {
            println!("{line}");
        }
    }
    if terminal {
        println!();
    }
    Ok(())
}

fn copies(agent: &Agent) -> Result<Value> {
    let shown: Value = serde_json::from_str(&agent.cli_ok(&["get", "tc", "mirror-http", "-o", "json"])?)?;
    Ok(shown["status"]["copies"].clone())
}

fn summary(agent: &Agent, scene: &Topology, device: &str, traffic: &Traffic) -> Result<()> {
    println!();
    for kind in ["trafficcontrols", "endpoints", "sessions"] {
        println!("$ podwire get {kind}");
        println!("{}", agent.cli_ok(&["get", kind])?);
    }
    let (copies, got) = (copies(agent)?, scene.collector.counter(device, "rx", "packets")?);
    let failed = traffic.failed.load(Ordering::Relaxed);
    println!("web-0 fetched {} pages, {failed} failed. It also", traffic.pages.load(Ordering::Relaxed));
    println!(
        "sent {} pings, which nobody asked for and which are not in the mirror.",
        traffic.pings.load(Ordering::Relaxed)
    );
    println!("podwire sent {} copies; the collector's own vxlan device decapsulated {got}.", copies["sent"]);
    anyhow::ensure!(failed == 0, "pages failed while they were mirrored");
    anyhow::ensure!(copies["sent"] == got && got > 0, "not every copy arrived");
    Ok(())
}

/// Real HTTP and ping between the pods.
struct Traffic {
    pages: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    pings: Arc<AtomicU64>,
    running: Arc<AtomicBool>,
}

impl Traffic {
    fn start(scene: &Topology, end: &Arc<AtomicBool>) -> Result<Self> {
        let [client, server] = &scene.pods[..] else {
            anyhow::bail!("the scene has two pods");
        };
        let traffic = Self {
            pages: Arc::default(),
            failed: Arc::default(),
            pings: Arc::default(),
            running: Arc::new(AtomicBool::new(true)),
        };
        let listener =
            server.netns.enter(|| TcpListener::bind("0.0.0.0:8080").context("binding the server"))?;
        let runs = |running: &Arc<AtomicBool>| {
            let (running, end) = (Arc::clone(running), Arc::clone(end));
            move || running.load(Ordering::Relaxed) && !end.load(Ordering::Relaxed)
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = serve(stream);
            }
        });
        let (pages, failed, go_on) =
            (Arc::clone(&traffic.pages), Arc::clone(&traffic.failed), runs(&traffic.running));
        let address = format!("{}:8080", server.v4);
        client.netns.enter_later(move || {
            while go_on() {
                let counter = if fetch(&address).is_ok() { &pages } else { &failed };
                counter.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(40));
            }
            Ok(())
        })?;
        let (pings, go_on) = (Arc::clone(&traffic.pings), runs(&traffic.running));
        let (netns, destination) = (client.netns.name().to_owned(), server.v4.clone());
        std::thread::spawn(move || {
            while go_on() {
                let entry = format!("--net=/run/netns/{netns}");
                let words = ["nsenter", &entry, "ping", "-n", "-q", "-c", "1", "-W", "1", &destination];
                if podwire_harness::run_ok(&words).is_ok() {
                    pings.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Ok(traffic)
    }

    fn stop(&self) {
        self.running.store(false, Ordering::Relaxed);
    }
}

fn serve(mut stream: TcpStream) -> Result<()> {
    let mut request = [0; 1024];
    let _ = stream.read(&mut request)?;
    let body = "a page of web-1\n".repeat(4096);
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())?;
    Ok(())
}

fn fetch(address: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: web-1\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    anyhow::ensure!(answer.len() > 65_000, "a short page");
    Ok(())
}
