//! The datapath of one node. In: desired state. Out: the kernel does it.
//!
//! Tables are double-banked: an apply fills the idle bank, reads it back, and flips one word. What fails before
//! the flip changes nothing; a packet sees one bank, whole.

mod attach;
mod captured;
mod connections;
mod devices;
mod flows;
pub(crate) mod health;
mod install;
mod kernel;
mod returns;
mod traced;
mod ways;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use aya::Ebpf;
use podwire_core::abi::{
    Direction, EgressCounters, EgressRow, EndpointCounters, Generation, GuardCounters, Liveness, NetworkRow,
    PolicyCounters, PolicyRow, Reason, SessionCounters, SessionRow, TargetRow, limits,
};

use crate::compile::Image;
use crate::desired::Desired;
use crate::error::Error;
use crate::inject::{Attachment, Injector};
use crate::internal;
use crate::links::{self, Hook, Place};
use crate::log_carrier::{self, LogCarrier};
use crate::maps::{Maps, Table};
use crate::netdev::{Link, Netdev};
use crate::observe::{Names, Turns, Watch, WatchOptions};
use crate::pins::Pins;
use crate::plan::{self, SessionKey};
use crate::program;
use crate::reader::Reader;
use crate::relay::{self, Relay};
use crate::slots::Slots;
use crate::status::{Applied, Counters, sum_egress, sum_endpoint, sum_guard, sum_policy, sum_session};

use health::Health;
use returns::Returns;
use ways::Ways;

/// How a datapath is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for pins. A bpffs is mounted there, or at `/sys/fs/bpf` above it, when there is none.
    pub bpffs: PathBuf,
    /// How programs are attached.
    pub hook: Hook,
    /// Name of the private mirror device; its peer's has `-p` behind it.
    pub mirror_device: String,
    /// Name of the device that cuts super-packets up; its peer's has `-p` behind it.
    pub segment_device: String,
    /// The interface towards other nodes, by which tunnelled packets come back from tools.
    pub uplink: Option<String>,
    /// Whether the agent's own encapsulation (snapshots) may leave by AF_XDP, past the stack, where the uplink has neither
    /// programs at its egress hook nor a discipline that shapes nor somebody who listens (`tcpdump`). Without the feature
    /// `xsk` it means nothing.
    pub fast_uplink: bool,
    /// Whether pods' interfaces get the overlay's MTU where podwire forwards: both ends, downwards only.
    pub lower_pod_mtu: bool,
    /// `skb->mark` of copies. Only copies carry it; marks of other packets are never changed.
    pub copy_mark: u32,
    /// Name of the VXLAN device towards the other nodes.
    pub overlay_device: String,
    /// UDP port of the overlay, the same on all nodes.
    pub overlay_port: u16,
    /// VNI of what pods send to each other across nodes, below 2^23; those above name Egress policies.
    pub overlay_vni: u32,
    /// The bits of `skb->mark` that say with which address a packet leaves; adjacent, 2 at least. Other bits are
    /// left alone.
    pub egress_mark: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bpffs: PathBuf::from("/sys/fs/bpf/podwire"),
            hook: Hook::Auto,
            mirror_device: "pw-mirror".into(),
            segment_device: "pw-segment".into(),
            uplink: None,
            fast_uplink: true,
            lower_pod_mtu: true,
            copy_mark: 0x7077_0001,
            overlay_device: "pw-overlay".into(),
            overlay_port: 4789,
            overlay_vni: 1,
            egress_mark: 0x0fff_0000,
        }
    }
}

