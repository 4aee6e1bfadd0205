//! Egress under attack: a pod that wants to be seen by its own address, answers in fragments, policies that share an
//! address, other bits of the mark.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwire_harness::{
    Capture, Cluster, ClusterOptions, Pod, RawSocket, SERVER_V4, SERVER_V6, Wiring, Witness,
};
use podwire_tests::egress::{World, egress, egress_of};
use podwire_tests::{agents, reach, scapy};

const SEVEN: [&str; 2] = ["203.0.113.7", "2001:db8:e::7"];

fn seven(node: usize) -> String {
    egress("seven", &format!("egressIPs: [{}, \"{}\"], egressNode: node-{}", SEVEN[0], SEVEN[1], node + 1))
}

/// What no connection belongs to: the kernel's address translation does not look at it by itself.
const STRAYS: [&str; 20] = [
    "IP(src=O4,dst=D4)/TCP(sport=4001,dport=80,flags='R')/M",
    "IP(src=O4,dst=D4)/TCP(sport=4002,dport=80,flags='RA')/M",
    "IP(src=O4,dst=D4)/TCP(sport=4003,dport=80,flags='A')/M",
    "IP(src=O4,dst=D4)/TCP(sport=4004,dport=80,flags='FA')/M",
    "IP(src=O4,dst=D4)/TCP(sport=4005,dport=80,flags='SA')/M",
    "IP(src=O4,dst=D4)/TCP(sport=4006,dport=80,flags='')/M",
    "IP(src=O4,dst=D4)/TCP(sport=4007,dport=80,flags='SF')/M",
    "IP(src=O4,dst=D4)/TCP(sport=4008,dport=80,flags='S',chksum=1)/M",
    "IP(src=O4,dst=D4)/ICMP(type=0,id=5)/M",
    "IP(src=O4,dst=D4)/ICMP(type=3,code=3)/IP(src=D4,dst=O4)/UDP(sport=9,dport=9)/M",
    "IP(src=O4,dst=D4)/ICMP(type=13)/M",
    "IP(src=O4,dst=D4)/ICMP(type=77)/M",
    "IP(src=O4,dst=D4,proto=253)/M",
    "IP(src=O4,dst=D4,proto=50)/Raw(bytes(8))/M",
    "IP(src=O4,dst=D4,frag=30,proto=17)/M",
    "IPv6(src=O6,dst=D6)/TCP(sport=4001,dport=80,flags='R')/M",
    "IPv6(src=O6,dst=D6)/TCP(sport=4002,dport=80,flags='RA')/M",
    "IPv6(src=O6,dst=D6)/ICMPv6EchoReply(id=5,data=M)",
    "IPv6(src=O6,dst=D6)/ICMPv6DestUnreach(code=4)/IPv6(src=D6,dst=O6)/UDP(sport=9,dport=9)/M",
    "IPv6(src=O6,dst=D6,nh=253)/M",
];

/// Whatever a pod under a policy sends, the world sees the policy's address or nothing.
#[test]
fn root_a_pod_wants_to_be_seen_by_its_own_address() -> Result<()> {
    for wiring in [Wiring::Native, Wiring::Routed] {
        for node in [0, 1] {
            let mut world = World::new(wiring)?;
            world.hold(node, &SEVEN)?;
            world.put(&seven(node), "seven")?;
            world.all_come_as(SEVEN)?;
            let pod = world.cluster.pod("web-1-5")?;
            let gateway = world.cluster.nodes[0].gateway(pod, false)?;
            let mac = reach::neighbour(pod, &gateway)?;
            let names = [
                ("OM", pod.mac.as_str()),
                ("TO", &mac),
                ("O4", &pod.v4),
                ("O6", &pod.v6),
                ("D4", SERVER_V4),
                ("D6", SERVER_V6),
            ];
            let frames: Vec<String> =
                STRAYS.iter().map(|text| format!("Ether(src=OM,dst=TO)/{text}")).collect();
            let frames = scapy::frames(&names, "M = Raw(b'hostile!')", &frames)?;
            let capture = world.capture(true, "")?;
            let socket = RawSocket::open(&pod.netns, "eth0")?;
            for frame in frames.iter().chain(&frames) {
                socket.send(frame)?;
            }
            world.comes_as(pod, SERVER_V4, SEVEN[0])?;
            let file = capture.stop();
            let own = format!("frame contains \"hostile!\" && (ip.src=={} || ipv6.src=={})", pod.v4, pod.v6);
            let leaked = Capture::fields(
                &file,
                0,
                &own,
                &["frame.protocols", "tcp.flags.str", "icmp.type", "icmpv6.type"],
            )?;
            ensure!(leaked.is_empty(), "{wiring:?}, by node-{}: {leaked:?}", node + 1);
        }
    }
    Ok(())
}

