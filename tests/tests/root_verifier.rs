//! What each program costs the kernel's verifier, against a budget: the limit is one million instructions, and
//! other kernels count differently.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use podwire_datapath::collect::Wanted;
use podwire_datapath::xsk::{self, Front};
use podwire_datapath::{Datapath, Options};
use podwire_harness::{NetNs, Scratch};
use podwire_tests::test_run::{Program, Size};

#[test]
fn root_programs_stay_within_their_budget() -> Result<()> {
    let budget = budget()?;
    let netns = NetNs::new("verifier")?;
    let scratch = Scratch::new()?;
    let bpffs = scratch.bpf().join("podwire");
    netns.ip(&["link", "set", "lo", "up"])?;
    let sizes = netns.enter(move || sizes(&bpffs))?;
    ensure!(
        sizes.keys().eq(budget.keys()),
        "the budget is of {:?}, loaded are {:?}",
        budget.keys(),
        sizes.keys()
    );
    let mut broken = Vec::new();
    for (name, size) in &sizes {
        let line = serde_json::json!({
            "program": name,
            "verified_instructions": size.verified,
            "bpf_bytes": size.translated,
            "machine_code_bytes": size.jited,
        });
        println!("{line}");
        ensure!(size.verified > 0 && size.translated > 0, "{name}: the kernel says nothing");
        // An older verifier walks further: there the kernel's own limit is the budget.
        if size.verified > budget[name] && podwire_tests::node::has_tcx() {
            broken.push(format!("{name}: {} instructions of {}", size.verified, budget[name]));
        }
    }
    ensure!(broken.is_empty(), "over budget: {}", broken.join(", "));
    Ok(())
}

/// Loads the programs and asks the kernel about each.
fn sizes(bpffs: &Path) -> Result<BTreeMap<String, Size>> {
    let before = Program::all();
    let datapath = Datapath::open(Options { bpffs: bpffs.to_path_buf(), ..Options::default() })?;
    let front = Front::collect("lo", &Wanted::default(), &xsk::Options::default())?;
    let mut sizes = BTreeMap::new();
    for (number, name) in Program::all() {
        if !before.iter().any(|(known, _)| *known == number) {
            sizes.insert(name, Program::of_number(number)?.size()?);
        }
    }
    drop(front);
    datapath.remove()?;
    Ok(sizes)
}

/// `name = instructions` by line; `#` begins a comment.
fn budget() -> Result<BTreeMap<String, u32>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("verifier-budget.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, limit) = line.split_once('=').with_context(|| format!("not a budget: {line}"))?;
            Ok((name.trim().to_owned(), limit.trim().replace('_', "").parse().context(line.to_owned())?))
        })
        .collect()
}
