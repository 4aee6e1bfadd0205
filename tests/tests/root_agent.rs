//! The daemon and the command line, as an operator uses them.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwire_harness::{Agent, COLLECTOR_V4, Scratch, Topology, UdpStream};
use serde_json::Value;

const PORT: u16 = 1111;

fn endpoint(number: usize) -> String {
    format!(
        "---\napiVersion: podwire.io/v1alpha1\nkind: Endpoint\nmetadata: {{name: web-{number}, labels: {{app: web}}}}\n\
         spec: {{interface: veth-web-{number}, ips: [10.10.1.{}]}}\n",
        number + 5
    )
}

fn policy(name: &str, matches: &str) -> String {
    format!(
        "---\napiVersion: podwire.io/v1alpha1\nkind: TrafficControl\nmetadata: {{name: {name}}}\nspec:\n  \
         appliedTo: {{podSelector: {{matchLabels: {{app: web}}}}}}\n  direction: Both\n  action: Mirror\n{matches}  \
         targetPort: {{vxlan: {{remoteIP: {COLLECTOR_V4}, vni: 1, destinationPort: {PORT}}}}}\n"
    )
}

const ECHO: &str = "  match: [{protocol: ICMP}]\n";

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    // By renaming, as careful editors do.
    let draft = folder.join(format!(".{name}.new"));
    std::fs::create_dir_all(folder)?;
    std::fs::write(&draft, text)?;
    Ok(std::fs::rename(draft, folder.join(name))?)
}

fn get(agent: &Agent, words: &[&str]) -> Result<Value> {
    let all: Vec<&str> = ["get"].iter().chain(words).chain(&["-o", "json"]).copied().collect();
    Ok(serde_json::from_str(&agent.cli_ok(&all)?)?)
}