/// A loaded datapath. Dropping it leaves everything in force; see [`Datapath::remove`].
///
/// It works in the network namespace of the thread that opened it, blocks while it talks to the kernel, and
/// must not be used from an asynchronous runtime's own threads.
pub struct Datapath {
    options: Options,
    tcx: bool,
    pins: Pins,
    bpf: Ebpf,
    maps: Maps,
    netdev: Netdev,
    relay: Relay,
    reader: Reader,
    mirror_ifindex: u32,
    segment_ifindex: u32,
    generation: Generation,
    /// Endpoint name and interface index by slot.
    endpoints: Slots<(String, u32)>,
    sessions: Slots<SessionKey>,
    /// Names by number.
    policies: Slots<String>,
    /// What was last said of a session's target.
    live: HashMap<u32, Liveness>,
    returns: Returns,
    health: HashMap<String, Health>,
    ways: Ways,
    flows_are_empty: bool,
    /// What releases with other tables left is taken down.
    alone: bool,
    names: Arc<Names>,
    /// Who reads the rings of observations.
    turns: Arc<Turns>,
    desired: Desired,
    /// What the bank in force was made of.
    in_force: Option<InForce>,
    /// Hooks that carry a program of ours: interface index, direction, name of the interface.
    attached: HashMap<(u32, Direction), String>,
    /// Hooks whose program is this run's.
    updated: HashSet<(u32, Direction)>,
    /// Endpoints whose packets somebody traces: they have programs for as long.
    traced: BTreeSet<String>,
    /// Programs tell what leaves the node.
    exits_are_seen: bool,
    /// A program tells what the kernel's own stack drops.
    kernel_drops: Option<kernel::Attached>,
    /// It knows where the kernel has what it looks at.
    kernel_is_described: bool,
    /// The endpoints of this node among the targets of the generation in force.
    pods: Vec<(u32, String)>,
    _log: Option<LogCarrier>,
}

/// What a generation was made of.
#[derive(PartialEq)]
struct InForce {
    image: Image,
    sessions: Vec<SessionRow>,
    policies: Vec<PolicyRow>,
    network: NetworkRow,
    targets: Vec<TargetRow>,
    egresses: Vec<EgressRow>,
}

impl Datapath {
    /// Loads the programs, adopts what an earlier run pinned, and makes the private mirror device.
    ///
    /// Nothing that is in force changes before the first [`apply`](Self::apply).
    ///
    /// # Errors
    /// `PermissionDenied`, `Unsupported`, `Busy` when another process holds the folder, `ForeignState` when its
    /// maps have another layout, `Kernel`.
    pub fn open(options: Options) -> Result<Self, Error> {
        let tcx = links::resolve(options.hook)?;
        let pins = Pins::open(&options.bpffs)?;
        let (mut bpf, mut maps) = program::load(&pins)?;
        let log = log_carrier::start(&mut bpf);
        let relay = Relay::start(
            maps.take_relay()?,
            Table::reopen(&pins, "RELAY_COUNTERS")?,
            Table::reopen(&pins, "CLOCK")?,
            options.copy_mark,
            options.fast_uplink.then(|| options.uplink.clone()).flatten(),
        )?;
        let reader = Reader::start(
            maps.take_frames()?,
            Table::reopen(&pins, "RELAY_COUNTERS")?,
            Table::reopen(&pins, "CLOCK")?,
        )?;
        let netdev = Netdev::open()?;
        let config = maps.config.get(0)?;
        let mut datapath = Self {
            tcx,
            pins,
            bpf,
            maps,
            netdev,
            relay,
            reader,
            mirror_ifindex: config.mirror_ifindex,
            segment_ifindex: config.segment_ifindex,
            generation: Generation(config.generation),
            endpoints: Slots::new(limits::ENDPOINTS),
            sessions: Slots::new(limits::SESSIONS),
            policies: Slots::new(limits::POLICIES),
            live: HashMap::new(),
            returns: Returns::default(),
            health: HashMap::new(),
            ways: Ways::new(options.egress_mark),
            flows_are_empty: false,
            alone: false,
            names: Arc::default(),
            turns: Arc::default(),
            desired: Desired::default(),
            in_force: None,
            attached: HashMap::new(),
            updated: HashSet::new(),
            traced: BTreeSet::new(),
            exits_are_seen: false,
            kernel_drops: None,
            kernel_is_described: false,
            pods: Vec::new(),
            _log: log,
            options,
        };
        let links = datapath.netdev.links()?;
        datapath.ensure_private_devices(&links)?;
        datapath.find_attached(&links)?;
        datapath.find_returns()?;
        Ok(datapath)
    }

