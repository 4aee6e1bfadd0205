//! The library's example does what the demo does, and leaves nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwire_harness::{COLLECTOR_V4, Scratch, Topology};

#[test]
fn root_the_thirty_line_agent_mirrors_a_pod() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let device = scene.vxlan(1, 1111)?;
    scene.warm_up()?;
    let example = podwire_harness::binary().parent().context("a folder")?.join("examples/mirror_pod");
    let [first, second] = &scene.pods[..] else { anyhow::bail!("two pods") };
    let bpffs = scratch.bpf().join("podwire");
    let child = scene
        .node
        .command(&example.to_string_lossy())
        .args([&first.interface, COLLECTOR_V4, "8"])
        .arg(&bpffs)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .context("starting the example")?;
    // It is in force when request and answer are copied: the two hooks come one after the other.
    let patience = Instant::now() + Duration::from_secs(6);
    while Instant::now() < patience {
        let before = scene.collector.counter(&device, "rx", "packets")?;
        first.netns.ping(&second.v4, 1, 8)?;
        if scene.collector.counter(&device, "rx", "packets")? >= before + 2 {
            break;
        }
    }
    let start = scene.collector.counter(&device, "rx", "packets")?;
    assert_eq!(first.netns.ping(&second.v4, 100, 56)?, 100);
    assert!(scene.collector.counter(&device, "rx", "packets")? - start >= 200);
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("vxlan 192.0.2.9 vni 1 port 1111: matched"), "{said}");
    assert!(!bpffs.exists(), "the pins are gone");
    assert!(scene.node.ip(&["link", "show", "dev", "pw-mirror"]).is_err(), "the device is gone");
    Ok(())
}
