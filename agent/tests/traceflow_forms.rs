//! Results of traces in every form, from files.
//!
//! Files of `traceflow/`: `NAME.json` is what an agent answers, `NAME.out.FORM` what is printed of it. After a change
//! that is wanted, `BLESS=1 cargo test -p podwire --test traceflow_forms every_form` writes the second ones anew.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

mod scripted;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use scripted::{command, file, line, podwire, stderr, stdout, text};

const NOWHERE: &str = "/nonexistent/podwire.sock";
const NAMES: [&str; 8] =
    ["egress_local", "egress_remote", "dropped", "live", "same_node", "failed", "kernel", "nothing"];

#[test]
fn every_form_is_as_it_was() {
    for name in NAMES {
        for form in ["path", "yaml", "json", "dot", "svg", "mermaid"] {
            let saved = file(&format!("{name}.json"));
            let output = podwire(Path::new(NOWHERE), &["tf", "-r", &saved.to_string_lossy(), "-o", form]);
            assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{name}");
            same(&format!("{name}.out.{form}"), &stdout(&output));
        }
    }
}

fn same(name: &str, shown: &str) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(file(name), shown).expect("written");
    }
    assert_eq!(shown, text(name), "{name}");
}

#[test]
fn colours_say_nothing_that_a_symbol_does_not() {
    let saved = file("dropped.json");
    let words = ["tf", "-r", &saved.to_string_lossy(), "-o", "path"];
    let run = |name: &str| {
        stdout(&command(Path::new(NOWHERE)).args(words).env(name, "1").output().expect("podwire starts"))
    };
    let coloured = run("CLICOLOR_FORCE");
    assert!(coloured.contains("\x1b[1m\x1b[31m✗"), "{coloured:?}");
    let mut rest = coloured.as_str();
    let mut bare = String::new();
    while let Some((before, after)) = rest.split_once('\x1b') {
        bare.push_str(before);
        rest = after.split_once('m').expect("an end").1;
    }
    bare.push_str(rest);
    let trimmed = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(trimmed(&bare), trimmed(&text("dropped.out.path")));
    assert_eq!(run("NO_COLOR"), text("dropped.out.path"));
}

/// What stands in the reference, key by key.
#[test]
fn an_egress_has_the_keys_of_the_reference_in_its_order() {
    let observed = |name: &str| -> Vec<(String, Vec<Value>)> {
        let document: Value = serde_saphyr::from_str(&text(&format!("{name}.out.yaml"))).expect("YAML");
        let results = document["results"].as_array().expect("a list").iter();
        let keys = [
            "component",
            "componentInfo",
            "action",
            "egress",
            "egressIP",
            "egressNode",
            "tunnelDstIP",
            "srcPodIP",
        ];
        results
            .map(|result| {
                let seen = result["observations"].as_array().expect("a list").iter();
                let only = |seen: &Value| -> Value {
                    keys.iter()
                        .filter(|key| !seen[**key].is_null())
                        .map(|key| ((*key).to_owned(), seen[*key].clone()))
                        .collect::<serde_json::Map<_, _>>()
                        .into()
                };
                (result["node"].as_str().expect("a node").to_owned(), seen.map(only).collect())
            })
            .collect()
    };
    let guard = json!({"component": "SpoofGuard", "action": "Forwarded", "srcPodIP": "10.10.1.5"});
    let egress = |action: &str, node: &str| json!({"component": "Egress", "action": action, "egress": "foobar", "egressIP": "203.0.113.7", "egressNode": node});
    let left =
        json!({"component": "Forwarding", "componentInfo": "Output", "action": "ForwardedOutOfNetwork"});
    assert_eq!(
        observed("egress_local"),
        [("node-1".to_owned(), vec![guard.clone(), egress("MarkedForSNAT", "node-1"), left.clone()])]
    );
    let sent = json!({"component": "Forwarding", "componentInfo": "Output", "action": "Forwarded", "tunnelDstIP": "192.0.2.2"});
    let received = json!({"component": "Forwarding", "action": "Received"});
    assert_eq!(
        observed("egress_remote"),
        [
            ("node-1".to_owned(), vec![guard, egress("ForwardedToEgressNode", "node-2"), sent]),
            ("node-2".to_owned(), vec![received, egress("MarkedForSNAT", "node-2"), left]),
        ]
    );
    for form in ["yaml", "json"] {
        let document = text(&format!("egress_remote.out.{form}"));
        let place = |key: &str| document.find(key).unwrap_or_else(|| panic!("no {key}: {document}"));
        let keys = ["name", "phase", "source", "destination", "results", "capturedPacket", "transportHeader"];
        assert!(keys.windows(2).all(|pair| place(pair[0]) < place(pair[1])), "{document}");
    }
}

