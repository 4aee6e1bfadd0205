//! Large packets where podwire forwards: super-packets of TCP and UDP, jumbo frames, fragments, and paths that become
//! smaller.

use anyhow::{Context, Result, ensure};
use podwire_harness::{Capture, Cluster, ClusterOptions, KernelLog, Page, Pod, Underlay, eventually};
use podwire_tests::{agents, reach, tool};

fn page(from: &Pod, to: &Pod, address: &str, bytes: usize) -> Result<()> {
    let page = Page { address: address.to_owned(), port: 8080, bytes };
    page.fetch(&from.netns, &to.netns).with_context(|| format!("{} from {address}", from.name))
}

/// Whether super-packets reach the pod's cable whole.
fn whole(cluster: &Cluster, (from, to): reach::Pair<'_>) -> Result<()> {
    let capture =
        Capture::start(&from.netns, "eth0", cluster.nodes[0].scratch.path(), "tcp src port 8080", 100)?;
    for address in reach::addresses(to) {
        page(from, to, address, 6_000_000)?;
    }
    let rows = Capture::fields(&capture.stop(), 0, "tcp", &["frame.len"])?;
    let longest = rows.iter().filter_map(|row| row[0].parse::<u32>().ok()).max();
    ensure!(longest > Some(20_000), "{} to {}: {longest:?} bytes at most", from.name, to.name);
    Ok(())
}

#[test]
fn root_super_packets_stay_whole_through_the_overlay() -> Result<()> {
    for underlay in [Underlay::V4, Underlay::V6] {
        let cluster = agents::cluster(ClusterOptions { underlay, ..ClusterOptions::default() })?;
        for pair in reach::near_and_far(&cluster)? {
            whole(&cluster, pair).with_context(|| format!("{underlay:?}"))?;
        }
        agents::books(&cluster)?;
    }
    Ok(())
}

/// Super-packets beyond 64 KiB (`gso_max_size`); IPv6 has no length in its header then.
#[test]
fn root_super_packets_beyond_64_kib() -> Result<()> {
    let mut cluster = agents::cluster(ClusterOptions::default())?;
    let mut log = KernelLog::from_now()?;
    let policies =
        tool::mirror("far", "node: node-1", "vxlan: {remoteIP: 192.0.2.2, vni: 7, destinationPort: 4790}")
            + &tool::mirror("near", "node: node-1", "internal: {name: ids0}");
    tool::put(&mut cluster, &policies, "far")?;
    for node in &cluster.nodes {
        for pod in &node.pods {
            for (netns, device) in [(&pod.netns, "eth0"), (&node.netns, pod.interface.as_str())] {
                for knob in ["gso_max_size", "gro_max_size"] {
                    netns.ip(&["link", "set", "dev", device, knob, "180000"])?;
                }
                for knob in ["gso_ipv4_max_size", "gro_ipv4_max_size"] {
                    // iproute2 before 6.3 does not know them; IPv4 then stays below.
                    let _ = netns.ip(&["link", "set", "dev", device, knob, "180000"]);
                }
            }
        }
    }
    for (from, to) in reach::near_and_far(&cluster)? {
        for address in reach::addresses(to) {
            for _ in 0..2 {
                page(from, to, address, 6_000_000)?;
            }
        }
    }
    for name in ["far", "near"] {
        let copies = tool::status(&cluster, name)?["copies"].clone();
        ensure!(copies["lostTotal"] == 0, "{name}: {copies}");
    }
    log.check()?;
    agents::books(&cluster)
}

#[test]
fn root_jumbo_frames() -> Result<()> {
    for (underlay, headers) in [(Underlay::V4, 50), (Underlay::V6, 70)] {
        let options =
            ClusterOptions { underlay, underlay_mtu: 9000, pod_mtu: 9000, ..ClusterOptions::default() };
        let cluster = agents::cluster(options)?;
        let [_, far] = reach::near_and_far(&cluster)?;
        // The pods' interfaces are lowered to what the overlay carries.
        eventually("the pods know", || {
            Ok(far.0.netns.ip(&["link", "show", "eth0"])?.contains(&format!("mtu {} ", 9000 - headers)))
        })?;
        reach::path_mtu(far, 9000 - headers).with_context(|| format!("{underlay:?}"))?;
        for pair in [far] {
            whole(&cluster, pair).with_context(|| format!("{underlay:?}"))?;
            for address in reach::addresses(pair.1) {
                let report = reach::datagrams(pair, address, 100, 30_000)?.finish()?;
                ensure!(report.is_whole(), "{underlay:?}, {address}: {report:?}");
            }
        }
        agents::books(&cluster)?;
    }
    Ok(())
}

