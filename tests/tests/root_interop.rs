//! The kernel's own tunnel devices as peers: they read what podwire sends, and podwire reads what they send.
//!
//! A kernel without a kind of device skips its tests; `cargo xtask vm` boots kernels that have all of them.
#![allow(clippy::print_stdout, reason = "the test runner reads why a test did nothing")]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_datapath::compile::Rule;
use podwire_datapath::core::wire::decap::{Metadata, Receiver, decapsulate};
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::core::wire::erspan::{Direction, iii};
use podwire_datapath::{Hook, Mirror};
use podwire_harness::{COLLECTOR_V4, COLLECTOR_V6, NODE_V4, RawSocket, Scratch, Topology};
use podwire_tests::node::{Node, all_lost};
use podwire_tests::wish::{mirror, mirrors, tunnel};

/// The node's IPv6 address on the underlay.
const NODE_V6: &str = "2001:db8::1";
/// The collector's device.
const DEVICE: &str = "peer0";
/// For experiments (IEEE 802): frames that are not IP.
const ETHER_TYPE: u16 = 0x88b5;
const UDP_PORT: u16 = 7000;
const UDP: u8 = 17;
/// Lengths of the frames that are compared to the byte: shortest, odd, longest.
const LENGTHS: [usize; 6] = [60, 61, 64, 333, 1400, 1514];
/// Long enough for a guest whose instructions are interpreted.
const PATIENCE: Duration = Duration::from_secs(20);

/// A device of the collector and the tunnel whose other end it is.
struct Peer {
    tunnel: Tunnel,
    v6: bool,
    /// What `ip link add` says after the name; the ends and a GRE key's presence are added.
    words: Vec<String>,
}

impl Peer {
    fn new(tunnel: Tunnel, v6: bool, words: &[&str]) -> Self {
        Self { tunnel, v6, words: words.iter().map(|word| (*word).to_owned()).collect() }
    }