#[test]
fn a_document_that_was_printed_reads_as_the_same() {
    for name in NAMES {
        for form in ["yaml", "json"] {
            let saved = file(&format!("{name}.out.{form}"));
            let output = podwire(Path::new(NOWHERE), &["tf", "-r", &saved.to_string_lossy(), "-o", "path"]);
            assert_eq!(stdout(&output), text(&format!("{name}.out.path")), "{name} {form}");
        }
    }
}

#[test]
fn standard_input_is_read_too() {
    for (name, form) in [("dropped.json", ""), ("dropped.out.yaml", ""), ("live.json", "lines")] {
        let given =
            if form == "lines" { format!("{}{}", "{\"metadata\":{}}\n", line(name)) } else { text(name) };
        let mut child = command(Path::new(NOWHERE))
            .args(["tf", "-r", "-", "-o", "path"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("podwire starts");
        child.stdin.take().expect("a pipe").write_all(given.as_bytes()).expect("written");
        let output = child.wait_with_output().expect("podwire ends");
        let expected = format!("{}.out.path", name.split('.').next().expect("a name"));
        assert_eq!(stdout(&output), text(&expected), "{name}");
    }
}

#[test]
fn what_is_no_trace_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let saved = folder.path().join("saved");
    for text in
        ["", "{", "a: [", "results: 7", "[1]", "just words", "{\"results\": [{\"observations\": [7]}]}"]
    {
        std::fs::write(&saved, text).expect("written");
        let output = podwire(Path::new(NOWHERE), &["tf", "-r", &saved.to_string_lossy()]);
        assert_eq!(output.status.code(), Some(3), "{text}: {}", stdout(&output));
        assert!(stderr(&output).starts_with("error: "), "{text}: {}", stderr(&output));
    }
}

/// By graphviz itself, where it is installed; what its grammar allows is tested beside the code in any case.
#[test]
fn graphviz_draws_what_is_drawn() {
    if Command::new("dot").arg("-V").output().is_err() {
        eprintln!("skipped: no graphviz");
        return;
    }
    for name in NAMES {
        let output = Command::new("dot")
            .args(["-Tsvg", "-o/dev/null"])
            .arg(file(&format!("{name}.out.dot")))
            .output()
            .expect("dot starts");
        assert!(output.status.success(), "{name}: {}", stderr(&output));
    }
}

/// What a name could do to the terminal of who reads it.
#[test]
fn a_saved_name_is_shown_as_text_and_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let saved = folder.path().join("saved.json");
    let name = "\u{1b}]0;title\u{7}\u{9b}2J\u{202e}x";
    let seen = json!({"component": name, "action": name, "reason": name, "pod": name, "egress": name});
    let left = json!({"component": "Forwarding", "action": "ForwardedOutOfNetwork"});
    let trace = json!({"name": name, "phase": "Failed", "reason": name, "source": name, "destination": name,
        "results": [{"node": name, "role": name, "observations": [seen, left]}], "capturedPacket": {"srcIP": name}});
    std::fs::write(&saved, trace.to_string()).expect("written");
    for form in ["path", "yaml", "json", "dot", "svg", "mermaid"] {
        let output = command(Path::new(NOWHERE))
            .args(["tf", "-r", &saved.to_string_lossy(), "-o", form])
            .env("CLICOLOR_FORCE", "1")
            .output()
            .expect("podwire starts");
        let shown = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!shown.contains("\u{1b}]") && !shown.contains('\u{7}'), "{form}: {shown:?}");
        // JSON has no need to escape it.
        assert!(form == "json" || !shown.contains('\u{9b}'), "{form}: {shown:?}");
    }
}
