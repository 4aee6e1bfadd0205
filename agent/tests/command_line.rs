//! The command line without an agent, and against one that answers from a script: what is printed, and how it ends.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

mod scripted;

use std::path::Path;
use std::process::{Command, Output};
use std::thread::JoinHandle;

use scripted::{podwire, stderr, stdout};

/// Answers one request with `status` and `body`; returns the request line and its body.
fn agent(socket: &Path, status: &'static str, body: &str) -> JoinHandle<(String, String)> {
    let served = scripted::agent(socket, vec![(status, body.to_owned())]);
    std::thread::spawn(move || served.join().expect("served").remove(0))
}

const ENDPOINTS: &str = r#"{"items": [
  {"metadata": {"namespace": "shop", "name": "web-0"}, "spec": {"interface": "veth0", "ips": ["10.10.1.5", "fd00::5"]},
   "status": {"state": "InForce", "guard": {"mode": "Enforce"}, "packets": {"received": 7, "passed": 6, "dropped": 1, "mirrored": 3}}},
  {"metadata": {"name": "web-0"}, "spec": {"interface": "veth1"}, "status": {"state": "Idle", "ifindex": 4}}]}"#;

#[test]
fn an_agent_that_is_not_there_is_code_4_and_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("none.sock");
    let file = folder.path().join("a.yaml");
    std::fs::write(&file, "kind: Node\n").expect("a file");
    let file = file.to_string_lossy();
    for words in
        [&["get", "tc"][..], &["apply", "-f", &file], &["delete", "tc", "x"], &["describe", "ep", "x"]]
    {
        let output = podwire(&socket, words);
        assert_eq!(output.status.code(), Some(4), "{words:?}");
        let said = stderr(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.starts_with("error: ") && said.contains("none.sock") && said.contains("podwire agent"),
            "{said}"
        );
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn wrong_use_is_code_2_and_names_what_is_allowed() {
    let socket = Path::new("/nonexistent/podwire.sock");
    for (words, said) in [
        (&["get", "pods"][..], "trafficcontrols"),
        (&["get", "tc", "-o", "xml"], "yaml"),
        (&["apply"], "--filename"),
        (&["delete", "tc"], "<NAME>"),
        (&["agent", "--node", "n", "--uplink", "u"], "--config"),
        (&["agent", "--config", "c", "--node", "n", "--uplink", "u", "--hook", "xdp"], "clsact"),
        (&["completion", "tcsh"], "bash"),
        (&["collect"], "--interface"),
        (&["collect", "-i", "lo", "--vni", "16777216"], "from 0 to 16777215"),
        (&["collect", "-i", "lo", "--vni", "0x10"], "from 0 to 16777215"),
        (&["collect", "-i", ""], "1 to 15 bytes"),
        (&["collect", "-i", "lo", "--tap", "a/b"], "1 to 15 bytes"),
        (&["collect", "-i", "lo", "--format", "ipip"], "erspan"),
        (&["collect", "-i", "lo", "--reorder", "4097"], "4096"),
        (&["collect", "-i", "lo", "--rotate-bytes", "1M"], "--write"),
        (&["collect", "-i", "lo", "--files", "2", "-w", "x"], "--rotate-bytes"),
        (&["collect", "-i", "lo", "--geneve-port", "4789"], "--format"),
        (&["get", "tc", "--socket", "one.sock", "--socket", "two.sock"], "only podwire capture"),
        (&["capture"], "--source"),
        (&["capture", "-S", "web-0", "--count", "0"], "count"),
        (&["capture", "-S", "web-0", "-f", "tpc"], "column 1"),
        (&["capture", "-S", "web-0", "--any-peer"], "--destination"),
    ] {
        let output = podwire(socket, words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(said), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in [
        "agent",
        "cleanup",
        "apply",
        "delete",
        "get",
        "describe",
        "check",
        "completion",
        "man",
        "version",
        "observe",
        "traceflow",
        "capture",
    ] {
        let output = podwire(Path::new("/nonexistent"), &[command, "--help"]);
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert!(stdout(&output).contains(&format!("Examples:\n  podwire {command}")), "{}", stdout(&output));
    }
}

#[test]
fn refused_objects_are_code_3_and_a_line_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, file) = (folder.path().join("s"), folder.path().join("a b.yaml"));
    std::fs::write(&file, "kind: Nothing\n").expect("a file");
    let served = agent(
        &socket,
        "422 Unprocessable Entity",
        r#"{"error": "first", "kind": "Refused", "details": ["first", "second"]}"#,
    );
    let output = podwire(&socket, &["apply", "--dry-run", "-f", &file.to_string_lossy()]);
    let (request, body) = served.join().expect("served");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stderr(&output), "error: first\nerror: second\n");
    assert!(
        request.starts_with("POST /v1/apply?file=") && request.contains("a%20b.yaml&dryRun=true "),
        "{request}"
    );
    assert_eq!(body, "kind: Nothing\n");
}