    /// Makes the device in the collector's namespace; `false`, with the reason said, where the kernel has none.
    fn add(&self, scene: &Topology) -> Result<bool> {
        let (local, remote) = if self.v6 { (COLLECTOR_V6, NODE_V6) } else { (COLLECTOR_V4, NODE_V4) };
        let kind = &self.words[0];
        let mut words = vec!["ip", "link", "add", DEVICE, "type"];
        words.extend(self.words.iter().map(String::as_str));
        if kind != "geneve" {
            words.extend(["local", local]);
        }
        words.extend(["remote", remote]);
        let output = scene.collector.run(&words)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            ensure!(
                said.contains("Unknown device type") || said.contains("not supported"),
                "{words:?}: {said}"
            );
            println!("SKIPPED: this kernel has no {kind} devices: {said}");
            return Ok(false);
        }
        // The kernel's own multicast reports would be counted too.
        scene.collector.run_ok(&["sysctl", "-qw", &format!("net.ipv6.conf.{DEVICE}.disable_ipv6=1")])?;
        scene.collector.ip(&["link", "set", DEVICE, "mtu", "1500", "up"])?;
        let far = if self.v6 { COLLECTOR_V6 } else { COLLECTOR_V4 };
        ensure!(scene.node.ping(far, 1, 8)? == 1, "the underlay does not work");
        Ok(true)
    }

    /// Every copy arrives at the device, those of raw frames with the same bytes.
    fn reads_podwire(&self) -> Result<()> {
        let (scene, scratch) = (Topology::new()?, Scratch::new()?);
        if !self.add(&scene)? {
            return Ok(());
        }
        let far = if self.v6 { COLLECTOR_V6 } else { COLLECTOR_V4 };
        let target = tunnel(far, self.tunnel)?;
        let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
        let pod = &scene.pods[0];
        let wish = Mirror { rules: rules(), ..mirror("peer", pod, target.clone()) };
        node.apply(&mirrors(&scene, vec![wish]))?;
        let arrivals = RawSocket::open(&scene.collector, DEVICE)?;
        let sender = RawSocket::open(&pod.netns, "eth0")?;
        let mut copies = 0;
        for frame in frames() {
            sender.send(&frame)?;
            let found = arrivals.receive(PATIENCE, |copy| copy == frame)?;
            found.with_context(|| format!("no copy of a frame of {} bytes", frame.len()))?;
            copies += 1;
        }
        for (destination, size) in [(&scene.pods[1].v4, 56), (&scene.pods[1].v6, 1300)] {
            ensure!(pod.netns.ping(destination, 25, size)? == 25, "the pod's own pings");
            copies += 50;
        }
        let arrived = scene.collector.counter(DEVICE, "rx", "packets")?;
        let errors = scene.collector.counter(DEVICE, "rx", "errors")?;
        let counters = node.session(&target)?;
        assert_eq!((arrived, errors), (copies, 0), "{counters:?}");
        assert_eq!((counters.sent_packets, all_lost(&counters)), (copies, 0), "{counters:?}");
        assert_eq!(counters.truncated_packets, 0, "{counters:?}");
        Ok(())
    }

    /// Each frame that the device sends is found again, whole, and the tunnel header says what it was told to say.
    /// Checksums are finished by the sender, so that they can be verified.
    fn is_read_by_podwire(&self, says: impl Fn(&Metadata) -> Result<()>) -> Result<()> {
        let scene = Topology::new()?;
        if !self.add(&scene)? {
            return Ok(());
        }
        scene.collector.offload("eth0", "tx", false)?;
        let wire = RawSocket::open(&scene.node, "uplink0")?;
        let device = RawSocket::open(&scene.collector, DEVICE)?;
        let receiver = Receiver { verify: true, ..Receiver::default() };
        let (near, far) = if self.v6 { (NODE_V6, COLLECTOR_V6) } else { (NODE_V4, COLLECTOR_V4) };
        let mut numbers = Vec::new();
        for frame in frames() {
            device.send(&frame)?;
            let inner = |packet: &[u8]| {
                let found = decapsulate(packet, &receiver).ok()?;
                (packet.get(found.inner.clone())? == frame).then_some(found)
            };
            let packet = wire
                .receive(PATIENCE, |packet| inner(packet).is_some())?
                .with_context(|| format!("a frame of {} bytes is not found again", frame.len()))?;
            let found = inner(&packet).context("it was found a moment ago")?;
            // The sender of the packet is its local end.
            assert_eq!(found.outer.local().to_string(), far);
            assert_eq!(found.outer.remote().to_string(), near);
            says(&found.metadata)?;
            numbers.extend(sequence(&found.metadata));
        }
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        Ok(())
    }
}

/// The number of a packet, when it has one.
fn sequence(metadata: &Metadata) -> Option<u32> {
    match metadata {
        Metadata::Gre { sequence, .. } | Metadata::ErspanIII { sequence, .. } => *sequence,
        Metadata::ErspanII { sequence, .. } => Some(*sequence),
        _ => None,
    }
}

/// Echo of both families, and the frames below.
fn rules() -> Vec<Rule> {
    let echo = [(1, 8), (1, 0), (58, 128), (58, 129)].map(|(protocol, kind): (u8, u16)| Rule {
        protocol: Some(protocol),
        icmp: vec![kind << 8..=kind << 8 | 255],
        ..Rule::default()
    });
    let datagrams =
        Rule { protocol: Some(UDP), destination_ports: vec![UDP_PORT..=UDP_PORT], ..Rule::default() };
    let odd = Rule { ether_type: Some(ETHER_TYPE), ..Rule::default() };
    echo.into_iter().chain([datagrams, odd]).collect()
}

