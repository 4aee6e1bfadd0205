//! Which frames a rule takes: made with scapy in a pod, found again with tshark at the collector.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use anyhow::Result;
use podwire_datapath::compile::{AddressSet, Rule, TcpFlags};
use podwire_datapath::core::abi::{Direction, Reason};
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::{Desired, Endpoint, Hook, Mirror, Target};
use podwire_harness::{COLLECTOR_V4, Capture, Scratch, Topology};
use podwire_tests::node::Node;

const PORT: u16 = 1111;

/// Name and frame, as Python. All go out of the first pod; the destination MAC is nobody's.
const FRAMES: &str = r#"
from scapy.all import *
conf.verb = 0
E = Ether(src='02:00:00:00:00:05', dst='02:00:00:00:00:99')
V4 = IP(src='10.10.1.5', dst='10.20.0.9')
X4 = IP(src='10.10.1.5', dst='10.20.7.9')
S4 = IP(src='10.66.0.1', dst='10.20.0.9')
V6 = IPv6(src='fd00:10:1::5', dst='fd00:20::9')
FRAMES = [
 E/V4/TCP(sport=4000, dport=80, flags='S')/b'plain80;',
 E/V4/TCP(sport=80, dport=4000, flags='SA')/b'tcpfrom80;',
 E/V4/TCP(sport=4000, dport=81, flags='A')/b'tcp81;',
 E/V4/UDP(sport=4000, dport=80)/b'udp80;',
 E/V4/UDP(sport=4000, dport=8050)/b'udp8050;',
 E/X4/UDP(sport=4000, dport=80)/b'udpexcept;',
 E/S4/UDP(sport=4000, dport=80)/b'udpspoofed;',
 E/V6/UDP(sport=4000, dport=80)/b'six80;',
 E/V6/TCP(sport=4000, dport=80, flags='S')/b'sixtcp80;',
 E/V6/IPv6ExtHdrHopByHop()/IPv6ExtHdrDestOpt()/TCP(sport=4000, dport=80, flags='S')/b'sixext80;',
 E/V6/IPv6ExtHdrFragment(offset=0, m=1, nh=17)/UDP(sport=4000, dport=80)/b'sixfirst;',
 E/V6/IPv6ExtHdrFragment(offset=10, m=0, nh=17)/b'sixlater;',
 E/Dot1Q(vlan=5)/V4/UDP(sport=4000, dport=80)/b'vlan80;',
 E/Dot1Q(vlan=5, type=0x8100)/Dot1Q(vlan=6)/V4/UDP(sport=4000, dport=80)/b'qinq80;',
 E/IP(src='10.10.1.5', dst='10.20.0.9', flags='MF')/UDP(sport=4000, dport=80)/b'first80;',
 E/IP(src='10.10.1.5', dst='10.20.0.9', frag=30, proto=17)/b'later80!;',
 E/IP(src='10.10.1.5', dst='10.20.0.9', options=[IPOption_NOP()]*4)/UDP(sport=4000, dport=80)/b'options80;',
 E/V4/ICMP(type=8)/b'echo;',
 E/V4/SCTP(sport=4000, dport=80)/b'sctp80;',
 E/ARP(op=1, psrc='10.10.1.5', pdst='10.10.1.77')/Padding(b'arp;'),
 Ether(src='02:00:00:00:00:05', dst='01:80:c2:00:00:0e', type=0x88cc)/Raw(b'lldp;'+b'.'*40),
 E/Raw(b'\x45\x00')/Raw(b'short;'),
]
FRAMES[-1].type = 0x0800
sendp(FRAMES, iface='eth0')
"#;

/// What each frame carries.
const NAMES: [&str; 22] = [
    "plain80",
    "tcpfrom80",
    "tcp81",
    "udp80",
    "udp8050",
    "udpexcept",
    "udpspoofed",
    "six80",
    "sixtcp80",
    "sixext80",
    "sixfirst",
    "sixlater",
    "vlan80",
    "qinq80",
    "first80",
    "later80!",
    "options80",
    "echo",
    "sctp80",
    "arp",
    "lldp",
    "short",
];

fn set(cidrs: &[&str], except: &[&str]) -> Option<AddressSet> {
    let read = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a CIDR")).collect();
    Some(AddressSet { cidrs: read(cidrs), except: read(except) })
}

