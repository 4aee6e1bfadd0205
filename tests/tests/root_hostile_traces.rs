//! Traces where the host's stack has packets go their own ways: no tag reaches an application or the wire, and what is
//! not traced is not touched.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_harness::{
    Capture, Cluster, ClusterOptions, NetNs, Ping, RawSocket, SERVER_V4, Scratch, Tagged, Wiring, eventually,
};
use podwire_tests::flows::{begin, get, guard, told};
use podwire_tests::{agents, tool};
use serde_json::{Value, json};

/// DSCP value of the traffic that is traced.
const OWN: u8 = 46;

/// A node with two pods, each guarded: so every trace has something to say of what it took.
fn cluster(wiring: Wiring) -> Result<Cluster> {
    let mut cluster = agents::cluster(ClusterOptions { wiring, nodes: 1, ..ClusterOptions::default() })?;
    cluster.router_knows_pods()?;
    guard(&mut cluster)?;
    eventually("pods are guarded", || {
        let shown = agents::get(cluster.nodes[0].agent()?, &["endpoints"])?;
        let items = shown["items"].as_array().context("no list")?.clone();
        Ok(items.iter().all(|item| item["spec"]["spoofGuard"] == "Enforce"))
    })?;
    Ok(cluster)
}

/// Traces the first five of ten datagrams of the first pod.
fn send_traced(cluster: &Cluster, to: &str, spec: &Value, len: usize) -> Result<()> {
    let node = &cluster.nodes[0];
    let begun = begin(node, "live", spec)?;
    send(&node.pods[0].netns, to, OWN, 10, len)?;
    eventually("they are traced", || {
        // It may be over, and gone with who asked for it.
        let Some(found) = get(node, "live") else { return Ok(true) };
        Ok(!told(&found).concat().is_empty())
    })?;
    begun.kill()
}

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

#[test]
fn root_no_tag_reaches_a_process_of_the_host() -> Result<()> {
    for wiring in [Wiring::Native, Wiring::Routed, Wiring::Bridge] {
        let cluster = cluster(wiring)?;
        let node = &cluster.nodes[0];
        let from = &node.pods[0];
        let rules = "table inet seen { chain in { type filter hook input priority 0; \
            udp dport 7777 ip dscp 46 counter; udp dport 7777 ip dscp != 46 counter; }; }";
        node.netns.run_ok(&["nft", rules])?;
        let own = &node.addresses()[0];
        send_traced(&cluster, own, &live(&from.name, own), 100)?;
        let seen = node.netns.run_ok(&["nft", "list", "table", "inet", "seen"])?;
        ensure!(seen.contains("dscp ef counter packets 10 "), "{wiring:?} {seen}");
    }
    Ok(())
}

#[test]
fn root_no_tag_leaves_by_a_device_that_is_no_uplink() -> Result<()> {
    for wiring in [Wiring::Native, Wiring::Routed, Wiring::Bridge] {
        let cluster = cluster(wiring)?;
        let node = &cluster.nodes[0];
        let from = &node.pods[0];
        node.netns.ip(&["link", "add", "other", "type", "veth", "peer", "name", "far"])?;
        node.netns.ip(&["link", "set", "far", "up"])?;
        node.netns.ip(&["addr", "add", "198.18.0.1/24", "dev", "other"])?;
        node.netns.ip(&["link", "set", "other", "up"])?;
        node.netns.ip(&["neigh", "add", "198.18.0.9", "lladdr", "02:00:00:00:00:99", "dev", "other"])?;
        let scratch = Scratch::new()?;
        let capture = Capture::start(&node.netns, "far", scratch.path(), "udp port 7777", 0)?;
        send_traced(&cluster, "198.18.0.9", &live(&from.name, "198.18.0.9"), 100)?;
        all_own(&dscp(capture, "udp")?, 10).with_context(|| format!("{wiring:?}"))?;
    }
    Ok(())
}

