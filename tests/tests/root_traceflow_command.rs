//! `podwire traceflow` and an agent: what is printed, how it ends, what is left.

use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwire_harness::{Cluster, ClusterOptions, Ping, SERVER_V4, Wiring, eventually};
use podwire_tests::agents;
use podwire_tests::egress::egress;
use podwire_tests::flows::guard;
use serde_json::Value;

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

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ends(output: &Output, code: i32) -> Result<()> {
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    ensure!(output.status.code() == Some(code), "code {:?}, not {code}: {said}", output.status.code());
    Ok(())
}

#[test]
fn root_the_command_ends_as_the_packet_does() -> Result<()> {
    let mut cluster = cluster()?;
    let policy = egress("foobar", "egressIP: 203.0.113.7, egressNode: node-1, own: true");
    cluster.set_policies(&policy)?;
    let node = &cluster.nodes[0];
    eventually("the policy is in force", || {
        Ok(agents::get(node.agent()?, &["egresses"])?["items"][0]["status"]["state"] == "Ready")
    })?;
    let (from, to) = (&node.pods[0], &node.pods[1]);
    let far = &cluster.nodes[1].pods[0];
    for (words, code, said) in [
        (vec!["-D", &to.name], 0, format!("✓ Delivered to default/{} on node-1 after ", to.name)),
        (
            vec!["-D", &to.v6, "-f", "udp,udp_dst=53"],
            0,
            format!("✓ Delivered to default/{} on node-1", to.name),
        ),
        (
            vec!["-D", SERVER_V4, "-f", "tcp,tcp_dst=80"],
            0,
            "✓ Left the network at node-1 as 203.0.113.7 (Egress foobar)".into(),
        ),
        (vec!["-D", SERVER_V4, "--expect", "egress=foobar"], 0, "✓ Left the network".into()),
        (
            vec!["-D", SERVER_V4, "--expect", "egress=other"],
            1,
            "expected egress=other: Left the network".into(),
        ),
        (
            vec!["-D", &to.name, "--ttl", "1"],
            1,
            "✗ Dropped by Forwarding on node-1: TtlExceeded (its time to live is up)".into(),
        ),
        (vec!["-D", &to.name, "--ttl", "1", "--expect", "dropped"], 0, "✗ Dropped by Forwarding".into()),
        (vec!["-D", "ghost"], 3, "error: pod default/ghost: not known at node-1".into()),
        (
            vec!["-D", &far.v4, "-t", "3"],
            3,
            "? Failed: node-2 (192.0.2.2) has the packet and does not answer".into(),
        ),
        (vec!["-D", &to.name, "-f", "tcp,tcp_dts=1"], 2, "did you mean \"tcp_dst\"?".into()),
    ] {
        let all = [&["traceflow", "-o", "path", "-S", &from.name][..], &words].concat();
        let output = node.agent()?.cli(&all)?;
        ends(&output, code).with_context(|| words.join(" "))?;
        let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
        ensure!(shown.contains(&said), "{words:?}: {shown}");
    }
    let left = agents::get(node.agent()?, &["traceflows"])?;
    ensure!(left["items"].as_array().is_some_and(Vec::is_empty), "{left}");
    Ok(())
}

#[test]
fn root_results_are_kept_on_request_and_drawn_later() -> Result<()> {
    let cluster = cluster()?;
    let node = &cluster.nodes[0];
    let (from, to) = (&node.pods[0], &node.pods[1]);
    let agent = node.agent()?;
    let said = agent.cli_ok(&["tf", "-S", &from.name, "-D", &to.name, "--nowait", "-o", "path"])?;
    let name = said.trim().strip_prefix("traceflow/").and_then(|said| said.strip_suffix(" created"));
    let name = name.context(said.clone())?;
    let mut object = String::new();
    eventually("it is over", || {
        object = agent.cli_ok(&["get", "traceflows", name, "-o", "json"])?;
        Ok(object.contains("Succeeded"))
    })?;
    let saved = node.scratch.path().join("saved.json");
    std::fs::write(&saved, &object)?;
    let svg = agent.cli_ok(&["tf", "-r", &saved.to_string_lossy(), "-o", "svg"])?;
    ensure!(svg.contains("✓ Delivered") && svg.ends_with("</svg>\n"), "{svg}");
    let shown = agent.cli_ok(&["describe", "traceflow", name])?;
    ensure!(shown.contains("✓ Delivered to default/"), "{shown}");
    let table = agent.cli_ok(&["get", "traceflows"])?;
    ensure!(table.contains(name) && table.contains("✓ Delivered to default/"), "{table}");
    agent.cli_ok(&["delete", "traceflow", name])?;
    ensure!(agent.cli(&["describe", "traceflow", name])?.status.code() == Some(1));
    let brief = ["tf", "-S", &from.name, "-D", &to.name, "--ttl-after-finished", "1s"];
    agent.cli_ok(&brief)?;
    eventually("its time is up", || {
        Ok(agents::get(agent, &["traceflows"])?["items"].as_array().is_some_and(Vec::is_empty))
    })
}

/// An interrupted trace is gone; live packets come as the flow says, and into a file.
#[test]
fn root_live_packets_are_captured_and_an_interrupt_leaves_nothing() -> Result<()> {
    let cluster = cluster()?;
    let node = &cluster.nodes[0];
    let (from, to) = (&node.pods[0], &node.pods[1]);
    let agent = node.agent()?;
    let file = node.scratch.path().join("live.pcapng");
    let ping = Ping { destination: to.v4.clone(), count: 20, ..Ping::default() };
    let output = std::thread::scope(|scope| {
        let pinging = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            ping.run(&from.netns)
        });
        let words = [
            "tf",
            "-L",
            "-S",
            &from.name,
            "-f",
            "icmp,icmp_type=echo-request",
            "--count",
            "3",
            "-o",
            "json",
            "--replies",
            "--capture",
            &file.to_string_lossy(),
        ];
        let output = agent.cli(&words);
        let _ = pinging.join();
        output
    })?;
    ends(&output, 0)?;
    let document: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(document["capturedPackets"].as_array().is_some_and(|all| all.len() == 3), "{document}");
    let read = podwire_harness::run(&["tcpdump", "-nr", &file.to_string_lossy()])?;
    let lines = text(&read.stdout);
    ensure!(lines.lines().filter(|line| line.contains("ICMP echo request")).count() == 3, "{lines}");

    let begin = Instant::now();
    let output = interrupted(agent, &["tf", "-L", "-S", &to.name, "-D", "198.51.100.99", "-t", "60"])?;
    ensure!(output.status.code() == Some(130), "{}", text(&output.stderr));
    ensure!(begin.elapsed() < Duration::from_secs(10), "it waited");
    eventually("nothing is left", || {
        Ok(agents::get(agent, &["traceflows"])?["items"].as_array().is_some_and(Vec::is_empty))
    })
}

/// Runs the command and interrupts it once its trace runs.
fn interrupted(agent: &podwire_harness::Agent, words: &[&str]) -> Result<Output> {
    let child = agent.spawn(words)?;
    eventually("the trace runs", || {
        Ok(agents::get(agent, &["traceflows"])?["items"].as_array().is_some_and(|all| all.len() == 1))
    })?;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.id().try_into()?),
        nix::sys::signal::Signal::SIGINT,
    )?;
    Ok(child.wait_with_output()?)
}
