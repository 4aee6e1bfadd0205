//! Rules of the repository that the compiler does not know: who imports whom, where `unsafe` may stand, how
//! long a file may be.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                if !path.ends_with("target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|end| end == "rs") {
                let name = path.strip_prefix(root()).expect("inside").to_string_lossy().into_owned();
                found.push((name, std::fs::read_to_string(&path).expect("a text")));
            }
        }
    }
    assert!(!found.is_empty(), "no sources in {folder}");
    found
}

fn offenders(folder: &str, words: &[&str]) -> Vec<String> {
    let hit = |text: &str| words.iter().any(|word| text.contains(word));
    let shipped = |name: &str| !name.contains("/tests/") && !name.ends_with("tests.rs");
    sources(folder)
        .into_iter()
        .filter(|(name, text)| shipped(name) && hit(text))
        .map(|(name, _)| name)
        .collect()
}

#[test]
fn layers_import_downwards_only() {
    let none: [String; 0] = [];
    assert_eq!(offenders("datapath/core", &["podwire_datapath", "podwire_ebpf", "extern crate std"]), none);
    assert_eq!(offenders("ebpf", &["podwire_datapath", "podwire_harness"]), none);
    assert_eq!(offenders("datapath/src", &["podwire_ebpf", "podwire_harness"]), none);
    assert_eq!(offenders("agent/src", &["podwire_core", "podwire_ebpf", "aya::"]), none);
}

#[test]
fn unsafe_stands_in_named_files() {
    let mut found: Vec<String> = ["datapath", "agent", "ebpf", "tests", "xtask", "bench"]
        .iter()
        .flat_map(|folder| sources(folder))
        .filter(|(name, text)| {
            !name.ends_with("repo_rules.rs")
                && text.lines().any(|line| {
                    let code = line.trim_start();
                    !code.starts_with("//")
                        && (code.contains("unsafe {")
                            || code.contains("unsafe impl")
                            || code.contains("unsafe fn"))
                })
        })
        .map(|(name, _)| name)
        .collect();
    found.sort();
    let allowed = [
        "bench/src/kernel.rs",
        "datapath/src/collect/packet_socket.rs",
        "datapath/src/collect/tap.rs",
        "datapath/src/maps.rs",
        "datapath/src/sys.rs",
        "datapath/src/xsk/heart.rs",
        "datapath/src/xsk/memory.rs",
        "datapath/src/xsk/port.rs",
        "ebpf/src/atomic.rs",
        "ebpf/src/handover.rs",
        "ebpf/src/held.rs",
        "ebpf/src/kernel.rs",
        "ebpf/src/leave.rs",
        "ebpf/src/live.rs",
        "ebpf/src/mirror.rs",
        "ebpf/src/overlay.rs",
        "ebpf/src/pod.rs",
        "ebpf/src/reader.rs",
        "ebpf/src/relay.rs",
        "ebpf/src/skb.rs",
        "ebpf/src/tables.rs",
        "ebpf/src/verdict.rs",
        "ebpf/src/watch.rs",
        "ebpf/src/xsk/frame.rs",
        "ebpf/src/xsk/queue.rs",
        "tests/src/test_run.rs",
    ];
    let strangers: Vec<_> = found.iter().filter(|name| !allowed.contains(&name.as_str())).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

#[test]
fn nothing_is_left_to_do_and_no_file_is_endless() {
    for folder in ["datapath", "agent", "ebpf", "tests", "xtask", "bench"] {
        for (name, text) in sources(folder) {
            if name.ends_with("repo_rules.rs") {
                continue;
            }
            for word in ["todo!(", "unimplemented!(", "TODO", "FIXME", "#[ignore"] {
                // xtask reads test reports, in which that word stands.
                let reads = word == "#[ignore" && name.starts_with("xtask/src/test/");
                assert!(reads || !text.contains(word), "{name} has {word}");
            }
            let lines = text.lines().count();
            assert!(lines <= 600, "{name} has {lines} lines");
        }
    }
}
