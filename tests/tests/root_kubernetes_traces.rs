//! Traces over all nodes: by kubectl and by the command, at a real API server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwire_harness::{ClusterOptions, Ping, SERVER_V4, SERVER_V6, Wiring, eventually};
use podwire_tests::flows::{begin, lasting, object, refused, told};
use podwire_tests::kubernetes::Followed;
use serde_json::{Value, json};

/// Applies a Traceflow and waits until it is over.
fn trace(followed: &Followed, name: &str, spec: &Value) -> Result<Value> {
    followed.server.apply(&object(name, spec))?;
    over(followed, name)
}

fn over(followed: &Followed, name: &str) -> Result<Value> {
    let mut last = Value::Null;
    eventually(&format!("{name} is over"), || {
        last = get(followed, name)?;
        Ok(matches!(last["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))
    })
    .with_context(|| format!("{last:#}\n{}", followed.logs()))?;
    Ok(last)
}

fn get(followed: &Followed, name: &str) -> Result<Value> {
    let text = followed.server.kubectl_ok(&["get", "traceflows.podwire.io", name, "-o", "json"])?;
    Ok(serde_json::from_str(&text)?)
}

#[test]
fn root_kubernetes_traces_of_kubectl_are_told_by_every_node() -> Result<()> {
    let followed = Followed::new(ClusterOptions::default())?;
    let [here, there] = &followed.cluster.nodes[..] else { unreachable!("two nodes") };
    let from = &here.pods[0];
    let mut number = 0;
    let mut name = || {
        number += 1;
        format!("tf-{number}")
    };
    for v6 in [false, true] {
        for transport in ["tcp", "udp", "icmp"] {
            let mut packet = json!({"transportHeader": {transport: {}}});
            if v6 {
                packet["ipv6Header"] = json!({});
            }
            let spec = json!({
                "source": {"pod": from.name},
                "destination": {"pod": there.pods[0].name},
                "packet": packet,
            });
            let over = trace(&followed, &name(), &spec)?;
            let expected = [
                "node-1 sender: SpoofGuard Forwarded, Forwarding Forwarded",
                "node-2 receiver: Forwarding Received, Forwarding Delivered",
            ];
            ensure!(told(&over) == expected && over["status"]["phase"] == "Succeeded", "{over:#}");
            let seen = lasting(&over);
            ensure!(seen[1]["tunnelDstIP"] == "192.0.2.2", "{over:#}");
            ensure!(seen[3]["pod"] == format!("default/{}", there.pods[0].name), "{over:#}");
        }
    }
    // By address, too: the pod behind it is found.
    let spec = json!({"source": {"pod": from.name}, "destination": {"ip": there.pods[1].v6}});
    let over = trace(&followed, &name(), &spec)?;
    ensure!(told(&over).len() == 2 && over["status"]["phase"] == "Succeeded", "{over:#}");
    Ok(())
}

#[test]
fn root_kubernetes_traces_go_out_by_the_egress_node() -> Result<()> {
    let followed = Followed::new(ClusterOptions { nodes: 3, ..ClusterOptions::default() })?;
    let from = &followed.cluster.nodes[0].pods[0];
    followed.server.apply(
        "apiVersion: podwire.io/v1alpha1\nkind: Egress\nmetadata: {name: foobar}\n\
         spec: {appliedTo: {podSelector: {matchLabels: {app: web}}}, egressIPs: [203.0.113.7, \"2001:db8:e::7\"], \
         own: true, egressNode: node-2}\n",
    )?;
    followed.every_node_says("eg", "foobar", "Ready", "")?;
    for (number, (server, address)) in
        [(SERVER_V4, "203.0.113.7"), (SERVER_V6, "2001:db8:e::7")].into_iter().enumerate()
    {
        let spec = json!({
            "source": {"pod": from.name},
            "destination": {"ip": server},
            "packet": {"transportHeader": {"tcp": {"dstPort": 443}}},
        });
        let over = trace(&followed, &format!("out-{number}"), &spec)?;
        let expected = [
            "node-1 sender: SpoofGuard Forwarded, Egress ForwardedToEgressNode, Forwarding Forwarded",
            "node-2 egress: Forwarding Received, Egress MarkedForSNAT, Forwarding ForwardedOutOfNetwork",
        ];
        ensure!(told(&over) == expected && over["status"]["phase"] == "Succeeded", "{over:#}");
        let seen = lasting(&over);
        for at in [1, 4] {
            let (name, ip, node) = (&seen[at]["egress"], &seen[at]["egressIP"], &seen[at]["egressNode"]);
            ensure!(*name == "foobar" && *ip == address && *node == "node-2", "{over:#}");
        }
    }
    Ok(())
}

#[test]
fn root_kubernetes_traces_by_the_command_leave_nothing() -> Result<()> {
    let followed = Followed::new(ClusterOptions::default())?;
    let [here, there] = &followed.cluster.nodes[..] else { unreachable!("two nodes") };
    let (from, to) = (format!("default/{}", here.pods[0].name), format!("default/{}", there.pods[0].name));
    // At a node that has no part in it as well.
    for node in [here, there] {
        let began = Instant::now();
        let shown = node.agent()?.cli_ok(&[
            "traceflow",
            "-S",
            &from,
            "-D",
            &to,
            "-f",
            "udp,udp_dst=53",
            "-o",
            "json",
        ])?;
        println!("{} after {:?}", node.name, began.elapsed());
        let shown: Value = serde_json::from_str(&shown)?;
        ensure!(
            shown["phase"] == "Succeeded" && shown["results"].as_array().is_some_and(|all| all.len() == 2),
            "{shown:#}"
        );
    }
    let left = followed.server.kubectl_ok(&["get", "traceflows.podwire.io", "-o", "name"])?;
    ensure!(left.trim().is_empty(), "{left}");

    // Live, with the answer.
    let spec = json!({
        "source": {"pod": here.pods[0].name}, "destination": {"pod": there.pods[0].name},
        "liveTraffic": true, "replies": true, "packet": {"transportHeader": {"icmp": {"type": 8}}, "ipHeader": {}},
    });
    followed.server.apply(&object("live", &spec))?;
    eventually("both nodes look", || {
        Ok(get(&followed, "live")?["status"]["results"].as_array().is_some_and(|all| all.len() == 2))
    })?;
    let heard = Ping { destination: there.pods[0].v4.clone(), count: 3, ..Ping::default() }
        .run(&here.pods[0].netns)?;
    ensure!(heard.received == 3);
    let over = over(&followed, "live")?;
    let expected = [
        "node-1 sender: SpoofGuard Forwarded, Forwarding Forwarded, Forwarding Received, Forwarding Delivered",
        "node-2 receiver: Forwarding Received, Forwarding Delivered, SpoofGuard Forwarded, Forwarding Forwarded",
    ];
    ensure!(told(&over) == expected && over["status"]["phase"] == "Succeeded", "{over:#}");
    Ok(())
}

#[test]
fn root_kubernetes_traces_that_cannot_be_are_refused_by_name() -> Result<()> {
    let followed = Followed::new(ClusterOptions::default())?;
    let here = &followed.cluster.nodes[0];
    let from = &here.pods[0].name;
    let cases = [
        (json!({"source": {"pod": "ghost"}, "destination": {"pod": from}}), "pod default/ghost: not found"),
        (json!({"source": {"pod": from}, "destination": {"pod": "ghost"}}), "pod default/ghost: not found"),
        (
            json!({"source": {"pod": from}, "destination": {"service": "dns"}}),
            "Service default/dns: not found",
        ),
    ];
    for (number, (spec, reason)) in cases.into_iter().enumerate() {
        let over = trace(&followed, &format!("no-{number}"), &spec)?;
        ensure!(over["status"]["phase"] == "Failed" && over["status"]["reason"] == reason, "{over:#}");
    }
    Ok(())
}

/// A node whose agent is away is named; one that dies while it leads says so when it is back.
#[test]
fn root_kubernetes_traces_end_when_agents_die() -> Result<()> {
    let mut followed = Followed::new(ClusterOptions::default())?;
    let from = followed.cluster.nodes[0].pods[0].name.clone();
    let to = followed.cluster.nodes[1].pods[0].name.clone();
    followed.cluster.kill_agent(1)?;
    let spec = json!({"source": {"pod": from}, "destination": {"pod": to}, "timeout": 3});
    let dead = trace(&followed, "dead", &spec)?;
    ensure!(dead["status"]["reason"] == "timeout: node-2 does not answer", "{dead:#}");
    ensure!(told(&dead) == ["node-1 sender: SpoofGuard Forwarded, Forwarding Forwarded"], "{dead:#}");

    let spec = json!({"source": {"pod": from}, "liveTraffic": true, "timeout": 300});
    followed.server.apply(&object("orphan", &spec))?;
    eventually("it runs", || Ok(get(&followed, "orphan")?["status"]["phase"] == "Running"))?;
    followed.cluster.kill_agent(0)?;
    followed.cluster.start_following(&followed.server)?;
    let orphan = over(&followed, "orphan")?;
    ensure!(orphan["status"]["reason"] == "the agent of node-1 ended while the trace ran", "{orphan:#}");
    Ok(())
}

/// What began goes on without the server: whoever waits at the agent is told, and the server when it is back.
#[test]
fn root_kubernetes_traces_outlive_a_server_that_goes() -> Result<()> {
    let mut followed = Followed::new(ClusterOptions::default())?;
    let (from, to) = {
        let pods = &followed.cluster.nodes[0].pods;
        (pods[0].name.clone(), pods[1].v4.clone())
    };
    let spec = json!({
        "source": {"pod": from}, "destination": {"ip": to}, "liveTraffic": true, "timeout": 60,
        "packet": {"transportHeader": {"icmp": {}}},
    });
    let begun = begin(&followed.cluster.nodes[0], "away", &spec)?;
    followed.server.stop();
    let heard = Ping { destination: to.clone(), count: 2, ..Ping::default() }
        .run(&followed.cluster.nodes[0].pods[0].netns)?;
    ensure!(heard.received == 2, "traffic suffers: {heard:?}");
    let over = begun.finish()?;
    let expected = ["node-1 sender: SpoofGuard Forwarded, Forwarding Delivered"];
    ensure!(told(&over) == expected && over["status"]["phase"] == "Succeeded", "{over:#}");
    let reason = over["status"]["reason"].as_str().unwrap_or_default();
    ensure!(reason.starts_with("the API server does not take the result"), "{over:#}");
    // Nothing can begin meanwhile, and that is said.
    let said = refused(&followed.cluster.nodes[0], &spec)?;
    ensure!(said.contains("the API server"), "{said}");
    followed.server.restart()?;
    eventually("later traces work", || {
        let name = format!("later-{}", fresh());
        let spec = json!({"source": {"pod": from}, "destination": {"ip": to}});
        followed.server.apply(&object(&name, &spec))?;
        Ok(over_soon(&followed, &name)?["status"]["phase"] == "Succeeded")
    })
}

fn fresh() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What became of a trace a moment after it began.
fn over_soon(followed: &Followed, name: &str) -> Result<Value> {
    std::thread::sleep(Duration::from_millis(500));
    get(followed, name)
}

/// Antrea's definition as far as podwire reads and writes it.
const ANTREA: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: traceflows.crd.antrea.io}
spec:
  group: crd.antrea.io
  scope: Cluster
  names: {kind: Traceflow, plural: traceflows, singular: traceflow}
  versions:
  - name: v1beta1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

#[test]
fn root_kubernetes_traces_of_antreas_kind_are_run_as_they_are() -> Result<()> {
    let followed = Followed::new(ClusterOptions::default())?;
    followed.server.apply(ANTREA)?;
    let crd = "crd/traceflows.crd.antrea.io";
    followed.server.kubectl_ok(&["wait", "--for=condition=established", "--timeout=20s", crd])?;
    let [here, there] = &followed.cluster.nodes[..] else { unreachable!("two nodes") };
    let text = json!({
        "apiVersion": "crd.antrea.io/v1beta1", "kind": "Traceflow", "metadata": {"name": "theirs"},
        "spec": {
            "source": {"namespace": "default", "pod": here.pods[0].name},
            "destination": {"namespace": "default", "pod": there.pods[0].name},
            "packet": {"ipHeader": {"protocol": 6}, "transportHeader": {"tcp": {"dstPort": 80, "flags": 2}}},
        },
    });
    followed.server.apply(&text.to_string())?;
    let mut last = Value::Null;
    eventually("it is over", || {
        let text =
            followed.server.kubectl_ok(&["get", "traceflows.crd.antrea.io", "theirs", "-o", "json"])?;
        last = serde_json::from_str(&text)?;
        Ok(matches!(last["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))
    })
    .with_context(|| format!("{last:#}\n{}", followed.logs()))?;
    let expected = [
        "node-1 sender: SpoofGuard Forwarded, Forwarding Forwarded",
        "node-2 receiver: Forwarding Received, Forwarding Delivered",
    ];
    ensure!(told(&last) == expected && last["status"]["phase"] == "Succeeded", "{last:#}");
    Ok(())
}

/// Beside a CNI no tunnel of podwire's carries the tag: the other node knows the packet by its flow.
#[test]
fn root_kubernetes_traces_beside_a_cni_reach_the_other_node() -> Result<()> {
    let followed = Followed::new(ClusterOptions { wiring: Wiring::Routed, ..ClusterOptions::default() })?;
    let [here, there] = &followed.cluster.nodes[..] else { unreachable!("two nodes") };
    for (name, destination) in [("four", &there.pods[0].v4), ("six", &there.pods[0].v6)] {
        let spec = json!({
            "source": {"pod": here.pods[0].name}, "destination": {"ip": destination},
            "packet": {"transportHeader": {"udp": {"dstPort": 53}}},
        });
        let over = trace(&followed, name, &spec)?;
        let expected = [
            "node-1 sender: SpoofGuard Forwarded, Forwarding Forwarded",
            "node-2 receiver: Forwarding Received, Forwarding Delivered",
        ];
        ensure!(told(&over) == expected && over["status"]["phase"] == "Succeeded", "{over:#}");
    }
    Ok(())
}
