//! One inspector after another on the same port.
#![cfg(feature = "test-run")]

use anyhow::{Context, Result, bail, ensure};
use podwire_tests::inspected::{Scene, fetch};
use podwire_tests::test_run::link_number;

/// A release with other tables is still on the port when this one comes: the link is the same one, so no frame goes by
/// both.
#[test]
fn root_what_another_release_left_on_its_port_is_taken_over() -> Result<()> {
    let scene = Scene::new()?;
    // Dropped, it stays there, as when its process is killed.
    drop(scene.inspect(scene.setup(), |_| {})?);
    let all = scene.scratch.bpf().join("podwire/inspect");
    let folders = || -> Result<Vec<String>> {
        let names =
            std::fs::read_dir(&all)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    };
    let before = folders()?;
    let [name] = &before[..] else { bail!("{before:?}") };
    let (_, interface) = name.split_once('-').context("a folder without a version")?;
    let link = link_number(&all.join(name).join("link"))?;
    std::fs::rename(all.join(name), all.join(format!("v0-{interface}")))?;
    let inspector = scene.inspect(scene.setup(), |_| {})?;
    ensure!(folders()? == before, "{:?}", folders()?);
    ensure!(link_number(&all.join(name).join("link"))? == link, "the port was bare meanwhile");
    fetch(&scene.topology, 1, 1 << 20)?;
    let counts = inspector.counts();
    ensure!(counts.inspected > 300 && counts.inspected == counts.passed, "{counts:?}");
    ensure!(inspector.stop().balances && folders()?.is_empty());
    Ok(())
}

/// An earlier process ends in an orderly way only once the next one is at work.
#[test]
fn root_who_stops_late_takes_nothing_from_the_next_one() -> Result<()> {
    let scene = Scene::new()?;
    let inspector = scene.inspect(scene.setup(), |_| {})?;
    // What its `stop` does last.
    std::fs::remove_dir_all(scene.scratch.bpf().join("podwire/inspect"))?;
    fetch(&scene.topology, 1, 1 << 20)?;
    let counts = inspector.counts();
    ensure!(counts.inspected > 300 && counts.inspected == counts.passed, "{counts:?}");
    let shown = || scene.topology.node.ip(&["link", "show", "ips-in"]);
    ensure!(shown()?.contains("xdp"));
    ensure!(inspector.stop().balances && !shown()?.contains("xdp"));
    Ok(())
}
