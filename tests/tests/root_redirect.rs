//! Redirects on real packets: through devices, internal ports and tunnels, and what happens when the tool is gone.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_datapath::core::abi::{Direction, PolicyCounters};
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::{Desired, Hook, Redirect};
use podwire_harness::{
    COLLECTOR_V4, COLLECTOR_V6, Capture, NetNs, Page, Scratch, Topology, TopologyOptions, UdpStream,
};
use podwire_tests::node::Node;
use podwire_tests::wish::{device, internal, redirect, redirects, tunnel};

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

/// A tool that gives every frame back: two ports of a bridge that learns nothing.
fn bridge_tool(netns: &NetNs, ports: [&str; 2]) -> Result<()> {
    netns.ip(&["link", "add", "tool0", "type", "bridge", "mcast_snooping", "0"])?;
    netns.run_ok(&["sysctl", "-qw", "net.ipv6.conf.tool0.disable_ipv6=1"])?;
    netns.ip(&["link", "set", "tool0", "mtu", "1500", "up"])?;
    for port in ports {
        netns.ip(&["link", "set", port, "master", "tool0"])?;
        netns.ip(&["link", "set", port, "up"])?;
        netns.run_ok(&["bridge", "link", "set", "dev", port, "learning", "off"])?;
    }
    Ok(())
}

fn all_returned(node: &Node, name: &str) -> Result<PolicyCounters> {
    let counters = node.policy(name)?;
    ensure!(counters.redirected_packets > 0, "{counters:?}");
    ensure!(counters.redirected_packets == counters.returned_packets, "{counters:?}");
    ensure!(counters.redirected_bytes == counters.returned_bytes, "{counters:?}");
    Ok(counters)
}

fn veth_pair(hook: Hook, bridge: bool) -> Result<()> {
    let scene = Topology::with(TopologyOptions { bridge, ..TopologyOptions::default() })?;
    let scratch = Scratch::new()?;
    let out = scene.local_device("target0", 1500)?;
    let node = Node::open(&scene.node, &scratch, hook)?;
    let pod = &scene.pods[0];
    fetch(&scene, 1, 100)?;
    let wish = redirect("through", pod, device("target0"), device(&out));
    let before = scene.node.counter("target0", "tx", "packets")?;
    node.apply(&redirects(&scene, vec![wish]))?;
    fetch(&scene, 10, 20_000)?;
    let counters = all_returned(&node, "through")?;
    let sent = scene.node.counter("target0", "tx", "packets")? - before;
    assert_eq!(sent, counters.redirected_packets, "{counters:?}");
    assert_eq!(counters.bypassed_packets + counters.refused_packets, 0, "{counters:?}");
    for direction in Direction::ALL {
        let endpoint = node.endpoint("default/web-0", direction)?;
        // Each packet passes the hook twice: away, and back.
        assert_eq!(endpoint.redirected_packets, endpoint.passed_packets, "{endpoint:?}");
        assert!(endpoint.redirected_packets > 0, "{endpoint:?}");
    }
    node.apply(&redirects(&scene, Vec::new()))?;
    fetch(&scene, 1, 100)?;
    assert_eq!(scene.node.counter("target0", "tx", "packets")? - before, sent, "after the policy is gone");
    Ok(())
}

#[test]
fn root_requests_go_through_a_veth_pair() -> Result<()> {
    veth_pair(Hook::Auto, false)
}

#[test]
fn root_requests_of_bridged_pods_go_through_a_veth_pair() -> Result<()> {
    veth_pair(Hook::Auto, true)
}

#[test]
fn root_requests_over_clsact_go_through_a_veth_pair() -> Result<()> {
    veth_pair(Hook::Clsact, false)
}