fn cases() -> Vec<(&'static str, Rule, Vec<&'static str>)> {
    let ports = || vec![80..=80];
    let udp80 =
        ["udp80", "udpexcept", "udpspoofed", "six80", "sixfirst", "vlan80", "qinq80", "first80", "options80"];
    vec![
        (
            "either port 80, any protocol with ports",
            Rule { either_ports: ports(), ..Rule::default() },
            [&udp80[..], &["plain80", "tcpfrom80", "sixtcp80", "sixext80", "sctp80"]].concat(),
        ),
        (
            "TCP either port 80",
            Rule { protocol: Some(6), either_ports: ports(), ..Rule::default() },
            vec!["plain80", "tcpfrom80", "sixtcp80", "sixext80"],
        ),
        ("source port 80", Rule { source_ports: ports(), ..Rule::default() }, vec!["tcpfrom80"]),
        (
            "UDP destination port 80",
            Rule { protocol: Some(17), destination_ports: ports(), ..Rule::default() },
            udp80.to_vec(),
        ),
        (
            "UDP destination ports 8000 to 8100",
            Rule { protocol: Some(17), destination_ports: vec![8000..=8100], ..Rule::default() },
            vec!["udp8050"],
        ),
        (
            "UDP, later fragments too",
            Rule { protocol: Some(17), ..Rule::default() },
            [&udp80[..], &["udp8050", "later80!", "sixlater"]].concat(),
        ),
        (
            "peer with except, port 80",
            Rule {
                protocol: Some(17),
                destination_ports: ports(),
                peer: set(&["10.20.0.0/16", "fd00:20::/32"], &["10.20.7.0/24"]),
                ..Rule::default()
            },
            udp80.iter().copied().filter(|name| *name != "udpexcept").collect(),
        ),
        (
            "IPv6 peer alone",
            Rule { peer: set(&["fd00:20::9/128"], &[]), ..Rule::default() },
            vec!["six80", "sixtcp80", "sixext80", "sixfirst", "sixlater"],
        ),
        (
            "source CIDR that is not the pod's",
            Rule { source: set(&["10.66.0.0/16"], &[]), ..Rule::default() },
            vec!["udpspoofed"],
        ),
        (
            "destination CIDR and SCTP",
            Rule { protocol: Some(132), destination: set(&["10.20.0.9/32"], &[]), ..Rule::default() },
            vec!["sctp80"],
        ),
        (
            "echo requests",
            Rule { protocol: Some(1), icmp: vec![8 << 8..=8 << 8 | 255], ..Rule::default() },
            vec!["echo"],
        ),
        (
            "SYN without ACK",
            Rule { protocol: Some(6), tcp_flags: Some(TcpFlags { value: 2, mask: 0x12 }), ..Rule::default() },
            vec!["plain80", "sixtcp80", "sixext80"],
        ),
        ("ARP", Rule { ether_type: Some(0x0806), ..Rule::default() }, vec!["arp"]),
        ("LLDP", Rule { ether_type: Some(0x88cc), ..Rule::default() }, vec!["lldp"]),
    ]
}

#[test]
fn root_rules_take_what_they_say_and_nothing_else() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    scene.vxlan(1, PORT)?;
    scene.warm_up()?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let pod = &scene.pods[0];
    std::fs::write(scratch.path().join("frames.py"), FRAMES)?;
    let script = scratch.path().join("frames.py").to_string_lossy().into_owned();
    let remote = COLLECTOR_V4.parse()?;
    let mut all = cases();
    all.push(("everything, malformed packets too", Rule::default(), NAMES.to_vec()));
    for (what, rule, expected) in all {
        let name = format!("default/{}", pod.name);
        let rules = if rule == Rule::default() { Vec::new() } else { vec![rule] };
        node.apply(&Desired {
            endpoints: vec![Endpoint {
                name: name.clone(),
                interface: pod.interface.clone(),
                ..Endpoint::default()
            }],
            mirrors: vec![Mirror {
                name: "m".into(),
                endpoints: vec![name.clone()],
                directions: vec![Direction::Egress],
                rules,
                stateful: false,
                options: podwire_datapath::SessionOptions::default(),
                target: Target::Tunnel { remote, tunnel: Tunnel::Vxlan { vni: 1, port: PORT } },
            }],
            ..Desired::default()
        })?;
        let capture = Capture::start(&scene.collector, "eth0", scratch.path(), "udp port 1111", 0)?;
        pod.netns.run_ok(&["/usr/bin/python3", &script])?;
        let file = capture.stop();
        let bytes = std::fs::read(&file)?;
        let found: Vec<&str> = NAMES.iter().copied().filter(|name| holds(&bytes, name.as_bytes())).collect();
        let mut expected: Vec<&str> = expected;
        expected.sort_by_key(|name| NAMES.iter().position(|other| other == name));
        assert_eq!(found, expected, "{what}");
    }
    let counters = node.counters()?;
    let malformed = counters.reasons.iter().find(|(reason, _)| *reason == Reason::Malformed);
    assert!(malformed.is_some_and(|(_, count)| *count >= 1), "{counters:?}");
    Ok(())
}

/// Whether a payload stands in a capture.
fn holds(capture: &[u8], name: &[u8]) -> bool {
    let ended = [name, b";"].concat();
    capture.windows(ended.len()).any(|window| window == ended)
}
