//! The kernel's programs against the same stages in user space, on random frames and rule sets.
//!
//! The object is loaded a second time, by libbpf, onto the maps that the library pinned and filled, and run by
//! `BPF_PROG_TEST_RUN`. Verdict, frame, chosen sessions and counters must be those of `podwire_core::stage` over
//! the same compiled tables; the bytes of a dressed copy those of `wire::encap::encapsulate`.
//!
//! `PODWIRE_DIFFERENTIAL_CASES` sets the number of frames (10,000 unless said), `PODWIRE_DIFFERENTIAL_SEED` the
//! first state of the generator.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod frames;
mod kernel;
mod rules;

use anyhow::{Context, Result};
use podwire_datapath::compile::tables::MemoryTables;
use podwire_datapath::compile::{self, EndpointRules};
use podwire_datapath::core::abi::{Direction, Generation, Reason, SessionKind, SessionRow};
use podwire_datapath::core::stage::{self, Copies, Packet, Tables, copy::Shape};
use podwire_datapath::core::wire::encap::{
    Encapsulation, OuterAddresses, OuterTemplate, Tunnel, encapsulate,
};
use podwire_datapath::core::wire::ethernet;
use podwire_datapath::{Counters, Desired, Endpoint, Hook, Mirror, Options, Target};
use podwire_harness::{COLLECTOR_V4, NODE_V4, Scratch, Topology};
use podwire_tests::node::Node;

use frames::Random;
use kernel::Kernel;

const FRAMES_PER_RULE_SET: usize = 200;
const PORT: u16 = 1111;
/// The underlay's MTU: small, so that many copies have to be cut.
const MTU: u32 = 1280;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A frame for the stages in user space.
struct Frame<'a>(&'a [u8]);

impl Packet for Frame<'_> {
    fn frame_len(&self) -> u32 {
        self.0.len() as u32
    }

    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let end =
            offset.checked_add(N).filter(|end| *end <= podwire_datapath::core::abi::limits::HEADER_WINDOW)?;
        self.0.get(offset..end)?.try_into().ok()
    }
}

fn targets() -> Vec<Target> {
    let remote = COLLECTOR_V4.parse().expect("an address");
    let tunnel = |vni| Target::Tunnel { remote, tunnel: Tunnel::Vxlan { vni, port: PORT } };
    vec![tunnel(1), tunnel(2), Target::Device { name: "tap0".into() }]
}

#[test]
fn root_programs_equal_the_stages_in_user_space() -> Result<()> {
    let cases = setting("PODWIRE_DIFFERENTIAL_CASES", 10_000);
    let seed = setting("PODWIRE_DIFFERENTIAL_SEED", 0x5eed);
    let scratch = Scratch::new()?;
    let scene = Topology::with(podwire_harness::TopologyOptions { underlay_mtu: MTU, ..Default::default() })?;
    scene.local_device("tap0", 65535)?;
    scene.warm_up()?;
    // No traffic but the test's: counters are compared exactly.
    for pod in &scene.pods {
        let knob = format!("net.ipv6.conf.{}.disable_ipv6=1", pod.interface);
        scene.node.run_ok(&["sysctl", "-qw", &knob])?;
        pod.netns.run_ok(&["sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=1"])?;
    }
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let mut random = Random::new(seed);
    let mut state = State::new(&scene, &node, &scratch)?;
    let mut seen = Seen::default();
    while seen.frames < cases {
        state.change_rules(&node, &mut random)?;
        for _ in 0..FRAMES_PER_RULE_SET {
            let frame = frames::frame(&mut random);
            state.compare(&node, &frame, &mut random, &mut seen).with_context(|| {
                format!(
                    "seed {seed}, frame {} of {cases}: {}\nrules {:?}",
                    seen.frames,
                    hex(&frame),
                    state.rules
                )
            })?;
            seen.frames += 1;
        }
    }
    println!("{seen:?}, seed {seed}");
    // A generator that never hits would prove nothing.
    let some = cases / 50;
    assert!(
        seen.matched > some && seen.unmatched > some && seen.dressed > some && seen.cut > some / 4,
        "{seen:?}"
    );
    Ok(())
}

/// What the frames were good for.
#[derive(Debug, Default)]
struct Seen {
    frames: u64,
    matched: u64,
    unmatched: u64,
    dressed: u64,
    cut: u64,
}

struct State {
    kernel: Kernel,
    model: MemoryTables,
    desired: Desired,
    rules: Vec<EndpointRules>,
    interfaces: Vec<(u32, u32)>,
    sessions: Vec<u32>,
    macs: ([u8; 6], [u8; 6]),
    generation: Generation,
}

