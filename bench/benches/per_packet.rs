//! What a packet costs at a pod's hook by the number of rules, against an empty program on the same frames.
//! `cargo xtask bench --bench per_packet`, as root.
//!
//! `BPF_PROG_TEST_RUN`, in rounds that alternate between the empty program and ours, so that whatever else the
//! machine does falls on both. Said are the median and the quartiles of the rounds' differences. Frames are those
//! that no rule takes: a copy would be made otherwise, and its cost is another matter. All runs of a round are on
//! one frame, so tables are warm: read the figures as what rules add, not as what a busy node pays.
#![allow(clippy::print_stdout, reason = "the bench's result")]

use anyhow::{Context, Result};
use podwire_bench::tcp_frame;
use podwire_datapath::compile::{Rule, synthetic};
use podwire_datapath::core::abi::Direction;
use podwire_datapath::{Desired, Endpoint, Hook, Mirror, Target};
use podwire_harness::{Scratch, Topology};
use podwire_tests::node::Node;
use podwire_tests::test_run::Program;
use serde_json::json;

const ROUNDS: usize = 300;
const REPEAT: u32 = 20_000;

fn main() -> Result<()> {
    // Criterion's own arguments (`--bench`) are of no concern here.
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let empty = Program::empty()?;
    let pod = &scene.pods[0];
    let endpoint =
        Endpoint { name: "default/web-0".into(), interface: pod.interface.clone(), ..Endpoint::default() };
    // Nothing that the rules name: TEST-NET-3 and port 9.
    let frame = tcp_frame([203, 0, 113, 9], 9, 64).0;
    let mut results = Vec::new();
    println!(
        "{:>8} {:>10} {:>10} {:>10}   ns per packet above an empty program",
        "RULES", "P25", "MEDIAN", "P75"
    );
    for count in [1, 100, 1000, 10_000] {
        let rules: Vec<Rule> = synthetic(count, 1);
        let applied = node.apply(&Desired {
            endpoints: vec![endpoint.clone()],
            mirrors: vec![Mirror {
                name: "bench".into(),
                endpoints: vec![endpoint.name.clone()],
                directions: vec![Direction::Egress],
                rules,
                stateful: false,
                options: podwire_datapath::SessionOptions::default(),
                target: Target::Device { name: "nowhere".into() },
            }],
            ..Desired::default()
        })?;
        let ifindex = applied.endpoints[0].ifindex.context("an interface")?;
        let link = scratch.bpf().join(format!("podwire/v1/links/{ifindex}-ingress"));
        let program = Program::behind_link(&link)?;
        let frame = frame.clone();
        let differences = scene.node.enter({
            let empty = Program::empty()?;
            move || rounds(&empty, &program, &frame, ifindex)
        })?;
        let mirrored = node.endpoint(&endpoint.name, Direction::Egress)?.mirrored_packets;
        anyhow::ensure!(mirrored == 0, "the frame was taken by a rule: {mirrored}");
        let at = |part: usize| differences[differences.len() * part / 4];
        println!("{count:>8} {:>10} {:>10} {:>10}", at(1), at(2), at(3));
        results.push(
            json!({"rules": count, "p25": at(1), "median": at(2), "p75": at(3), "rounds": differences}),
        );
    }
    drop(empty);
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("per_packet.json");
    std::fs::write(&file, serde_json::to_string(&json!({"unit": "ns", "results": results}))?)?;
    println!("raw samples: {}", file.canonicalize()?.display());
    Ok(())
}

/// Differences in ns, sorted.
fn rounds(empty: &Program, program: &Program, frame: &[u8], ifindex: u32) -> Result<Vec<i64>> {
    let mut differences = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let run = |program: &Program| -> Result<i64> {
            Ok(program.run(frame, ifindex, 0, REPEAT)?.nanoseconds.into())
        };
        // Who comes first alternates as well.
        let (base, ours) = if round % 2 == 0 {
            (run(empty)?, run(program)?)
        } else {
            let ours = run(program)?;
            (run(empty)?, ours)
        };
        differences.push(ours - base);
    }
    differences.sort_unstable();
    Ok(differences)
}
