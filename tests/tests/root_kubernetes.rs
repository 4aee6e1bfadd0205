//! Agents that follow a real API server: what kubectl says takes force on every node, and is answered in status.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use podwire_harness::{ApiServer, ClusterNode, ClusterOptions, SERVER_V4, Wiring, Witness, eventually};
use podwire_tests::kubernetes::{Followed, entry};
use podwire_tests::{agents, reach};

/// A mirror of echo requests into a port that podwire makes.
fn mirror(spec: &str) -> String {
    format!(
        "---\napiVersion: podwire.io/v1alpha1\nkind: TrafficControl\nmetadata: {{name: mirror}}\n\
         spec: {{appliedTo: {{podSelector: {{matchLabels: {{app: web}}}}}}, action: Mirror, {spec}}}\n"
    )
}

const ECHOES: &str =
    "direction: Egress, match: [{protocol: ICMP, icmpType: 8}], targetPort: {internal: {name: tap0}}";

fn egress(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: podwire.io/v1alpha1\nkind: Egress\nmetadata: {{name: {name}}}\n\
         spec: {{appliedTo: {{podSelector: {{matchLabels: {{app: web}}}}}}, {spec}}}\n"
    )
}

/// Copies that a node's `tap0` got of five echoes of a node's first pod to the other node's.
fn copies(followed: &Followed, index: usize) -> Result<u64> {
    let [from, to] = if index == 0 { [0, 1] } else { [1, 0] };
    let [from, to] = [&followed.cluster.nodes[from], &followed.cluster.nodes[to]];
    let before = taps(from)?;
    ensure!(from.pods[0].netns.ping(&to.pods[0].v4, 5, 56)? == 5, "echoes from {} are lost", from.name);
    Ok(taps(from)? - before)
}

fn taps(node: &ClusterNode) -> Result<u64> {
    node.netns.counter("tap0", "rx", "packets")
}

fn nobody_has_tap(followed: &Followed) -> Result<()> {
    eventually("tap0 goes with its policy", || {
        let there =
            |node: &ClusterNode| Ok(node.netns.run(&["ip", "link", "show", "tap0"])?.status.success());
        let there: Result<Vec<bool>> = followed.cluster.nodes.iter().map(there).collect();
        Ok(!there?.contains(&true))
    })
}

#[test]
fn root_kubernetes_policies_of_kubectl_take_force_on_every_node_with_status() -> Result<()> {
    let followed = Followed::new(ClusterOptions::default())?;
    reach::full_mesh(&followed.cluster)?;

    followed.server.apply(&mirror(ECHOES))?;
    followed.every_node_says("tc", "mirror", "Ready", "")?;
    for index in [0, 1] {
        assert_eq!(copies(&followed, index)?, 5);
    }
    let status = followed.status("tc", "mirror")?;
    for node in &followed.cluster.nodes {
        let said = entry(&status, node).context("no entry")?;
        assert_eq!((&said["inForce"], &said["endpoints"]), (&true.into(), &2.into()), "{status:#}");
    }

    followed.server.apply(&mirror(&ECHOES.replace("ICMP, icmpType: 8", "TCP")))?;
    eventually("the change is taken on both nodes", || {
        let status = followed.status("tc", "mirror")?;
        Ok(followed
            .cluster
            .nodes
            .iter()
            .all(|node| entry(&status, node).is_some_and(|entry| entry["observedGeneration"] == 2)))
    })?;
    for index in [0, 1] {
        assert_eq!(copies(&followed, index)?, 0, "echoes are not TCP");
    }

    let answer = followed.cluster.nodes[0].agent()?.cli(&["delete", "tc", "mirror"])?;
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert_eq!(answer.status.code(), Some(3), "{said}");
    assert!(said.contains("kubectl"), "{said}");
    followed.server.kubectl_ok(&["delete", "tc", "mirror"])?;
    nobody_has_tap(&followed)?;
    agents::books(&followed.cluster)
}

