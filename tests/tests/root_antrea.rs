//! Antrea's own TrafficControl tests, as inputs and outcomes: its manifests, unchanged, driven through the daemon.

use std::time::{Duration, Instant};

use anyhow::Result;
use podwire_harness::{Agent, COLLECTOR_V4, Page, Scratch, Topology};
use serde_json::Value;

fn endpoint(number: usize, app: &str) -> String {
    format!(
        "---\napiVersion: podwire.io/v1alpha1\nkind: Endpoint\n\
         metadata: {{namespace: default, name: web-{number}, labels: {{app: {app}}}}}\n\
         spec: {{interface: veth-web-{number}}}\n"
    )
}

/// As its users write it.
fn traffic_control(name: &str, app: &str, direction: &str, action: &str, ports: &str) -> String {
    format!(
        "---\napiVersion: crd.antrea.io/v1alpha2\nkind: TrafficControl\nmetadata:\n  name: {name}\nspec:\n  \
         appliedTo:\n    podSelector:\n      matchLabels:\n        app: {app}\n  direction: {direction}\n  \
         action: {action}\n{ports}"
    )
}

fn vxlan(field: &str, vni: u32) -> String {
    format!(
        "  {field}:\n    vxlan:\n      remoteIP: {COLLECTOR_V4}\n      vni: {vni}\n      destinationPort: 1111\n"
    )
}

struct Cluster {
    scene: Topology,
    scratch: Scratch,
    agent: Agent,
}

impl Cluster {
    fn new() -> Result<Self> {
        let (scene, scratch) = (Topology::new()?, Scratch::new()?);
        scene.warm_up()?;
        let agent = Agent::start(&scene.node, scratch.path(), &[])?;
        let cluster = Self { scene, scratch, agent };
        cluster.apply(&(endpoint(0, "mirrored") + &endpoint(1, "other")))?;
        Ok(cluster)
    }

    fn apply(&self, text: &str) -> Result<String> {
        let file = self.scratch.path().join("apply.yaml");
        std::fs::write(&file, text)?;
        self.agent.cli_ok(&["apply", "-f", &file.to_string_lossy()])
    }

    fn get(&self, name: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.agent.cli_ok(&["get", "tc", name, "-o", "json"])?)?)
    }

    /// The first pod's pings, `count` for each family.
    fn ping(&self, count: u32) -> Result<()> {
        let [first, second] = &self.scene.pods[..] else { unreachable!("two pods") };
        for address in [&second.v4, &second.v6] {
            assert_eq!(first.netns.ping(address, count, 56)?, count);
        }
        Ok(())
    }

    fn received(&self, device: &str) -> Result<u64> {
        self.scene.collector.counter(device, "rx", "packets")
    }
}

/// Packets of neighbours' talk that a mirror of everything takes besides the pings: ARP, ND and ICMP redirects.
const TALK: u64 = 40;

#[test]
fn root_antrea_mirror_to_vxlan() -> Result<()> {
    let cluster = Cluster::new()?;
    let device = cluster.scene.vxlan(1, 1111)?;
    cluster.apply(&traffic_control("mirror", "mirrored", "Both", "Mirror", &vxlan("targetPort", 1)))?;
    let before = cluster.received(&device)?;
    let [first, second] = &cluster.scene.pods[..] else { unreachable!("two pods") };
    assert_eq!(first.netns.ping(&second.v4, 100, 56)?, 100);
    let gained = cluster.received(&device)? - before;
    assert!((200..200 + TALK).contains(&gained), "{gained}");
    Ok(())
}

#[test]
fn root_antrea_mirror_to_an_internal_port() -> Result<()> {
    let cluster = Cluster::new()?;
    let port = "  targetPort:\n    ovsInternal:\n      name: tap0\n";
    cluster.apply(&traffic_control("mirror", "mirrored", "Both", "Mirror", port))?;
    let before = cluster.scene.node.counter("tap0", "rx", "packets")?;
    cluster.ping(100)?;
    let gained = cluster.scene.node.counter("tap0", "rx", "packets")? - before;
    assert!((400..400 + TALK).contains(&gained), "{gained}");
    Ok(())
}

#[test]
fn root_antrea_redirect_through_a_pair() -> Result<()> {
    let cluster = Cluster::new()?;
    let out = cluster.scene.local_device("target1", 1500)?;
    let ports = format!(
        "  targetPort:\n    device:\n      name: target1\n  returnPort:\n    device:\n      name: {out}\n"
    );
    cluster.apply(&traffic_control("redirect", "mirrored", "Both", "Redirect", &ports))?;
    let [client, server] = &cluster.scene.pods[..] else { unreachable!("two pods") };
    let before = cluster.scene.node.counter("target1", "tx", "packets")?;
    for address in [&server.v4, &server.v6] {
        for _ in 0..10 {
            Page { address: address.clone(), port: 80, bytes: 1000 }.fetch(&client.netns, &server.netns)?;
        }
    }
    let shown = cluster.get("redirect")?;
    let redirect = &shown["status"]["redirect"];
    let sent = cluster.scene.node.counter("target1", "tx", "packets")? - before;
    assert!(sent >= 160, "{sent}");
    assert_eq!(redirect["redirected"]["packets"], redirect["returned"]["packets"], "{shown}");
    assert_eq!(redirect["bypassed"], 0, "{shown}");
    Ok(())
}

