//! Every row of expected observations, as data: made and live, TCP, UDP and ICMP, IPv4 and IPv6; on one node, to another
//! one, out under an Egress policy here and at another node, and dropped.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_harness::{ClusterOptions, Ping, Pod, SERVER_V4, SERVER_V6, Tagged, eventually};
use podwire_tests::flows::{lasting, object, told};
use podwire_tests::kubernetes::{Followed, entry};
use serde_json::{Value, json};

/// Source port of live datagrams.
const SOURCE: u16 = 4000;

/// What is sent, and what a trace looks for.
#[derive(Clone, Copy, Debug)]
struct Case {
    protocol: &'static str,
    v6: bool,
    live: bool,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for protocol in ["tcp", "udp", "icmp"] {
        for (v6, live) in [(false, false), (false, true), (true, false), (true, true)] {
            cases.push(Case { protocol, v6, live });
        }
    }
    cases
}

impl Case {
    fn packet(&self) -> Value {
        let header = if self.v6 { "ipv6Header" } else { "ipHeader" };
        let number = match (self.protocol, self.v6) {
            ("tcp", _) => 6,
            ("udp", _) => 17,
            (_, false) => 1,
            (_, true) => 58,
        };
        let field = if self.v6 { "nextHeader" } else { "protocol" };
        let transport = match (self.protocol, self.live) {
            ("icmp", true) => json!({"icmp": {"type": if self.v6 { 128 } else { 8 }}}),
            ("icmp", false) => json!({"icmp": {"id": 7}}),
            (protocol, _) => json!({protocol: {"dstPort": 7777}}),
        };
        json!({header: {field: number}, "transportHeader": transport})
    }

    /// Something that a live trace of this case matches.
    fn send(&self, from: &Pod, to: &str) -> Result<()> {
        let address: IpAddr = to.parse()?;
        match self.protocol {
            "tcp" => from.netns.enter(move || {
                // Nobody listens: the SYN is what counts.
                let _ =
                    TcpStream::connect_timeout(&SocketAddr::new(address, 7777), Duration::from_millis(50));
                Ok(())
            }),
            "udp" => {
                let flow = Tagged { destination: address, source_port: SOURCE, port: 7777, tag: 0 };
                flow.open(&from.netns)?.send(b"live")?;
                Ok(())
            }
            _ => Ping { destination: to.to_owned(), count: 1, ..Ping::default() }.run(&from.netns).map(drop),
        }
    }
}