/// A tool in its own namespace behind internal ports: with every offload of the pods on, what it gets is cut to
/// size and has right checksums; nothing was switched off by hand and no MTU was set.
#[test]
fn root_a_tool_gets_wire_true_frames() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let tool = NetNs::new("tool")?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let wish = redirect("inspect", &scene.pods[0], internal("ips-in"), internal("ips-out"));
    node.apply(&redirects(&scene, vec![wish.clone()]))?;
    for port in ["ips-in", "ips-out"] {
        scene.node.ip(&["link", "set", port, "netns", tool.name()])?;
    }
    bridge_tool(&tool, ["ips-in", "ips-out"])?;
    node.apply(&redirects(&scene, vec![wish]))?;
    let capture = Capture::start(&tool, "ips-in", scratch.path(), "tcp", 2000)?;
    fetch(&scene, 2, 1 << 20)?;
    let file = capture.stop();
    let counters = node.policy("inspect")?;
    // One super-packet goes, its segments come back.
    assert!(counters.returned_packets > counters.redirected_packets, "{counters:?}");
    assert_eq!(counters.bypassed_packets + counters.refused_packets, 0, "{counters:?}");
    let lengths = Capture::fields(&file, 0, "tcp", &["frame.len"])?;
    let longest = lengths.iter().filter_map(|row| row[0].parse::<u32>().ok()).max();
    assert_eq!(longest, Some(1514), "the longest frame");
    let wrong = "tcp.checksum.status == 0 || ip.checksum.status == 0";
    assert_eq!(Capture::count(&file, 0, wrong)?, 0, "frames with wrong checksums");
    assert!(Capture::count(&file, 0, "tcp.checksum.status == 1")? > 1000, "checksums that tshark looked at");
    Ok(())
}

/// Internal ports come with their first user and go with the last.
#[test]
fn root_internal_ports_live_as_long_as_their_users() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let exists = |name: &str| scene.node.run(&["ip", "link", "show", name]).map(|out| out.status.success());
    let first = redirect("one", &scene.pods[0], internal("ips-in"), internal("ips-out"));
    let second = Redirect { name: "two".into(), ..first.clone() };
    node.apply(&redirects(&scene, vec![first.clone(), second]))?;
    ensure!(exists("ips-in")? && exists("ips-out")?);
    node.apply(&redirects(&scene, vec![first]))?;
    std::thread::sleep(Duration::from_millis(2100));
    node.refresh()?;
    ensure!(exists("ips-in")? && exists("ips-out")?, "one policy is left");
    let applied = node.apply(&Desired::default())?;
    ensure!(exists("ips-in")?, "packets may be on their way");
    std::thread::sleep(applied.again_in.unwrap_or_default() + Duration::from_millis(50));
    node.refresh()?;
    ensure!(!exists("ips-in")? && !exists("ips-out")?, "nobody is left");
    Ok(())
}

const COUNT: u64 = 4000;

/// Streams through a tool to which `harm` is done meanwhile. Returns what arrived, and the policy's counters.
fn harmed(
    closed: bool,
    v6: bool,
    harm: impl FnOnce(&Topology) -> Result<()>,
) -> Result<(u64, PolicyCounters)> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let out = scene.local_device("target0", 1500)?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let wish = Redirect {
        directions: vec![Direction::Egress],
        rules: vec![podwire_datapath::compile::Rule { protocol: Some(17), ..Default::default() }],
        closed,
        ..redirect("tool", first, device("target0"), device(&out))
    };
    node.apply(&redirects(&scene, vec![wish]))?;
    let destination = if v6 { second.v6.clone() } else { second.v4.clone() };
    let stream = UdpStream { destination, port: 9, count: COUNT, size: 400, gap: Duration::from_micros(200) };
    let report = stream.run(&first.netns, &second.netns, || {
        std::thread::sleep(Duration::from_millis(200));
        harm(&scene)
    })?;
    assert_eq!((report.duplicates, report.damaged), (0, 0), "{report:?}");
    let counters = node.policy("tool")?;
    assert_eq!(
        counters.redirected_packets + counters.bypassed_packets + counters.refused_packets,
        COUNT,
        "{counters:?}"
    );
    Ok((report.received, counters))
}