#[test]
fn root_kubernetes_what_is_refused_says_why_and_the_rest_goes_on() -> Result<()> {
    let followed = Followed::new(ClusterOptions::default())?;
    // What the schema can tell, the server refuses at once.
    let refused = followed.server.apply(&mirror(&ECHOES.replace("direction: Egress", "direction: Up")));
    let said = format!("{:#}", refused.err().context("a direction that is none was taken")?);
    assert!(said.contains("spec.direction"), "{said}");

    let slip = "destinations: [10.0.0.1/8], egressIP: 203.0.113.7";
    followed.server.apply(&(egress("slip", slip) + &mirror(ECHOES)))?;
    followed.every_node_says("eg", "slip", "Refused", "did you mean \"10.0.0.0/8\"?")?;
    followed.every_node_says("tc", "mirror", "Ready", "")?;
    assert_eq!(copies(&followed, 0)?, 5);
    Ok(())
}

#[test]
fn root_kubernetes_egress_of_kubectl_leaves_where_its_status_says() -> Result<()> {
    let followed = Followed::new(ClusterOptions::default())?;
    let witness = Witness::start(&followed.cluster.server, 8081)?;
    let come_as = |wanted: Option<&str>| {
        let wanted: Option<IpAddr> = wanted.map(str::parse).transpose()?;
        for pod in followed.cluster.pods() {
            let own: IpAddr = pod.v4.parse()?;
            let node: IpAddr = reach::node_of(&followed.cluster, pod)?.addresses()[0].parse()?;
            eventually(&format!("{} comes as {wanted:?}", pod.name), || {
                let seen = witness.sees(&pod.netns, SERVER_V4)?;
                Ok(match wanted {
                    Some(_) => seen == wanted,
                    None => seen == Some(own) || seen == Some(node),
                })
            })
            .with_context(|| followed.logs())?;
        }
        anyhow::Ok(())
    };
    come_as(None)?;
    for (address, number) in [("203.0.113.7", 2), ("203.0.113.8", 1)] {
        let node = format!("node-{number}");
        let spec = format!("egressIP: {address}, own: true, egressNode: {node}");
        followed.server.apply(&egress("out", &spec))?;
        come_as(Some(address))?;
        followed.every_node_says("eg", "out", "Ready", "")?;
        let mut status = followed.status("eg", "out")?;
        eventually("the status says where", || {
            status = followed.status("eg", "out")?;
            Ok(status["egressNode"] == node.as_str() && status["egressIP"] == address)
        })
        .with_context(|| format!("{status:#}"))?;
        assert_eq!(status["conditions"][0]["status"], "True", "{status:#}");
    }
    followed.server.kubectl_ok(&["delete", "eg", "out"])?;
    come_as(None)
}