    /// Makes `desired` so. What it does not name is taken down.
    ///
    /// Endpoints whose interface does not exist yet come into force by a later [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// `Invalid`, `TableFull`: nothing was changed. `Kernel` and others: what was in force stays, or, when it is
    /// an attachment that failed, the tables are in force and the next refresh tries again.
    pub fn apply(&mut self, desired: &Desired) -> Result<Applied, Error> {
        plan::check(desired)?;
        let mut links = self.netdev.links()?;
        if !self.private_devices_are_whole(&links) {
            self.ensure_private_devices(&links)?;
        }
        // What packets are about to need is there before they are sent to it; what they no longer need goes
        // after the last one is back.
        if internal::ensure(&self.netdev, desired, &links) {
            links = self.netdev.links()?;
        }
        self.maps.clock.set(0, relay::clock_offset())?;
        let problems = self.attach_returns(desired, &links);
        let mut network = self.prepare_ways(desired, &links)?;
        self.names.learn(desired, |interface| links.get(interface).map(|link| link.index));
        let mut applied = self.install(desired, &links, &network)?;
        self.desired = desired.clone();
        self.settle_ways(desired, &links, &mut network)?;
        applied.return_problems = problems;
        applied.egresses = network.states;
        applied.network_problems = network.problems;
        applied.endpoints = self.attach_endpoints(&links);
        if !std::mem::replace(&mut self.alone, true)
            && let Err(error) = self.pins.clear_others()
        {
            tracing::warn!(%error, "what an earlier release left may go on beside this one");
        }
        applied.again_in = self.retire(&links)?;
        self.forget_unused(&links)?;
        self.expire_flows()?;
        Ok(applied)
    }