/// What it is called, and how it is done.
type Harm = (&'static str, Box<dyn Fn(&Topology) -> Result<()>>);

/// What can be done to a target.
fn harms() -> Vec<Harm> {
    vec![
        ("down", Box::new(|scene| scene.node.ip(&["link", "set", "target0", "down"]).map(drop))),
        (
            "the far end down",
            Box::new(|scene| scene.node.ip(&["link", "set", "target0-out", "down"]).map(drop)),
        ),
        ("deleted", Box::new(|scene| scene.node.ip(&["link", "del", "target0"]).map(drop))),
        (
            "moved",
            Box::new(|scene| {
                scene.node.ip(&["link", "set", "target0", "netns", scene.collector.name()]).map(drop)
            }),
        ),
    ]
}

#[test]
fn root_open_loses_nothing_when_the_target_vanishes() -> Result<()> {
    for (number, (name, harm)) in harms().into_iter().enumerate() {
        let (received, counters) = harmed(false, number % 2 == 1, harm)?;
        assert_eq!(received, COUNT, "{name}: {counters:?}");
        assert!(counters.bypassed_packets > 0 && counters.redirected_packets > 0, "{name}: {counters:?}");
        assert_eq!(counters.refused_packets, 0, "{name}: {counters:?}");
    }
    Ok(())
}

#[test]
fn root_closed_lets_nothing_by_when_the_target_vanishes() -> Result<()> {
    for (number, (name, harm)) in harms().into_iter().enumerate() {
        let (received, counters) = harmed(true, number % 2 == 1, harm)?;
        assert_eq!(received, counters.returned_packets, "{name}: {counters:?}");
        assert!(counters.refused_packets > 0 && counters.redirected_packets > 0, "{name}: {counters:?}");
        assert_eq!(counters.bypassed_packets, 0, "{name}: {counters:?}");
    }
    Ok(())
}

/// Both pods' traffic goes through one tool: a packet from one to the other passes it once.
#[test]
fn root_never_twice_through_one_tool() -> Result<()> {
    for bridge in [false, true] {
        let scene = Topology::with(TopologyOptions { bridge, ..TopologyOptions::default() })?;
        let scratch = Scratch::new()?;
        let out = scene.local_device("target0", 1500)?;
        let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
        let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
        let mut wish = redirect("tool", first, device("target0"), device(&out));
        wish.endpoints.push(format!("default/{}", second.name));
        wish.rules = vec![podwire_datapath::compile::Rule { protocol: Some(1), ..Default::default() }];
        node.apply(&redirects(&scene, vec![wish]))?;
        let before = scene.node.counter("target0", "tx", "packets")?;
        assert_eq!(first.netns.ping(&second.v4, 50, 56)?, 50);
        let counters = all_returned(&node, "tool")?;
        assert_eq!(scene.node.counter("target0", "tx", "packets")? - before, 100, "requests and replies");
        assert_eq!(counters.passed_tool_packets, 100, "{counters:?}");
    }
    Ok(())
}

/// Counts the ICMP packets with mark 0x1234 that leave by an interface, for three seconds: the kernel's own packet
/// filter looks at the mark.
const COUNT_MARKED: &str = r#"
import ctypes, socket, struct, sys
LOAD_MARK, JUMP_EQUAL, RETURN = (0x20, 0, 0, 0xfffff000 + 20), (0x15, 0, 1, 0x1234), 0x06
program = [LOAD_MARK, JUMP_EQUAL, (RETURN, 0, 0, 0xffff), (RETURN, 0, 0, 0)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", len(program), ctypes.addressof(code)))
tap.bind((sys.argv[1], 3))
tap.settimeout(1)
print("ready", flush=True)
seen = 0
try:
    while True:
        seen += tap.recv(2000)[23] == 1
except TimeoutError:
    pass
print(seen)
"#;

/// The mark that the stack has put on a packet is there after the trip.
#[test]
fn root_the_mark_survives_the_trip() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let out = scene.local_device("target0", 1500)?;
    let pod = &scene.pods[0];
    scene.node.run_ok(&[
        "nft",
        "add table inet marks { chain post { type filter hook postrouting priority 0; \
         ip daddr 10.10.1.5 icmp type echo-reply meta mark set 0x1234; }; }",
    ])?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let wish = Redirect {
        directions: vec![Direction::Ingress],
        ..redirect("tool", pod, device("target0"), device(&out))
    };
    node.apply(&redirects(&scene, vec![wish]))?;
    let mut tap = scene.node.command("python3");
    let mut tap = tap
        .args(["-c", COUNT_MARKED, &pod.interface])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .context("starting the tap")?;
    let mut lines = BufReader::new(tap.stdout.take().context("the tap's output")?).lines();
    assert_eq!(lines.next().transpose()?.as_deref(), Some("ready"));
    assert_eq!(pod.netns.ping(&scene.pods[1].v4, 20, 56)?, 20);
    let seen = lines.next().transpose()?;
    tap.wait()?;
    assert_eq!(seen.as_deref(), Some("20"), "replies that left for the pod with their mark");
    assert!(all_returned(&node, "tool")?.returned_packets >= 20);
    Ok(())
}

/// Out by one tunnel, back by another with another id, both over either family.
fn through_tunnels(remote: &str, out: Tunnel, back: Tunnel, devices: [&[&str]; 2]) -> Result<()> {
    let scene = Topology::with(TopologyOptions { underlay_mtu: 1650, ..TopologyOptions::default() })?;
    let scratch = Scratch::new()?;
    scene.warm_up()?;
    for (name, words) in ["out0", "back0"].into_iter().zip(devices) {
        let made =
            scene.collector.run(&[&["ip", "link", "add", name, "mtu", "1500", "type"], words].concat())?;
        if !made.status.success() {
            #[expect(clippy::print_stdout, reason = "the report of the run names it")]
            {
                println!("SKIPPED: this kernel cannot make a {} device", words[0]);
            }
            return Ok(());
        }
        scene.collector.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{name}.disable_ipv6=1")])?;
    }
    bridge_tool(&scene.collector, ["out0", "back0"])?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let wish = redirect("far", &scene.pods[0], tunnel(remote, out)?, tunnel(remote, back)?);
    node.apply(&redirects(&scene, vec![wish]))?;
    fetch(&scene, 3, 300_000)?;
    assert_eq!(scene.pods[0].netns.ping(&scene.pods[1].v4, 10, 1400)?, 10);
    let counters = node.policy("far")?;
    assert!(counters.redirected_packets > 100 && counters.returned_packets > 100, "{counters:?}");
    assert_eq!(counters.bypassed_packets + counters.refused_packets, 0, "{counters:?}");
    Ok(())
}

#[test]
fn root_through_vxlan_and_back_over_ipv4() -> Result<()> {
    let id = |vni| Tunnel::Vxlan { vni, port: 4789 };
    let device = |vni| ["vxlan", "id", vni, "remote", "192.0.2.1", "local", COLLECTOR_V4, "dstport", "4789"];
    through_tunnels(COLLECTOR_V4, id(1), id(2), [&device("1"), &device("2")])
}

#[test]
fn root_through_vxlan_and_back_over_ipv6() -> Result<()> {
    let id = |vni| Tunnel::Vxlan { vni, port: 4789 };
    let device = |vni| {
        [
            "vxlan",
            "id",
            vni,
            "remote",
            "2001:db8::1",
            "local",
            COLLECTOR_V6,
            "dstport",
            "4789",
            "udp6zerocsumrx",
        ]
    };
    through_tunnels(COLLECTOR_V6, id(1), id(2), [&device("1"), &device("2")])
}

#[test]
fn root_through_geneve_and_back() -> Result<()> {
    let id = |vni| Tunnel::Geneve { vni, port: 6081 };
    let device = |vni| ["geneve", "id", vni, "remote", "192.0.2.1"];
    through_tunnels(COLLECTOR_V4, id(1), id(2), [&device("1"), &device("2")])
}

#[test]
fn root_through_gre_and_back() -> Result<()> {
    let id = |key| Tunnel::Gre { key: Some(key), sequence: false };
    let device = |key| ["gretap", "key", key, "remote", "192.0.2.1", "local", COLLECTOR_V4];
    through_tunnels(COLLECTOR_V4, id(1), id(4_294_967_295), [&device("1"), &device("4294967295")])
}

/// A tool that swallows everything counts as dead when its time is up; when it works again, it is found alive.
#[test]
fn root_a_silent_tool_is_found_out() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let wish = |closed| Redirect {
        health_check: Some(Duration::from_millis(400)),
        closed,
        ..redirect("tool", first, internal("ips-in"), internal("ips-out"))
    };
    node.apply(&redirects(&scene, vec![wish(false)]))?;
    bridge_tool(&scene.node, ["ips-in", "ips-out"])?;
    for closed in [false, true] {
        node.apply(&redirects(&scene, vec![wish(closed)]))?;
        assert_eq!(first.netns.ping(&second.v4, 3, 56)?, 3, "the tool works");
        // It takes what it gets, and gives nothing back.
        scene.node.ip(&["link", "set", "ips-out", "nomaster"])?;
        watch(&node, &scene, ("tool", false))?;
        let before = node.policy("tool")?;
        let answered = first.netns.ping(&second.v4, 20, 56)?;
        assert_eq!(answered, if closed { 0 } else { 20 }, "closed: {closed}");
        let after = node.policy("tool")?;
        assert_eq!(after.redirected_packets, before.redirected_packets, "{after:?}");
        assert!(after.probes > before.probes, "{after:?}");
        scene.node.ip(&["link", "set", "ips-out", "master", "tool0"])?;
        scene.node.run_ok(&["bridge", "link", "set", "dev", "ips-out", "learning", "off"])?;
        watch(&node, &scene, ("tool", true))?;
        assert_eq!(first.netns.ping(&second.v4, 5, 56)?, 5, "the tool works again");
    }
    Ok(())
}