#[test]
fn root_kubernetes_a_server_away_changes_nothing_and_is_caught_up_with() -> Result<()> {
    let mut followed = Followed::new(ClusterOptions::default())?;
    followed.server.apply(&mirror(ECHOES))?;
    followed.every_node_says("tc", "mirror", "Ready", "")?;
    assert_eq!(copies(&followed, 0)?, 5);

    followed.server.stop();
    store_is(&followed, "away")?;
    assert_eq!(copies(&followed, 0)?, 5, "with the server away");
    // One agent dies and starts without a server: what it left in force stays.
    let file = followed.server.kubeconfig().display().to_string();
    followed.cluster.kill_agent(1)?;
    assert_eq!(copies(&followed, 1)?, 5, "with the agent away");
    followed.cluster.start_agent(1, &["--kubeconfig", &file])?;
    assert_eq!(copies(&followed, 1)?, 5, "with an agent that knows nothing yet");

    followed.server.restart()?;
    store_is(&followed, "connected")?;
    // A server that has just started does not know its kinds at once.
    for _ in 0..20 {
        assert_eq!(copies(&followed, 0)?, 5, "with the server back");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let other = mirror(&ECHOES.replace("tap0", "tap1"));
    followed.server.apply(&other)?;
    eventually("what changed later arrives", || {
        let there =
            |node: &ClusterNode| Ok(node.netns.run(&["ip", "link", "show", "tap1"])?.status.success());
        let there: Result<Vec<bool>> = followed.cluster.nodes.iter().map(there).collect();
        Ok(!there?.contains(&false))
    })?;
    nobody_has_tap(&followed)?;

    followed.server.freeze()?;
    store_is(&followed, "away")?;
    reach::full_mesh(&followed.cluster)?;
    followed.server.thaw()?;
    store_is(&followed, "connected")?;
    followed.server.kubectl_ok(&["delete", "tc", "mirror"])?;
    eventually("the policy goes on both nodes", || {
        let there =
            |node: &ClusterNode| Ok(node.netns.run(&["ip", "link", "show", "tap1"])?.status.success());
        let there: Result<Vec<bool>> = followed.cluster.nodes.iter().map(there).collect();
        Ok(!there?.contains(&true))
    })
}

fn store_is(followed: &Followed, state: &str) -> Result<()> {
    for node in &followed.cluster.nodes {
        let agent = node.agent()?;
        eventually(&format!("{} knows that the server is {state}", node.name), || {
            let shown = agent.cli_ok(&["get", "status", "-o", "json"])?;
            let shown: serde_json::Value = serde_json::from_str(&shown)?;
            Ok(shown["items"][0]["status"]["store"]["state"] == state)
        })?;
    }
    Ok(())
}

/// Without a word in the pods' annotations, interface and MAC address are found by routes and neighbours.
fn pods_are_found(wiring: Wiring) -> Result<()> {
    let followed = Followed::new(ClusterOptions { wiring, ..ClusterOptions::default() })?;
    for node in &followed.cluster.nodes {
        let agent = node.agent()?;
        eventually("all pods are found with their addresses", || {
            let shown = agents::get(agent, &["endpoints"])?;
            let items = shown["items"].as_array().context("no list")?;
            Ok(node.pods.iter().all(|pod| {
                items.iter().any(|item| {
                    item["metadata"]["name"] == pod.name.as_str()
                        && item["spec"]["interface"] == pod.interface.as_str()
                        && item["spec"]["mac"] == pod.mac.as_str()
                        && item["status"]["guard"]["mode"] == "Enforce"
                })
            }))
        })
        .with_context(|| agent.cli_ok(&["get", "endpoints", "-o", "yaml"]).unwrap_or_default())?;
    }
    followed.server.apply(&mirror(ECHOES))?;
    followed.every_node_says("tc", "mirror", "Ready", "")?;
    for index in [0, 1] {
        assert_eq!(copies(&followed, index)?, 5);
    }
    Ok(())
}

#[test]
fn root_kubernetes_pods_are_found_by_their_routes() -> Result<()> {
    pods_are_found(Wiring::Routed)
}

#[test]
fn root_kubernetes_pods_are_found_at_their_bridge() -> Result<()> {
    pods_are_found(Wiring::Bridge)
}

/// Antrea's own definitions as far as podwire reads them.
const ANTREA: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: trafficcontrols.crd.antrea.io}
spec:
  group: crd.antrea.io
  scope: Cluster
  names: {kind: TrafficControl, plural: trafficcontrols, singular: trafficcontrol}
  versions:
  - name: v1alpha2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: egresses.crd.antrea.io}
spec:
  group: crd.antrea.io
  scope: Cluster
  names: {kind: Egress, plural: egresses, singular: egress}
  versions:
  - name: v1beta1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

const ANTREA_OBJECTS: &str = "
apiVersion: crd.antrea.io/v1alpha2
kind: TrafficControl
metadata: {name: theirs}
spec:
  appliedTo: {podSelector: {matchLabels: {app: web}}}
  direction: Egress
  action: Mirror
  targetPort: {ovsInternal: {name: tap0}}
---
apiVersion: crd.antrea.io/v1beta1
kind: Egress
metadata: {name: theirs}
spec:
  appliedTo: {podSelector: {matchLabels: {app: web}}}
  egressIP: 203.0.113.7
  externalIPPool: any
";

