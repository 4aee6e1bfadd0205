//! Suricata inline: it passes, it blocks, and what happens when it dies. No offload is switched, no MTU set by hand
//! for it where podwire is.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the test runner reads why a test did nothing")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwire_harness::{Agent, Iperf, NetNs, Scratch, Suricata, SuricataReport, Topology, WebServer};
use serde_json::Value;

/// The rule that names what is allowed, and the one that names what is not.
const ALLOWED: u64 = 1001;
const FORBIDDEN: u64 = 1002;
const RULES: &str = "\
alert http any any -> any any (msg:\"allowed\"; http.uri; content:\"/allowed\"; sid:1001; rev:1;)
drop http any any -> any any (msg:\"forbidden\"; http.uri; content:\"/forbidden\"; sid:1002; rev:1;)
";
/// Bits per second that a connection through Suricata must reach at least.
const USABLE: f64 = 50e6;

/// Says why a test does nothing, when it can do nothing.
fn skipped() -> bool {
    let skipped = !Suricata::is_installed();
    if skipped {
        println!("SKIPPED: suricata is not installed");
    }
    skipped
}

/// A client, a server, and Suricata's namespace between them.
struct Bump {
    client: NetNs,
    middle: NetNs,
    server: NetNs,
}

impl Bump {
    fn new() -> Result<Self> {
        let scene = Self {
            client: NetNs::new("client")?,
            middle: NetNs::new("middle")?,
            server: NetNs::new("server")?,
        };
        for (netns, port, number) in [(&scene.client, "ips-a", 1), (&scene.server, "ips-b", 2)] {
            scene.middle.ip(&[
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                netns.name(),
            ])?;
            scene.middle.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{port}.disable_ipv6=1")])?;
            scene.middle.ip(&["link", "set", port, "up"])?;
            netns.ip(&["addr", "add", &format!("10.0.0.{number}/24"), "dev", "eth0"])?;
            netns.ip(&["addr", "add", &format!("fd00::{number}/64"), "dev", "eth0", "nodad"])?;
            netns.ip(&["link", "set", "eth0", "up"])?;
        }
        Ok(scene)
    }
}

/// Ten pages per family that are allowed and one that is not, in that order, and what the client was told.
fn browse(client: &NetNs, server: &NetNs, addresses: [&str; 2]) -> Result<()> {
    for address in addresses {
        let web = WebServer::start(server, address)?;
        for _ in 0..10 {
            assert_eq!(web.get(client, "/allowed")?, Some(200), "{address}");
        }
        assert_eq!(web.get(client, "/forbidden")?, None, "{address}");
    }
    Ok(())
}

/// A bulk transfer that must go at a usable rate.
fn hurry(client: &NetNs, server: &NetNs, address: &str) -> Result<()> {
    let bulk =
        Iperf { destination: address.into(), port: 5201, bytes: 256 << 20, udp_rate: None, cpus: None };
    let bulk = bulk.run(client, server)?;
    println!("{address}: {:.0} Mbit/s, {} segments sent again", bulk.bits_per_second / 1e6, bulk.retransmits);
    assert!(bulk.bits_per_second > USABLE, "{bulk:?}");
    Ok(())
}

/// Each allowed page passed and each other was blocked, and the packets were as on a wire.
fn did_its_work(report: &SuricataReport) -> Result<()> {
    assert_eq!(report.flaws()?, []);
    assert_eq!((report.count(ALLOWED), report.count(FORBIDDEN)), (20, 2), "{:?}", report.alerts());
    assert!(report.alerts().iter().all(|alert| alert.blocked == (alert.sid == FORBIDDEN)));
    assert!(report.counter("ips.blocked")? >= 2);
    Ok(())
}

/// Suricata without podwire, between two veth pairs: nothing passes while their offloads are on, because it sends on
/// what it reads and an unfinished checksum stays so. What works once they are off is what podwire must reach alone.
#[test]
fn root_suricata_between_plain_veth_pairs_needs_their_offloads_off() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let scene = Bump::new()?;
    let suricata = Suricata::ips(&scene.middle, ["ips-a", "ips-b"], RULES)?;
    for address in ["10.0.0.2", "fd00::2"] {
        let web = WebServer::start(&scene.server, address)?;
        assert_eq!(web.get(&scene.client, "/allowed")?, None, "{address}");
    }
    suricata.kill();
    for netns in [&scene.client, &scene.server] {
        for name in ["tx", "tso", "gso"] {
            netns.offload("eth0", name, false)?;
        }
    }
    let suricata = Suricata::ips(&scene.middle, ["ips-a", "ips-b"], RULES)?;
    browse(&scene.client, &scene.server, ["10.0.0.2", "fd00::2"])?;
    hurry(&scene.client, &scene.server, "10.0.0.2")?;
    did_its_work(&suricata.stop()?)
}