#[test]
fn objects_too_long_are_refused_with_the_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, file) = (folder.path().join("s"), folder.path().join("a.yaml"));
    std::fs::write(&file, "#\n").expect("a file");
    let served = agent(&socket, "413 Payload Too Large", "length limit exceeded");
    let output = podwire(&socket, &["apply", "-f", &file.to_string_lossy()]);
    served.join().expect("served");
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("allowed: 1048576 bytes"), "{}", stderr(&output));
}

#[test]
fn apply_says_what_became_of_each_object() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, file) = (folder.path().join("s"), folder.path().join("a.yaml"));
    std::fs::write(&file, "#\n").expect("a file");
    let served = agent(
        &socket,
        "200 OK",
        r#"{"results": [{"object": "trafficcontrol/a", "result": "created", "note": "not in force: no such device"},
                        {"object": "endpoint/b", "result": "unchanged", "note": null}]}"#,
    );
    let output = podwire(&socket, &["apply", "-f", &file.to_string_lossy()]);
    served.join().expect("served");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stdout(&output), "trafficcontrol/a created\nendpoint/b unchanged\n");
    assert_eq!(stderr(&output), "warning: trafficcontrol/a: not in force: no such device\n");
}

#[test]
fn tables_have_their_columns() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let served = agent(&socket, "200 OK", ENDPOINTS);
    let output = podwire(&socket, &["get", "ep"]);
    assert!(served.join().expect("served").0.starts_with("GET /v1/endpoints "));
    let lines: Vec<Vec<String>> =
        stdout(&output).lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    assert_eq!(
        lines,
        [
            vec![
                "NAMESPACE",
                "NAME",
                "INTERFACE",
                "IPS",
                "STATE",
                "MODE",
                "RECEIVED",
                "PASSED",
                "REDIRECTED",
                "DROPPED",
                "SPOOFED",
                "MIRRORED"
            ],
            vec![
                "shop",
                "web-0",
                "veth0",
                "10.10.1.5,fd00::5",
                "InForce",
                "Enforce",
                "7",
                "6",
                "-",
                "1",
                "-",
                "3"
            ],
            vec!["default", "web-0", "veth1", "-", "Idle", "-", "-", "-", "-", "-", "-", "-"],
        ]
    );
    assert!(!stdout(&output).contains('\x1b'), "no colour where nobody sees it");
}

#[test]
fn wide_shows_more_and_a_namespace_chooses() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let served = agent(&socket, "200 OK", ENDPOINTS);
    let output = podwire(&socket, &["get", "ep", "web-0", "-n", "default", "-o", "wide"]);
    served.join().expect("served");
    let shown = stdout(&output);
    assert_eq!(shown.lines().count(), 2, "{shown}");
    assert!(shown.lines().next().is_some_and(|line| line.ends_with("IFINDEX   PROBLEM")), "{shown}");
    assert!(shown.contains("veth1") && !shown.contains("veth0"), "{shown}");
}

#[test]
fn json_is_one_object_by_name_else_a_list() {
    let folder = tempfile::tempdir().expect("a folder");
    for (number, (words, kind)) in [
        (&["get", "ep", "-o", "json"][..], "List"),
        (&["get", "ep", "web-0", "-n", "shop", "-o", "json"], ""),
    ]
    .iter()
    .enumerate()
    {
        let socket = folder.path().join(number.to_string());
        let served = agent(&socket, "200 OK", ENDPOINTS);
        let output = podwire(&socket, words);
        served.join().expect("served");
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        match *kind {
            "List" => assert_eq!(
                (&value["kind"], value["items"].as_array().map(Vec::len)),
                (&"List".into(), Some(2))
            ),
            _ => assert_eq!(value["metadata"]["namespace"], "shop"),
        }
    }
}

#[test]
fn what_is_not_there_is_code_1() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let served = agent(&socket, "200 OK", ENDPOINTS);
    let output = podwire(&socket, &["describe", "ep", "db-0"]);
    served.join().expect("served");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "error: endpoints \"db-0\" not found\n");
}

