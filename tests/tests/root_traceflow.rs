//! Traceflow by one agent: the reference's observations, key by key; refusals; live traffic; what is left of a trace.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_harness::{
    Capture, Cluster, ClusterOptions, Ping, SERVER_V4, SERVER_V6, Scratch, Tagged, Wiring, eventually,
};
use podwire_tests::agents;
use podwire_tests::egress::egress;
use podwire_tests::flows::{begin, get, guard, lasting, refused, told, trace};
use podwire_tests::tool::{self, Tool};
use serde_json::{Value, json};

fn cluster() -> Result<Cluster> {
    let mut cluster =
        agents::cluster(ClusterOptions { wiring: Wiring::Native, ..ClusterOptions::default() })?;
    guard(&mut cluster)?;
    eventually("pods are guarded", || {
        let shown = agents::get(cluster.nodes[0].agent()?, &["endpoints"])?;
        let items = shown["items"].as_array().context("no list")?.clone();
        Ok(items.iter().all(|item| item["spec"]["spoofGuard"] == "Enforce"))
    })?;
    Ok(cluster)
}

/// The packet of each protocol: fields of `spec.packet`.
fn packets(v6: bool) -> Vec<Value> {
    let mut packets = vec![
        json!({"transportHeader": {"tcp": {"dstPort": 80}}}),
        json!({"transportHeader": {"udp": {"dstPort": 53}}}),
        json!({"transportHeader": {"icmp": {"id": 7}}}),
        json!({"transportHeader": {"sctp": {"dstPort": 9}}}),
    ];
    if v6 {
        for packet in &mut packets {
            packet["ipv6Header"] = json!({});
        }
    }
    packets
}

#[test]
fn root_a_trace_on_one_node_is_told_key_by_key() -> Result<()> {
    let cluster = cluster()?;
    let node = &cluster.nodes[0];
    let [from, to] = &node.pods[..] else { unreachable!("two pods") };
    for (number, (v6, packet)) in [false, true]
        .iter()
        .flat_map(|v6| packets(*v6).into_iter().map(move |packet| (*v6, packet)))
        .enumerate()
    {
        let spec = json!({
            "source": {"namespace": "default", "pod": from.name},
            "destination": {"namespace": "default", "pod": to.name},
            "packet": packet,
        });
        let over = trace(node, &format!("tf-{number}"), &spec)?;
        ensure!(over["status"]["phase"] == "Succeeded", "{over}");
        let expected = json!([
            {
                "component": "SpoofGuard",
                "action": "Forwarded",
                "pod": format!("default/{}", from.name),
                "srcPodIP": if v6 { &from.v6 } else { &from.v4 },
                "dstMAC": gateway(&cluster, &from.interface)?,
                "ttl": 64,
            },
            {
                "component": "Forwarding",
                "componentInfo": "Output",
                "action": "Delivered",
                "pod": format!("default/{}", to.name),
                "dstMAC": to.mac,
                "ttl": 63,
            },
        ]);
        ensure!(Value::from(lasting(&over)) == expected, "{over}");
        ensure!(over["status"]["results"][0]["node"] == "node-1", "{over}");
        ensure!(over["status"]["results"][0]["role"] == "sender", "{over}");
        ensure!(over["status"]["capturedPacket"]["dstIP"] == if v6 { &*to.v6 } else { &*to.v4 }, "{over}");
        ensure!(get(node, &format!("tf-{number}")).is_none(), "it is still there");
    }
    Ok(())
}

fn gateway(cluster: &Cluster, interface: &str) -> Result<String> {
    let shown = cluster.nodes[0].netns.ip(&["-j", "link", "show", interface])?;
    let shown: Value = serde_json::from_str(&shown)?;
    Ok(shown[0]["address"].as_str().context("no address")?.to_owned())
}

