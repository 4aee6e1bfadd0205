//! `podwire traceflow` against an agent that answers from a script: what is asked, what is printed, how it ends.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

mod scripted;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use scripted::{agent, command, file, line, podwire, request, stderr, stdout, text};

/// Runs the command against an agent with these answers.
fn traced(words: &[&str], answers: Vec<(&'static str, String)>) -> (Output, Vec<(String, String)>) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let served = agent(&socket, answers);
    let output = podwire(&socket, words);
    (output, served.join().expect("served"))
}

fn ok(body: String) -> Vec<(&'static str, String)> {
    vec![("200 OK", body)]
}

const WAY: [&str; 5] = ["traceflow", "-S", "web-0", "-D", "198.51.100.5"];

const NOWHERE: &str = "/nonexistent/podwire.sock";

#[test]
fn the_words_become_a_manifest() {
    let pod = |name: &str| json!({"namespace": "default", "pod": name});
    for (words, expected) in [
        (
            &["-S", "web-0", "-D", "198.51.100.5"][..],
            json!({"source": pod("web-0"), "destination": {"ip": "198.51.100.5"}, "timeout": 20}),
        ),
        (
            &[
                "-S",
                "shop/web-0",
                "-D",
                "2001:db8::1",
                "-f",
                "udp, udp_dst=53",
                "--ttl",
                "3",
                "-t",
                "1m30s",
                "--deliver",
                "--replies",
                "--payload-length",
                "100",
            ],
            json!({
                "source": {"namespace": "shop", "pod": "web-0"}, "destination": {"ip": "2001:db8::1"}, "timeout": 90, "deliver": true, "replies": true,
                "packet": {"payloadLength": 100, "ipv6Header": {"nextHeader": 17, "hopLimit": 3}, "transportHeader": {"udp": {"dstPort": 53}}},
            }),
        ),
        (
            &[
                "--source",
                "192.0.2.7",
                "--destination",
                "web-0",
                "--live-traffic",
                "--dropped-only",
                "--count",
                "10",
                "--sampling",
                "7",
                "--connection",
                "new",
                "--flow",
                "tcp,tcp_flags=+syn-ack",
                "--timeout",
                "5",
            ],
            json!({
                "source": {"ip": "192.0.2.7"}, "destination": pod("web-0"), "timeout": 5, "liveTraffic": true, "droppedOnly": true, "count": 10, "sampling": 7,
                "connection": "new", "packet": {"transportHeader": {"tcp": {"flags": {"value": 2, "mask": 18}}}},
            }),
        ),
        (&["-L", "-D", "web-0"], json!({"destination": pod("web-0"), "timeout": 20, "liveTraffic": true})),
    ] {
        let (output, asked) = traced(&[&["tf"], words].concat(), ok(line("same_node.json")));
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{words:?}");
        assert_eq!(asked[0].0, "POST /v1/traceflows?once=true HTTP/1.1\r\n");
        let manifest: Value = serde_json::from_str(&asked[0].1).expect("JSON");
        assert_eq!(manifest["spec"], expected, "{words:?}");
        assert_eq!(
            (&manifest["kind"], &manifest["apiVersion"]),
            (&json!("Traceflow"), &json!("podwire.io/v1alpha1"))
        );
        let name = manifest["metadata"]["name"].as_str().expect("a name");
        let start = words.windows(2).find(|pair| pair[0] == "-S" && !pair[1].contains('/'));
        if let Some(pair) = start {
            assert!(name.starts_with(&format!("default-{}-to-", pair[1])), "{name}");
        }
    }
}

#[test]
fn the_last_line_is_shown_and_away_from_a_terminal_as_yaml() {
    let lines = "{\"metadata\":{\"name\":\"x\"},\"spec\":{},\"status\":{\"phase\":\"Running\"}}\n".to_owned();
    let (output, _) = traced(&WAY, ok(lines + &line("egress_remote.json")));
    assert_eq!(stdout(&output), text("egress_remote.out.yaml"));
}

#[test]
fn results_are_kept_on_request_only() {
    for (more, query) in [
        (&[][..], "once=true "),
        (&["--ttl-after-finished", "90s"], "once=false&ttlAfterFinished=90 "),
        (&["--nowait"], "once=false&ttlAfterFinished=600&wait=false "),
        (&["--no-wait", "--ttl-after-finished", "1h"], "once=false&ttlAfterFinished=3600&wait=false "),
    ] {
        let (output, asked) = traced(&[&WAY, more].concat(), ok(line("egress_local.json")));
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", stderr(&output));
        assert!(asked[0].0.starts_with(&format!("POST /v1/traceflows?{query}")), "{asked:?}");
    }
    let running = "{\"metadata\":{\"name\":\"x\"},\"spec\":{\"source\":{\"pod\":\"a\"}},\"status\":{\"phase\":\"Running\"}}\n";
    let (output, _) = traced(&[&WAY[..], &["--nowait", "-o", "path"]].concat(), ok(running.into()));
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "traceflow/x created\n".into()));
    let (output, _) = traced(&[&WAY[..], &["--nowait"]].concat(), ok(running.into()));
    assert_eq!(stdout(&output), "name: x\nphase: Running\nsource: default/a\nresults: []\n");
}

