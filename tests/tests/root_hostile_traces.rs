//! Traces where the host's stack has packets go their own ways: no tag reaches an application or the wire, and what is
//! not traced is not touched.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_harness::{Capture, Cluster, ClusterOptions, NetNs, RawSocket, Scratch, Tagged, Wiring};
use podwire_tests::flows::begin;
use podwire_tests::{agents, tool};
use serde_json::{Value, json};

/// DSCP value of the traffic that is traced.
const OWN: u8 = 46;

/// Datagrams with a DSCP value of their own, from port 2000 to 7777.
fn send(from: &NetNs, to: &str, tag: u8, count: usize, len: usize) -> Result<()> {
    let flow = Tagged { destination: to.parse()?, source_port: 2000, port: 7777, tag };
    let socket = flow.open(from)?;
    for _ in 0..count {
        // A port without a listener answers, and the socket says so at its next word.
        while socket.send(&vec![b'p'; len]).is_err() {}
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn live(from: &str, to: &str) -> Value {
    json!({"source": {"pod": from}, "destination": {"ip": to}, "liveTraffic": true, "count": 5, "timeout": 20})
}

/// The DSCP values of what was captured.
fn dscp(capture: Capture, filter: &str) -> Result<Vec<String>> {
    let rows = Capture::fields(&capture.stop(), 4789, filter, &["ip.dsfield.dscp"])?;
    Ok(rows.concat())
}

fn all_own(seen: &[String], count: usize) -> Result<()> {
    let own = OWN.to_string();
    ensure!(seen.len() == count && seen.iter().all(|dscp| *dscp == own), "{seen:?}");
    Ok(())
}

/// A node whose first pod sends through a tool that keeps what it gets for as long as it likes.
struct Slow {
    cluster: Cluster,
    taken: RawSocket,
    given: RawSocket,
}

impl Slow {
    fn new() -> Result<Self> {
        let options = ClusterOptions { wiring: Wiring::Native, nodes: 1, ..ClusterOptions::default() };
        let mut cluster = agents::cluster(options)?;
        let [from, to] = &cluster.nodes[0].pods[..] else { unreachable!("two pods") };
        // So that the pod knows its gateway before the tool has all that it says.
        ensure!(from.netns.ping(&to.v4, 1, 8)? == 1, "no answer");
        let pod = from.name.clone();
        let policy = tool::redirect("through", &format!("pod: {pod}"), "Egress", "Open");
        tool::put(&mut cluster, &policy, "through")?;
        let [taken, given] = tool::PORTS.map(|port| RawSocket::open(&cluster.nodes[0].netns, port));
        Ok(Self { taken: taken?, given: given?, cluster })
    }

    /// The next datagram to port 7777.
    fn take(&self) -> Result<Vec<u8>> {
        let wanted =
            |frame: &[u8]| frame.len() > 38 && frame[23] == 17 && frame[36..38] == 7777u16.to_be_bytes();
        self.taken.receive(Duration::from_secs(2), wanted)?.context("the tool got nothing")
    }
}

#[test]
fn root_no_tag_is_left_when_an_agent_starts_while_a_tool_has_the_packet() -> Result<()> {
    let mut slow = Slow::new()?;
    let node = &slow.cluster.nodes[0];
    let (from, to) = (&node.pods[0], &node.pods[1]);
    let scratch = Scratch::new()?;
    let capture = Capture::start(&to.netns, "eth0", scratch.path(), "udp port 7777", 0)?;
    let _begun = begin(node, "slow", &live(&from.name, &to.v4))?;
    send(&from.netns, &to.v4, OWN, 1, 100)?;
    let frame = slow.take()?;
    ensure!(frame[15] >> 2 != OWN, "it is not traced");
    slow.cluster.kill_agent(0)?;
    slow.cluster.start_agent(0, &[])?;
    slow.given.send(&frame)?;
    all_own(&dscp(capture, "udp.dstport == 7777 && !icmp")?, 1)
}

#[test]
fn root_nothing_made_is_delivered_when_an_agent_starts_while_a_tool_has_it() -> Result<()> {
    let mut slow = Slow::new()?;
    let node = &slow.cluster.nodes[0];
    let (from, to) = (&node.pods[0], &node.pods[1]);
    let socket = to.netns.enter(|| Ok(std::net::UdpSocket::bind("0.0.0.0:7777")?))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let spec = json!({
        "source": {"pod": from.name},
        "destination": {"ip": to.v4},
        "packet": {"transportHeader": {"udp": {"dstPort": 7777}}},
    });
    let _begun = begin(node, "slow", &spec)?;
    let frame = slow.take()?;
    slow.cluster.kill_agent(0)?;
    slow.cluster.start_agent(0, &[])?;
    slow.given.send(&frame)?;
    ensure!(socket.recv(&mut [0; 64]).is_err(), "an application got it");
    Ok(())
}

#[test]
fn root_a_trace_that_ended_keeps_its_grace_beside_others() -> Result<()> {
    let slow = Slow::new()?;
    let node = &slow.cluster.nodes[0];
    let (from, to) = (&node.pods[0], &node.pods[1]);
    let scratch = Scratch::new()?;
    let capture = Capture::start(&to.netns, "eth0", scratch.path(), "udp port 7777", 0)?;
    let other = begin(node, "other", &json!({"source": {"pod": to.name}, "liveTraffic": true}))?;
    let begun = begin(node, "slow", &live(&from.name, &to.v4))?;
    send(&from.netns, &to.v4, OWN, 1, 100)?;
    let frame = slow.take()?;
    ensure!(frame[15] >> 2 != OWN, "it is not traced");
    other.kill()?;
    std::thread::sleep(Duration::from_millis(1700));
    begun.kill()?;
    // Less than the two seconds that are promised.
    std::thread::sleep(Duration::from_millis(1000));
    slow.given.send(&frame)?;
    all_own(&dscp(capture, "udp.dstport == 7777 && !icmp")?, 1)
}