/// Sends all of pod `web-NUMBER`'s traffic, both ways, through the tool between `ips-in` and `ips-out`.
fn redirect(number: usize, more: &str) -> String {
    format!(
        "---\napiVersion: podwire.io/v1alpha1\nkind: Endpoint\nmetadata: {{name: web-{number}, labels: {{app: web}}}}\n\
         spec: {{interface: veth-web-{number}, ips: [10.10.1.{}]}}\n\
         ---\napiVersion: podwire.io/v1alpha1\nkind: TrafficControl\nmetadata: {{name: inspect}}\nspec:\n  \
         appliedTo: {{podSelector: {{matchLabels: {{app: web}}}}}}\n  direction: Both\n  action: Redirect\n  \
         targetPort: {{internal: {{name: ips-in}}}}\n  returnPort: {{internal: {{name: ips-out}}}}\n{more}",
        number + 5
    )
}

fn start(scene: &Topology, scratch: &Scratch, policy: &str) -> Result<Agent> {
    let config = scratch.path().join("config");
    std::fs::create_dir_all(&config)?;
    std::fs::write(config.join("all.yaml"), policy)?;
    Agent::start(&scene.node, scratch.path(), &[])
}

fn status(agent: &Agent) -> Result<Value> {
    let shown: Value = serde_json::from_str(&agent.cli_ok(&["get", "tc", "inspect", "-o", "json"])?)?;
    Ok(shown["status"].clone())
}

/// How many packets the policy's redirect did something with: `bypassed`, `refused`.
fn redirects(agent: &Agent, what: &str) -> Result<u64> {
    let status = status(agent)?;
    status["redirect"][what].as_u64().with_context(|| format!("no {what} in {status}"))
}

/// Whether the agent has told of an event.
fn told(agent: &Agent, reason: &str) -> Result<bool> {
    let status = status(agent)?;
    let events = status["events"].as_array().with_context(|| format!("no events in {status}"))?;
    Ok(events.iter().any(|event| event["reason"] == reason))
}

fn ips(scene: &Topology) -> Result<Suricata> {
    Suricata::ips(&scene.node, ["ips-in", "ips-out"], RULES)
}

/// Pages and bulk through Suricata, for the pod with the given number; pod 0 asks pod 1.
fn inspect(number: usize) -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let agent = start(&scene, &scratch, &redirect(number, ""))?;
    let suricata = ips(&scene)?;
    let [client, server] = &scene.pods[..] else { unreachable!("two pods") };
    browse(&client.netns, &server.netns, [&server.v4, &server.v6])?;
    for address in [&server.v4, &server.v6] {
        hurry(&client.netns, &server.netns, address)?;
    }
    // Each packet went by the tool, and back: those that stayed out, it dropped itself.
    assert_eq!(
        (redirects(&agent, "bypassed")?, redirects(&agent, "refused")?),
        (0, 0),
        "{}",
        status(&agent)?
    );
    assert!(status(&agent)?["redirect"]["returned"]["packets"].as_u64() > Some(0), "{}", status(&agent)?);
    did_its_work(&suricata.stop()?)
}

#[test]
fn root_suricata_inspects_a_client() -> Result<()> {
    inspect(0)
}

#[test]
fn root_suricata_inspects_a_server() -> Result<()> {
    inspect(1)
}