/// Waits until `holds`, for what the agent does by itself.
fn eventually(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !holds()? {
        anyhow::ensure!(Instant::now() < deadline, "{what}: not within five seconds");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[test]
fn root_files_are_applied_and_followed() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let device = scene.vxlan(1, PORT)?;
    scene.warm_up()?;
    let config = scratch.path().join("config");
    write(&config, "pods.yaml", &(endpoint(0) + &endpoint(1)))?;
    write(&config, "mirror.yaml", &policy("mirror-web", ECHO))?;
    let agent = Agent::start(&scene.node, scratch.path(), &[])?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    // Both ends are mirrored: each packet leaves one pod and reaches the other.
    assert_eq!(first.netns.ping(&second.v4, 50, 56)?, 50);
    assert_eq!(scene.collector.counter(&device, "rx", "packets")?, 200);
    let shown = get(&agent, &["trafficcontrols", "mirror-web"])?;
    assert_eq!(shown["status"]["inForce"], true, "{shown}");
    assert_eq!(shown["status"]["endpointCount"], 2, "{shown}");
    assert_eq!(shown["status"]["copies"]["sent"], 200, "{shown}");
    assert_eq!(shown["spec"]["match"][0]["protocol"], "ICMP", "as written: {shown}");
    let table = agent.cli_ok(&["get", "tc"])?;
    assert!(table.lines().next().is_some_and(|line| line.starts_with("NAME         DIRECTION")), "{table}");

    // A mistake changes nothing, and says so with its place.
    write(&config, "mirror.yaml", &policy("mirror-web", "  match: [{protocl: UDP}]\n"))?;
    eventually("the mistake is logged", || Ok(agent.log().contains("did you mean \"protocol\"?")))?;
    assert!(
        agent
            .log()
            .contains("mirror.yaml:9:12: TrafficControl/mirror-web: spec.match[0].protocl: unknown field")
    );
    assert_eq!(first.netns.ping(&second.v4, 10, 56)?, 10);
    assert_eq!(scene.collector.counter(&device, "rx", "packets")?, 240);

    write(&config, "mirror.yaml", &policy("mirror-web", "  match: [{protocol: UDP}]\n"))?;
    eventually("the new rule is in force", || {
        Ok(get(&agent, &["tc", "mirror-web"])?["spec"]["match"][0]["protocol"] == "UDP")
    })?;
    assert_eq!(first.netns.ping(&second.v4, 10, 56)?, 10);
    assert_eq!(scene.collector.counter(&device, "rx", "packets")?, 240);
    Ok(())
}

#[test]
fn root_apply_get_and_delete() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let agent = Agent::start(&scene.node, scratch.path(), &[])?;
    let file = scratch.path().join("objects.yaml");
    std::fs::write(&file, endpoint(0) + &policy("mirror-web", ""))?;
    let name = file.to_string_lossy().into_owned();
    assert_eq!(
        agent.cli_ok(&["apply", "-f", &name])?,
        "endpoint/web-0 created\ntrafficcontrol/mirror-web created\n"
    );
    assert_eq!(
        agent.cli_ok(&["apply", "-f", &name])?,
        "endpoint/web-0 unchanged\ntrafficcontrol/mirror-web unchanged\n"
    );

    // Refused as a whole, with exit code 3 and a line that names everything.
    std::fs::write(&file, endpoint(1) + &policy("other", "").replace("vni: 1", "vni: 16777216"))?;
    let refused = agent.cli(&["apply", "-f", &name])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{said}");
    let expected = "spec.targetPort.vxlan.vni: 16777216 is out of range; allowed: 0 to 16777215";
    assert!(
        said.starts_with(&format!("error: {name}:")) && said.contains(expected) && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!(get(&agent, &["endpoints"])?["items"].as_array().map(Vec::len), Some(1), "nothing half done");

    // Another definition of a target that has an owner: kept, not in force, and said with both names.
    std::fs::write(&file, policy("mirror-web-later", "  truncate: 128\n"))?;
    agent.cli_ok(&["apply", "-f", &name])?;
    let shown = get(&agent, &["tc", "mirror-web-later"])?;
    assert_eq!(shown["status"]["inForce"], false, "{shown}");
    let reason = shown["status"]["reason"].as_str().unwrap_or_default();
    assert!(
        reason.contains("truncate of TrafficControl/mirror-web and TrafficControl/mirror-web-later differ"),
        "{shown}"
    );
    let events = agent.cli_ok(&["get", "events"])?;
    assert!(events.contains("TrafficControl/mirror-web-later") && events.contains("NotInForce"), "{events}");
    agent.cli_ok(&["delete", "tc", "mirror-web-later"])?;
    std::fs::write(&file, policy("later", "").replace("vni: 1,", "vni: 9,"))?;
    agent.cli_ok(&["apply", "-f", &name])?;

    agent.cli_ok(&["delete", "tc", "later"])?;
    assert_eq!(agent.cli(&["get", "tc", "later"])?.status.code(), Some(1));
    let missing = agent.cli(&["delete", "tc", "later"])?;
    assert_eq!(String::from_utf8_lossy(&missing.stderr), "error: TrafficControl/later: not found\n");
    assert_eq!(agent.cli(&["get", "nonsense"])?.status.code(), Some(2));
    let binary = podwire_harness::binary().to_string_lossy().into_owned();
    let nobody = podwire_harness::run(&[&binary, "--socket", "/run/nobody.sock", "get", "tc"])?;
    assert_eq!(nobody.status.code(), Some(4), "{}", String::from_utf8_lossy(&nobody.stderr));

    // What came over the socket outlives the agent.
    agent.kill();
    let agent = Agent::start(&scene.node, scratch.path(), &[])?;
    assert_eq!(get(&agent, &["tc", "mirror-web"])?["status"]["inForce"], true);
    Ok(())
}

/// A pod whose interface appears later comes into force by itself; one that goes leaves nothing behind.
#[test]
fn root_interfaces_come_and_go() -> Result<()> {
    let (mut scene, scratch) = (Topology::new()?, Scratch::new()?);
    let device = scene.vxlan(1, PORT)?;
    scene.warm_up()?;
    let config = scratch.path().join("config");
    write(&config, "all.yaml", &(endpoint(2) + &policy("mirror-web", ECHO)))?;
    let agent = Agent::start(&scene.node, scratch.path(), &[])?;
    assert_eq!(get(&agent, &["ep", "web-2"])?["status"]["state"], "InterfaceMissing");
    scene.add_pod(2)?;
    eventually("the pod is in force", || Ok(get(&agent, &["ep", "web-2"])?["status"]["state"] == "InForce"))?;
    let before = scene.collector.counter(&device, "rx", "packets")?;
    let (third, first) = (&scene.pods[2], &scene.pods[0]);
    assert_eq!(third.netns.ping(&first.v4, 20, 56)?, 20);
    assert_eq!(scene.collector.counter(&device, "rx", "packets")? - before, 40);
    let links = scratch.bpf().join("podwire/v2/links");
    let pinned = || -> Result<usize> { Ok(std::fs::read_dir(&links)?.count()) };
    assert_eq!(pinned()?, 4, "two hooks of the pod, one each of the two private devices");
    scene.cut(third)?;
    eventually("the pins are gone", || Ok(pinned()? == 2))?;
    assert_eq!(get(&agent, &["ep", "web-2"])?["status"]["state"], "InterfaceMissing");
    scene.connect(third)?;
    eventually("the pod is in force again", || {
        Ok(get(&agent, &["ep", "web-2"])?["status"]["state"] == "InForce")
    })?;
    assert_eq!(third.netns.ping(&first.v4, 20, 56)?, 20);
    Ok(())
}

/// Killed and restarted under load: the pods lose nothing, the mirror goes on, the books add up.
#[test]
fn root_kill_and_restart_under_load() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let device = scene.vxlan(1, PORT)?;
    scene.warm_up()?;
    let config = scratch.path().join("config");
    write(
        &config,
        "all.yaml",
        &(endpoint(0) + &policy("mirror-web", "  match: [{protocol: UDP, dstPorts: [7000]}]\n")),
    )?;
    let mut agent = Some(Agent::start(&scene.node, scratch.path(), &[])?);
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let stream = UdpStream {
        destination: second.v4.clone(),
        port: 7000,
        count: 20_000,
        size: 200,
        gap: Duration::from_micros(200),
    };
    let report = stream.run(&first.netns, &second.netns, || {
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(100));
            agent.take().context("an agent")?.kill();
            std::thread::sleep(Duration::from_millis(100));
            agent = Some(Agent::start(&scene.node, scratch.path(), &[])?);
        }
        Ok(())
    })?;
    assert!(report.is_whole(), "{report:?}");
    assert_eq!(
        scene.collector.counter(&device, "rx", "packets")?,
        report.sent,
        "copies, none lost by a restart"
    );
    let shown = get(agent.as_ref().context("an agent")?, &["tc", "mirror-web"])?;
    assert_eq!(shown["status"]["copies"]["sent"], report.sent, "counters go on: {shown}");
    Ok(())
}

