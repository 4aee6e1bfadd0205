//! `podwire capture` when things go wrong, and beside others: what is lost is counted, nothing is left, nobody else feels it.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_harness::{
    COLLECTOR_V4, Cluster, ClusterOptions, Ping, TopologyOptions, UdpStream, Wiring, eventually,
};
use podwire_tests::captured::{Captured, Capturing, Scene, datagrams, nothing_is_left, transfer};
use podwire_tests::tool::{self, Tool};
use podwire_tests::{agents, reach};

/// Packets that the pod's hooks copied.
fn mirrored(scene: &Scene, pod: &str) -> Result<u64> {
    let pods = scene.endpoints()?;
    let found = pods.iter().find(|item| item["metadata"]["name"] == pod).context("no such pod")?;
    found["status"]["packets"]["mirrored"].as_u64().context("no counter")
}

/// Captured and lost are together what the pod's counters say.
fn adds_up(captured: &Captured, copied: u64) -> Result<[u64; 2]> {
    captured.books()?;
    let written = captured.file.frames.len() as u64;
    let [received, lost, _] = captured.file.interfaces[0].counts.context("no statistics")?;
    ensure!(
        received == copied && written + lost == copied,
        "captured {written}, lost {lost}, matched {received}, the pod's counters {copied}: {}",
        captured.said
    );
    Ok([written, lost])
}

/// A command that does not read: what does not fit its queue is lost, and a mirror's snapshots are not.
#[test]
fn root_a_slow_reader_loses_counted_packets_and_no_others() -> Result<()> {
    const SNAPS: u64 = 2000;
    let scene = Scene::new(TopologyOptions::default())?;
    let (first, second) = scene.pods();
    let device = scene.topology.vxlan(1, 1111)?;
    let snaps = format!(
        "match: [{{protocol: UDP, dstPorts: [7000]}}], direction: Egress, action: Mirror, truncate: 100, \
         targetPort: {{vxlan: {{remoteIP: {COLLECTOR_V4}, vni: 1, destinationPort: 1111}}}}"
    );
    std::fs::write(scene.config().join("mirror.yaml"), tool::policy("snaps", "app: web", &snaps))?;
    eventually("the mirror is in force", || {
        Ok(agents::get(scene.agent()?, &["tc"])?["items"][0]["status"]["state"] == "Ready")
    })?;
    let session = agents::get(scene.agent()?, &["sessions"])?;
    ensure!(session["items"][0]["status"]["engine"] == "snap", "{session}");
    let capturing = scene.capture(&["-S", "web-0", "-f", "tcp"])?;
    let before = mirrored(&scene, "web-0")?;
    capturing.signal(Signal::SIGSTOP)?;
    let stream = datagrams(&second.v4, 7000, SNAPS).start(&first.netns, &second.netns)?;
    transfer(&first.netns, &second.netns, &second.v4, 8080, 400 << 20)?;
    ensure!(stream.finish()?.sent == SNAPS);
    let copied = mirrored(&scene, "web-0")? - before - SNAPS;
    capturing.signal(Signal::SIGCONT)?;
    let captured = capturing.interrupt()?.ended(130)?;
    let [written, lost] = adds_up(&captured, copied)?;
    ensure!(written > 0 && lost > 0 && captured.said.contains("ReaderSlow"), "{}", captured.said);
    ensure!(scene.topology.collector.counter(&device, "rx", "packets")? == SNAPS, "the mirror lost nothing");
    let session = &agents::get(scene.agent()?, &["sessions"])?["items"][0]["status"]["copies"];
    ensure!(session["lostTotal"] == 0 && session["sent"] == SNAPS, "{session}");
    Ok(())
}

