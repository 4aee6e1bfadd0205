//! A thousand traces at once, while all else that has something to say floods.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwire_harness::{
    Capture, ClusterNode, ClusterOptions, Pod, RawSocket, Scratch, Tagged, Wiring, eventually,
};
use podwire_tests::agents;
use podwire_tests::flows::{guard, object, told};
use serde_json::{Value, json};

const PODS: usize = 20;
const OF_EACH: usize = 50;
/// DSCP value of the traffic that is traced, and its byte.
const OWN: u8 = 46;

/// HTTP on the agent's socket, without waiting for the answer's end.
fn post(node: &ClusterNode, query: &str, body: &str) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(node.scratch.path().join("podwire.sock"))?;
    let len = body.len();
    write!(
        stream,
        "POST /v1/traceflows?{query} HTTP/1.1\r\nhost: podwire\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n{body}"
    )?;
    Ok(stream)
}

fn answer(mut stream: UnixStream) -> Result<String> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn all(node: &ClusterNode) -> Result<Vec<Value>> {
    let mut stream = UnixStream::connect(node.scratch.path().join("podwire.sock"))?;
    write!(stream, "GET /v1/traceflows HTTP/1.0\r\nhost: podwire\r\n\r\n")?;
    let text = answer(stream)?;
    let (_, body) = text.split_once("\r\n\r\n").context("no body")?;
    let shown: Value = serde_json::from_str(body)?;
    Ok(shown["items"].as_array().context("no list")?.clone())
}

fn spec(from: &Pod, to: &Pod, port: usize) -> Value {
    json!({
        "source": {"pod": from.name},
        "destination": {"pod": to.name},
        "packet": {"ipHeader": {"protocol": 17}, "transportHeader": {"udp": {"dstPort": port}}},
        "liveTraffic": true,
        "timeout": 120,
    })
}

/// Sends until told to stop: what carries tags of traces, but is none of them, and what the guard drops.
struct Flood {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    sent: Arc<AtomicU64>,
}

impl Flood {
    fn start(from: &Pod, to: &Pod) -> Result<Self> {
        let (end, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        let sockets = (1..64)
            .map(|tag| {
                Tagged { destination: to.v4.parse()?, source_port: 900, port: 9, tag }
                    .with_port(tag)
                    .open(&from.netns)
            })
            .collect::<Result<Vec<_>>>()?;
        let (stop, count) = (end.clone(), sent.clone());
        threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for socket in &sockets {
                    let _ = socket.send(&[0; 32]);
                    count.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        }));
        let raw = RawSocket::open(&from.netns, "eth0")?;
        // A source MAC address that is not the pod's.
        let mut forged = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0xff, 0xff, 8, 0];
        forged.extend([0x45, 0, 0, 20, 0, 0, 0, 0, 64, 99, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let stop = end.clone();
        threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..50 {
                    raw.send(&forged)?;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        }));
        Ok(Self { end, threads, sent })
    }

    fn stop(self) -> Result<u64> {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| anyhow::anyhow!("a flood panicked"))??;
        }
        Ok(self.sent.load(Ordering::Relaxed))
    }
}

trait WithPort {
    fn with_port(self, number: u8) -> Self;
}

impl WithPort for Tagged {
    fn with_port(self, number: u8) -> Self {
        Self { source_port: self.source_port + u16::from(number), ..self }
    }
}

#[test]
fn root_a_thousand_traces_run_at_once_under_a_flood() -> Result<()> {
    let options =
        ClusterOptions { nodes: 1, pods: PODS, wiring: Wiring::Native, ..ClusterOptions::default() };
    let mut cluster = agents::cluster(options)?;
    guard(&mut cluster)?;
    let node = &cluster.nodes[0];
    let pods = &node.pods;
    let scratch = Scratch::new()?;
    let begun = Instant::now();
    for number in 0..PODS * OF_EACH {
        let (from, to) = (number % PODS, (number + 1) % PODS);
        let body = object(&format!("t-{number}"), &spec(&pods[from], &pods[to], 10_000 + number));
        let text = answer(post(node, "wait=false", &body)?)?;
        ensure!(text.starts_with("HTTP/1.1 200"), "{number}: {text}");
    }
    println!("{} traces begun in {:?}", PODS * OF_EACH, begun.elapsed());
    let running = |items: &[Value]| items.iter().filter(|item| item["status"]["phase"] == "Running").count();
    let items = all(node)?;
    let over = items.iter().find(|item| item["status"]["phase"] != "Running");
    ensure!(over.is_none() && items.len() == PODS * OF_EACH, "not all run at once: {over:?}");

    // Clients that are killed: their traces go, and nothing else.
    let mut clients = Vec::new();
    for number in 0..50 {
        let body = object(&format!("once-{number}"), &spec(&pods[number % PODS], &pods[0], 30_000 + number));
        clients.push(post(node, "once=true", &body)?);
    }
    eventually("the clients' traces run", || Ok(all(node)?.len() == PODS * OF_EACH + 50))?;
    for (number, client) in clients.into_iter().enumerate() {
        if number % 3 == 0 {
            std::thread::sleep(Duration::from_millis(3));
        }
        drop(client);
    }
    eventually("the clients' traces are gone", || Ok(all(node)?.len() == PODS * OF_EACH))?;

    let filter = format!("udp and dst portrange 10000-29999 and ip[1] != {}", OWN << 2);
    let captures = (0..4)
        .map(|pod| Capture::start(&pods[pod].netns, "eth0", scratch.path(), &filter, 0))
        .collect::<Result<Vec<_>>>()?;
    let flood = Flood::start(&pods[0], &pods[1])?;
    std::thread::sleep(Duration::from_millis(300));
    let sent = Instant::now();
    for number in 0..PODS * OF_EACH {
        let (from, to) = (&pods[number % PODS], &pods[(number + 1) % PODS]);
        let port = u16::try_from(10_000 + number)?;
        let flow = Tagged { destination: to.v4.parse()?, source_port: 5000, port, tag: OWN };
        let socket = flow.open(&from.netns)?;
        // A port without a listener answers the first; the second may be told so.
        let _ = (socket.send(b"one"), socket.send(b"two"));
    }
    eventually("all are over", || Ok(running(&all(node)?) == 0))?;
    println!("all over {:?} after the first packet", sent.elapsed());
    let flooded = flood.stop()?;
    ensure!(flooded > 1000, "only {flooded} datagrams flooded");

    let items = all(node)?;
    for item in &items {
        let expected = ["node-1 sender: SpoofGuard Forwarded, Forwarding Delivered"];
        ensure!(item["status"]["phase"] == "Succeeded" && told(item) == expected, "{item}");
        let number: usize = item["metadata"]["name"].as_str().unwrap_or("")[2..].parse()?;
        let seen = &item["status"]["results"][0]["observations"];
        ensure!(seen[0]["pod"] == format!("default/{}", pods[number % PODS].name), "{item}");
        let packet = &item["status"]["capturedPacket"];
        ensure!(packet["transportHeader"]["udp"]["dstPort"] == 10_000 + number, "{item}");
    }
    for capture in captures {
        let rows = Capture::fields(&capture.stop(), 4789, "udp", &["ip.dsfield.dscp", "udp.dstport"])?;
        ensure!(rows.is_empty(), "packets with a tag reached a pod: {rows:?}");
    }
    Ok(())
}