impl State {
    fn new(scene: &Topology, node: &Node, scratch: &Scratch) -> Result<Self> {
        let endpoints = scene
            .pods
            .iter()
            .map(|pod| Endpoint { name: format!("default/{}", pod.name), interface: pod.interface.clone() })
            .collect();
        let desired = Desired { endpoints, mirrors: Vec::new() };
        let applied = node.apply(&desired)?;
        let bpf = scratch.bpf().join("podwire/v1/maps");
        let kernel = Kernel::open(&scene.node, &bpf)?;
        let interfaces = applied
            .endpoints
            .iter()
            .map(|endpoint| {
                let ifindex = endpoint.ifindex.context("an interface")?;
                Ok((ifindex, kernel.slot(ifindex)?))
            })
            .collect::<Result<Vec<_>>>()?;
        let mut model = MemoryTables::new();
        model.set_copy_mark(Options::default().copy_mark);
        for (ifindex, slot) in &interfaces {
            model.set_endpoint_slot(*ifindex, *slot);
        }
        let macs = (mac(scene, true)?, mac(scene, false)?);
        Ok(Self {
            kernel,
            model,
            desired,
            rules: Vec::new(),
            interfaces,
            sessions: Vec::new(),
            macs,
            generation: Generation(0),
        })
    }

    /// New random rules, applied by the library; the model gets the same tables.
    fn change_rules(&mut self, node: &Node, random: &mut Random) -> Result<()> {
        let names: Vec<String> =
            self.desired.endpoints.iter().map(|endpoint| endpoint.name.clone()).collect();
        // All sessions stay, so that their numbers do.
        self.desired.mirrors = targets()
            .into_iter()
            .enumerate()
            .map(|(number, target)| Mirror {
                name: format!("m{number}"),
                endpoints: names.iter().filter(|_| random.chance(70)).cloned().collect(),
                directions: rules::directions(random),
                rules: rules::rules(random),
                target,
            })
            .collect();
        let applied = node.apply(&self.desired)?;
        self.generation = Generation(applied.generation);
        self.sessions = targets()
            .iter()
            .map(|target| {
                let state = applied.sessions.iter().find(|session| session.target == *target);
                Ok(state.context("a session")?.session)
            })
            .collect::<Result<_>>()?;
        self.rules = self
            .interfaces
            .iter()
            .zip(&names)
            .map(|((_, slot), name)| self.endpoint_rules(*slot, name))
            .collect();
        let image = compile::compile(&self.rules)?;
        self.model.write(image.relocate(self.generation.bank()));
        self.model.set_generation(self.generation);
        Ok(())
    }

    fn endpoint_rules(&self, slot: u32, name: &str) -> EndpointRules {
        let of = |direction| {
            let mirrors = self.desired.mirrors.iter().zip(&self.sessions);
            mirrors
                .filter(|(mirror, _)| {
                    mirror.directions.contains(&direction)
                        && mirror.endpoints.iter().any(|other| other == name)
                })
                .map(|(mirror, session)| compile::Mirror {
                    session: *session as u16,
                    rules: mirror.rules.clone(),
                })
                .collect()
        };
        EndpointRules { slot, ingress: of(Direction::Ingress), egress: of(Direction::Egress) }
    }

    fn compare(&self, node: &Node, frame: &[u8], random: &mut Random, seen: &mut Seen) -> Result<()> {
        let (ifindex, slot) = self.interfaces[random.below(self.interfaces.len())];
        let direction = if random.chance(50) { Direction::Ingress } else { Direction::Egress };
        let mark = if random.chance(3) { Options::default().copy_mark } else { 0 };
        let before = node.counters()?;
        let ran = self.kernel.pod(direction, ifindex, mark, frame)?;
        let after = node.counters()?;
        anyhow::ensure!(ran.code == u32::MAX, "the packet goes on to the next program: {}", ran.code);
        anyhow::ensure!(ran.data == frame, "the original is not changed");

        let old = (self.model.endpoint_counters(slot, direction), self.reasons());
        let decision = stage::pod(direction, ifindex, mark, &Frame(frame), &self.model);
        anyhow::ensure!(decision.verdict == stage::Verdict::Pass);
        let (was, is) =
            (old.0.context("a row")?, self.model.endpoint_counters(slot, direction).context("a row")?);
        let name = &self.desired.endpoints
            [self.interfaces.iter().position(|(other, _)| *other == ifindex).context("an endpoint")?]
        .name;
        let (kernel_was, kernel_is) =
            (endpoint(&before, name, direction)?, endpoint(&after, name, direction)?);
        anyhow::ensure!(kernel_is.received_packets - kernel_was.received_packets == 1);
        anyhow::ensure!(
            kernel_is.passed_bytes - kernel_was.passed_bytes == is.passed_bytes - was.passed_bytes
                && kernel_is.mirrored_packets - kernel_was.mirrored_packets
                    == is.mirrored_packets - was.mirrored_packets,
            "endpoint counters: kernel {kernel_is:?} after {kernel_was:?}, model {is:?} after {was:?}"
        );
        for ((reason, from), to) in STAGE_REASONS.iter().zip(&old.1).zip(&self.reasons()) {
            let kernel = reason_count(&after, *reason) - reason_count(&before, *reason);
            anyhow::ensure!(kernel == to - from, "{reason:?}: kernel {kernel}, model {}", to - from);
        }
        self.compare_sessions(&before, &after, &decision.copies)?;
        if decision.copies.sessions == 0 {
            seen.unmatched += 1;
            return Ok(());
        }
        seen.matched += 1;
        self.compare_copy(node, frame, &decision.copies, seen)
    }