/// A command that is stopped cannot keep programs at a pod beyond its time.
#[test]
fn root_a_stopped_command_ends_in_time() -> Result<()> {
    let scene = Scene::new(TopologyOptions::default())?;
    let (first, second) = scene.pods();
    let capturing = scene.capture(&["-S", "web-0", "-f", "tcp", "--duration", "2s"])?;
    capturing.signal(Signal::SIGSTOP)?;
    // More than the socket takes: the agent cannot tell of the end before the command reads.
    transfer(&first.netns, &second.netns, &second.v4, 8080, 64 << 20)?;
    scene.nothing_is_left()?;
    capturing.signal(Signal::SIGCONT)?;
    capturing.finish()?.ended(0)?.books()
}

/// An agent that hangs: the ring fills up, and then the datapath knows that nobody reads.
#[test]
fn root_a_full_ring_loses_counted_packets() -> Result<()> {
    let scene = Scene::new(TopologyOptions::default())?;
    let (first, second) = scene.pods();
    let agent = Pid::from_raw(scene.agent()?.pid().try_into()?);
    let capturing = scene.capture(&["-S", "web-0", "-f", "tcp"])?;
    let before = mirrored(&scene, "web-0")?;
    kill(agent, Signal::SIGSTOP)?;
    transfer(&first.netns, &second.netns, &second.v4, 8080, 64 << 20)?;
    std::thread::sleep(Duration::from_millis(1200));
    transfer(&first.netns, &second.netns, &second.v4, 8081, 1 << 20)?;
    kill(agent, Signal::SIGCONT)?;
    let copied = mirrored(&scene, "web-0")? - before;
    let captured = capturing.interrupt()?.ended(130)?;
    let [written, lost] = adds_up(&captured, copied)?;
    ensure!(written > 0 && lost > 0, "{}", captured.said);
    for reason in ["RingFull", "ReaderMissing"] {
        ensure!(captured.said.contains(reason), "{}", captured.said);
    }
    scene.nothing_is_left()
}

#[test]
fn root_a_new_pods_first_packet_is_there() -> Result<()> {
    let mut scene = Scene::new(TopologyOptions::default())?;
    let words = ["-S", "web-2", "--wait", "-f", "icmp"];
    let mut capturing = scene.capture(&words)?;
    capturing.wait_for("waiting for default/web-2: the pod is not known yet")?;
    scene.write_pods(3)?;
    capturing.wait_for("interface veth-web-2 does not exist")?;
    scene.topology.add_pod(2)?;
    let pod = &scene.topology.pods[2];
    // At once: the agent hears of the interface by itself.
    ensure!(pod.netns.ping(&scene.topology.pods[1].v4, 3, 56)? == 3);
    let captured = capturing.interrupt()?.ended(130)?;
    captured.is_whole()?;
    ensure!(captured.file.frames.len() == 6, "{}: {}", captured.file.frames.len(), captured.said);
    // A pod whose object is there and whose interface is not needs no --wait.
    scene.topology.cut(&scene.topology.pods[2])?;
    eventually("it is gone", || Ok(scene.endpoints()?[2]["status"]["state"] == "InterfaceMissing"))?;
    let mut capturing = scene.capture(&["-S", "web-2", "-f", "icmp"])?;
    capturing.wait_for("waiting for default/web-2: interface")?;
    scene.topology.connect(&scene.topology.pods[2])?;
    let pod = &scene.topology.pods[2];
    ensure!(pod.netns.ping(&scene.topology.pods[1].v4, 3, 56)? == 3);
    let captured = capturing.interrupt()?.ended(130)?;
    ensure!(captured.file.frames.len() == 6, "{}: {}", captured.file.frames.len(), captured.said);
    scene.nothing_is_left()
}

#[test]
fn root_an_agent_that_dies_leaves_a_whole_file_and_nothing_else() -> Result<()> {
    for gently in [false, true] {
        let mut scene = Scene::new(TopologyOptions::default())?;
        let capturing = scene.capture(&["-S", "web-0", "-f", "icmp"])?;
        let (first, second) = scene.pods();
        ensure!(first.netns.ping(&second.v4, 5, 56)? == 5);
        std::thread::sleep(Duration::from_millis(200));
        if gently {
            scene.stop_agent()?;
        } else {
            scene.kill_agent()?;
        }
        let captured = capturing.finish()?.ended(4)?;
        ensure!(captured.file.frames.len() == 10, "{}", captured.said);
        let lines = captured.said.lines().filter(|line| line.starts_with("error: ")).count();
        ensure!(lines == 1 && captured.said.contains("node-1"), "{}", captured.said);
        let (first, second) = scene.pods();
        ensure!(first.netns.ping(&second.v4, 5, 56)? == 5, "pods feel nothing");
        scene.start_agent()?;
        scene.nothing_is_left()?;
    }
    Ok(())
}