#[test]
fn root_a_trace_under_a_local_egress_is_told_key_by_key() -> Result<()> {
    let mut cluster = cluster()?;
    let policy =
        egress("foobar", "egressIPs: [203.0.113.7, \"2001:db8:e::7\"], egressNode: node-1, own: true");
    cluster.set_policies(&policy)?;
    let node = &cluster.nodes[0];
    let mut shown = Value::Null;
    eventually("the policy is in force", || {
        shown = agents::get(node.agent()?, &["egresses"])?;
        Ok(shown["items"][0]["status"]["state"] == "Ready")
    })
    .with_context(|| shown.to_string())?;
    let from = &node.pods[0];
    for (server, address) in [(SERVER_V4, "203.0.113.7"), (SERVER_V6, "2001:db8:e::7")] {
        let spec = json!({
            "source": {"pod": from.name},
            "destination": {"ip": server},
            "packet": {"transportHeader": {"tcp": {"dstPort": 443}}},
        });
        let over = trace(node, "tf", &spec)?;
        ensure!(over["status"]["phase"] == "Succeeded", "{over}");
        let seen = lasting(&over);
        let egress = json!({
            "component": "Egress",
            "action": "MarkedForSNAT",
            "pod": format!("default/{}", from.name),
            "dstMAC": gateway(&cluster, &from.interface)?,
            "ttl": 64,
            "egress": "foobar",
            "egressIP": address,
            "egressNode": "node-1",
        });
        ensure!(seen.len() == 3 && seen[1] == egress, "{over}");
        ensure!(
            seen[2]["action"] == "ForwardedOutOfNetwork" && seen[2]["componentInfo"] == "Output",
            "{over}"
        );
    }
    Ok(())
}

/// Nothing is begun, and the reason names the thing.
#[test]
fn root_what_cannot_be_traced_is_refused_by_name() -> Result<()> {
    let cluster = cluster()?;
    let node = &cluster.nodes[0];
    let (from, to) = (&node.pods[0], &node.pods[1]);
    let refusals = [
        (
            json!({"source": {"pod": "ghost"}, "destination": {"pod": to.name}}),
            "pod default/ghost: not known at node-1; podwire get endpoints lists its pods",
        ),
        (
            json!({"source": {"pod": from.name}, "destination": {"namespace": "other", "pod": to.name}}),
            "pod other/web-1-6: not known at node-1; podwire get endpoints lists its pods",
        ),
        (
            json!({"source": {"pod": from.name}, "destination": {"service": "dns"}}),
            "Service default/dns: Services are known by the Kubernetes API alone",
        ),
    ];
    for (spec, reason) in refusals {
        let said = refused(node, &spec)?;
        ensure!(said == reason, "{said}");
    }
    Ok(())
}

/// A drop is an outcome like any other; another node is named when it cannot be asked.
#[test]
fn root_drops_and_silent_nodes_are_told() -> Result<()> {
    let cluster = cluster()?;
    let node = &cluster.nodes[0];
    let (from, far) = (&node.pods[0], &cluster.nodes[1].pods[0]);
    let spec = json!({
        "source": {"pod": from.name},
        "destination": {"ip": far.v4},
        "packet": {"ipHeader": {"protocol": 17, "ttl": 1}},
    });
    let over = trace(node, "spent", &spec)?;
    ensure!(over["status"]["phase"] == "Succeeded", "{over}");
    let expected = ["node-1 sender: SpoofGuard Forwarded, Forwarding Dropped TtlExceeded"];
    ensure!(told(&over) == expected, "{over}");
    let spec = json!({"source": {"pod": from.name}, "destination": {"ip": far.v4}});
    let over = trace(node, "far", &spec)?;
    let expected = ["node-1 sender: SpoofGuard Forwarded, Forwarding Forwarded"];
    ensure!(told(&over) == expected && over["status"]["phase"] == "Failed", "{over}");
    let reason = "node-2 (192.0.2.2) has the packet and does not answer: nodes see each other's traces through the Kubernetes API";
    ensure!(over["status"]["reason"] == reason, "{over}");
    Ok(())
}

#[test]
fn root_live_traffic_is_traced_with_its_answer() -> Result<()> {
    let cluster = cluster()?;
    let node = &cluster.nodes[0];
    let (from, to) = (&node.pods[0], &node.pods[1]);
    for destination in [&to.v4, &to.v6] {
        let spec = json!({
            "source": {"pod": from.name},
            "destination": {"ip": destination},
            "liveTraffic": true,
            "replies": true,
            "count": 2,
            "packet": {"transportHeader": {"icmp": {"type": "echo-request"}}},
        });
        let begun = begin(node, "live", &spec)?;
        let heard =
            Ping { destination: destination.clone(), count: 5, ..Ping::default() }.run(&from.netns)?;
        ensure!(heard.received == 5, "{heard:?}");
        let over = begun.finish()?;
        ensure!(over["status"]["phase"] == "Succeeded", "{over}");
        let one = "SpoofGuard Forwarded, Forwarding Delivered";
        let expected = [format!("node-1 sender: {one}, {one}, {one}, {one}")];
        ensure!(told(&over) == expected, "{over}");
        let seen = lasting(&over);
        ensure!(seen[3]["packet"] == 2 && seen[3]["direction"].is_null(), "{over}");
        ensure!(seen[4]["packet"] == 1 && seen[4]["direction"] == "reply", "{over}");
        ensure!(over["status"]["capturedPackets"].as_array().is_some_and(|all| all.len() == 2), "{over}");
    }
    Ok(())
}

