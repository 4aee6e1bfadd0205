//! What each program costs the kernel's verifier, against a budget: the limit is one million instructions, and
//! other kernels count differently.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use podwire_datapath::core::abi::Direction;
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::{
    Datapath, Desired, Endpoint, Forwarding, Hook, Mirror, Network, Options, Peer, Redirect, Target,
};
use podwire_harness::{NetNs, Scratch};
use podwire_tests::test_run::{Program, Size};

#[test]
fn root_programs_stay_within_their_budget() -> Result<()> {
    if !podwire_tests::node::has_tcx() {
        println!("SKIPPED: this kernel has no tcx links, by which the test finds the programs");
        return Ok(());
    }
    let budget = budget()?;
    let netns = NetNs::new("verifier")?;
    netns.ip(&["link", "add", "pod0", "type", "veth", "peer", "name", "pod0-p"])?;
    netns.ip(&["link", "add", "uplink0", "type", "veth", "peer", "name", "uplink0-p"])?;
    netns.ip(&["addr", "add", "192.0.2.1/24", "dev", "uplink0"])?;
    netns.ip(&["link", "set", "uplink0", "up"])?;
    let scratch = Scratch::new()?;
    let bpffs = scratch.bpf().join("podwire");
    let sizes = netns.enter(move || sizes(&bpffs))?;
    ensure!(sizes.keys().eq(budget.keys()), "the budget is of {:?}", budget.keys());
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
        if size.verified > budget[name] {
            broken.push(format!("{name}: {} instructions of {}", size.verified, budget[name]));
        }
    }
    ensure!(broken.is_empty(), "over budget: {}", broken.join(", "));
    Ok(())
}

/// Loads the programs and asks the kernel about each.
fn sizes(bpffs: &Path) -> Result<BTreeMap<String, Size>> {
    let mut datapath = Datapath::open(Options {
        bpffs: bpffs.to_path_buf(),
        hook: Hook::Auto,
        uplink: Some("uplink0".into()),
        ..Options::default()
    })?;
    datapath.apply(&Desired {
        endpoints: vec![Endpoint {
            name: "default/pod".into(),
            interface: "pod0".into(),
            ..Endpoint::default()
        }],
        mirrors: vec![Mirror {
            name: "everything".into(),
            endpoints: vec!["default/pod".into()],
            directions: Direction::ALL.to_vec(),
            rules: Vec::new(),
            stateful: false,
            options: podwire_datapath::SessionOptions::default(),
            target: Target::Device { name: "absent0".into() },
        }],
        redirects: vec![
            Redirect {
                name: "through".into(),
                endpoints: vec!["default/pod".into()],
                directions: Direction::ALL.to_vec(),
                rules: Vec::new(),
                stateful: true,
                target: Target::Device { name: "absent0".into() },
                return_port: Target::Device { name: "pod0-p".into() },
                closed: true,
                health_check: None,
                fragment: false,
            },
            Redirect {
                name: "far".into(),
                endpoints: vec!["default/pod".into()],
                directions: Direction::ALL.to_vec(),
                rules: Vec::new(),
                stateful: true,
                target: Target::Device { name: "absent0".into() },
                return_port: Target::Tunnel {
                    remote: "192.0.2.9".parse()?,
                    tunnel: Tunnel::Vxlan { vni: 1, port: 4789 },
                },
                closed: true,
                health_check: None,
                fragment: false,
            },
        ],
        network: Network {
            forwarding: Forwarding::Native,
            peers: vec![Peer {
                name: "other".into(),
                addresses: vec!["192.0.2.9".parse()?],
                pod_cidrs: vec!["10.10.2.0/24".parse()?],
            }],
            ..Network::default()
        },
        ..Desired::default()
    })?;
    let mut sizes = BTreeMap::new();
    for (program, interface, hook) in [
        ("from_pod", "pod0", "ingress"),
        ("to_pod", "pod0", "egress"),
        ("mirror", "pw-mirror", "egress"),
        ("segment", "pw-segment-p", "ingress"),
        ("returned", "pod0-p", "ingress"),
        ("from_uplink", "uplink0", "ingress"),
        ("from_overlay", "pw-overlay", "ingress"),
        ("to_overlay", "pw-overlay", "egress"),
    ] {
        let ifindex = nix::net::if_::if_nametoindex(interface)?;
        let link =
            bpffs.join(format!("v{}/links/{ifindex}-{hook}", podwire_datapath::core::abi::ABI_VERSION));
        sizes.insert(program.to_owned(), Program::behind_link(&link)?.size()?);
    }
    let stages = bpffs.join(format!("v{}/maps/STAGES", podwire_datapath::core::abi::ABI_VERSION));
    for (row, program) in (0..).zip(["leave", "deliver", "answer"]) {
        sizes.insert(program.to_owned(), Program::in_row(&stages, row)?.size()?);
    }
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