#[test]
fn how_it_ended_is_the_exit_code() {
    let said = |line: &str| format!("{{\"error\": \"{line}\", \"kind\": \"x\", \"details\": [\"{line}\"]}}");
    let ended = "error: the trace was taken away before it ended; No packet was seen yet\n";
    for (answer, code, expected) in [
        (("200 OK", line("egress_local.json")), 0, ""),
        (("200 OK", line("same_node.json")), 0, ""),
        (("200 OK", line("dropped.json")), 1, ""),
        (("200 OK", line("live.json")), 1, ""),
        (
            ("200 OK", line("failed.json")),
            3,
            "error: Last seen at Forwarding on node-1: Forwarded\nerror: Failed: node node-2 did not answer within 20s; last seen at Forwarding on node-1\n",
        ),
        (("422 Unprocessable Entity", said("no such pod")), 3, "error: no such pod\n"),
        (("404 Not Found", said("no pod default/web-0")), 3, "error: no pod default/web-0\n"),
        (("500 Internal Server Error", said("it broke")), 3, "error: it broke\n"),
        (
            ("200 OK", "no json\n".into()),
            3,
            "error: the agent's answer cannot be read: expected ident at line 1 column 2\n",
        ),
        (("200 OK", String::new()), 3, "error: the trace was taken away before anything was seen\n"),
        (("200 OK", "{\"metadata\":{},\"status\":{\"phase\":\"Running\"}}\n".into()), 3, ended),
    ] {
        let (output, _) = traced(&WAY, vec![answer.clone()]);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(code), expected), "{answer:?}");
    }
    let (output, _) = traced(&[&WAY[..], &["-o", "path"]].concat(), ok(line("failed.json")));
    assert_eq!((output.status.code(), stderr(&output)), (Some(3), String::new()), "the path says it");
    let output = podwire(Path::new(NOWHERE), &WAY);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("podwire agent"), "{}", stderr(&output));
}

#[test]
fn an_expectation_turns_the_exit_code() {
    for (name, expected, code) in [
        ("same_node", "delivered", 0),
        ("egress_remote", "delivered", 0),
        ("dropped", "delivered", 1),
        ("dropped", "dropped", 0),
        ("same_node", "dropped", 1),
        ("live", "dropped", 1),
        ("live", "delivered", 1),
        ("egress_remote", "egress=foobar", 0),
        ("egress_local", "egress=other", 1),
        ("same_node", "egress=foobar", 1),
        ("dropped", "egress=foobar", 1),
        ("failed", "dropped", 3),
    ] {
        let (output, _) =
            traced(&[&WAY[..], &["--expect", expected]].concat(), ok(line(&format!("{name}.json"))));
        assert_eq!(output.status.code(), Some(code), "{name} {expected}: {}", stderr(&output));
        assert_eq!(stderr(&output).is_empty(), code == 0, "{name} {expected}");
        let saved = file(&format!("{name}.json"));
        let output =
            podwire(Path::new(NOWHERE), &["tf", "-r", &saved.to_string_lossy(), "--expect", expected]);
        assert_eq!(output.status.code(), Some(code), "{name} {expected} saved");
    }
}