#[test]
fn root_a_command_that_dies_leaves_nothing() -> Result<()> {
    let scene = Scene::new(TopologyOptions::default())?;
    let (first, second) = scene.pods();
    for _ in 0..3 {
        let capturing = scene.capture(&["-S", "web-0", "-D", "web-1"])?;
        ensure!(first.netns.ping(&second.v4, 5, 56)? == 5);
        std::thread::sleep(Duration::from_millis(200));
        capturing.signal(Signal::SIGKILL)?;
        let captured = capturing.finish()?.ended(-9)?;
        ensure!(captured.file.frames.len() == 20, "{}", captured.file.frames.len());
        scene.nothing_is_left()?;
    }
    let mut all = Vec::new();
    for number in 0..16 {
        let file = scene.file(&format!("{number}.pcapng"));
        all.push(Capturing::start(&[scene.agent()?.socket()], &file, &["-S", "web-0", "-f", "icmp"])?);
    }
    let output = scene.agent()?.cli(&["capture", "-S", "web-0", "--count", "1"])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(3) && said.contains("16 captures run"), "{said}");
    ensure!(first.netns.ping(&second.v4, 5, 56)? == 5);
    for capturing in all {
        let captured = capturing.interrupt()?.ended(130)?;
        captured.is_whole()?;
        ensure!(captured.file.frames.len() == 10, "{}", captured.file.frames.len());
    }
    scene.nothing_is_left()
}

/// What users want goes before a capture, which says so.
#[test]
fn root_a_capture_makes_room_for_policies() -> Result<()> {
    let scene = Scene::new(TopologyOptions::default())?;
    let (first, second) = scene.pods();
    let mirrors = |count: u32| -> Result<()> {
        let one = |vni: u32| {
            tool::mirror(
                &format!("m{vni}"),
                "app: web",
                &format!("vxlan: {{remoteIP: {COLLECTOR_V4}, vni: {vni}}}"),
            )
        };
        let draft = scene.config().join(".mirrors.new");
        std::fs::write(&draft, (1..=count).map(one).collect::<String>())?;
        std::fs::rename(draft, scene.config().join("mirrors.yaml"))?;
        eventually("they are in force", || {
            let shown = agents::get(scene.agent()?, &["tc"])?;
            let ready = shown["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|item| item["status"]["state"] == "Ready");
            Ok(ready.count() == count as usize)
        })
    };
    mirrors(63)?;
    let capturing = scene.capture(&["-S", "web-0", "-f", "icmp"])?;
    ensure!(first.netns.ping(&second.v4, 5, 56)? == 5);
    std::thread::sleep(Duration::from_millis(200));
    mirrors(64)?;
    let captured = capturing.finish()?.ended(3)?;
    captured.is_whole()?;
    ensure!(captured.file.frames.len() == 10 && captured.said.contains("no room"), "{}", captured.said);
    let kept = scene.file("kept.pcapng");
    std::fs::write(&kept, "an earlier capture")?;
    let output = scene.agent()?.cli(&["capture", "-S", "web-0", "-w", &kept.to_string_lossy()])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(3) && said.lines().count() == 1, "{said}");
    ensure!(std::fs::read_to_string(&kept)? == "an earlier capture");
    let left = agents::get(scene.agent()?, &["captures"])?;
    ensure!(left["items"].as_array().is_some_and(Vec::is_empty), "{left}");
    Ok(())
}

/// Pods of two nodes, an agent each: one file, each packet at both ends.
#[test]
fn root_two_nodes_are_in_one_file() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { wiring: Wiring::Routed, ..ClusterOptions::default() })?;
    cluster.forward()?;
    across(cluster)
}

