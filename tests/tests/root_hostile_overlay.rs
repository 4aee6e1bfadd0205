//! Packets that pretend to come from the overlay: from the underlay, and from pods. None reaches a pod or leaves for
//! the world, and each is counted by its reason.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use podwire_harness::{Capture, Cluster, NetNs, Pod, RawSocket, Wiring, eventually};
use podwire_tests::egress::{World, egress_of};
use podwire_tests::{agents, reach, scapy};

/// How often each is sent.
const TIMES: u64 = 5;
const PORT: u16 = 4789;

/// An attempt: what it is, outer source, VNI, inner frame, and what it is counted by; `None` where the kernel's own
/// tunnel device drops it before anybody else sees it.
type Attempt = (&'static str, &'static str, &'static str, &'static str, Option<&'static str>);

/// `NODE` and `NODE6` are the other node's addresses, `FAR` and `FAR6` those of its pod, `OWN` and `OWN6` the victim's,
/// `NEAR` and `NEAR6` those of its neighbour; `ID` is the VNI of an Egress policy that leaves here. `M` is a mark.
const ATTEMPTS: &[Attempt] = &[
    ("a stranger", "'192.0.2.254'", "1", "E/IP(src=FAR,dst=OWN)/U/M", Some("TunnelUnknown")),
    ("a stranger, IPv6", "'2001:db8::fe'", "1", "E/IPv6(src=FAR6,dst=OWN6)/U/M", Some("TunnelUnknown")),
    ("a pod as the node", "FAR", "1", "E/IP(src=FAR,dst=OWN)/U/M", Some("TunnelUnknown")),
    ("a pod as the node, IPv6", "FAR6", "1", "E/IPv6(src=FAR6,dst=OWN6)/U/M", Some("TunnelUnknown")),
    ("a pod of here as a node", "NEAR", "1", "E/IP(src=FAR,dst=OWN)/U/M", Some("TunnelUnknown")),
    ("in the neighbour's name", "NODE", "1", "E/IP(src=NEAR,dst=OWN)/U/M", Some("OverlaySpoofed")),
    ("in the neighbour's name, IPv6", "NODE", "1", "E/IPv6(src=NEAR6,dst=OWN6)/U/M", Some("OverlaySpoofed")),
    ("in the victim's own name", "NODE", "1", "E/IP(src=OWN,dst=OWN)/U/M", Some("OverlaySpoofed")),
    ("in this node's name", "NODE", "1", "E/IP(src='192.0.2.1',dst=OWN)/U/M", Some("OverlaySpoofed")),
    (
        "in this node's name, IPv6",
        "NODE6",
        "1",
        "E/IPv6(src='2001:db8::1',dst=OWN6)/U/M",
        Some("OverlaySpoofed"),
    ),
    (
        "in the name of a pod that is not there",
        "NODE",
        "1",
        "E/IP(src='10.10.1.99',dst=OWN)/U/M",
        Some("OverlaySpoofed"),
    ),
    ("a VNI that nobody uses", "NODE", "77", "E/IP(src=FAR,dst=OWN)/U/M", Some("TunnelUnknown")),
    ("to the world", "NODE", "1", "E/IP(src=FAR,dst='198.51.100.5')/U/M", Some("NoRoute")),
    ("to the world, IPv6", "NODE", "1", "E/IPv6(src=FAR6,dst='2001:db8:51::5')/U/M", Some("NoRoute")),
    ("ARP", "NODE", "1", "E/ARP(op=1,psrc=FAR,pdst='10.10.1.0')/P", Some("NoRoute")),
    ("half an IPv4 header", "NODE", "1", "Raw(raw(E/IP(src=FAR,dst=OWN)/U)[:24])", None),
    (
        "IPv6 that says it is IPv4",
        "NODE",
        "1",
        "Ether(src=S,dst=D,type=0x800)/IPv6(src=FAR6,dst=OWN6)/U/M",
        Some("Malformed"),
    ),
    ("a tag", "NODE", "1", "E/Dot1Q(vlan=5)/IP(src=FAR,dst=OWN)/U/M", None),
    ("two tags", "NODE", "1", "E/Dot1AD(vlan=5)/Dot1Q(vlan=6)/IP(src=FAR,dst=OWN)/U/M", None),
    ("no inner frame", "NODE", "1", "Raw(b'')", None),
    ("half an Ethernet header", "NODE", "1", "Raw(raw(E)[:9])", None),
    (
        "Egress of a stranger",
        "'192.0.2.254'",
        "ID",
        "E/IP(src=FAR,dst='198.51.100.5')/U/M",
        Some("TunnelUnknown"),
    ),
    ("Egress of a pod", "FAR", "ID", "E/IP(src=FAR,dst='198.51.100.5')/U/M", Some("TunnelUnknown")),
    (
        "Egress in the neighbour's name",
        "NODE",
        "ID",
        "E/IP(src=NEAR,dst='198.51.100.5')/U/M",
        Some("OverlaySpoofed"),
    ),
    (
        "Egress in this node's name",
        "NODE",
        "ID",
        "E/IP(src='192.0.2.1',dst='198.51.100.5')/U/M",
        Some("OverlaySpoofed"),
    ),
    ("Egress to a pod", "NODE", "ID", "E/IP(src=FAR,dst=OWN)/U/M", Some("NoRoute")),
    ("Egress to a pod, IPv6", "NODE", "ID", "E/IPv6(src=FAR6,dst=OWN6)/U/M", Some("NoRoute")),
    (
        "Egress under a number that nobody has",
        "NODE",
        "0x800001",
        "E/IP(src=FAR,dst='198.51.100.5')/U/M",
        Some("EgressUnknown"),
    ),
    ("Egress, half an IPv4 header", "NODE", "ID", "Raw(raw(E/IP(src=FAR,dst=OWN)/U)[:24])", None),
];

const SEVEN: &str = "egressIPs: [203.0.113.7, \"2001:db8:e::7\"], egressNode: node-1";

/// A cluster with an Egress policy of the second node's pods that leaves by the first node, and that policy's VNI.
fn world() -> Result<(World, u32)> {
    let mut world = World::new(Wiring::Native)?;
    world.hold(0, &["203.0.113.7", "2001:db8:e::7"])?;
    let seven = egress_of("seven", "{podSelector: {matchLabels: {node: node-2}}}", SEVEN);
    world.put(&seven, "seven")?;
    let pod = world.cluster.pod("web-2-5")?;
    world.comes_as(pod, podwire_harness::SERVER_V4, "203.0.113.7")?;
    let shown = agents::get(world.cluster.nodes[0].agent()?, &["egresses", "seven"])?;
    let id = shown["status"]["id"].as_u64().context("no id")?;
    Ok((world, u32::try_from(id)? | 1 << 23))
}

/// Frames, or their UDP payloads alone.
fn written(cluster: &Cluster, id: u32, rows: &[Attempt], payload_only: bool) -> Result<Vec<Vec<u8>>> {
    let [(own, near), (_, far)] = reach::near_and_far(cluster)?;
    let mac = mac(&cluster.nodes[0].netns, "eth0")?;
    let id = id.to_string();
    let names = [
        ("OWN", own.v4.as_str()),
        ("OWN6", &own.v6),
        ("NEAR", &near.v4),
        ("NEAR6", &near.v6),
        ("FAR", &far.v4),
        ("FAR6", &far.v6),
        ("NODE", "192.0.2.2"),
        ("NODE6", "2001:db8::2"),
        ("HERE", &mac),
        ("TEXT", &id),
        ("D", "02:70:77:00:00:01"),
        ("S", "02:70:77:00:00:02"),
    ];
    let prelude = "ID = int(TEXT)\nE = Ether(src=S, dst=D)\nU = UDP(sport=4000, dport=9)\n\
                   def outer(source, vni, inner):\n    \
                   tunnel = UDP(sport=50000, dport=4789)/VXLAN(vni=vni, flags=8)/inner\n    \
                   if ':' in source:\n        return Ether(dst=HERE)/IPv6(src=source, dst='2001:db8::1')/tunnel\n    \
                   return Ether(dst=HERE)/IP(src=source, dst='192.0.2.1')/tunnel\n";
    let expressions: Vec<String> = rows
        .iter()
        .enumerate()
        .map(|(number, (_, source, vni, inner, _))| {
            let mark = format!("b'hostile#{number:04}!'");
            let inner =
                inner.replace("/M", &format!("/Raw({mark})")).replace("/P", &format!("/Padding({mark})"));
            if payload_only {
                format!("VXLAN(vni={vni}, flags=8)/{inner}")
            } else {
                format!("outer({source}, {vni}, {inner})")
            }
        })
        .collect();
    scapy::frames(&names, prelude, &expressions)
}

fn mac(netns: &NetNs, device: &str) -> Result<String> {
    let shown: serde_json::Value = serde_json::from_str(&netns.ip(&["-j", "link", "show", "dev", device])?)?;
    Ok(shown[0]["address"].as_str().context("no address")?.to_owned())
}

/// Captures wherever something could come out; the sender's own cable is not among them.
fn captures(cluster: &Cluster, sender: Option<&Pod>) -> Result<Vec<Capture>> {
    let folder = cluster.nodes[0].scratch.path();
    let others = cluster.pods().filter(|pod| sender.is_none_or(|sender| sender.name != pod.name));
    let pods = others.map(|pod| Capture::start(&pod.netns, "eth0", folder, "", 0));
    pods.chain([Capture::start(&cluster.server, "eth0", folder, "", 0)]).collect()
}

/// The attempts, by number, whose mark was seen.
fn seen(captures: Vec<Capture>, rows: usize) -> Result<Vec<usize>> {
    let files: Vec<PathBuf> = captures.into_iter().map(Capture::stop).collect();
    let mut found = Vec::new();
    for file in files {
        let bytes = std::fs::read(file)?;
        let has = |number: &usize| {
            let mark = format!("hostile#{number:04}!").into_bytes();
            bytes.windows(mark.len()).any(|part| part == mark)
        };
        found.extend((0..rows).filter(has));
    }
    Ok(found)
}

/// What was counted since, by reason.
fn counted(cluster: &Cluster, before: &BTreeMap<String, u64>) -> Result<BTreeMap<String, u64>> {
    let mut now = agents::reasons(&cluster.nodes[0])?;
    for (reason, count) in &mut now {
        *count -= before.get(reason).copied().unwrap_or_default();
    }
    now.retain(|_, count| *count > 0);
    Ok(now)
}

/// Sends each attempt, and returns what went wrong.
fn faults(
    cluster: &Cluster,
    rows: &[Attempt],
    sender: Option<&Pod>,
    mut send: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<String>> {
    let captures = captures(cluster, sender)?;
    let mut faults = Vec::new();
    for (number, (name, _, _, _, reason)) in rows.iter().enumerate() {
        let before = agents::reasons(&cluster.nodes[0])?;
        (0..TIMES).try_for_each(|_| send(number))?;
        let wanted: BTreeMap<String, u64> =
            reason.iter().map(|reason| ((*reason).to_owned(), TIMES)).collect();
        // What the kernel drops is looked for at the end, when it has had its time.
        if reason.is_some() && eventually(name, || Ok(counted(cluster, &before)? == wanted)).is_err() {
            faults.push(format!("{name}: counted {:?}, not {wanted:?}", counted(cluster, &before)?));
        }
    }
    for number in seen(captures, rows.len())? {
        faults.push(format!("{}: came out", rows[number].0));
    }
    Ok(faults)
}

#[test]
fn root_the_underlay_forges_the_overlay() -> Result<()> {
    let (world, id) = world()?;
    let cluster = &world.cluster;
    let frames = written(cluster, id, ATTEMPTS, false)?;
    let socket = RawSocket::open(&cluster.router, "eth0")?;
    let faults = faults(cluster, ATTEMPTS, None, |number| socket.send(&frames[number]))?;
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    reach::full_mesh(cluster)?;
    agents::books(cluster)
}

/// A pod that speaks VXLAN with its own address: its node's packets are the node's, not the pod's.
#[test]
fn root_a_pod_builds_its_own_overlay() -> Result<()> {
    const ROWS: &[Attempt] = &[
        ("in the name of the neighbour", "", "1", "E/IP(src='10.10.2.6',dst=OWN)/U/M", Some("TunnelUnknown")),
        ("in its own name", "", "1", "E/IP(src=FAR,dst=OWN)/U/M", Some("TunnelUnknown")),
        ("IPv6", "", "1", "E/IPv6(src='fd00:10:2::6',dst=OWN6)/U/M", Some("TunnelUnknown")),
        ("in the world's name", "", "1", "E/IP(src='198.51.100.5',dst=OWN)/U/M", Some("TunnelUnknown")),
        (
            "under an Egress policy",
            "",
            "ID",
            "E/IP(src='10.10.2.6',dst='198.51.100.5')/U/M",
            Some("TunnelUnknown"),
        ),
    ];
    let (world, id) = world()?;
    let cluster = &world.cluster;
    let payloads = written(cluster, id, ROWS, true)?;
    for (pod, nodes) in [("web-2-5", ["192.0.2.1", "2001:db8::1"]), ("web-1-6", ["192.0.2.1", "2001:db8::1"])]
    {
        let pod = cluster.pod(pod)?;
        for node in nodes {
            let faults = faults(cluster, ROWS, Some(pod), |number| tunnel(pod, node, &payloads[number]))?;
            ensure!(faults.is_empty(), "{} to {node}:\n{}", pod.name, faults.join("\n"));
        }
    }
    reach::full_mesh(cluster)
}

/// As any program in a pod can.
fn tunnel(pod: &Pod, node: &str, payload: &[u8]) -> Result<()> {
    let (payload, node) = (payload.to_vec(), node.parse::<std::net::IpAddr>()?);
    pod.netns.enter(move || {
        let any = if node.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        UdpSocket::bind(any)?.send_to(&payload, (node, PORT))?;
        Ok(())
    })
}