#[test]
fn root_no_tag_leaves_with_a_translated_port() -> Result<()> {
    let cluster = cluster(Wiring::Routed)?;
    let node = &cluster.nodes[0];
    let from = &node.pods[0];
    let rules = "table ip cni { chain post { type nat hook postrouting priority 100; \
        oifname eth0 meta l4proto udp masquerade to :30000-30100; }; }";
    node.netns.run_ok(&["nft", rules])?;
    let scratch = Scratch::new()?;
    let capture = Capture::start(&cluster.server, "eth0", scratch.path(), "udp port 7777", 0)?;
    send_traced(&cluster, SERVER_V4, &live(&from.name, SERVER_V4), 100)?;
    all_own(&dscp(capture, "udp.dstport == 7777")?, 10)
}

#[test]
fn root_no_tag_leaves_in_fragments() -> Result<()> {
    for wiring in [Wiring::Native, Wiring::Routed, Wiring::Bridge] {
        let cluster = cluster(wiring)?;
        let node = &cluster.nodes[0];
        let from = &node.pods[0];
        node.netns.ip(&["link", "set", "eth0", "mtu", "1000"])?;
        from.netns.run_ok(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_no_pmtu_disc"])?;
        let scratch = Scratch::new()?;
        let capture = Capture::start(&cluster.server, "eth0", scratch.path(), "ip proto 17", 0)?;
        send_traced(&cluster, SERVER_V4, &live(&from.name, SERVER_V4), 1300)?;
        all_own(&dscp(capture, "ip")?, 20).with_context(|| format!("{wiring:?}"))?;
    }
    Ok(())
}

#[test]
fn root_other_flows_with_the_tag_are_not_touched() -> Result<()> {
    let cluster = cluster(Wiring::Routed)?;
    let node = &cluster.nodes[0];
    let (from, to) = (&node.pods[0], &node.pods[1]);
    let spec =
        json!({"source": {"pod": from.name}, "destination": {"ip": to.v4}, "liveTraffic": true, "count": 2});
    let _begun = begin(node, "live", &spec)?;
    Ping { destination: to.v4.clone(), count: 1, ..Ping::default() }.run(&from.netns)?;
    let scratch = Scratch::new()?;
    let capture = Capture::start(&cluster.server, "eth0", scratch.path(), "icmp[0] == 8", 0)?;
    for dscp in 1..64 {
        let tos = (dscp << 2).to_string();
        from.netns.run(&["ping", "-c", "1", "-W", "1", "-Q", &tos, SERVER_V4])?;
    }
    let seen = dscp(capture, "icmp")?;
    let sent: Vec<String> = (1..64).map(|dscp| dscp.to_string()).collect();
    ensure!(seen == sent, "{seen:?}");
    Ok(())
}

#[test]
fn root_other_flows_with_the_tag_are_not_swallowed() -> Result<()> {
    let cluster = cluster(Wiring::Routed)?;
    let node = &cluster.nodes[0];
    let (from, to) = (&node.pods[0], &node.pods[1]);
    let spec = json!({"source": {"pod": from.name}, "destination": {"ip": to.v4}});
    let over = podwire_tests::flows::trace(node, "made", &spec)?;
    ensure!(over["status"]["phase"] == "Succeeded", "{over}");
    let tag = over["status"]["dataplaneTag"].as_u64().context("no tag")?;
    let heard = from.netns.run(&[
        "ping",
        "-c",
        "3",
        "-i",
        "0.2",
        "-W",
        "1",
        "-Q",
        &(tag << 2).to_string(),
        SERVER_V4,
    ])?;
    let text = String::from_utf8_lossy(&heard.stdout).into_owned();
    ensure!(text.contains("3 received"), "{text}");
    Ok(())
}

#[test]
fn root_no_tag_reaches_a_pod_that_nobody_traces() -> Result<()> {
    for wiring in [Wiring::Native, Wiring::Routed, Wiring::Bridge] {
        let cluster = cluster(wiring)?;
        let node = &cluster.nodes[0];
        let (from, to) = (&node.pods[0], &node.pods[1]);
        let scratch = Scratch::new()?;
        let capture = Capture::start(&to.netns, "eth0", scratch.path(), "udp port 7777", 0)?;
        let packet = json!({"transportHeader": {"udp": {"dstPort": 7777}}});
        let spec = json!({"source": {"pod": from.name}, "liveTraffic": true, "count": 5, "packet": packet});
        send_traced(&cluster, &to.v4, &spec, 100)?;
        all_own(&dscp(capture, "udp.dstport == 7777 && !icmp")?, 10)
            .with_context(|| format!("{wiring:?}"))?;
    }
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