/// The same where podwire forwards: what a pod receives passes its stages within another program.
#[test]
fn root_two_nodes_of_an_overlay_are_in_one_file() -> Result<()> {
    across(Cluster::new(ClusterOptions { wiring: Wiring::Native, ..ClusterOptions::default() })?)
}

fn across(mut cluster: Cluster) -> Result<()> {
    cluster.start()?;
    agents::in_force(&cluster)?;
    let near = &cluster.nodes[0].pods[1];
    let (from, to) = (&cluster.nodes[0].pods[0], &cluster.nodes[1].pods[0]);
    ensure!(from.netns.ping(&to.v4, 1, 56)? == 1);
    let sockets = [cluster.nodes[0].agent()?.socket(), cluster.nodes[1].agent()?.socket()];
    let file = cluster.nodes[0].scratch.path().join("both.pcapng");
    let capturing = Capturing::start(&sockets, &file, &["-S", &from.name, "-D", &to.name])?;
    ensure!(from.netns.ping(&to.v4, 10, 56)? == 10);
    ensure!(from.netns.ping(&to.v6, 10, 56)? == 10);
    let captured = capturing.interrupt()?.ended(130)?;
    captured.is_whole()?;
    let described: Vec<String> =
        captured.file.interfaces.iter().map(|one| format!("{}: {}", one.name, one.description)).collect();
    ensure!(
        described
            == [
                format!("default/{0}: pod default/{0} on node-1", from.name),
                format!("default/{0}: pod default/{0} on node-2", to.name)
            ],
        "{described:?}"
    );
    let frames = &captured.file.frames;
    for interface in 0..2 {
        ensure!(frames.iter().filter(|frame| frame.interface == interface).count() == 40, "{interface}");
    }
    ensure!(frames.is_sorted_by_key(|frame| frame.time), "by time");
    // Each packet of the ping is sent at one end and received at the other, later.
    let requests: Vec<(u32, Option<bool>)> =
        frames.iter().take(4).map(|frame| (frame.interface, frame.out)).collect();
    ensure!(
        requests == [(0, Some(true)), (1, Some(false)), (1, Some(true)), (0, Some(false))],
        "{requests:?}"
    );
    let capturing = Capturing::start(&sockets, &file, &["-S", &from.name, "-D", &near.name])?;
    ensure!(from.netns.ping(&near.v4, 10, 56)? == 10);
    ensure!(from.netns.ping(&to.v4, 10, 56)? == 10);
    let captured = capturing.interrupt()?.ended(130)?;
    captured.is_whole()?;
    ensure!(captured.file.frames.len() == 40, "both of one node: {}", captured.file.frames.len());
    cluster.nodes.iter().try_for_each(|node| nothing_is_left(node.agent()?))
}

/// A trace tells of policies; a capture is none. A capture has the packet as the pod sent it.
#[test]
fn root_a_trace_does_not_see_a_capture() -> Result<()> {
    let scene = Scene::new(TopologyOptions::default())?;
    let (first, second) = scene.pods();
    let capturing = scene.capture(&["-S", "web-0", "-D", "web-1", "-f", "icmp"])?;
    let words = ["tf", "-L", "-S", "web-0", "-D", "web-1", "-f", "icmp", "-o", "json", "-t", "10"];
    let child = scene.agent()?.spawn(&words)?;
    eventually("the trace runs", || {
        Ok(agents::get(scene.agent()?, &["traceflows"])?["items"]
            .as_array()
            .is_some_and(|all| all.len() == 1))
    })?;
    // It is listed before it is in force.
    let ping = Ping {
        destination: second.v4.clone(),
        count: 100,
        interval: Duration::from_millis(10),
        ..Ping::default()
    };
    ensure!(ping.run(&first.netns)?.received == 100);
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(said.contains("Delivered") && !said.contains("Mirrored"), "{said}");
    let captured = capturing.interrupt()?.ended(130)?;
    captured.is_whole()?;
    let tos = captured.file.frames.iter().map(|frame| frame.bytes[15]);
    ensure!(captured.file.frames.len() == 400 && tos.max() == Some(0), "no tag: {:?}", captured.file.frames);
    scene.nothing_is_left()
}