/// A client that is killed ends its trace; an agent that is killed says so afterwards.
#[test]
fn root_deaths_end_traces() -> Result<()> {
    let mut cluster = cluster()?;
    let from = cluster.nodes[0].pods[0].name.clone();
    let spec = json!({"source": {"pod": from}, "liveTraffic": true, "timeout": 300});
    let node = &cluster.nodes[0];
    let begun = begin(node, "orphan", &spec)?;
    ensure!(get(node, "orphan").is_some(), "it does not run");
    begun.kill()?;
    eventually("its trace is gone", || Ok(get(node, "orphan").is_none()))?;

    let file = node.scratch.path().join("tf.yaml");
    std::fs::write(&file, podwire_tests::flows::object("kept", &spec))?;
    node.agent()?.cli_ok(&["apply", "-f", &file.to_string_lossy()])?;
    ensure!(get(node, "kept").is_some_and(|found| found["status"]["phase"] == "Running"));
    std::thread::sleep(Duration::from_millis(300));
    cluster.kill_agent(0)?;
    cluster.start_agent(0, &[])?;
    let found = get(&cluster.nodes[0], "kept").context("it is forgotten")?;
    ensure!(found["status"]["phase"] == "Failed", "{found}");
    ensure!(found["status"]["reason"] == "the agent ended while the trace ran", "{found}");
    cluster.nodes[0].agent()?.cli_ok(&["delete", "traceflow", "kept"])?;
    ensure!(get(&cluster.nodes[0], "kept").is_none());
    Ok(())
}

/// Beside a CNI: programs come for the time of a trace; what leaves is seen at the uplink, and goes no further.
#[test]
fn root_beside_a_cni_traces_come_to_their_end() -> Result<()> {
    for wiring in [Wiring::Bridge, Wiring::Routed] {
        let cluster = agents::cluster(ClusterOptions { wiring, ..ClusterOptions::default() })?;
        cluster.router_knows_pods()?;
        let node = &cluster.nodes[0];
        let (from, to) = (&node.pods[0], &node.pods[1]);
        for destination in [&to.v4, &to.v6] {
            let spec = json!({
                "source": {"pod": from.name},
                "destination": {"ip": destination},
                "packet": {"transportHeader": {"tcp": {"dstPort": 80}}},
            });
            let over = trace(node, "near", &spec)?;
            ensure!(
                told(&over) == ["node-1 sender: SpoofGuard Forwarded, Forwarding Delivered"],
                "{wiring:?} {over}"
            );
        }
        let scratch = Scratch::new()?;
        let capture = Capture::start(&cluster.server, "eth0", scratch.path(), "tcp or icmp[0] == 8", 0)?;
        for server in [SERVER_V4, SERVER_V6] {
            let spec = json!({
                "source": {"pod": from.name},
                "destination": {"ip": server},
                "packet": {"transportHeader": {"tcp": {"dstPort": 80}}},
            });
            let over = trace(node, "out", &spec)?;
            ensure!(
                told(&over) == ["node-1 sender: SpoofGuard Forwarded, Forwarding ForwardedOutOfNetwork"],
                "{wiring:?} {over}"
            );
        }
        // Live traffic goes out as it came.
        let spec = json!({"source": {"pod": from.name}, "destination": {"ip": SERVER_V4}, "liveTraffic": true, "replies": true});
        let begun = begin(node, "live", &spec)?;
        let heard = Ping { destination: SERVER_V4.into(), count: 3, ..Ping::default() }.run(&from.netns)?;
        ensure!(heard.received == 3, "{heard:?}");
        let over = begun.finish()?;
        let expected =
            ["node-1 sender: SpoofGuard Forwarded, Forwarding ForwardedOutOfNetwork, Forwarding Delivered"];
        ensure!(told(&over) == expected, "{wiring:?} {over}");
        let rows = Capture::fields(&capture.stop(), 4789, "", &["ip.dsfield.dscp", "icmp.type"])?;
        ensure!(rows == [["0", "8"], ["0", "8"], ["0", "8"]], "{rows:?}");
    }
    Ok(())
}

