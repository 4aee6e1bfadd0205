//! A pod's packets to another pod, with and without copies: Open vSwitch's userspace datapath, which forwards and
//! mirrors, against the kernel's forwarding with podwire's mirror beside it. All get the same offer; what counts is
//! what arrives.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwire_datapath::core::abi::Direction;
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::{Desired, Endpoint, Hook, Mirror, SessionOptions, Target as Session};
use podwire_harness::{COLLECTOR_V4, RawSocket, Scratch, Topology, TopologyOptions};
use podwire_tests::node::Node;
use serde::Serialize;

use crate::ovs::{Copies, Switch};
use crate::scene::{self, PODWIRE_PORT};
use crate::target::Target;
use podwire_bench::books::Books;
use podwire_bench::frame;
use podwire_bench::generator::{self, Generator};
use podwire_bench::kernel::Attached;
use podwire_bench::spread::Spread;

const MTU: u32 = 1600;
const TAP: &str = "tap0";
/// Frames between two looks at the clock.
const BATCH: u32 = 16;

/// How it is measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    pub rounds: usize,
    /// Frames per second that are offered.
    pub offer: u32,
    /// Of one run.
    pub milliseconds: u64,
    pub frame_len: usize,
}

/// A row of the result.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub wants_copies: bool,
    /// Packets per second that the other pod received.
    pub delivered: Spread,
    /// Copies per second that arrived.
    pub copied: Spread,
    pub offered_packets: u64,
    pub delivered_packets: u64,
    pub copied_packets: u64,
    /// Packets per second, a value for each round.
    pub samples: Vec<f64>,
    pub copied_samples: Vec<f64>,
}

const WAYS: [(Copies, &str, &str); 3] = [
    (Copies::None, "kernel forwarding, no podwire", "OVS userspace datapath, forward"),
    (
        Copies::Local,
        "kernel forwarding + podwire local mirror",
        "OVS userspace datapath, forward + mirror to a port",
    ),
    (
        Copies::Vxlan,
        "kernel forwarding + podwire VXLAN mirror",
        "OVS userspace datapath, forward + mirror to VXLAN",
    ),
];

/// One side: pods, and what drops packets once they were counted.
struct Side {
    scene: Topology,
    scratch: Scratch,
    socket: RawSocket,
    frame: Vec<u8>,
    pod: Books,
    node: Books,
    collector: Books,
    _sinks: [Attached; 3],
}

impl Side {
    fn new(frame_len: usize, switched: bool) -> Result<Self> {
        let options = TopologyOptions { underlay_mtu: MTU, ..TopologyOptions::default() };
        let (scene, scratch) = (Topology::with(options)?, Scratch::new()?);
        scene::fix_neighbour(&scene)?;
        let out = scene.local_device(TAP, MTU)?;
        let [from, to] = &scene.pods[..] else { anyhow::bail!("two pods") };
        // A switch forwards what is addressed to the other pod, and the node's own stack must not do so as well.
        let (netns, interface) = if switched { (&to.netns, "eth0") } else { (&scene.node, &*from.interface) };
        let mac = generator::mac(netns, interface)?;
        if switched {
            scene.node.run_ok(&["sysctl", "-qw", "net.ipv4.ip_forward=0"])?;
        }
        Ok(Self {
            socket: RawSocket::open(&from.netns, "eth0")?,
            frame: frame::udp(mac, [10, 10, 1, 5], [10, 10, 1, 6], frame_len),
            pod: Books::open(&to.netns)?,
            node: Books::open(&scene.node)?,
            collector: Books::open(&scene.collector)?,
            _sinks: [
                scene::drop_at(&to.netns, "eth0")?,
                scene::drop_at(&scene.node, &out)?,
                scene::drop_at(&scene.collector, "eth0")?,
            ],
            scene,
            scratch,
        })
    }

    fn standing(&self, copies: Copies) -> Result<(u64, u64)> {
        let of = |books: &Books, name: &str| -> Result<u64> {
            let (packets, _) = *books.received()?.get(name).with_context(|| format!("no {name}"))?;
            Ok(packets)
        };
        let copied = match copies {
            Copies::None => 0,
            Copies::Local => of(&self.node, &format!("{TAP}-out"))?,
            Copies::Vxlan => of(&self.collector, "eth0")?,
        };
        Ok((of(&self.pod, "eth0")?, copied))
    }