/// Runs a trace and gives what it came to.
fn run(followed: &Followed, name: &str, case: Case, from: &Pod, to: &str, nodes: usize) -> Result<Value> {
    let spec = json!({
        "source": {"namespace": "default", "pod": from.name},
        "destination": {"ip": to},
        "packet": case.packet(),
        "liveTraffic": case.live,
    });
    followed.server.apply(&object(name, &spec))?;
    let get = || -> Result<Value> {
        let text = followed.server.kubectl_ok(&["get", "traceflows.podwire.io", name, "-o", "json"])?;
        Ok(serde_json::from_str(&text)?)
    };
    if case.live {
        eventually("the nodes look", || {
            let status = &get()?["status"];
            Ok(status["results"].as_array().is_some_and(|all| all.len() >= nodes))
        })?;
        case.send(from, to)?;
    }
    let mut last = Value::Null;
    eventually(&format!("{name} is over"), || {
        last = get()?;
        Ok(matches!(last["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))
    })
    .with_context(|| format!("{case:?} {last:#}\n{}", followed.logs()))?;
    ensure!(last["status"]["phase"] == "Succeeded", "{case:?} {last:#}");
    Ok(last)
}

fn address(pod: &Pod, v6: bool) -> &str {
    if v6 { &pod.v6 } else { &pod.v4 }
}

#[test]
fn root_kubernetes_every_row_between_pods_is_as_expected() -> Result<()> {
    let followed = Followed::new(ClusterOptions::default())?;
    let [here, there] = &followed.cluster.nodes[..] else { unreachable!("two nodes") };
    let (from, near, far) = (&here.pods[0], &here.pods[1], &there.pods[0]);
    for (number, case) in cases().into_iter().enumerate() {
        let over = run(&followed, &format!("near-{number}"), case, from, address(near, case.v6), 1)?;
        ensure!(
            told(&over) == ["node-1 sender: SpoofGuard Forwarded, Forwarding Delivered"],
            "{case:?} {over:#}"
        );
        let seen = lasting(&over);
        ensure!(seen[0]["srcPodIP"] == address(from, case.v6), "{case:?} {over:#}");
        ensure!(seen[1]["dstMAC"] == near.mac.as_str() && seen[1]["ttl"] == 63, "{case:?} {over:#}");

        let over = run(&followed, &format!("far-{number}"), case, from, address(far, case.v6), 2)?;
        let expected = [
            "node-1 sender: SpoofGuard Forwarded, Forwarding Forwarded",
            "node-2 receiver: Forwarding Received, Forwarding Delivered",
        ];
        ensure!(told(&over) == expected, "{case:?} {over:#}");
        let seen = lasting(&over);
        ensure!(seen[1]["tunnelDstIP"] == "192.0.2.2", "{case:?} {over:#}");
        ensure!(seen[3]["dstMAC"] == far.mac.as_str() && seen[3]["ttl"] == 62, "{case:?} {over:#}");
    }
    Ok(())
}

#[test]
fn root_kubernetes_every_row_out_of_the_cluster_is_as_expected() -> Result<()> {
    let followed = Followed::new(ClusterOptions::default())?;
    let policy = |node: &str| {
        format!(
            "apiVersion: podwire.io/v1alpha1\nkind: Egress\nmetadata: {{name: foobar}}\n\
             spec: {{appliedTo: {{podSelector: {{matchLabels: {{app: web}}}}}}, \
             egressIPs: [203.0.113.7, \"2001:db8:e::7\"], own: true, egressNode: {node}}}\n"
        )
    };
    followed.server.apply(&policy("node-2"))?;
    followed.every_node_says("eg", "foobar", "Ready", "")?;
    let [away, at_home] = &followed.cluster.nodes[..] else { unreachable!("two nodes") };
    for (number, case) in cases().into_iter().enumerate() {
        let (server, ip) = if case.v6 { (SERVER_V6, "2001:db8:e::7") } else { (SERVER_V4, "203.0.113.7") };
        let is_policy = |seen: &Value| {
            seen["egress"] == "foobar" && seen["egressIP"] == ip && seen["egressNode"] == "node-2"
        };
        let over = run(&followed, &format!("home-{number}"), case, &at_home.pods[0], server, 1)?;
        let expected =
            ["node-2 sender: SpoofGuard Forwarded, Egress MarkedForSNAT, Forwarding ForwardedOutOfNetwork"];
        ensure!(told(&over) == expected && is_policy(&lasting(&over)[1]), "{case:?} {over:#}");

        let over = run(&followed, &format!("away-{number}"), case, &away.pods[0], server, 2)?;
        let expected = [
            "node-1 sender: SpoofGuard Forwarded, Egress ForwardedToEgressNode, Forwarding Forwarded",
            "node-2 egress: Forwarding Received, Egress MarkedForSNAT, Forwarding ForwardedOutOfNetwork",
        ];
        let seen = lasting(&over);
        ensure!(told(&over) == expected && is_policy(&seen[1]) && is_policy(&seen[4]), "{case:?} {over:#}");
        ensure!(seen[2]["tunnelDstIP"] == "192.0.2.2", "{case:?} {over:#}");
    }
    // No node has it any more: dropped, with the reason, live and made alike.
    followed.server.apply(&policy("node-9"))?;
    eventually("the first node drops", || {
        let status = followed.status("eg", "foobar")?;
        Ok(entry(&status, away).is_some_and(|entry| entry["state"] == "Dropping"))
    })?;
    for (number, case) in cases().into_iter().enumerate() {
        let server = if case.v6 { SERVER_V6 } else { SERVER_V4 };
        let over = run(&followed, &format!("none-{number}"), case, &away.pods[0], server, 1)?;
        let expected = ["node-1 sender: SpoofGuard Forwarded, Egress Dropped NoEgressNode"];
        ensure!(told(&over) == expected, "{case:?} {over:#}");
    }
    Ok(())
}