/// Antrea's kinds are followed although they come long after the agents.
#[test]
fn root_kubernetes_antreas_objects_are_followed_when_they_come() -> Result<()> {
    let followed = Followed::new(ClusterOptions::default())?;
    followed.server.apply(ANTREA)?;
    let crds = ["crd/trafficcontrols.crd.antrea.io", "crd/egresses.crd.antrea.io"];
    let wait = ["wait", "--for=condition=established", "--timeout=20s"];
    followed.server.kubectl_ok(&[&wait[..], &crds[..]].concat())?;
    followed.server.apply(ANTREA_OBJECTS)?;
    let there = |node: &ClusterNode| Ok(node.netns.run(&["ip", "link", "show", "tap0"])?.status.success());
    // A kind that was not there is asked for again within ten seconds.
    let mut tries = 0;
    while !followed.cluster.nodes.iter().map(there).collect::<Result<Vec<bool>>>()?.iter().all(|it| *it) {
        tries += 1;
        ensure!(tries < 300, "tap0 has not come:\n{}", followed.logs());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    eventually("the status says where", || {
        let status = followed.status("egresses.crd.antrea.io", "theirs")?;
        Ok(status["egressIP"] == "203.0.113.7" && status["egressNode"].is_string())
    })
    .with_context(|| followed.logs())?;
    followed.server.kubectl_ok(&["delete", "trafficcontrols.crd.antrea.io", "theirs"])?;
    nobody_has_tap(&followed)
}

#[test]
fn root_kubernetes_the_manifests_are_taken() -> Result<()> {
    let server = ApiServer::start()?;
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes");
    let rbac = deploy.join("rbac.yaml").display().to_string();
    server.kubectl_ok(&["apply", "--validate=false", "-f", &rbac])?;
    let daemonset = deploy.join("daemonset.yaml").display().to_string();
    server.kubectl_ok(&["apply", "--validate=false", "--dry-run=server", "-f", &daemonset])?;
    Ok(())
}

/// The objects of podwire's group in the examples of the guide and the fuzzers' corpus, a YAML document each.
fn examples() -> Result<Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = |folder: &str| -> Result<Vec<PathBuf>> {
        Ok(fs::read_dir(root.join(folder))?.flatten().map(|entry| entry.path()).collect())
    };
    let mut texts = Vec::new();
    for file in files("docs")?.iter().filter(|file| file.extension().is_some_and(|end| end == "md")) {
        let text = fs::read_to_string(file)?;
        texts.extend(
            text.split("```yaml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0.to_owned())),
        );
    }
    for file in files("fuzz/corpus/config")? {
        texts.extend(fs::read_to_string(file));
    }
    let documents =
        texts.iter().flat_map(|text| text.split("\n---")).map(|text| text.trim_start_matches("---"));
    let kinds = ["TrafficControl", "Egress", "Endpoint", "Traceflow"].map(|kind| format!("kind: {kind}\n"));
    let is_ours = |text: &&str| {
        text.trim_start().starts_with("apiVersion: podwire.io/")
            && kinds.iter().any(|kind| text.contains(kind))
    };
    Ok(documents.filter(is_ours).map(str::to_owned).collect())
}

#[test]
fn root_kubernetes_what_the_decoder_takes_the_server_takes() -> Result<()> {
    let server = ApiServer::start()?;
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds").display().to_string();
    server.kubectl_ok(&["apply", "--validate=false", "-f", &crds])?;
    server.kubectl_ok(&["wait", "--for=condition=established", "--timeout=20s", "-f", &crds])?;
    let mut taken = 0;
    for example in examples()? {
        if podwire_datapath::object::parse("example", &example).is_err() {
            continue;
        }
        let words = ["apply", "--validate=false", "--dry-run=server", "-f", "-"];
        let answer = server.kubectl_with(&words, &example)?;
        let said = String::from_utf8_lossy(&answer.stderr).into_owned();
        assert!(answer.status.success(), "{said}\n{example}");
        taken += 1;
    }
    assert!(taken >= 10, "only {taken} examples were found");
    Ok(())
}