/// What the kernel's own stack drops is told with the kernel's reason, by the node where it happens alone.
#[test]
fn root_the_kernels_own_drops_are_told_with_its_reason() -> Result<()> {
    let cluster = agents::cluster(ClusterOptions { wiring: Wiring::Routed, ..ClusterOptions::default() })?;
    let node = &cluster.nodes[0];
    let from = &node.pods[0];
    let rules = "table inet t { chain f { type filter hook forward priority 0; tcp dport 99 drop; }; }";
    node.netns.run(&["nft", rules])?;
    node.netns.ip(&["route", "add", "blackhole", "203.0.114.0/24"])?;
    node.netns.ip(&["-6", "route", "add", "blackhole", "2001:db8:bad::/48"])?;
    let cases = [
        (SERVER_V4, 99, 64, "NETFILTER_DROP"),
        (SERVER_V6, 99, 64, "NETFILTER_DROP"),
        ("203.0.114.9", 80, 64, ""),
        ("2001:db8:bad::9", 80, 64, ""),
        (SERVER_V4, 80, 1, ""),
    ];
    for (destination, port, ttl, reason) in cases {
        let header = if destination.contains(':') { "ipv6Header" } else { "ipHeader" };
        let hops = if destination.contains(':') { "hopLimit" } else { "ttl" };
        let spec = json!({
            "source": {"pod": from.name},
            "destination": {"ip": destination},
            "packet": {header: {hops: ttl}, "transportHeader": {"tcp": {"dstPort": port}}},
            "timeout": 3,
        });
        let over = trace(node, "tf", &spec)?;
        let line = told(&over).concat();
        let dropped = line.contains(&format!("Forwarding Dropped kernel: {reason}"));
        ensure!(dropped && over["status"]["phase"] == "Succeeded", "{destination}: {over}");
        println!("{destination} {port} {ttl}: {line}");
    }
    Ok(())
}

/// A pod whose traffic is mirrored and goes through a tool: the trace completes, and tells both.
#[test]
fn root_a_mirrored_and_redirected_pod_is_traced_to_the_end() -> Result<()> {
    let mut cluster = cluster()?;
    let selector = "pod: web-1-5";
    let policies = tool::mirror("copied", selector, "internal: {name: tap0}")
        + &tool::redirect("inspected", selector, "Egress", "Open");
    tool::put(&mut cluster, &policies, "inspected")?;
    let _wire = Tool::start(&cluster, "inspected")?;
    let node = &cluster.nodes[0];
    let (from, to) = (&node.pods[0], &node.pods[1]);
    for destination in [&to.v4, &to.v6] {
        let spec = json!({
            "source": {"pod": from.name}, "destination": {"ip": destination},
            "packet": {"transportHeader": {"udp": {"dstPort": 53}}},
        });
        let over = trace(node, "tf", &spec)?;
        let expected = [
            "node-1 sender: TrafficControl Mirrored, SpoofGuard Forwarded, TrafficControl Redirected, TrafficControl Returned, Forwarding Delivered",
        ];
        ensure!(told(&over) == expected && over["status"]["phase"] == "Succeeded", "{over:#}");
        let seen = lasting(&over);
        ensure!(seen[0]["policy"] == "copied" && seen[2]["policy"] == "inspected", "{over:#}");
    }
    Ok(())
}

/// What the host's stack translates on the way is told by its new address.
#[test]
fn root_a_translated_destination_is_told() -> Result<()> {
    let cluster = agents::cluster(ClusterOptions { wiring: Wiring::Routed, ..ClusterOptions::default() })?;
    let node = &cluster.nodes[0];
    let (from, to) = (&node.pods[0], &node.pods[1]);
    let rules = format!(
        "table inet svc {{ chain pre {{ type nat hook prerouting priority dstnat; \
         ip daddr 10.96.0.10 udp dport 53 dnat ip to {}:5353; }}; }}",
        to.v4
    );
    node.netns.run(&["nft", &rules])?;
    let spec = json!({
        "source": {"pod": from.name}, "destination": {"ip": "10.96.0.10"}, "liveTraffic": true,
        "packet": {"transportHeader": {"udp": {"dstPort": 53}}}, "timeout": 5,
    });
    // The pod behind the address is not known beforehand: its own trace gives it a program.
    let other = json!({"source": {"pod": to.name}, "liveTraffic": true, "timeout": 10});
    let _other = begin(node, "other", &other)?;
    let begun = begin(node, "svc", &spec)?;
    Tagged { destination: "10.96.0.10".parse()?, source_port: 4000, port: 53, tag: 0 }
        .open(&from.netns)?
        .send(b"question")?;
    let over = begun.finish()?;
    let seen = lasting(&over);
    ensure!(over["status"]["phase"] == "Succeeded" && seen.len() == 2, "{over:#}");
    ensure!(seen[1]["action"] == "Delivered" && seen[1]["translatedDstIP"] == to.v4.as_str(), "{over:#}");
    Ok(())
}
