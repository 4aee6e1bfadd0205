//! The API server of the harness: a real one, reached from several namespaces, that can be away and slow.

use anyhow::Result;
use podwire_harness::{ApiServer, NetNs, run};
use serde_json::json;

const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n";

#[test]
fn root_kubernetes_objects_stay_over_a_restart_and_a_frozen_server_answers_later() -> Result<()> {
    let mut server = ApiServer::start()?;
    let nodes = [NetNs::new("node")?, NetNs::new("node")?];
    for node in &nodes {
        server.connect(node)?;
        let answer = node.run_ok(&["curl", "-sk", "--max-time", "5", "https://172.31.0.1:6443/healthz"])?;
        assert_eq!(answer, "ok", "without a token only this can be asked");
    }
    server.apply(NODE)?;
    let status = json!({"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]});
    server.set_status("node", "node-1", &status)?;

    server.freeze()?;
    let slow = server.kubectl(&["get", "nodes", "--request-timeout=1s"])?;
    assert!(!slow.status.success(), "a frozen server answered");
    server.thaw()?;
    assert!(server.kubectl_ok(&["get", "nodes"])?.contains("node-1"));

    server.restart()?;
    let address =
        server.kubectl_ok(&["get", "node", "node-1", "-o", "jsonpath={.status.addresses[0].address}"])?;
    assert_eq!(address, "192.0.2.1");
    server.stop();
    assert!(!server.kubectl(&["get", "nodes", "--request-timeout=2s"])?.status.success());
    Ok(())
}

#[test]
fn root_kubernetes_nothing_is_left_of_a_server() -> Result<()> {
    let server = ApiServer::start()?;
    let folder = server.kubeconfig().parent().map(std::path::Path::to_owned).unwrap_or_default();
    assert!(folder.is_dir());
    drop(server);
    assert!(!folder.exists());
    let left = run(&["pgrep", "-f", &folder.display().to_string()])?;
    assert!(left.stdout.is_empty(), "{}", String::from_utf8_lossy(&left.stdout));
    Ok(())
}