    /// Offers, and says what was offered, delivered and copied.
    fn run(&self, plan: Plan, copies: Copies) -> Result<(u64, u64, u64)> {
        let before = self.standing(copies)?;
        let offered = std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.offer(plan));
            thread.join().map_err(|_| anyhow::anyhow!("the generator panicked"))?
        })?;
        std::thread::sleep(Duration::from_millis(100));
        let after = self.standing(copies)?;
        Ok((offered, after.0 - before.0, after.1 - before.1))
    }

    /// By a packet socket, not by XDP as elsewhere: a frame that came by XDP takes a page of a socket's buffer,
    /// of which the switch's would soon be full.
    fn offer(&self, plan: Plan) -> Result<u64> {
        Generator::become_it()?;
        let (started, mut offered) = (Instant::now(), 0u64);
        let end = Duration::from_millis(plan.milliseconds);
        while started.elapsed() < end {
            let due = started.elapsed().as_nanos() * u128::from(plan.offer) / 1_000_000_000;
            if u128::from(offered) >= due {
                std::thread::sleep(Duration::from_micros(20));
                continue;
            }
            for _ in 0..BATCH {
                self.socket.send(&self.frame)?;
            }
            offered += u64::from(BATCH);
        }
        Ok(offered)
    }
}

/// Measures.
///
/// # Errors
/// Without root or Open vSwitch.
pub fn measure(plan: Plan) -> Result<Vec<Row>> {
    let (ours, theirs) = (Side::new(plan.frame_len, false)?, Side::new(plan.frame_len, true)?);
    let podwire = Node::open(&ours.scene.node, &ours.scratch, Hook::Auto)?;
    let [from, to] = &theirs.scene.pods[..] else { anyhow::bail!("two pods") };
    let switch = Switch::start(&theirs.scene.node, theirs.scratch.path(), from, to, TAP)?;
    let mac = generator::mac(&theirs.scene.collector, "eth0")?.map(|byte| format!("{byte:02x}")).join(":");
    switch.fix_neighbour(&mac)?;
    let mut rows: Vec<Row> = WAYS
        .iter()
        .flat_map(|(copies, ours, theirs)| [(*copies, *ours), (*copies, *theirs)])
        .map(|(copies, name)| Row::new(name, copies != Copies::None))
        .collect();
    // One round more, which warms up and is not counted.
    for round in 0..=plan.rounds {
        for turn in 0..rows.len() {
            let index = (turn + round) % rows.len();
            let copies = WAYS[index / 2].0;
            let run = if index.is_multiple_of(2) {
                podwire.apply(&desired(&ours, copies)?)?;
                ours.run(plan, copies)?
            } else {
                switch.mirror(from, copies, TAP)?;
                theirs.run(plan, copies)?
            };
            if round > 0 {
                rows[index].add(run, plan);
            }
        }
    }
    rows.iter_mut().for_each(Row::finish);
    Ok(rows)
}

fn desired(side: &Side, copies: Copies) -> Result<Desired> {
    let target = match copies {
        Copies::None => return Ok(Desired::default()),
        Copies::Local => Session::Device { name: TAP.into() },
        Copies::Vxlan => Session::Tunnel {
            remote: COLLECTOR_V4.parse()?,
            tunnel: Tunnel::Vxlan { vni: 1, port: PODWIRE_PORT },
        },
    };
    let pod = side.scene.pods.first().context("a pod")?;
    Ok(Desired {
        endpoints: vec![Endpoint {
            name: pod.name.clone(),
            interface: pod.interface.clone(),
            ..Endpoint::default()
        }],
        mirrors: vec![Mirror {
            name: "everything".into(),
            endpoints: vec![pod.name.clone()],
            directions: vec![Direction::Egress],
            rules: Vec::new(),
            stateful: false,
            target,
            options: SessionOptions::default(),
        }],
        ..Desired::default()
    })
}

impl Row {
    fn new(name: &'static str, wants_copies: bool) -> Self {
        Self { name, wants_copies, ..Self::default() }
    }

    fn add(&mut self, (offered, delivered, copied): (u64, u64, u64), plan: Plan) {
        let rate = |packets: u64| packets as f64 * 1000.0 / plan.milliseconds as f64;
        self.offered_packets += offered;
        self.delivered_packets += delivered;
        self.copied_packets += copied;
        self.samples.push(rate(delivered));
        self.copied_samples.push(rate(copied));
    }

    fn finish(&mut self) {
        self.delivered = Spread::of(self.samples.iter().copied());
        self.copied = Spread::of(self.copied_samples.iter().copied());
    }
}

/// What arrives with podwire by what arrives with Open vSwitch, of the same round.
pub fn targets(rows: &[Row]) -> Vec<Target> {
    let ratio = |ours: &[f64], theirs: &[f64]| {
        Spread::of(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs))
    };
    let target = |what: String, ratio| Target { what, ratio, bound: None, at_most: false };
    let mut targets = Vec::new();
    for (pair, (_, ours, _)) in rows.chunks_exact(2).zip(WAYS) {
        let [own, rival] = pair else { continue };
        targets.push(target(format!("{ours} / OVS: delivered"), ratio(&own.samples, &rival.samples)));
        if own.wants_copies {
            let ratio = ratio(&own.copied_samples, &rival.copied_samples);
            targets.push(target(format!("{ours} / OVS: copies"), ratio));
        }
    }
    targets
}