/// Frames with and without IP inside, each unlike all others. They are for a host that nobody is.
fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for len in LENGTHS {
        for ip in [true, false] {
            let mut frame = vec![2, 0, 0, 0, 0, 0x77, 2, 0, 0, 0, 0, 5];
            if ip {
                frame.extend([0x08, 0x00]);
                frame.extend(datagram_headers(len - 14));
            } else {
                frame.extend(ETHER_TYPE.to_be_bytes());
            }
            let at = frame.len();
            frame.extend((at..len).map(|offset| (offset * 7 + len + usize::from(ip)) as u8));
            frames.push(frame);
        }
    }
    frames
}

/// IPv4 (RFC 791) and UDP (RFC 768) without a checksum, `len` bytes from the IP header on.
fn datagram_headers(len: usize) -> Vec<u8> {
    let mut ip = vec![0x45, 0];
    ip.extend((len as u16).to_be_bytes());
    ip.extend([0, 1, 0, 0, 64, UDP, 0, 0, 10, 10, 1, 5, 198, 51, 100, 1]);
    let sum: u32 = ip.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&folded.to_be_bytes());
    ip.extend(9u16.to_be_bytes());
    ip.extend(UDP_PORT.to_be_bytes());
    ip.extend((len as u16 - 20).to_be_bytes());
    ip.extend([0, 0]);
    ip
}

fn vxlan(v6: bool) -> Peer {
    let words = ["vxlan", "id", "16777215", "dstport", "4789", "nolearning", "udp6zerocsumrx"];
    let words = if v6 { &words[..] } else { &words[..6] };
    Peer::new(Tunnel::Vxlan { vni: 0xff_ffff, port: 4789 }, v6, words)
}

fn geneve(v6: bool) -> Peer {
    let words = ["geneve", "id", "70000", "dstport", "6081", "udp6zerocsumrx"];
    let words = if v6 { &words[..] } else { &words[..5] };
    Peer::new(Tunnel::Geneve { vni: 70_000, port: 6081 }, v6, words)
}

/// `more`: options of the device's own sending.
fn gre(v6: bool, key: Option<u32>, sequence: bool, more: &[&str]) -> Peer {
    let key_word = key.unwrap_or(0).to_string();
    let mut words = vec![if v6 { "ip6gretap" } else { "gretap" }];
    if key.is_some() {
        words.extend(["key", &key_word]);
    }
    if sequence {
        words.push("seq");
    }
    if v6 {
        // Its own limit on nesting would stand before GRE as a destination option.
        words.extend(["encaplimit", "none"]);
    }
    words.extend(more);
    Peer::new(Tunnel::Gre { key, sequence }, v6, &words)
}

fn erspan_ii(v6: bool) -> Peer {
    let kind = if v6 { "ip6erspan" } else { "erspan" };
    let words = [kind, "seq", "key", "1023", "erspan_ver", "1", "erspan", "1048575"];
    Peer::new(Tunnel::ErspanII { session: 1023, index: 0xf_ffff }, v6, &words)
}

fn erspan_iii(v6: bool) -> Peer {
    let kind = if v6 { "ip6erspan" } else { "erspan" };
    let words = [kind, "seq", "key", "513", "erspan_ver", "2", "erspan_dir", "egress", "erspan_hwid", "41"];
    let tunnel = Tunnel::ErspanIII {
        session: 513,
        hardware_id: 41,
        sgt: 0,
        direction: None,
        granularity: iii::Granularity::HundredMicroseconds,
    };
    Peer::new(tunnel, v6, &words)
}

#[test]
fn root_kernel_vxlan_reads_podwire() -> Result<()> {
    vxlan(false).reads_podwire()
}

#[test]
fn root_kernel_vxlan_over_ipv6_reads_podwire() -> Result<()> {
    vxlan(true).reads_podwire()
}

#[test]
fn root_kernel_geneve_reads_podwire() -> Result<()> {
    geneve(false).reads_podwire()
}

#[test]
fn root_kernel_geneve_over_ipv6_reads_podwire() -> Result<()> {
    geneve(true).reads_podwire()
}