#[test]
fn a_destination_that_is_no_pod_is_taken_for_a_service() {
    let nothing = |line: &str| ("404 Not Found", format!("{{\"details\": [\"{line}\"]}}"));
    let words = ["tf", "-S", "web-0", "-D", "shop/cart"];
    let (output, asked) =
        traced(&words, vec![nothing("no pod shop/cart"), ("200 OK", line("same_node.json"))]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let destination = |number: usize| {
        let manifest: Value = serde_json::from_str(&asked[number].1).expect("JSON");
        manifest["spec"]["destination"].clone()
    };
    assert_eq!(destination(0), json!({"namespace": "shop", "pod": "cart"}));
    assert_eq!(destination(1), json!({"namespace": "shop", "service": "cart"}));
    let (output, _) = traced(&words, vec![nothing("no pod shop/cart"), nothing("no service shop/cart")]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stderr(&output), "error: no pod shop/cart\nerror: no service shop/cart\n");
    let (output, _) = traced(&words, vec![nothing("no pod web-0"), nothing("no pod web-0")]);
    assert_eq!(stderr(&output), "error: no pod web-0\n", "said once");
}

#[test]
fn wrong_use_is_code_2_and_says_what_is_right() {
    let long = ["tf", "-S", "a", "-D", "b"];
    for (words, said) in [
        (&["tf"][..], "--source <END>"),
        (&["tf", "-S", "a"], "--destination <END>"),
        (
            &["tf", "-S", "A_b", "-D", "c"],
            "allowed: NAMESPACE/NAME or NAME, of lower-case letters, digits, '-' and '.', or an IP address",
        ),
        (
            &["tf", "-S", "10.0.0.1", "-D", "c"],
            "error: --source 10.0.0.1: an address is for --live-traffic; a packet that is made starts at a pod\n",
        ),
        (
            &["tf", "-L", "-S", "10.0.0.1", "-D", "10.0.0.2"],
            "error: source.pod or destination.pod is required: packets are seen at pods\n",
        ),
        (&["tf", "-L"], "error: source.pod or destination.pod is required: packets are seen at pods\n"),
        (
            &["tf", "-S", "a", "-D", "10.0.0.1", "-f", "ipv6"],
            "error: address families differ: packet.ipv6Header is IPv6, destination.ip 10.0.0.1 is IPv4\n",
        ),
        (
            &["tf", "-S", "a", "-D", "2001:db8::1", "-f", "icmp"],
            "error: address families differ: packet.ipHeader is IPv4, destination.ip 2001:db8::1 is IPv6\n",
        ),
        (&["tf", "-S", "a", "-D", "b", "-f", "tpc"], "column 1: unknown word \"tpc\""),
        (&["tf", "-S", "a", "-D", "b", "-f", "tcp,tcp_dts=80"], "did you mean \"tcp_dst\"?"),
        (&["tf", "-S", "a", "-D", "b", "--ttl", "0"], "0 is not in 1..=255"),
        (
            &["tf", "-S", "a", "-D", "b", "--ttl", "4", "-f", "nw_ttl=3"],
            "error: --ttl 4 and nw_ttl=3 of --flow are different\n",
        ),
        (&["tf", "-S", "a", "-D", "b", "-t", "0"], "allowed: 1s to 300s, whole seconds"),
        (&["tf", "-S", "a", "-D", "b", "-t", "301"], "allowed: 1s to 300s, whole seconds"),
        (&["tf", "-S", "a", "-D", "b", "-t", "1500ms"], "allowed: 1s to 300s, whole seconds"),
        (&["tf", "-S", "a", "-D", "b", "-t", "soon"], "\"soon\" is not a time, as 10s or 5m"),
        (&["tf", "-S", "a", "-D", "b", "--dropped-only"], "--live-traffic"),
        (&["tf", "-S", "a", "-D", "b", "--count", "2"], "--live-traffic"),
        (&["tf", "-L", "-S", "a", "--count", "1001"], "1001 is not in 1..=1000"),
        (&["tf", "-L", "-S", "a", "--deliver"], "cannot be used with '--deliver'"),
        (
            &["tf", "-S", "a", "-D", "b", "--replies"],
            "error: replies needs deliver: what nobody receives is not answered\n",
        ),
        (&["tf", "-S", "a", "-D", "b", "-o", "xml"], "mermaid"),
        (&["tf", "-S", "a", "-D", "b", "--expect", "arrived"], "allowed: delivered, dropped, egress=NAME"),
        (&["tf", "-S", "a", "-D", "b", "--nowait", "-o", "svg"], "--nowait has no picture yet"),
        (&["tf", "-S", "a", "-D", "b", "--nowait", "--expect", "dropped"], "cannot be used with"),
        (&["tf", "-r", "x", "-S", "a"], "cannot be used with"),
        (&["tf", "-S", "a", "-D", "b", "--no-such"], "--no-such"),
    ] {
        let output = podwire(Path::new(NOWHERE), words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{words:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{words:?}");
    }
    assert_eq!(podwire(Path::new(NOWHERE), &long).status.code(), Some(4), "these words are right");
}

/// Says that a trace runs, and no more.
fn silent_agent(socket: &Path) -> JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(socket).expect("the socket binds");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client comes");
        let mut asked = vec![request(&stream).0];
        let body = "{\"metadata\":{\"name\":\"x\"},\"spec\":{},\"status\":{\"phase\":\"Running\"}}\n";
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        stream
            .write_all(format!("{head}{:x}\r\n{body}\r\n", body.len()).as_bytes())
            .expect("the client reads");
        // Ends when the client has closed it.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        listener.set_nonblocking(true).expect("a socket");
        for _ in 0..50 {
            if let Ok((mut stream, _)) = listener.accept() {
                stream.set_nonblocking(false).expect("a socket");
                asked.push(request(&stream).0);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        asked
    })
}

#[test]
fn an_interrupt_ends_the_trace() {
    for (more, deletes) in [(&[][..], false), (&["--ttl-after-finished", "1m"], true)] {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("s");
        let served = silent_agent(&socket);
        let child = command(&socket)
            .args([&WAY, more].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("podwire starts");
        std::thread::sleep(Duration::from_millis(700));
        let id = nix::unistd::Pid::from_raw(child.id().try_into().expect("a number"));
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).expect("it lives");
        let output = child.wait_with_output().expect("podwire ends");
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        assert_eq!(stderr(&output), "error: interrupted; No packet was seen yet\n");
        let asked = served.join().expect("served");
        assert_eq!(asked.len(), if deletes { 2 } else { 1 }, "{asked:?}");
        if deletes {
            assert!(
                asked[1].starts_with("POST /v1/delete?kind=traceflow&name=default-web-0-to-198.51.100.5-"),
                "{asked:?}"
            );
        }
    }
}

#[test]
fn an_agent_that_says_no_more_is_given_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let served = silent_agent(&socket);
    let output = podwire(&socket, &[&WAY[..], &["-t", "1"]].concat());
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(
        stderr(&output),
        "error: the agent has not ended the trace within 6s; No packet was seen yet\n"
    );
    served.join().expect("served");
}

#[test]
fn packets_are_written_as_pcapng() {
    use pcap_file::pcapng::{Block, PcapNgReader};
    let folder = tempfile::tempdir().expect("a folder");
    for (name, count, first, seconds) in [("same_node", 1, 0x45, 0), ("live", 4, 0x60, 1_785_578_400)] {
        let target = folder.path().join(name);
        let shown = target.to_string_lossy();
        let words = [&WAY[..], &["--capture", &shown, "--capture-bytes", "100"]].concat();
        let (output, asked) = traced(&words, ok(line(&format!("{name}.json"))));
        assert!(stderr(&output).is_empty(), "{}", stderr(&output));
        let manifest: Value = serde_json::from_str(&asked[0].1).expect("JSON");
        assert_eq!(manifest["spec"]["capture"], 100);
        let mut reader = PcapNgReader::new(std::fs::File::open(&target).expect("a file")).expect("pcapng");
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.expect("a block") {
                packets.push((packet.data.to_vec(), packet.timestamp.as_secs(), packet.original_len));
            }
        }
        assert_eq!(packets.len(), count);
        assert!(packets.iter().all(|(data, time, length)| data[14] == first
            && *time == seconds
            && *length >= data.len() as u32));
    }
    let target = folder.path().join("none");
    let shown = target.to_string_lossy();
    let words = [&WAY[..], &["--capture", &shown]].concat();
    let (output, _) = traced(&words, ok(line("egress_local.json")));
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).starts_with("warning: no packet was captured"), "{}", stderr(&output));
    assert!(!target.exists());
}

