//! Pods that look for a way around the guard and the tools: with what the kernel keeps beside a packet, with tags, with
//! super-packets of their own making.

use anyhow::{Context, Result, ensure};
use podwire_harness::{Capture, Cluster, ClusterOptions, KernelLog, Pod, RawSocket};
use podwire_tests::spoof::{self, Attempt, Books, Fate, Scene};
use podwire_tests::tool::{self, Counts, Tool};
use podwire_tests::{agents, reach, scapy};

fn native() -> Result<Cluster> {
    agents::cluster(ClusterOptions::default())
}

fn scene(cluster: &Cluster) -> Result<Scene<'_>> {
    let [(own, neighbour), _] = reach::near_and_far(cluster)?;
    let gateway = reach::node_of(cluster, own)?.gateway(own, false)?;
    own.netns.ping(&neighbour.v4, 1, 56)?;
    let to = reach::neighbour(own, &gateway)?;
    Ok(Scene { own, neighbour, to, gateway, destination: [&neighbour.v4, &neighbour.v6] })
}

/// Lets the pod's kernel write `skb->tc_index`, which the cable to the node does not clear: by the class of a filter.
fn set_class(pod: &Pod, class: u32) -> Result<()> {
    let class = format!("1:{class:x}");
    pod.netns.run(&["tc", "qdisc", "del", "dev", "eth0", "clsact"])?;
    pod.netns.run_ok(&["tc", "qdisc", "add", "dev", "eth0", "clsact"])?;
    let everything = "tc filter add dev eth0 egress protocol all u32 match u32 0 0 classid";
    let filter: Vec<&str> = everything.split(' ').chain([class.as_str()]).collect();
    pod.netns.run_ok(&filter).map(drop)
}

/// What podwire notes beside packets that a tool has seen; a pod that writes the same there gains nothing.
#[test]
fn root_a_pod_says_that_a_tool_has_seen_its_packets() -> Result<()> {
    let mut cluster = native()?;
    let policies = tool::redirect("inspect", "pod: web-1-5", "Egress", "Closed")
        + &tool::redirect("towards", "pod: web-1-6", "Ingress", "Closed");
    tool::put(&mut cluster, &policies, "inspect")?;
    let tool = Tool::start(&cluster, "inspect")?;
    let forbidden = Attempt {
        name: "the neighbour's IPv4",
        expression: "E/IP(src=N4,dst=D4)/U/M",
        fate: Fate::Dropped("SpoofedIp"),
    };
    let scene = scene(&cluster)?;
    let frames = spoof::frames(&scene, &[forbidden])?;
    let agent = cluster.nodes[0].agent()?;
    let session = tool::status(&cluster, "inspect")?["session"].as_u64().context("no session")?;
    let session = u32::try_from(session)?;
    let redirected = || Ok::<u64, anyhow::Error>(Counts::of(&cluster, "inspect")?.redirected);
    for class in [0x7100 | session, 0x7000 | session, 0x71ff, 0x7000] {
        set_class(scene.own, class)?;
        let mut books = Books::open(agent, scene.own, "dropped")?;
        let counted = books.send(&frames[0], spoof::TIMES)?;
        ensure!(spoof::agrees(forbidden.fate, &counted), "class {class:x}: {counted:?}");
        let before = redirected()?;
        let received = scene.own.netns.ping(&scene.neighbour.v4, 5, 56)?;
        ensure!(received == 5, "class {class:x}: {received} of 5 answers");
        ensure!(redirected()? >= before + 5, "class {class:x}: past the tool");
    }
    tool.all_returned(&cluster)?;
    agents::books(&cluster)
}

/// Tags stay on their link: what a pod tags reaches no other pod, here or on another node.
#[test]
fn root_a_pods_tags_reach_nobody() -> Result<()> {
    let cluster = native()?;
    let [(own, near), (_, far)] = reach::near_and_far(&cluster)?;
    let scene = scene(&cluster)?;
    let row = |name, expression| Attempt { name, expression, fate: Fate::Passes };
    let table = [
        row("one tag", "E/Dot1Q(vlan=5)/IP(src=O4,dst=D4)/U/M"),
        row("one tag, IPv6", "E/Dot1Q(vlan=5)/IPv6(src=O6,dst=D6)/U/M"),
        row("a service tag", "E/Dot1AD(vlan=5)/IP(src=O4,dst=D4)/U/M"),
        row("two tags", "E/Dot1AD(vlan=5)/Dot1Q(vlan=6)/IP(src=O4,dst=D4)/U/M"),
        row("two tags, IPv6", "E/Dot1Q(vlan=5)/Dot1Q(vlan=6)/IPv6(src=O6,dst=D6)/U/M"),
    ];
    for to in [near, far] {
        let scene = Scene { destination: [&to.v4, &to.v6], ..scene.clone() };
        let frames = spoof::frames(&scene, &table)?;
        let capture = Capture::start(&to.netns, "eth0", cluster.nodes[0].scratch.path(), "", 0)?;
        let socket = RawSocket::open(&own.netns, "eth0")?;
        frames.iter().try_for_each(|frame| spoof::send(&socket, frame))?;
        let counts = spoof::seen(&capture.stop(), &frames)?;
        let came = spoof::rows(&table, &counts, |_, count| count > 0);
        ensure!(came.is_empty(), "at {}: {came:?}", to.name);
    }
    agents::books(&cluster)
}