/// Asks a pod from the server with a short datagram; the answer has to come in fragments, from the pod's own address.
fn asks(cluster: &Cluster, pod: &Pod, address: &str) -> Result<bool> {
    let address: IpAddr = address.parse()?;
    let answering = pod.netns.enter(move || Ok(UdpSocket::bind((address, 7007))?))?;
    answering.set_read_timeout(Some(Duration::from_secs(2)))?;
    let answering = std::thread::spawn(move || -> Result<()> {
        let (_, who) = answering.recv_from(&mut [0; 100])?;
        answering.send_to(&vec![7; 5000], who)?;
        Ok(())
    });
    let answer = cluster.server.enter(move || {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        socket.connect((address, 7007))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.send(b"?")?;
        Ok(socket.recv(&mut vec![0; 6000]).is_ok_and(|len| len == 5000))
    });
    answering.join().ok().context("it panicked")??;
    answer
}

/// Answers that do not fit one packet leave as their first part does.
#[test]
fn root_answers_in_fragments_leave_as_the_questions_came() -> Result<()> {
    for wiring in [Wiring::Native, Wiring::Routed] {
        let mut world = World::new(wiring)?;
        world.hold(1, &SEVEN)?;
        world.put(&seven(1), "seven")?;
        world.all_come_as(SEVEN)?;
        for name in ["web-1-5", "web-2-5"] {
            let pod = world.cluster.pod(name)?;
            for address in reach::addresses(pod) {
                ensure!(asks(&world.cluster, pod, address)?, "{wiring:?}: {address} did not answer");
                // The first one may find out what fits the way: IPv6 is cut by its sender alone.
                world.cluster.server.ping(address, 1, 4000)?;
                let received = world.cluster.server.ping(address, 5, 4000)?;
                ensure!(received == 5, "{wiring:?}: {address}: {received} of 5");
            }
        }
        world.all_come_as(SEVEN).context("afterwards")?;
    }
    Ok(())
}

/// Two policies with one address, for other pods: one goes, the other one keeps it.
#[test]
fn root_two_policies_share_an_address() -> Result<()> {
    let mut world = World::new(Wiring::Native)?;
    world.hold(1, &SEVEN)?;
    let fields = format!("egressIPs: [{}, \"{}\"], egressNode: node-2", SEVEN[0], SEVEN[1]);
    let [one, two] = [1, 2].map(|n| {
        egress_of(&format!("p{n}"), &format!("{{podSelector: {{matchLabels: {{node: node-{n}}}}}}}"), &fields)
    });
    for _ in 0..2 {
        world.put(&(one.clone() + &two), "p2")?;
        world.all_come_as(SEVEN)?;
        world.put(&two, "p2")?;
        world.comes_as_itself(world.cluster.pod("web-1-5")?, SERVER_V4)?;
        world.comes_as(world.cluster.pod("web-2-5")?, SERVER_V4, SEVEN[0])?;
        world.put(&one, "p1")?;
        world.comes_as(world.cluster.pod("web-1-6")?, SERVER_V6, SEVEN[1])?;
        world.comes_as_itself(world.cluster.pod("web-2-5")?, SERVER_V6)?;
    }
    agents::books(&world.cluster)
}

/// Another mask; the bits beside it, which somebody else sets and reads, stay as they are.
#[test]
fn root_foreign_bits_of_the_mark_stay() -> Result<()> {
    let mut cluster = Cluster::new(ClusterOptions::default())?;
    cluster.write_objects()?;
    for node in [0, 1] {
        cluster.start_agent(node, &["--egress-mark", "0x00000ff0"])?;
    }
    agents::in_force(&cluster)?;
    cluster.router_knows_pods()?;
    let witness = Witness::start(&cluster.server, 8081)?;
    let mut world = World { cluster, witness };
    world.hold(0, &SEVEN)?;
    // Before the route is chosen, and after the address was translated.
    let chains = "add table inet others\n\
                  add counter inet others kept\n\
                  add chain inet others pre { type filter hook prerouting priority 0; }\n\
                  add rule inet others pre iifname veth-1-5 meta mark set meta mark | 0x5000000a\n\
                  add chain inet others post { type filter hook postrouting priority 300; }\n\
                  add rule inet others post oifname eth0 ct original ip saddr 10.10.1.5 \
                  meta mark & 0xf000f00f == 0x5000000a counter name kept\n";
    let file = world.cluster.nodes[0].scratch.path().join("others.nft");
    std::fs::write(&file, chains)?;
    let node = &world.cluster.nodes[0].netns;
    node.run_ok(&["nft", "-f", &file.to_string_lossy()])?;
    world.put(&seven(0), "seven")?;
    world.all_come_as(SEVEN)?;
    let node = &world.cluster.nodes[0].netns;
    let counted = || -> Result<u64> {
        let shown = node.run_ok(&["nft", "-j", "list", "counter", "inet", "others", "kept"])?;
        let shown: serde_json::Value = serde_json::from_str(&shown)?;
        shown["nftables"][1]["counter"]["packets"].as_u64().context("no counter")
    };
    let before = counted()?;
    ensure!(world.cluster.pod("web-1-5")?.netns.ping(SERVER_V4, 10, 56)? == 10);
    ensure!(counted()? == before + 10, "{before}: {}", counted()?);
    reach::full_mesh(&world.cluster)?;
    agents::books(&world.cluster)
}