/// Captures come and go beside a mirror and a redirect of the same pod.
#[test]
fn root_other_policies_feel_nothing() -> Result<()> {
    let mut cluster =
        agents::cluster(ClusterOptions { wiring: Wiring::Native, ..ClusterOptions::default() })?;
    let policies = tool::redirect("inspect", "pod: web-1-5", "Both", "Closed")
        + &tool::mirror("all", "pod: web-1-5", "internal: {name: ids0}");
    tool::put(&mut cluster, &policies, "inspect")?;
    let tool = Tool::start(&cluster, "inspect")?;
    let [(own, near), _] = reach::near_and_far(&cluster)?;
    let node = reach::node_of(&cluster, own)?;
    let copies = || node.netns.counter("ids0", "rx", "packets");
    let before = copies()?;
    let ping = Ping {
        destination: near.v4.clone(),
        count: 600,
        interval: Duration::from_millis(5),
        ..Ping::default()
    };
    let file = node.scratch.path().join("beside.pcapng");
    let mut seen = 0;
    let report = std::thread::scope(|scope| {
        let pinging = scope.spawn(|| ping.run(&own.netns));
        let words = ["-S", &own.name, "-f", "icmp"];
        let captures: Result<()> = (0..4).try_for_each(|_| {
            let capturing = Capturing::start(&[node.agent()?.socket()], &file, &words)?;
            std::thread::sleep(Duration::from_millis(200));
            let captured = capturing.interrupt()?.ended(130)?;
            captured.is_whole()?;
            seen += captured.file.frames.len();
            Ok(())
        });
        let report = pinging.join().expect("ping ends");
        captures.and(report)
    })?;
    ensure!((report.transmitted, report.received) == (600, 600), "{report:?}");
    ensure!(seen > 100, "{seen}");
    tool.all_returned(&cluster)?;
    eventually("each packet has one copy", || Ok(copies()? - before == 1200))
        .with_context(|| format!("{} copies", copies().unwrap_or_default() - before))?;
    let policies = agents::get(node.agent()?, &["tc"])?;
    ensure!(policies["items"].as_array().is_some_and(|all| all.len() == 2), "{policies}");
    agents::books(&cluster)
}

/// A stream to standard output is pcapng and nothing else; a reader that goes away ends it.
#[test]
fn root_standard_output_is_a_file_too() -> Result<()> {
    let scene = Scene::new(TopologyOptions::default())?;
    let (first, second) = scene.pods();
    let child = scene.agent()?.spawn(&["capture", "-S", "web-0", "-f", "icmp", "--count", "6", "-w", "-"])?;
    eventually("it runs", || {
        Ok(agents::get(scene.agent()?, &["captures"])?["items"].as_array().is_some_and(|all| all.len() == 1))
    })?;
    ensure!(first.netns.ping(&second.v4, 5, 56)? == 5);
    let output = child.wait_with_output()?;
    ensure!(output.status.code() == Some(0));
    let file = podwire_tests::captured::PcapNg::parse(&output.stdout)?;
    ensure!(file.frames.len() == 6 && file.interfaces[0].name == "default/web-0");

    let mut child = scene.agent()?.spawn(&["capture", "-S", "web-0", "-w", "-"])?;
    eventually("it runs", || {
        Ok(agents::get(scene.agent()?, &["captures"])?["items"].as_array().is_some_and(|all| all.len() == 1))
    })?;
    drop(child.stdout.take());
    let stream = UdpStream { gap: Duration::from_millis(1), ..datagrams(&second.v4, 7000, 200) };
    stream.run(&first.netns, &second.netns, || Ok(()))?;
    ensure!(child.wait()?.code() == Some(0), "nobody reads on, and nothing is wrong");
    scene.nothing_is_left()
}