/// A second agent on the same folder stands back, and says why.
#[test]
fn root_one_agent_per_folder() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let _agent = Agent::start(&scene.node, scratch.path(), &[])?;
    let path = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let binary = podwire_harness::binary().to_string_lossy().into_owned();
    let (config, socket, bpffs) = (path("config"), path("other.sock"), path("bpf/podwire"));
    for state in [path("state"), path("other-state")] {
        // In the namespace, and with the same folder of pins; once with the same state as well.
        let words = [
            &binary, "agent", "--node", "n", "--uplink", "uplink0", "--config", &config, "--socket", &socket,
            "--bpffs", &bpffs, "--state", &state,
        ];
        let second = scene.node.run(&words)?;
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert_eq!(second.status.code(), Some(1), "{said}");
        assert!(said.contains("another agent"), "{said}");
    }
    Ok(())
}

/// Filters of others on the same hook stay as they are.
#[test]
fn root_programs_of_others_are_not_touched() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    scene.warm_up()?;
    let interface = &scene.pods[0].interface;
    let tc = |words: &[&str]| scene.node.run_ok(&[&["tc"], words].concat());
    tc(&["qdisc", "add", "dev", interface, "clsact"])?;
    for hook in ["ingress", "egress"] {
        tc(&[
            "filter", "add", "dev", interface, hook, "protocol", "all", "pref", "7", "u32", "match", "u32",
            "0", "0",
        ])?;
    }
    // Where the kernel has no tcx, podwire's own filter stands there too, with the first priority.
    let others = || -> Result<String> {
        let shown = tc(&["filter", "show", "dev", interface, "ingress"])?
            + &tc(&["filter", "show", "dev", interface, "egress"])?;
        Ok(shown.lines().filter(|line| !line.contains(" pref 1 bpf ")).collect::<Vec<_>>().join("\n"))
    };
    let before = others()?;
    assert!(before.contains("pref 7"), "{before}");
    let config = scratch.path().join("config");
    write(&config, "all.yaml", &(endpoint(0) + &policy("mirror-web", "")))?;
    let agent = Agent::start(&scene.node, scratch.path(), &["--remove-on-exit"])?;
    assert_eq!(get(&agent, &["ep", "web-0"])?["status"]["state"], "InForce");
    assert_eq!(others()?, before);
    agent.stop();
    assert_eq!(others()?, before);
    assert!(!scratch.bpf().join("podwire").exists(), "the pins are gone");
    assert!(scene.node.ip(&["link", "show", "dev", "pw-mirror"]).is_err(), "the private device is gone");
    Ok(())
}
