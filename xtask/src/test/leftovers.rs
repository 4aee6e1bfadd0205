//! What a test run must not leave behind: network namespaces, bpffs mounts and folders, loaded BPF programs.

use std::{
    collections::BTreeSet,
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::{privilege, workspace};

/// Namespaces of tests and the demo.
const NAMESPACE: &str = "pw-";
const NAMESPACES: &str = "/run/netns";
/// Their folders, mount points of private bpffs among them.
const FOLDER: &str = "podwire-test";
const RUN: &str = "/run";
/// The kernel frees programs and namespaces some time after their last user.
const PATIENCE: Duration = Duration::from_secs(5);

/// Everything of the kinds above that is on this machine, one readable line each.
pub fn snapshot() -> BTreeSet<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let programs = privilege::is_root().then(programs).unwrap_or_default();
    entries(NAMESPACES, NAMESPACE, "network namespace")
        .chain(entries(RUN, FOLDER, "folder"))
        .chain(test_mounts(&mounts))
        .chain(network_programs(&programs))
        .collect()
}

/// What is there now and was not `before`, after the kernel had time to let go of it.
pub fn since(before: &BTreeSet<String>) -> Vec<String> {
    let started = Instant::now();
    loop {
        let new: Vec<String> = snapshot().difference(before).cloned().collect();
        if new.is_empty() || started.elapsed() > PATIENCE {
            return new;
        }
        thread::sleep(Duration::from_millis(250));
    }
}

fn entries(folder: &'static str, prefix: &'static str, kind: &'static str) -> impl Iterator<Item = String> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(move |name| name.starts_with(prefix))
        .map(move |name| format!("{kind} {folder}/{name}"))
}

/// Mount points below a test's folder; the fifth field of a line of mountinfo.
fn test_mounts(mountinfo: &str) -> impl Iterator<Item = String> {
    let prefix = format!("{RUN}/{FOLDER}");
    mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(move |point| point.starts_with(&prefix))
        .map(|point| format!("mount {point}"))
}

/// `bpftool prog show`, empty where there is no bpftool.
fn programs() -> String {
    let Some(bpftool) = workspace::find_program("bpftool") else { return String::new() };
    workspace::output(Command::new(bpftool).args(["prog", "show"])).unwrap_or_default()
}

/// The programs at network hooks: `123: sched_cls  name from_pod  tag …`. Others belong to the system.
fn network_programs(listing: &str) -> impl Iterator<Item = String> {
    listing.lines().filter_map(|line| {
        let (id, rest) = line.split_once(": ")?;
        let mut words = rest.split_whitespace();
        let kind = words.next().filter(|kind| matches!(*kind, "sched_cls" | "xdp"))?;
        let name = words.skip_while(|word| *word != "name").nth(1).unwrap_or("without a name");
        id.parse::<u32>().ok()?;
        Some(format!("BPF program {id} ({kind} {name})"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tests_mount_is_seen() {
        let mounts = "36 35 98:0 / /run/podwire-test-1/bpf rw,noatime - bpf bpf rw\n37 35 0:30 / /run/lock rw - tmpfs t rw\n";
        assert_eq!(test_mounts(mounts).collect::<Vec<_>>(), ["mount /run/podwire-test-1/bpf"]);
    }

    #[test]
    fn network_programs_are_seen_and_the_systems_are_not() {
        let listing = "5: cgroup_device  name sd_devices  tag 3650d9673c54ce30  gpl\n\tloaded_at 2026-01-01\n\
                       41: sched_cls  name from_pod  tag 8d2c  gpl\n\txlated 64B\n42: xdp  tag 3650\n";
        let found: Vec<_> = network_programs(listing).collect();
        assert_eq!(found, ["BPF program 41 (sched_cls from_pod)", "BPF program 42 (xdp without a name)"]);
    }
}
