//! Live changes: any field, in any order, under traffic. The original loses nothing, and no copy is lost by the change.

use std::time::Duration;

use anyhow::{Result, ensure};
use podwire_datapath::compile::Rule;
use podwire_datapath::core::abi::Direction;
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::{Desired, Engine, Hook, Mirror, Oversize, Redirect, SessionOptions, Target};
use podwire_harness::{COLLECTOR_V4, COLLECTOR_V6, Scratch, Topology, UdpStream};
use podwire_tests::node::{Node, all_lost};
use podwire_tests::wish::{device, internal, mirror, mirrors, redirect, redirects, tunnel};

const COUNT: u64 = 8000;
const PORT: u16 = 9;

fn udp() -> Vec<Rule> {
    vec![Rule { protocol: Some(17), destination_ports: vec![PORT..=PORT], ..Rule::default() }]
}

/// Applies one desired state after the other while a stream runs; the original must be whole.
fn under_load(scene: &Topology, node: &Node, states: &[Desired]) -> Result<()> {
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let stream = UdpStream {
        destination: second.v4.clone(),
        port: PORT,
        count: COUNT,
        size: 300,
        gap: Duration::from_micros(200),
    };
    let report = stream.run(&first.netns, &second.netns, || {
        for state in states {
            node.apply(state)?;
            std::thread::sleep(Duration::from_millis(120));
        }
        Ok(())
    })?;
    ensure!(report.is_whole(), "the original: {report:?}");
    Ok(())
}

/// Every field of a mirror in turn. A mirror of everything to another device stands beside it unchanged: it gets
/// each packet once, whatever happens to the other.
#[test]
fn root_a_mirror_changes_in_every_field() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    scene.warm_up()?;
    let out = scene.local_device("steady0", 1500)?;
    scene.local_device("other0", 1500)?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let pod = &scene.pods[0];
    let steady = Mirror {
        directions: vec![Direction::Egress],
        rules: udp(),
        ..mirror("steady", pod, device("steady0"))
    };
    let first = Mirror {
        rules: udp(),
        ..mirror("changing", pod, tunnel(COLLECTOR_V4, Tunnel::Vxlan { vni: 1, port: 4789 })?)
    };
    let with = |options| Mirror { options, ..first.clone() };
    let options = SessionOptions::default();
    let changes = vec![
        first.clone(),
        Mirror { directions: vec![Direction::Ingress], ..first.clone() },
        Mirror { rules: Vec::new(), ..first.clone() },
        Mirror { stateful: true, ..first.clone() },
        with(SessionOptions { truncate: Some(100), ..options }),
        with(SessionOptions { rate_limit: Some(100), ..options }),
        with(SessionOptions { oversize: Oversize::Fragment, ..options }),
        with(SessionOptions { engine: Engine::Segment, ..options }),
        Mirror { target: tunnel(COLLECTOR_V6, Tunnel::ErspanII { session: 1, index: 2 })?, ..first.clone() },
        Mirror { target: device("other0"), ..first.clone() },
        Mirror { target: internal("ids0"), ..first.clone() },
        Mirror { name: "renamed".into(), ..first.clone() },
        Mirror { endpoints: Vec::new(), ..first.clone() },
    ];
    let states: Vec<Desired> =
        changes.into_iter().map(|changing| mirrors(&scene, vec![steady.clone(), changing])).collect();
    node.apply(&states[0])?;
    let before = scene.node.counter(&out, "rx", "packets")?;
    under_load(&scene, &node, &states)?;
    assert_eq!(scene.node.counter(&out, "rx", "packets")? - before, COUNT, "copies of the steady mirror");
    let counters = node.session(&device("steady0"))?;
    assert_eq!((counters.sent_packets, all_lost(&counters)), (COUNT, 0), "{counters:?}");
    Ok(())
}

/// The target is replaced: each packet has exactly one copy, at the old one or at the new one.
#[test]
fn root_a_target_is_replaced_without_a_gap() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let outs = [scene.local_device("tap0", 1500)?, scene.local_device("tap1", 1500)?];
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let state = |number: usize| {
        let target = device(&format!("tap{number}"));
        let wish = Mirror {
            directions: vec![Direction::Egress],
            rules: udp(),
            ..mirror("m", &scene.pods[0], target)
        };
        mirrors(&scene, vec![wish])
    };
    node.apply(&state(0))?;
    let states: Vec<Desired> = [1, 0, 1, 0, 1, 0, 1].map(state).to_vec();
    under_load(&scene, &node, &states)?;
    let mut copies = 0;
    for out in &outs {
        copies += scene.node.counter(out, "rx", "packets")?;
    }
    assert_eq!(copies, COUNT);
    Ok(())
}

