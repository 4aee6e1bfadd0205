//! TCP throughput from pod to pod, one stream, while everything that one of them sends and receives is mirrored.
//! Runs alternate between the ways of mirroring; both ends share this machine's processors.

use anyhow::Result;
use podwire_datapath::core::abi::Direction;
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::{Desired, Endpoint, Hook, Mirror, SessionOptions, Target as Session};
use podwire_harness::{COLLECTOR_V4, Iperf, Scratch, Topology, TopologyOptions};
use podwire_tests::node::Node;
use serde::Serialize;

use crate::scene::{self, PODWIRE_PORT};
use crate::target::Target;
use podwire_bench::spread::Spread;

const MTU: u32 = 1600;
const VXLAN: &str = "kernel-vxlan";

/// How it is measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    pub rounds: usize,
    /// Of one run.
    pub bytes: u64,
}

/// A row of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: &'static str,
    /// Gbit/s.
    pub rate: Spread,
    /// Bytes that reached the collector per byte that the pod sent or received; tunnel headers come on top.
    pub copied: Spread,
    /// Segments sent again, all runs together.
    pub retransmits: u64,
    pub samples: Vec<f64>,
    pub copied_samples: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Unmirrored,
    Podwire,
    Kernel,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Unmirrored, "no mirror"),
    (Way::Podwire, "podwire, VXLAN mirror of everything"),
    (Way::Kernel, "tc u32 + mirred + kernel vxlan, of everything"),
];

/// Measures.
///
/// # Errors
/// Without root or iperf3.
pub fn measure(plan: Plan) -> Result<Vec<Row>> {
    let options = TopologyOptions { underlay_mtu: MTU, ..TopologyOptions::default() };
    let (scene, scratch) = (Topology::with(options)?, Scratch::new()?);
    scene::fix_neighbour(&scene)?;
    let _sink = scene::drop_at(&scene.collector, "eth0")?;
    scene::add_vxlan(&scene.node, VXLAN)?;
    let podwire = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let mut rows: Vec<Row> = WAYS
        .iter()
        .map(|(_, name)| Row {
            name,
            rate: Spread::default(),
            copied: Spread::default(),
            retransmits: 0,
            samples: Vec::new(),
            copied_samples: Vec::new(),
        })
        .collect();
    // One round more, which warms up and is not counted.
    for round in 0..=plan.rounds {
        for turn in 0..WAYS.len() {
            let index = (turn + round) % WAYS.len();
            let way = WAYS[index].0;
            let run = run(&scene, &podwire, way, plan.bytes)?;
            if round > 0 {
                rows[index].samples.push(run.rate);
                rows[index].copied_samples.push(run.copied);
                rows[index].retransmits += run.retransmits;
            }
        }
    }
    for row in &mut rows {
        row.rate = Spread::of(row.samples.iter().copied());
        row.copied = Spread::of(row.copied_samples.iter().copied());
    }
    Ok(rows)
}

struct Run {
    rate: f64,
    copied: f64,
    retransmits: u64,
}

fn run(scene: &Topology, podwire: &Node, way: Way, bytes: u64) -> Result<Run> {
    let [client, server] = &scene.pods[..] else { anyhow::bail!("two pods") };
    let interface = client.interface.as_str();
    match way {
        Way::Unmirrored => {}
        Way::Podwire => drop(podwire.apply(&mirror(&client.name, interface)?)?),
        Way::Kernel => {
            for hook in ["ingress", "egress"] {
                scene::mirred(&scene.node, interface, hook, VXLAN)?;
            }
        }
    }
    let before = (pod_bytes(scene, interface)?, scene.collector.counter("eth0", "rx", "bytes")?);
    let iperf = Iperf { destination: server.v4.clone(), port: 5201, bytes, udp_rate: None, cpus: None };
    let report = iperf.run(&client.netns, &server.netns)?;
    let after = (pod_bytes(scene, interface)?, scene.collector.counter("eth0", "rx", "bytes")?);
    match way {
        Way::Unmirrored => {}
        Way::Podwire => drop(podwire.apply(&Desired::default())?),
        Way::Kernel => drop(scene.node.run_ok(&["tc", "qdisc", "del", "dev", interface, "clsact"])?),
    }
    Ok(Run {
        rate: report.bits_per_second / 1e9,
        copied: (after.1 - before.1) as f64 / (after.0 - before.0) as f64,
        retransmits: report.retransmits,
    })
}

fn pod_bytes(scene: &Topology, interface: &str) -> Result<u64> {
    Ok(scene.node.counter(interface, "rx", "bytes")? + scene.node.counter(interface, "tx", "bytes")?)
}

fn mirror(name: &str, interface: &str) -> Result<Desired> {
    Ok(Desired {
        endpoints: vec![Endpoint {
            name: name.to_owned(),
            interface: interface.to_owned(),
            ..Endpoint::default()
        }],
        mirrors: vec![Mirror {
            name: "everything".into(),
            endpoints: vec![name.to_owned()],
            directions: Direction::ALL.to_vec(),
            rules: Vec::new(),
            stateful: false,
            target: Session::Tunnel {
                remote: COLLECTOR_V4.parse()?,
                tunnel: Tunnel::Vxlan { vni: 1, port: PODWIRE_PORT },
            },
            options: SessionOptions::default(),
        }],
        ..Desired::default()
    })
}

/// Rates under a mirror by the rate without, of the same round.
///
/// # Errors
/// When a row is missing.
pub fn targets(rows: &[Row]) -> Result<Vec<Target>> {
    let [base, podwire, kernel] = rows else { return Err(anyhow::anyhow!("three rows")) };
    let ratio = |row: &Row, base: &Row| {
        Spread::of(row.samples.iter().zip(&base.samples).map(|(row, base)| row / base))
    };
    Ok(vec![
        Target {
            what: format!("TCP: {} / {}", podwire.name, base.name),
            ratio: ratio(podwire, base),
            bound: Some(0.85),
            at_most: false,
        },
        Target {
            what: format!("TCP: {} / {}", kernel.name, base.name),
            ratio: ratio(kernel, base),
            bound: None,
            at_most: false,
        },
    ])
}