/// Pings until the health check says so.
fn watch(node: &Node, scene: &Topology, news: (&str, bool)) -> Result<()> {
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    for _ in 0..100 {
        let _ = first.netns.ping(&second.v4, 1, 56)?;
        if node.check_health()?.iter().any(|(name, alive)| (name.as_str(), *alive) == news) {
            return Ok(());
        }
    }
    anyhow::bail!("the health check never said {news:?}: {:?}", node.policy("tool")?)
}

/// No packet of another kind is redirected.
#[test]
fn root_the_first_redirect_by_priority_applies() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let outs = [scene.local_device("target0", 1500)?, scene.local_device("target1", 1500)?];
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let pod = &scene.pods[0];
    let wish = |number: usize| {
        redirect(&format!("tool-{number}"), pod, device(&format!("target{number}")), device(&outs[number]))
    };
    let used = || -> Result<[u64; 2]> {
        Ok([scene.node.counter("target0", "tx", "packets")?, scene.node.counter("target1", "tx", "packets")?])
    };
    for order in [[0, 1], [1, 0], [0, 1]] {
        node.apply(&redirects(&scene, order.map(wish).to_vec()))?;
        let before = used()?;
        assert_eq!(pod.netns.ping(&scene.pods[1].v6, 10, 56)?, 10);
        let after = used()?;
        assert!(after[order[0]] - before[order[0]] >= 20, "{order:?}: {before:?} {after:?}");
        assert_eq!(after[order[1]], before[order[1]], "{order:?}");
    }
    Ok(())
}