/// Every field of a redirect in turn, targets and return ports replaced, two policies that swap their priority, the
/// policy gone and back: no packet of the original is lost or doubled.
#[test]
fn root_a_redirect_changes_in_every_field() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let outs = [scene.local_device("target0", 1500)?, scene.local_device("target1", 1500)?];
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let pod = &scene.pods[0];
    let through = |number: usize| {
        redirect(&format!("tool-{number}"), pod, device(&format!("target{number}")), device(&outs[number]))
    };
    let first = through(0);
    let changes: Vec<Vec<Redirect>> = vec![
        vec![first.clone()],
        vec![Redirect { closed: true, ..first.clone() }],
        vec![Redirect { directions: vec![Direction::Egress], ..first.clone() }],
        vec![Redirect { rules: udp(), ..first.clone() }],
        vec![Redirect { rules: udp(), stateful: true, ..first.clone() }],
        vec![Redirect { name: "tool-0".into(), ..through(1) }],
        vec![first.clone(), through(1)],
        vec![through(1), first.clone()],
        vec![first.clone(), through(1)],
        vec![],
        vec![Redirect { health_check: Some(Duration::from_secs(2)), ..first.clone() }],
        vec![Redirect { endpoints: Vec::new(), ..first.clone() }],
        vec![first],
    ];
    let states: Vec<Desired> = changes.into_iter().map(|wishes| redirects(&scene, wishes)).collect();
    under_load(&scene, &node, &states)?;
    let counters = node.policy("tool-0")?;
    assert_eq!(counters.bypassed_packets + counters.refused_packets, 0, "{counters:?}");
    Ok(())
}

/// Internal ports that come and go with their policies leave nothing behind, and nothing of the original is lost
/// while the tool has it.
#[test]
fn root_nothing_is_left_of_internal_ports() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let devices = || scene.node.run_ok(&["sh", "-c", "ip -o link | wc -l"]);
    let before = devices()?;
    let pins = || -> Result<usize> {
        let folder =
            scratch.bpf().join(format!("podwire/v{}/links", podwire_datapath::core::abi::ABI_VERSION));
        Ok(std::fs::read_dir(folder)?.count())
    };
    let pins_before = pins()?;
    let pod = &scene.pods[0];
    for number in 0..5 {
        let target: Target = internal(&format!("ids{number}"));
        node.apply(&mirrors(&scene, vec![mirror("m", pod, target)]))?;
        ensure!(scene.node.run(&["ip", "link", "show", &format!("ids{number}")])?.status.success());
    }
    node.apply(&Desired::default())?;
    std::thread::sleep(Duration::from_millis(2100));
    node.refresh()?;
    assert_eq!(devices()?, before, "devices");
    assert_eq!(pins()?, pins_before, "pins");
    Ok(())
}

/// What a release with other tables left in force goes when this one is: copies are not made twice. One that an agent
/// still holds stays.
#[test]
fn root_what_another_release_left_is_taken_down() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    scene.warm_up()?;
    let out = scene.local_device("copy0", 1500)?;
    let pod = &scene.pods[0];
    let desired = mirrors(&scene, vec![Mirror { rules: udp(), ..mirror("all", pod, device("copy0")) }]);
    let folder = scratch.bpf().join("podwire");
    let current = folder.join(format!("v{}", podwire_datapath::core::abi::ABI_VERSION));
    for held in [false, true] {
        Node::open(&scene.node, &scratch, Hook::Auto)?.apply(&desired)?;
        let other = folder.join(if held { "v901" } else { "v900" });
        std::fs::rename(&current, &other)?;
        let lock = std::fs::File::open(&other)?;
        let _lock = if held {
            Some(nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive))
        } else {
            None
        };
        let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
        node.apply(&desired)?;
        ensure!(other.exists() == held, "{}", other.display());
        let before = scene.node.counter(&out, "rx", "packets")?;
        under_load(&scene, &node, &[])?;
        let copies = scene.node.counter(&out, "rx", "packets")? - before;
        ensure!(held || copies == COUNT, "{copies} copies of {COUNT} packets");
        node.apply(&Desired::default())?;
    }
    Ok(())
}