#[test]
fn traces_are_listed_described_and_deleted() {
    let object = |name: &str| -> Value { serde_json::from_str(&text(name)).expect("JSON") };
    let mut running = object("same_node.json");
    running["status"] = json!({"phase": "Running", "startTime": "2999-01-01T00:00:00Z"});
    let list = json!({"items": [object("dropped.json"), object("egress_remote.json"), object("failed.json"), running]}).to_string();
    let (output, asked) = traced(&["get", "traceflows"], ok(list.clone()));
    assert!(asked[0].0.starts_with("GET /v1/traceflows "), "{asked:?}");
    let rows: Vec<Vec<String>> = stdout(&output)
        .lines()
        .map(|line| {
            line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
        })
        .collect();
    assert_eq!(rows[0], ["NAME", "PHASE", "SOURCE", "DESTINATION", "VERDICT", "AGE"]);
    assert_eq!(
        rows[1][2..5],
        [
            "default/web-0",
            "shop/cart",
            "✗ Dropped by SpoofGuard on node-1: SpoofedIp (its source address is not the pod's)"
        ]
    );
    assert_eq!(
        rows[2][4],
        "✓ Left the network at node-2 as 203.0.113.7 (Egress foobar) after 56 µs by the nodes' clocks"
    );
    assert_eq!(rows[4][1..], ["Running", "default/web-0", "default/web-1", "-", "0s"]);
    let name = "default-web-0-to-shop-cart-cccccccc";
    let (output, _) = traced(&["describe", "traceflow", name], ok(list.clone()));
    let shown = stdout(&output);
    assert!(
        shown.starts_with(&format!(
            "name:    {name}\nphase:   Succeeded\nstarted: 2026-08-01T10:00:00Z\ntag:     9\n"
        )),
        "{shown}"
    );
    assert!(shown.ends_with(&text("dropped.out.path")), "{shown}");
    let (output, _) = traced(&["get", "tf", name, "-o", "json"], ok(list));
    let folder = tempfile::tempdir().expect("a folder");
    let saved = folder.path().join("saved.json");
    std::fs::write(&saved, &output.stdout).expect("written");
    let output = podwire(Path::new(NOWHERE), &["tf", "-r", &saved.to_string_lossy(), "-o", "svg"]);
    assert_eq!(stdout(&output), text("dropped.out.svg"), "what get prints can be drawn");
    let answer = format!("{{\"results\": [{{\"object\": \"traceflow/{name}\", \"result\": \"deleted\"}}]}}");
    let (output, asked) = traced(&["delete", "traceflow", name], ok(answer));
    assert_eq!(stdout(&output), format!("traceflow/{name} deleted\n"));
    assert!(asked[0].0.starts_with(&format!("POST /v1/delete?kind=traceflow&name={name}&")), "{asked:?}");
}

#[test]
fn completion_manual_and_help_know_the_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = stdout(&podwire(Path::new(NOWHERE), &["completion", "bash"]));
    for word in ["traceflow", "--live-traffic", "--expect", "--ttl-after-finished", "mermaid"] {
        assert!(script.contains(word), "{word}");
    }
    podwire(Path::new(NOWHERE), &["man", &folder.path().to_string_lossy()]);
    let page = std::fs::read_to_string(folder.path().join("podwire-traceflow.1")).expect("a page");
    assert!(page.contains("Exit codes") && page.contains("Examples"), "{page}");
    for name in ["traceflow", "tf", "traceflows"] {
        let shown = stdout(&podwire(Path::new(NOWHERE), &[name, "--help"]));
        assert!(
            shown.contains("Examples:\n  podwire traceflow -S default/nginx -D 142.250.195.46"),
            "{shown}"
        );
    }
}