/// Super-packets with a virtio header of the pod's own (packet(7), `PACKET_VNET_HDR`): flags, kind, header length, segment
/// size, checksum's start and offset. Each is `hex of the header` and `hex of the frame`; the kernel may refuse it.
const SEND_WITH_HEADER: &str = r#"
import socket, sys
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.setsockopt(263, 15, 1)
tap.bind(("eth0", 0))
for line in sys.argv[1:]:
    header, frame = map(bytes.fromhex, line.split(":"))
    for _ in range(3):
        try:
            tap.send(header + frame)
        except OSError:
            pass
"#;

fn header(kind: u8, length: u16, size: u16, start: u16, offset: u16) -> String {
    let mut bytes = vec![1, kind];
    for number in [length, size, start, offset] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// In another's name they are dropped; in the pod's own the kernel cuts them up somewhere, and complains of nothing.
#[test]
fn root_super_packets_of_a_pods_own_making() -> Result<()> {
    let cluster = native()?;
    let [(own, near), (_, far)] = reach::near_and_far(&cluster)?;
    let scene = scene(&cluster)?;
    let mut log = KernelLog::from_now()?;
    let payload = "Raw(b'hostile#0001!' + bytes(40000))";
    for (source, source6, spoofed) in [(&own.v4, &own.v6, false), (&near.v4, &near.v6, true)] {
        for to in [near, far] {
            let names = [
                ("OM", own.mac.as_str()),
                ("TO", &scene.to),
                ("S4", source),
                ("S6", source6),
                ("D4", &to.v4),
                ("D6", &to.v6),
            ];
            let expressions = [
                format!("Ether(src=OM,dst=TO)/IP(src=S4,dst=D4)/TCP(sport=4000,dport=9,flags='A')/{payload}"),
                format!(
                    "Ether(src=OM,dst=TO)/IPv6(src=S6,dst=D6)/TCP(sport=4000,dport=9,flags='A')/{payload}"
                ),
                format!("Ether(src=OM,dst=TO)/IP(src=S4,dst=D4)/UDP(sport=4000,dport=9)/{payload}"),
                format!("Ether(src=OM,dst=TO)/IPv6(src=S6,dst=D6)/UDP(sport=4000,dport=9)/{payload}"),
            ];
            let frames = scapy::frames(&names, "", &expressions)?;
            let mut lines = Vec::new();
            for (number, frame) in frames.iter().enumerate() {
                let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
                let (v6, udp) = (number % 2 == 1, number >= 2);
                let start = if v6 { 54 } else { 34 };
                let (length, offset) = if udp { (start + 8, 6) } else { (start + 20, 16) };
                let right = match (udp, v6) {
                    (false, false) => 1,
                    (false, true) => 4,
                    (true, _) => 5,
                };
                for (kind, size) in
                    [(right, 1300), (right, 1), (right, 60_000), (3, 1300), (4, 1300), (1, 1300), (5, 8)]
                {
                    lines.push(format!("{}:{hex}", header(kind, length, size, start, offset)));
                }
                // The headers end where they do not.
                lines.push(format!("{}:{hex}", header(right, 14, 1300, start, offset)));
                lines.push(format!("{}:{hex}", header(right, 2000, 1300, start, offset)));
            }
            let capture = Capture::start(&to.netns, "eth0", cluster.nodes[0].scratch.path(), "", 200)?;
            for part in lines.chunks(9) {
                let mut words = vec!["/usr/bin/python3", "-c", SEND_WITH_HEADER];
                words.extend(part.iter().map(String::as_str));
                own.netns.run_ok(&words)?;
            }
            let bytes = std::fs::read(capture.stop())?;
            let mark = b"hostile#0001!";
            let came = bytes.windows(mark.len()).any(|part| part == mark);
            ensure!(came != spoofed, "spoofed: {spoofed}, to {}: came {came}", to.name);
        }
    }
    log.check()?;
    reach::full_mesh(&cluster)?;
    agents::books(&cluster)
}