    /// The last desired state again: after devices, routes or neighbours have changed, or now and then.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn refresh(&mut self) -> Result<Applied, Error> {
        let desired = self.desired.clone();
        self.apply(&desired)
    }

    /// The sums of all counters.
    ///
    /// # Errors
    /// `Kernel` when a map cannot be read.
    pub fn counters(&self) -> Result<Counters, Error> {
        let mut counters = Counters::default();
        for (slot, (name, _)) in self.endpoints.iter() {
            for direction in Direction::ALL {
                let rows = self.maps.endpoint_counters.get(slot * 2 + direction.index())?;
                let sum = rows.iter().fold(EndpointCounters::default(), sum_endpoint);
                counters.endpoints.push((name.clone(), direction, sum));
            }
            let sum = self.maps.guard_counters.get(slot)?.iter().fold(GuardCounters::default(), sum_guard);
            counters.guards.push((name.clone(), sum));
        }
        for (number, name) in self.ways.policies.iter() {
            let rows = self.maps.egress_counters.get(number)?;
            counters.egresses.push((name.clone(), rows.iter().fold(EgressCounters::default(), sum_egress)));
        }
        for (index, sum) in counters.overlay.iter_mut().enumerate() {
            let rows = self.maps.overlay_counters.get(index as u32)?;
            *sum = rows.iter().fold(EndpointCounters::default(), sum_endpoint);
        }
        for (session, key) in self.sessions.iter() {
            let rows = self.maps.session_counters.get(session)?;
            let relayed = self.maps.relay_counters.get(session)?;
            let sum = rows.iter().chain([&relayed]).fold(SessionCounters::default(), sum_session);
            counters.sessions.push((session, key.target.clone(), sum));
        }
        for (number, name) in self.policies.iter() {
            let rows = self.maps.policy_counters.get(number)?;
            let sum = rows.iter().fold(PolicyCounters::default(), sum_policy);
            counters.policies.push((name.clone(), sum));
        }
        for reason in Reason::ALL {
            counters.reasons.push((*reason, self.maps.reason(*reason)?));
        }
        let host = self.ways.snat()?;
        (counters.held_packets, counters.unmapped_packets) = (host.held, host.unknown);
        let links = self.netdev.links()?;
        counters.segment_queue_drops =
            links.get(&self.options.segment_device).map_or(0, |link| link.tx_dropped);
        Ok(counters)
    }

    /// Begins to watch packets. Traces that an earlier run left, or an earlier call, are ended: one at a time. An earlier
    /// call's streams say nothing more.
    ///
    /// What it returns works by itself, on any thread, also while an apply takes its time.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn watch(&self, options: WatchOptions) -> Result<Watch, Error> {
        Watch::open(&self.pins, &self.names, &self.turns, options)
    }

    /// Has programs at the interfaces of these endpoints, whether they have rules or not, until the next call.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn set_traced(&mut self, endpoints: BTreeSet<String>) -> Result<(), Error> {
        if endpoints == self.traced {
            return Ok(());
        }
        self.traced = endpoints;
        let links = self.netdev.links()?;
        self.attach_endpoints(&links);
        let watched = !self.traced.is_empty();
        if let Err(error) = self.attach_kernel_drops(watched) {
            tracing::info!(%error, "traces do not tell what the kernel's own stack drops");
        }
        self.give_stages()
    }

    /// Whether a program tells what leaves by the uplink; see [`Watcher::watch_uplink`](crate::Watcher::watch_uplink).
    pub fn sees_uplink(&self) -> bool {
        self.exits_are_seen
    }

    /// How an endpoint is attached to the node; `None` for one that is not.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn attachment(&self, endpoint: &str) -> Result<Option<Attachment>, Error> {
        self.attachment_of(endpoint)
    }

    /// Sends packets as if a pod had.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn injector(&self) -> Result<Injector, Error> {
        Injector::open(self.mirror_ifindex)
    }

    /// Leaves everything in force and pinned.
    pub fn close(self) {}

    /// Takes everything down: programs, pins, the devices that podwire made.
    ///
    /// # Errors
    /// `Kernel`; the rest is taken down all the same where it can be.
    pub fn remove(mut self) -> Result<(), Error> {
        let places: Vec<_> = self.attached.drain().collect();
        let mut result = Ok(());
        for ((ifindex, direction), interface) in places {
            let place = Place { interface: &interface, ifindex, direction };
            result = result.and(links::detach(&self.pins, self.tcx, place));
        }
        result = result.and(self.remove_ways());
        for device in [&self.options.mirror_device, &self.options.segment_device] {
            result = result.and(self.netdev.delete(device));
        }
        if let Ok(links) = self.netdev.links() {
            for port in internal::existing(&links) {
                result = result.and(internal::remove(&self.netdev, &port));
            }
        }
        result.and(self.pins.clear())
    }

    /// Finds the hooks that an earlier run left.
    fn find_attached(&mut self, links: &HashMap<String, Link>) -> Result<(), Error> {
        let names: HashMap<u32, &String> = links.iter().map(|(name, link)| (link.index, name)).collect();
        for (ifindex, direction) in self.pins.links()? {
            let name = names.get(&ifindex).map_or_else(String::new, |name| (*name).clone());
            self.attached.entry((ifindex, direction)).or_insert(name);
        }
        Ok(())
    }

    /// Frees slots and sessions that the generation in force does not use.
    fn forget_unused(&mut self, links: &HashMap<String, Link>) -> Result<(), Error> {
        let (mut sessions, mut names) = (HashSet::new(), HashSet::new());
        for policy in plan::policies(&self.desired) {
            names.insert(policy.name);
            sessions.insert(policy.session);
        }
        self.sessions.retain(|session| sessions.contains(session));
        self.policies.retain(|name| names.contains(name.as_str()));
        let live: HashSet<(&str, u32)> = self
            .desired
            .endpoints
            .iter()
            .filter_map(|endpoint| Some((endpoint.name.as_str(), links.get(&endpoint.interface)?.index)))
            .collect();
        let gone: Vec<u32> = self
            .endpoints
            .iter()
            .filter(|(_, (name, ifindex))| !live.contains(&(name.as_str(), *ifindex)))
            .map(|(_, (_, ifindex))| *ifindex)
            .collect();
        for ifindex in gone {
            if !live.iter().any(|(_, other)| *other == ifindex) {
                self.maps.set_interface_slot(ifindex, None)?;
            }
            self.updated.retain(|(other, _)| *other != ifindex);
        }
        self.endpoints.retain(|(name, ifindex)| live.contains(&(name.as_str(), *ifindex)));
        Ok(())
    }
}