#[test]
fn root_kernel_gre_reads_podwire() -> Result<()> {
    gre(false, None, false, &[]).reads_podwire()
}

#[test]
fn root_kernel_gre_with_key_reads_podwire() -> Result<()> {
    gre(false, Some(u32::MAX), false, &[]).reads_podwire()
}

#[test]
fn root_kernel_gre_with_key_and_numbers_reads_podwire() -> Result<()> {
    gre(false, Some(1), true, &[]).reads_podwire()
}

#[test]
fn root_kernel_gre_over_ipv6_reads_podwire() -> Result<()> {
    gre(true, Some(0x8000_0001), false, &[]).reads_podwire()
}

#[test]
fn root_kernel_erspan_ii_reads_podwire() -> Result<()> {
    erspan_ii(false).reads_podwire()
}

#[test]
fn root_kernel_erspan_ii_over_ipv6_reads_podwire() -> Result<()> {
    erspan_ii(true).reads_podwire()
}

#[test]
fn root_kernel_erspan_iii_reads_podwire() -> Result<()> {
    erspan_iii(false).reads_podwire()
}

#[test]
fn root_kernel_erspan_iii_over_ipv6_reads_podwire() -> Result<()> {
    erspan_iii(true).reads_podwire()
}

fn says_vni(metadata: &Metadata, wanted: u32) -> Result<()> {
    let (Metadata::Vxlan { vni } | Metadata::Geneve { vni, .. }) = metadata else {
        anyhow::bail!("{metadata:?}");
    };
    ensure!(*vni == wanted, "{metadata:?}");
    Ok(())
}

#[test]
fn root_podwire_reads_kernel_vxlan() -> Result<()> {
    [false, true]
        .into_iter()
        .try_for_each(|v6| vxlan(v6).is_read_by_podwire(|metadata| says_vni(metadata, 0xff_ffff)))
}

#[test]
fn root_podwire_reads_kernel_geneve() -> Result<()> {
    [false, true]
        .into_iter()
        .try_for_each(|v6| geneve(v6).is_read_by_podwire(|metadata| says_vni(metadata, 70_000)))
}

#[test]
fn root_podwire_reads_kernel_gre() -> Result<()> {
    for v6 in [false, true] {
        gre(v6, None, false, &[]).is_read_by_podwire(|metadata| {
            ensure!(*metadata == Metadata::Gre { key: None, sequence: None }, "{metadata:?}");
            Ok(())
        })?;
        gre(v6, Some(u32::MAX), true, &["csum"]).is_read_by_podwire(|metadata| {
            let Metadata::Gre { key: Some(u32::MAX), sequence: Some(_) } = metadata else {
                anyhow::bail!("{metadata:?}");
            };
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn root_podwire_reads_kernel_erspan_ii() -> Result<()> {
    for v6 in [false, true] {
        erspan_ii(v6).is_read_by_podwire(|metadata| {
            let Metadata::ErspanII { header, .. } = metadata else { anyhow::bail!("{metadata:?}") };
            ensure!((header.session, header.index) == (1023, 0xf_ffff), "{header:?}");
            ensure!((header.vlan, header.truncated) == (0, false), "{header:?}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn root_podwire_reads_kernel_erspan_iii() -> Result<()> {
    for v6 in [false, true] {
        erspan_iii(v6).is_read_by_podwire(|metadata| {
            let Metadata::ErspanIII { header, sequence: Some(_) } = metadata else {
                anyhow::bail!("{metadata:?}")
            };
            ensure!((header.session, header.hardware_id) == (513, 41), "{header:?}");
            ensure!(header.direction == Direction::Egress && header.subheader.is_none(), "{header:?}");
            ensure!(header.granularity == iii::Granularity::HundredMicroseconds, "{header:?}");
            Ok(())
        })?;
    }
    Ok(())
}