/// Sends datagrams as super-packets (`UDP_SEGMENT`): address, segment, segments of each, how often.
const SEND_SEGMENTS: &str = r#"
import socket, sys, time
address, segment, count, times = sys.argv[1], *map(int, sys.argv[2:])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
out = socket.socket(family, socket.SOCK_DGRAM)
out.setsockopt(17, 103, segment)
for _ in range(times):
    out.sendto(bytes(segment * count), (address, 7171))
    time.sleep(0.002)
"#;

/// Datagrams that the sender's kernel hands over as one packet arrive as those that they are.
#[test]
fn root_super_packets_of_udp() -> Result<()> {
    const TIMES: usize = 20;
    for underlay in [Underlay::V4, Underlay::V6] {
        let cluster = agents::cluster(ClusterOptions { underlay, ..ClusterOptions::default() })?;
        for (from, to) in reach::near_and_far(&cluster)? {
            for (address, headers) in [(&to.v4, 28), (&to.v6, 48)] {
                // The longest that fits, and one that leaves a short rest.
                for (segment, count) in [(1430 - headers, 30), (1000, 40), (100, 60)] {
                    let filter = "udp dst port 7171";
                    let folder = cluster.nodes[0].scratch.path();
                    let before = to.netns.counter("eth0", "rx", "bytes")?;
                    let capture = Capture::start(&to.netns, "eth0", folder, filter, 100)?;
                    let words = [segment, count, TIMES].map(|number: usize| number.to_string());
                    let command =
                        ["/usr/bin/python3", "-c", SEND_SEGMENTS, address, &words[0], &words[1], &words[2]];
                    from.netns.run_ok(&command)?;
                    let rows = Capture::fields(&capture.stop(), 0, "udp", &["udp.length"])?;
                    let bytes: usize =
                        rows.iter().filter_map(|row| row[0].parse::<usize>().ok()).map(|len| len - 8).sum();
                    let after = to.netns.counter("eth0", "rx", "bytes")?;
                    // A super-packet that stayed whole is one row of the capture, with its first segment's length or all of it.
                    let wanted = segment * count * TIMES;
                    ensure!(
                        bytes == wanted || after - before >= wanted as u64,
                        "{underlay:?}, {address}, {segment} bytes: {bytes} of {wanted}, {} by the interface",
                        after - before
                    );
                }
            }
        }
        agents::books(&cluster)?;
    }
    Ok(())
}

/// Without any offload of the underlay's cables the kernel sums up what it gets.
#[test]
fn root_without_offloads_of_the_underlay() -> Result<()> {
    let options = ClusterOptions { underlay: Underlay::V6, ..ClusterOptions::default() };
    let cluster = agents::cluster(options)?;
    let mut log = KernelLog::from_now()?;
    for node in &cluster.nodes {
        for offload in ["tx", "rx", "gro"] {
            node.netns.offload("eth0", offload, false)?;
            cluster.switch.offload(&node.name, offload, false)?;
        }
    }
    reach::streams(&cluster)?;
    log.check()
}

/// The underlay becomes smaller under traffic: pods are told, and what they send goes on arriving.
#[test]
fn root_the_underlay_becomes_smaller() -> Result<()> {
    let cluster = agents::cluster(ClusterOptions::default())?;
    let [_, far] = reach::near_and_far(&cluster)?;
    reach::path_mtu(far, 1430)?;
    for node in &cluster.nodes {
        node.netns.ip(&["link", "set", "eth0", "mtu", "1400"])?;
    }
    for node in &cluster.nodes {
        eventually("the overlay is smaller", || {
            Ok(node.netns.ip(&["link", "show", "pw-overlay"])?.contains("mtu 1350 "))
        })?;
        for pod in &node.pods {
            eventually("the pods know", || {
                Ok(pod.netns.ip(&["link", "show", "eth0"])?.contains("mtu 1350 "))
            })?;
        }
    }
    reach::path_mtu(far, 1350)?;
    reach::large_packets(&cluster)?;
    agents::books(&cluster)
}