#[test]
fn check_needs_no_agent() {
    let output = podwire(Path::new("/nonexistent"), &["check", "-o", "json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let features = value["features"].as_array().expect("a list");
    let lacking = features.iter().any(|feature| feature["required"] == true && feature["present"] == false);
    assert_eq!(output.status.code(), Some(i32::from(lacking)), "{}", stderr(&output));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_podwire"))
        .args(["completion", "bash"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("podwire starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("podwire ends");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

const EGRESSES: &str = r#"{"items": [
  {"metadata": {"name": "out"}, "spec": {"egressIP": "203.0.113.7", "own": true, "except": ["10.0.0.0/8"]},
   "status": {"state": "Ready", "inForce": true, "egressNode": "node-2", "egressIPs": ["203.0.113.7", "2001:db8::7"], "endpointCount": 2, "id": 9,
              "packets": 12, "bytes": 3400, "connections": 4, "droppedTotal": 3, "dropped": {"RateExceeded": 3}}},
  {"metadata": {"name": "lost"}, "spec": {"egressIP": "203.0.113.8"},
   "status": {"state": "Dropping", "inForce": true, "egressNode": null, "egressIPs": ["203.0.113.8"], "endpointCount": 0, "reason": "no such Node",
              "packets": 0, "bytes": 0, "connections": null, "droppedTotal": 5, "dropped": {"NoEgressNode": 5}}}]}"#;

#[test]
fn egresses_and_nodes_have_tables() {
    let nodes = r#"{"items": [
      {"metadata": {"name": "node-1"}, "spec": {"addresses": ["192.0.2.1"], "podCIDRs": ["10.10.1.0/24", "fd00:10:1::/64"]},
       "status": {"role": "This", "state": "NotReady", "forwarding": "native", "networkProblems": ["no route", "no overlay"],
                  "overlay": {"received": {"packets": 7}, "sent": {"packets": 8}}, "held": 1, "unmapped": 2}},
      {"metadata": {"name": "node-2"}, "spec": {"addresses": ["192.0.2.2"]}, "status": {"role": "Peer"}}]}"#;
    let folder = tempfile::tempdir().expect("a folder");
    for (number, (words, request, body, expected)) in [
        (
            &["get", "eg"][..],
            "GET /v1/egresses ",
            EGRESSES,
            "NAME   EGRESSIPS                 NODE     STATE      ENDPOINTS   PACKETS   DROPPED\n\
             out    203.0.113.7,2001:db8::7   node-2   Ready      2           12        3\n\
             lost   203.0.113.8               -        Dropping   0           0         5\n",
        ),
        (
            &["get", "egress", "lost", "-o", "wide"],
            "GET /v1/egresses ",
            EGRESSES,
            "NAME   EGRESSIPS     NODE   STATE      ENDPOINTS   PACKETS   DROPPED   BYTES   CONNECTIONS   OWN   ID   EXCEPT   REASON\n\
             lost   203.0.113.8   -      Dropping   0           0         5         0       -             -     -    -        no such Node\n",
        ),
        (
            &["get", "node"],
            "GET /v1/nodes ",
            nodes,
            "NAME     ROLE   ADDRESSES   PODCIDRS                      FORWARDING   STATE      PROBLEMS\n\
             node-1   This   192.0.2.1   10.10.1.0/24,fd00:10:1::/64   native       NotReady   no route,no overlay\n\
             node-2   Peer   192.0.2.2   -                             -            -          -\n",
        ),
        (
            &["get", "no", "node-1", "-o", "wide"],
            "GET /v1/nodes ",
            nodes,
            "NAME     ROLE   ADDRESSES   PODCIDRS                      FORWARDING   STATE      PROBLEMS              SENT   RECEIVED   HELD   UNMAPPED   EGRESSES\n\
             node-1   This   192.0.2.1   10.10.1.0/24,fd00:10:1::/64   native       NotReady   no route,no overlay   8      7          1      2          -\n",
        ),
        (&["describe", "egress", "nothing"], "GET /v1/egresses ", EGRESSES, ""),
    ]
    .into_iter()
    .enumerate()
    {
        let socket = folder.path().join(number.to_string());
        let served = agent(&socket, "200 OK", body);
        let output = podwire(&socket, words);
        assert!(served.join().expect("served").0.starts_with(request), "{words:?}");
        assert_eq!(stdout(&output), expected, "{words:?}");
    }
}

#[test]
fn an_egress_is_described_with_what_it_dropped_and_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let served = agent(&socket, "200 OK", EGRESSES);
    let output = podwire(&socket, &["describe", "egress", "out"]);
    served.join().expect("served");
    let shown = stdout(&output);
    for line in
        ["  packets: 12", "  bytes: 3400", "  connections: 4", "    RateExceeded: 3", "  droppedTotal: 3"]
    {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
}

#[test]
fn options_of_the_network_are_checked_before_anything_is_touched() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    for (words, said) in [
        (["--forwarding", "natve"], "native"),
        (["--overlay-port", "0"], "1..=65535"),
        (["--overlay-port", "65536"], "1..=65535"),
        (["--overlay-vni", "8388608"], "0..8388608"),
        (["--egress-mark", "0xf0f"], "adjacent bits, like 0x0fff0000"),
        (["--egress-mark", "1"], "adjacent bits, like 0x0fff0000"),
        (["--egress-except", "10.0.0.1/8"], "did you mean \"10.0.0.0/8\"?"),
        (["--egress-except", "x"], "a CIDR, like 10.0.0.0/8"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_podwire"))
            .args(["agent", "--config", "/nonexistent", "--node", "n", "--uplink", "u", "--state"])
            .arg(&state)
            .args(words)
            .output()
            .expect("podwire starts");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(said), "{words:?}: {}", stderr(&output));
        assert!(!state.exists());
    }
}

#[test]
fn completion_and_manual_know_every_kind() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = stdout(&podwire(Path::new("/nonexistent"), &["completion", "bash"]));
    for word in ["trafficcontrols", "egresses", "endpoints", "nodes", "--egress-except", "--overlay-vni"] {
        assert!(script.contains(word), "{word}");
    }
    let output = podwire(Path::new("/nonexistent"), &["man", &folder.path().to_string_lossy()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = std::fs::read_to_string(folder.path().join("podwire-get.1")).expect("a page");
    assert!(page.contains("egresses") && page.contains("nodes"), "{page}");
}

const SEEN: &str = concat!(
    r#"{"time": "2026-01-01T00:00:00.000000001Z", "node": "node-1", "component": "SpoofGuard", "action": "Dropped", "#,
    r#""reason": "SpoofedIp", "pod": "default/web-0", "srcIP": "10.10.9.9", "dstIP": "10.10.1.6", "protocol": 17, "#,
    r#""srcPort": 1000, "dstPort": 53, "dstMAC": "02:00:00:00:00:01", "ttl": 64, "length": 60}"#,
    "\n",
    r#"{"time": "2026-01-01T00:00:00.000000002Z", "node": "node-1", "component": "Egress", "action": "MarkedForSNAT", "#,
    r#""pod": "shop/web-0", "egress": "seven", "egressIP": "2001:db8:e::7", "egressNode": "node-1", "trace": 9, "#,
    r#""srcIP": "fd00::5", "dstIP": "2001:db8:1::1", "protocol": 6, "srcPort": 1000, "dstPort": 443}"#,
    "\n",
    r#"{"kind": "Account", "classes": {"drops": {"lost": {"ringFull": 3, "queueFull": 0}}}, "listenerSlow": 0}"#,
    "\n"
);

fn observed(words: &[&str]) -> (Output, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("agent.sock");
    let served = agent(&socket, "200 OK", SEEN);
    let output = podwire(&socket, &[&["observe"], words].concat());
    (output, served.join().expect("the agent answers").0)
}

#[test]
fn observations_are_lines_and_losses_are_told_apart_from_them() {
    let (output, request) = observed(&[]);
    assert!(request.starts_with("GET /v1/observe?follow=false "), "{request}");
    let lines: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[1].contains("udp 10.10.9.9:1000 > 10.10.1.6:53") && lines[1].ends_with("reason=SpoofedIp"));
    let whole = "tcp [fd00::5]:1000 > [2001:db8:1::1]:443";
    assert!(
        lines[2].contains(whole) && lines[2].contains("egress=seven egressIP=2001:db8:e::7"),
        "{lines:?}"
    );
    assert_eq!(stderr(&output), "not shown since the agent began: drops ringFull 3\n");
}

#[test]
fn observations_are_filtered() {
    for (words, time) in [
        (["--pod", "web-0"], "000000001Z"),
        (["--pod", "shop/web-0"], "000000002Z"),
        (["--component", "spoofguard"], "000000001Z"),
        (["--reason", "spoofedip"], "000000001Z"),
        (["--trace", "9"], "000000002Z"),
    ] {
        let (output, _) = observed(&[&words[..], &["-o", "json"]].concat());
        let shown = stdout(&output);
        assert!(shown.lines().count() == 1 && shown.contains(time), "{words:?}: {shown}");
        let seen: serde_json::Value = serde_json::from_str(&shown).expect("an object");
        assert_eq!(seen["node"], "node-1");
    }
}

#[test]
fn a_reason_that_is_none_is_refused_with_those_that_are() {
    let output = podwire(Path::new("none.sock"), &["observe", "--reason", "Spoofed"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("allowed: Malformed, NoRoute"), "{}", stderr(&output));
}