/// Each field updated in turn changes only what it governs.
#[test]
fn root_antrea_updates_take_effect() -> Result<()> {
    let cluster = Cluster::new()?;
    let devices = [cluster.scene.vxlan(1, 1111)?, cluster.scene.vxlan(2, 1111)?];
    let gains = |text: &str| -> Result<[u64; 2]> {
        cluster.apply(text)?;
        let before = [cluster.received(&devices[0])?, cluster.received(&devices[1])?];
        cluster.ping(50)?;
        Ok([cluster.received(&devices[0])? - before[0], cluster.received(&devices[1])? - before[1]])
    };
    let policy =
        |app, direction, vni| traffic_control("tc", app, direction, "Mirror", &vxlan("targetPort", vni));
    let close = |gained: u64, wanted: u64| (wanted..wanted + TALK).contains(&gained);
    let both = gains(&policy("mirrored", "Both", 1))?;
    assert!(close(both[0], 200) && both[1] == 0, "{both:?}");
    let ingress = gains(&policy("mirrored", "Ingress", 1))?;
    assert!(close(ingress[0], 100) && ingress[1] == 0, "direction: {ingress:?}");
    let moved = gains(&policy("mirrored", "Both", 2))?;
    assert!(moved[0] == 0 && close(moved[1], 200), "target: {moved:?}");
    let nobody = gains(&policy("nobody", "Both", 2))?;
    assert_eq!(nobody, [0, 0], "appliedTo");
    let other = gains(&policy("other", "Both", 2))?;
    assert!(close(other[1], 200), "appliedTo: {other:?}");
    Ok(())
}

/// Two policies with one target: it is made once and goes with the last of them.
#[test]
fn root_antrea_policies_share_a_target() -> Result<()> {
    let cluster = Cluster::new()?;
    let port = "  targetPort:\n    ovsInternal:\n      name: tap0\n";
    let exists =
        || -> Result<bool> { Ok(cluster.scene.node.run(&["ip", "link", "show", "tap0"])?.status.success()) };
    for name in ["one", "two"] {
        cluster.apply(&traffic_control(name, "mirrored", "Both", "Mirror", port))?;
    }
    let sessions: Value = serde_json::from_str(&cluster.agent.cli_ok(&["get", "sessions", "-o", "json"])?)?;
    assert_eq!(sessions["items"].as_array().map(Vec::len), Some(1), "{sessions}");
    cluster.agent.cli_ok(&["delete", "tc", "one"])?;
    std::thread::sleep(Duration::from_millis(2500));
    assert!(exists()?, "one user is left");
    cluster.agent.cli_ok(&["delete", "tc", "two"])?;
    let deadline = Instant::now() + Duration::from_secs(8);
    while exists()? {
        anyhow::ensure!(Instant::now() < deadline, "the port stays without a user");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A pod that appears, is relabelled or goes moves in or out of force at once.
#[test]
fn root_antrea_pods_come_are_relabelled_and_go() -> Result<()> {
    let mut cluster = Cluster::new()?;
    let device = cluster.scene.vxlan(1, 1111)?;
    cluster.apply(&traffic_control("tc", "late", "Both", "Mirror", &vxlan("targetPort", 1)))?;
    cluster.scene.add_pod(2)?;
    cluster.apply(&endpoint(2, "late"))?;
    let gain = |cluster: &Cluster| -> Result<u64> {
        let before = cluster.received(&device)?;
        assert_eq!(cluster.scene.pods[2].netns.ping(&cluster.scene.pods[0].v4, 30, 56)?, 30);
        Ok(cluster.received(&device)? - before)
    };
    let gained = gain(&cluster)?;
    assert!((60..60 + TALK).contains(&gained), "a pod that appears: {gained}");
    cluster.apply(&endpoint(2, "other"))?;
    assert_eq!(gain(&cluster)?, 0, "relabelled");
    cluster.apply(&endpoint(2, "late"))?;
    assert!(gain(&cluster)? >= 60, "labelled again");
    cluster.agent.cli_ok(&["delete", "ep", "web-2"])?;
    assert_eq!(gain(&cluster)?, 0, "gone");
    Ok(())
}

/// What Antrea forgets to check is refused, with one line.
#[test]
fn root_antrea_contradictions_are_refused() -> Result<()> {
    let cluster = Cluster::new()?;
    let device = "  targetPort:\n    device:\n      name: target1\n";
    let both = format!("{device}  returnPort:\n    device:\n      name: return1\n");
    for (action, ports, why) in [
        ("Redirect", device, "action Redirect needs returnPort"),
        ("Mirror", both.as_str(), "action Mirror has no returnPort"),
    ] {
        let file = cluster.scratch.path().join("wrong.yaml");
        std::fs::write(&file, traffic_control("wrong", "mirrored", "Both", action, ports))?;
        let output = cluster.agent.cli(&["apply", "-f", &file.to_string_lossy()])?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    }
    Ok(())
}
