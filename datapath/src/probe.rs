//! What this kernel offers. In: nothing. Out: a list of features, and what the missing ones cost.

use std::path::Path;

use nix::sys::utsname::uname;

/// A kernel feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// What it is called.
    pub name: &'static str,
    /// Whether it is there.
    pub present: bool,
    /// Whether podwire cannot run without it.
    pub required: bool,
    /// What its absence costs.
    pub cost: &'static str,
}

/// tcx came with Linux 6.6 (commit e420bed02507).
pub(crate) fn has_tcx() -> bool {
    at_least(6, 6)
}

/// Looks at the kernel, by asking it where that can be done without leaving a trace, else by version.
pub fn features() -> Vec<Feature> {
    let exists = |path: &str| Path::new(path).exists();
    vec![
        feature("kernel 6.1 or newer", at_least(6, 1), true, "older kernels are not tested"),
        feature(
            "BTF (/sys/kernel/btf/vmlinux)",
            exists("/sys/kernel/btf/vmlinux"),
            true,
            "programs cannot be loaded",
        ),
        feature("bpffs", has_filesystem("bpf"), true, "maps and links cannot outlive the agent"),
        feature(
            "tcx links",
            has_tcx(),
            false,
            "clsact filters instead: no order between programs, and updates replace a filter",
        ),
        feature(
            "BPF JIT",
            std::fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").is_ok_and(|text| text.trim() != "0"),
            false,
            "programs are interpreted: several times slower",
        ),
        feature(
            "veth devices",
            exists("/sys/module/veth") || has_symbol("veth_newlink"),
            true,
            "no private mirror device",
        ),
        feature("root or CAP_NET_ADMIN and CAP_BPF", is_privileged(), true, "nothing can be attached"),
    ]
}

/// Whether the running kernel is of this release or a later one.
fn at_least(major: u32, minor: u32) -> bool {
    let Ok(name) = uname() else {
        return false;
    };
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let running = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    running >= (major, minor)
}

const fn feature(name: &'static str, present: bool, required: bool, cost: &'static str) -> Feature {
    Feature { name, present, required, cost }
}

fn has_filesystem(name: &str) -> bool {
    std::fs::read_to_string("/proc/filesystems")
        .is_ok_and(|text| text.lines().any(|line| line.split_whitespace().last() == Some(name)))
}

fn has_symbol(name: &str) -> bool {
    std::fs::read_to_string("/proc/kallsyms")
        .is_ok_and(|text| text.lines().any(|line| line.split_whitespace().nth(2) == Some(name)))
}

/// Effective capabilities 12 (`CAP_NET_ADMIN`) and 39 (`CAP_BPF`), or 21 (`CAP_SYS_ADMIN`), which implies the
/// latter.
fn is_privileged() -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return false;
    };
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    effective & 1 << 12 != 0 && effective & (1 << 39 | 1 << 21) != 0
}