/// The longest that a dead tool is not noticed: `healthCheck`, and what the agent needs to see it.
const NOTICED: Duration = Duration::from_secs(6);

/// Waits until a page comes or does not come any more; returns how long that took.
fn until(web: &WebServer, client: &NetNs, wanted: Option<u16>) -> Result<Duration> {
    let start = Instant::now();
    while web.get(client, "/allowed")? != wanted {
        anyhow::ensure!(start.elapsed() < NOTICED, "not {wanted:?} within {:?}", start.elapsed());
    }
    Ok(start.elapsed())
}

/// Suricata is killed and started again, with the given policy. `passes`: whether pages come without it.
fn kill(policy: &str, passes: bool) -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let agent = start(&scene, &scratch, &redirect(0, policy))?;
    let [client, server] = &scene.pods[..] else { unreachable!("two pods") };
    let web = WebServer::start(&server.netns, &server.v4)?;
    let suricata = ips(&scene)?;
    assert_eq!(web.get(&client.netns, "/allowed")?, Some(200));
    assert_eq!(web.get(&client.netns, "/forbidden")?, None);
    suricata.kill();
    if passes {
        println!("pages again after {:?}", until(&web, &client.netns, Some(200))?);
        for _ in 0..10 {
            assert_eq!(web.get(&client.netns, "/forbidden")?, Some(200), "nobody looks any more");
        }
    } else {
        let start = Instant::now();
        while start.elapsed() < NOTICED {
            assert_eq!(web.get(&client.netns, "/allowed")?, None);
        }
    }
    assert!(told(&agent, "ToolSilent")?, "{}", status(&agent)?);
    assert_eq!(redirects(&agent, "bypassed")? > 0, passes, "{}", status(&agent)?);
    assert_eq!(redirects(&agent, "refused")? > 0, !passes, "{}", status(&agent)?);
    let suricata = ips(&scene)?;
    println!("inspected again after {:?}", until_inspected(&web, &client.netns, &suricata)?);
    assert!(told(&agent, "ToolAlive")?, "{}", status(&agent)?);
    assert_eq!(web.get(&client.netns, "/forbidden")?, None);
    assert_eq!(web.get(&client.netns, "/allowed")?, Some(200));
    Ok(())
}

/// Waits until Suricata sees pages again; returns how long that took.
fn until_inspected(web: &WebServer, client: &NetNs, suricata: &Suricata) -> Result<Duration> {
    let start = Instant::now();
    while suricata.alerts()?.is_empty() {
        anyhow::ensure!(start.elapsed() < NOTICED, "Suricata sees nothing");
        let _ = web.get(client, "/allowed")?;
    }
    Ok(start.elapsed())
}

#[test]
fn root_suricata_killed_and_the_policy_is_open() -> Result<()> {
    kill("  failurePolicy: Open\n  healthCheck: {timeout: \"2s\"}\n", true)
}

#[test]
fn root_suricata_killed_and_the_policy_is_closed() -> Result<()> {
    kill("  failurePolicy: Closed\n  healthCheck: {timeout: \"2s\"}\n", false)
}

/// A rule drops all that the pod sends for longer than `healthCheck` waits: that is a tool at work, not a dead one,
/// and it is not passed by.
#[test]
fn root_suricata_that_blocks_everything_is_not_dead() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let policy = redirect(0, "  failurePolicy: Open\n  healthCheck: {timeout: \"1s\"}\n");
    let agent = start(&scene, &scratch, &policy)?;
    let [client, server] = &scene.pods[..] else { unreachable!("two pods") };
    let web = WebServer::start(&server.netns, &server.v4)?;
    let _suricata = ips(&scene)?;
    assert_eq!(web.get(&client.netns, "/allowed")?, Some(200));
    let url = format!("http://{}/forbidden", server.v4);
    let output = client.netns.run(&["curl", "-sS", "--noproxy", "*", "-m", "8", "-o", "/dev/null", &url])?;
    assert_eq!(output.status.code(), Some(28), "curl waits in vain; {}", status(&agent)?);
    assert_eq!(redirects(&agent, "bypassed")?, 0, "{}", status(&agent)?);
    Ok(())
}