    /// Every session that the model chose gained one copy, and no other.
    fn compare_sessions(&self, before: &Counters, after: &Counters, copies: &Copies) -> Result<()> {
        for session in &self.sessions {
            let gained = matched(after, *session) - matched(before, *session);
            let chosen = (0..64u32).filter(|slot| copies.sessions >> slot & 1 != 0).any(|slot| {
                self.model
                    .ruleset(copies.ruleset)
                    .is_some_and(|row| u32::from(row.sessions[slot as usize]) == *session)
            });
            anyhow::ensure!(
                gained == u64::from(chosen),
                "session {session}: kernel {gained}, model {chosen}"
            );
        }
        Ok(())
    }

    /// Dresses the frame for the first tunnel session, in the kernel and in user space.
    fn compare_copy(&self, node: &Node, frame: &[u8], copies: &Copies, seen: &mut Seen) -> Result<()> {
        let tunnel = self.sessions[0];
        let row = self.model.ruleset(copies.ruleset).context("a rule set")?;
        let Some(slot) =
            (0..64).find(|slot| copies.sessions >> slot & 1 != 0 && u32::from(row.sessions[*slot]) == tunnel)
        else {
            return Ok(());
        };
        let only = Copies { sessions: 1 << slot, ..*copies };
        let before = node.counters()?;
        let ran = self.kernel.mirror(&only.row(), frame)?;
        let after = node.counters()?;
        let Some((expected, cut)) = self.dress(frame, &only, matched(&before, tunnel) + 1) else {
            // Too many tags: it is lost, for that reason.
            let lost = reason_count(&after, Reason::EncapsulationRefused)
                - reason_count(&before, Reason::EncapsulationRefused);
            anyhow::ensure!(lost == 1, "a frame that cannot be dressed is counted");
            return Ok(());
        };
        anyhow::ensure!(ran.code == 2, "the mirror program keeps the frame: {}", ran.code);
        anyhow::ensure!(ran.data == expected, "copy: kernel {}\nmodel {}", hex(&ran.data), hex(&expected));
        seen.dressed += 1;
        seen.cut += u64::from(cut);
        Ok(())
    }

    /// The copy as the model makes it, and whether it was cut.
    fn dress(&self, frame: &[u8], copies: &Copies, number: u64) -> Option<(Vec<u8>, bool)> {
        let addresses = OuterAddresses::new(NODE_V4.parse().ok()?, COLLECTOR_V4.parse().ok()?)?;
        let description = Encapsulation::new(addresses, Tunnel::Vxlan { vni: 1, port: PORT });
        let template = OuterTemplate::new(&description).ok()?;
        let row = SessionRow { kind: SessionKind::Tunnel as u32, ifindex: 0, template };
        let whole = Shape::new(&copies.row(), frame.len() as u32, false, 0)?;
        let fits = whole.wire_len(&copies.row(), &row.template) <= MTU;
        let shape = if fits { whole } else { whole.cut(&row.template, MTU)? };
        let inner = frame.get(..shape.inner_len as usize)?;
        let header = ethernet::Header { source: self.macs.0, destination: self.macs.1, ether_type: 0 };
        let mut out = vec![0; frame.len() + 200];
        let packet = shape.per_packet(&copies.row(), number as u16);
        let len = encapsulate(&row.template, &packet, &header, inner, &mut out).ok()?;
        out.truncate(len);
        Some((out, !fits))
    }

    fn reasons(&self) -> Vec<u64> {
        STAGE_REASONS.iter().map(|reason| self.model.reason_counter(*reason)).collect()
    }
}

/// Reasons that a pod's hook counts.
const STAGE_REASONS: [Reason; 3] = [Reason::Malformed, Reason::CopyOfCopy, Reason::EndpointMissing];

fn reason_count(counters: &Counters, reason: Reason) -> u64 {
    counters.reasons.iter().find(|(other, _)| *other == reason).map_or(0, |(_, count)| *count)
}

fn matched(counters: &Counters, session: u32) -> u64 {
    counters
        .sessions
        .iter()
        .find(|(number, ..)| *number == session)
        .map_or(0, |(_, _, row)| row.matched_packets)
}

fn endpoint(
    counters: &Counters,
    name: &str,
    direction: Direction,
) -> Result<podwire_datapath::core::abi::EndpointCounters> {
    let found = counters.endpoints.iter().find(|(other, way, _)| other == name && *way == direction);
    Ok(found.context("an endpoint's counters")?.2)
}

/// MAC address of the underlay: the node's end, or the collector's.
fn mac(scene: &Topology, node: bool) -> Result<[u8; 6]> {
    let text = if node {
        scene.node.ip(&["-j", "link", "show", "dev", "uplink0"])?
    } else {
        scene.collector.ip(&["-j", "link", "show", "dev", "eth0"])?
    };
    let parsed: serde_json::Value = serde_json::from_str(&text)?;
    let mut mac = [0; 6];
    let address = parsed[0]["address"].as_str().context("an address")?;
    for (byte, part) in mac.iter_mut().zip(address.split(':')) {
        *byte = u8::from_str_radix(part, 16)?;
    }
    Ok(mac)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
