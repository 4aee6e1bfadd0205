//! The datapath of one node. In: desired state. Out: the kernel does it.
//!
//! Tables are double-banked: an apply fills the idle bank, reads it back, and flips one word. What fails before
//! the flip changes nothing; a packet sees one bank, whole.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use aya::Ebpf;
use podwire_core::abi::{
    ABI_VERSION, ConfigRow, Direction, EndpointCounters, Generation, Reason, SessionCounters, SessionRow,
    layout, limits,
};

use crate::compile::{self, Image};
use crate::desired::{Desired, Target};
use crate::error::{Context, Error, ErrorKind};
use crate::links::{self, Hook, Place};
use crate::log_carrier::{self, LogCarrier};
use crate::maps::Maps;
use crate::netdev::{Link, Netdev};
use crate::pins::Pins;
use crate::plan::{self, FREE, SessionPlan};
use crate::program::{self, FROM_POD, MIRROR, TO_POD};
use crate::slots::Slots;
use crate::status::{Applied, Counters, EndpointState, SessionState, sum_endpoint, sum_session};

/// How a datapath is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for pins. A bpffs is mounted there, or at `/sys/fs/bpf` above it, when there is none.
    pub bpffs: PathBuf,
    /// How programs are attached.
    pub hook: Hook,
    /// Name of the private mirror device; its peer's has `-p` behind it.
    pub mirror_device: String,
    /// `skb->mark` of copies. Only copies carry it; marks of other packets are never changed.
    pub copy_mark: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bpffs: PathBuf::from("/sys/fs/bpf/podwire"),
            hook: Hook::Auto,
            mirror_device: "pw-mirror".into(),
            copy_mark: 0x7077_0001,
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
    mirror_ifindex: u32,
    generation: Generation,
    /// Endpoint name and interface index by slot.
    endpoints: Slots<(String, u32)>,
    sessions: Slots<Target>,
    desired: Desired,
    /// What the bank in force was made of.
    in_force: Option<InForce>,
    /// Hooks that carry a program of ours: interface index, direction, name of the interface.
    attached: HashMap<(u32, Direction), String>,
    /// Hooks whose program is this run's.
    updated: HashSet<(u32, Direction)>,
    _log: Option<LogCarrier>,
}

/// What a generation was made of.
#[derive(PartialEq)]
struct InForce {
    image: Image,
    rows: Vec<SessionRow>,
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
        let (mut bpf, maps) = program::load(&pins)?;
        let log = log_carrier::start(&mut bpf);
        let netdev = Netdev::open()?;
        let config = maps.config.get(0)?;
        let mut datapath = Self {
            tcx,
            pins,
            bpf,
            maps,
            netdev,
            mirror_ifindex: config.mirror_ifindex,
            generation: Generation(config.generation),
            endpoints: Slots::new(limits::ENDPOINTS),
            sessions: Slots::new(limits::SESSIONS),
            desired: Desired::default(),
            in_force: None,
            attached: HashMap::new(),
            updated: HashSet::new(),
            _log: log,
            options,
        };
        let links = datapath.netdev.links()?;
        datapath.ensure_mirror_device(&links)?;
        datapath.find_attached(&links)?;
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
        let links = self.netdev.links()?;
        let whole = links.get(&self.options.mirror_device).is_some_and(|link| link.up);
        if !whole {
            self.ensure_mirror_device(&links)?;
        }
        let mut applied = self.install(desired, &links)?;
        self.desired = desired.clone();
        applied.endpoints = self.attach(&links);
        self.forget_unused(&links)?;
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
        }
        for (session, target) in self.sessions.iter() {
            let rows = self.maps.session_counters.get(session)?;
            let sum = rows.iter().fold(SessionCounters::default(), sum_session);
            counters.sessions.push((session, target.clone(), sum));
        }
        for reason in Reason::ALL {
            counters.reasons.push((*reason, self.maps.reason(*reason)?));
        }
        Ok(counters)
    }

    /// Leaves everything in force and pinned.
    pub fn close(self) {}

    /// Takes everything down: programs, pins, the private mirror device.
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
        result = result.and(self.netdev.delete(&self.options.mirror_device));
        result.and(self.pins.clear())
    }

    fn ensure_mirror_device(&mut self, links: &HashMap<String, Link>) -> Result<(), Error> {
        let name = self.options.mirror_device.clone();
        let peer = format!("{name}-p");
        let mut links = links.clone();
        if !(links.contains_key(&name) && links.contains_key(&peer)) {
            self.netdev.create_pair(&name, &peer)?;
            links = self.netdev.links()?;
        }
        for end in [&name, &peer] {
            let link = links.get(end).ok_or_else(|| gone(end))?;
            if !link.up {
                // No address of its own, so that the kernel does not announce one on it.
                let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/addr_gen_mode"), "1");
                self.netdev.prepare(end, link.index)?;
            }
        }
        let index = links.get(&name).ok_or_else(|| gone(&name))?.index;
        // Copies count as received here, so that the kernel's route lookup may forward them.
        for family in ["ipv4", "ipv6"] {
            let path = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
            if let Err(error) = std::fs::write(&path, "1") {
                if family == "ipv4" {
                    return Err(error).context(|| format!("writing {path}"));
                }
                tracing::debug!(%path, %error, "this kernel has no IPv6");
            }
        }
        let place = Place { interface: &name, ifindex: index, direction: Direction::Ingress };
        links::attach(&mut self.bpf, MIRROR, &self.pins, self.tcx, place)?;
        self.attached.insert((index, Direction::Ingress), name);
        self.mirror_ifindex = index;
        Ok(())
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

    /// Builds the next generation in the idle bank and flips to it, unless it equals the one in force.
    fn install(&mut self, desired: &Desired, links: &HashMap<String, Link>) -> Result<Applied, Error> {
        let sessions = self.plan_sessions(desired, links)?;
        self.take_slots(desired, links)?;
        let ifindex_of = |interface: &str| links.get(interface).map(|link| link.index);
        let slots: HashMap<&str, u32> = desired
            .endpoints
            .iter()
            .filter_map(|endpoint| {
                let key = (endpoint.name.clone(), ifindex_of(&endpoint.interface)?);
                Some((endpoint.name.as_str(), self.endpoints.find(&key)?))
            })
            .collect();
        let rules =
            plan::rules(desired, |name| slots.get(name).copied(), |target| self.sessions.find(target));
        let image = compile::compile(&rules)?;
        let mut rows = vec![FREE; limits::SESSIONS as usize];
        for (session, _, plan) in &sessions {
            rows[*session as usize] = plan.row;
        }
        let next = InForce { image, rows };
        let unchanged = self.in_force.as_ref() == Some(&next)
            && self.maps.config.get(0)?.mirror_ifindex == self.mirror_ifindex;
        let usage = next.image.usage();
        if !unchanged {
            self.write_and_flip(&next)?;
            self.in_force = Some(next);
        }
        let sessions = sessions
            .into_iter()
            .map(|(session, target, plan)| SessionState {
                session,
                mirrors: feeding(desired, &target),
                target,
                problem: plan.problem,
            })
            .collect();
        Ok(Applied { generation: self.generation.0, endpoints: Vec::new(), sessions, usage })
    }

    fn write_and_flip(&mut self, next: &InForce) -> Result<(), Error> {
        let generation = self.generation.next();
        let bank = generation.bank();
        let tables = next.image.relocate(bank);
        self.maps.nodes.fill(tables.nodes.base, &tables.nodes.rows)?;
        self.maps.prefixes.fill(tables.prefixes.base, &tables.prefixes.rows)?;
        self.maps.chunks.fill(tables.chunks.base, &tables.chunks.rows)?;
        self.maps.spans.fill(tables.spans.base, &tables.spans.rows)?;
        self.maps.rulesets.fill(tables.rulesets.base, &tables.rulesets.rows)?;
        self.maps.endpoints.fill(tables.endpoints.base, &tables.endpoints.rows)?;
        self.maps.sessions.fill(bank * limits::SESSIONS, &next.rows)?;
        self.maps.config.set(
            0,
            ConfigRow {
                generation: generation.0,
                abi_version: ABI_VERSION,
                mirror_ifindex: self.mirror_ifindex,
                copy_mark: self.options.copy_mark,
                layout_hash: layout::HASH,
            },
        )?;
        self.generation = generation;
        wait_for_packets();
        Ok(())
    }

    fn plan_sessions(
        &mut self,
        desired: &Desired,
        links: &HashMap<String, Link>,
    ) -> Result<Vec<(u32, Target, SessionPlan)>, Error> {
        let mut plans = Vec::new();
        let mut seen = HashSet::new();
        for target in desired.mirrors.iter().map(|mirror| &mirror.target) {
            if !seen.insert(target) {
                continue;
            }
            let plan = plan::session(target, links, |remote| {
                let route = self.netdev.route(remote)?;
                self.netdev.probe_neighbour(route.ifindex, route.next_hop);
                Some(route)
            })?;
            plans.push((self.session_slot(target, &plan)?, target.clone(), plan));
        }
        plans.sort_by_key(|(session, ..)| *session);
        Ok(plans)
    }

    /// The session's number: its own, or that of an equal row which an earlier run left in force, or a free one.
    fn session_slot(&mut self, target: &Target, plan: &SessionPlan) -> Result<u32, Error> {
        if let Some(session) = self.sessions.find(target) {
            return Ok(session);
        }
        if self.in_force.is_none() && self.generation != Generation(0) {
            for session in 0..limits::SESSIONS {
                let row = self.maps.sessions.get(self.generation.bank() * limits::SESSIONS + session)?;
                if row == plan.row && self.sessions.adopt(session, target.clone()) {
                    return Ok(session);
                }
            }
        }
        let full = || {
            let what = format!("a node has at most {} sessions; no room for {target}", limits::SESSIONS);
            Error::new(ErrorKind::TableFull, what)
        };
        let session = self.sessions.take(target.clone()).ok_or_else(full)?;
        self.maps.session_counters.reset(session, SessionCounters::default())?;
        Ok(session)
    }

    /// Gives every endpoint whose interface exists a slot, and tells the datapath which.
    fn take_slots(&mut self, desired: &Desired, links: &HashMap<String, Link>) -> Result<(), Error> {
        for endpoint in &desired.endpoints {
            let Some(link) = links.get(&endpoint.interface) else {
                continue;
            };
            let key = (endpoint.name.clone(), link.index);
            if self.endpoints.find(&key).is_some() {
                continue;
            }
            let left = if self.in_force.is_none() { self.maps.interface_slot(link.index)? } else { None };
            if left.is_some_and(|slot| self.endpoints.adopt(slot, key.clone())) {
                continue;
            }
            let full = || {
                let what =
                    format!("a node has at most {} endpoints; no room for {}", limits::ENDPOINTS, key.0);
                Error::new(ErrorKind::TableFull, what)
            };
            let slot = self.endpoints.take(key.clone()).ok_or_else(full)?;
            for direction in Direction::ALL {
                let row = slot * 2 + direction.index();
                self.maps.endpoint_counters.reset(row, EndpointCounters::default())?;
            }
            self.maps.set_interface_slot(link.index, Some(slot))?;
        }
        Ok(())
    }

    /// Puts programs where rules are and takes them off where none are. A failure is the endpoint's own.
    fn attach(&mut self, links: &HashMap<String, Link>) -> Vec<EndpointState> {
        let mut wanted = HashSet::from([(self.mirror_ifindex, Direction::Ingress)]);
        let mut states = Vec::new();
        let desired = self.desired.clone();
        for endpoint in &desired.endpoints {
            let mut state = EndpointState {
                name: endpoint.name.clone(),
                interface: endpoint.interface.clone(),
                ifindex: links.get(&endpoint.interface).map(|link| link.index),
                attached: [false; 2],
                problem: None,
            };
            if let Some(ifindex) = state.ifindex {
                for direction in Direction::ALL {
                    if self.has_rules(&endpoint.name, ifindex, direction) {
                        wanted.insert((ifindex, direction));
                        let place = Place { interface: &endpoint.interface, ifindex, direction };
                        match self.attach_one(place) {
                            Ok(()) => state.attached[direction.index() as usize] = true,
                            Err(error) => state.problem = Some(error.to_string()),
                        }
                    }
                }
            } else {
                state.problem = Some(format!("interface {} does not exist", endpoint.interface));
            }
            states.push(state);
        }
        let stale: Vec<_> = self.attached.keys().filter(|key| !wanted.contains(key)).copied().collect();
        for (ifindex, direction) in stale {
            let interface = self.attached.remove(&(ifindex, direction)).unwrap_or_default();
            let place = Place { interface: &interface, ifindex, direction };
            if let Err(error) = links::detach(&self.pins, self.tcx, place) {
                tracing::warn!(%interface, %error, "a program could not be taken off");
                self.attached.insert((ifindex, direction), interface);
            }
        }
        states
    }

    fn attach_one(&mut self, place: Place) -> Result<(), Error> {
        let key = (place.ifindex, place.direction);
        // After a restart the program behind the link is the earlier run's: swapped once, then left alone.
        if self.updated.contains(&key) && self.attached.contains_key(&key) {
            return Ok(());
        }
        let program = match place.direction {
            Direction::Egress => FROM_POD,
            Direction::Ingress => TO_POD,
        };
        links::attach(&mut self.bpf, program, &self.pins, self.tcx, place)?;
        self.attached.insert(key, place.interface.to_owned());
        self.updated.insert(key);
        Ok(())
    }

    fn has_rules(&self, name: &str, ifindex: u32, direction: Direction) -> bool {
        let Some(slot) = self.endpoints.find(&(name.to_owned(), ifindex)) else {
            return false;
        };
        self.in_force.as_ref().is_some_and(|in_force| in_force.image.has_rules(slot, direction))
    }

    /// Frees slots and sessions that the generation in force does not use.
    fn forget_unused(&mut self, links: &HashMap<String, Link>) -> Result<(), Error> {
        let targets: HashSet<&Target> = self.desired.mirrors.iter().map(|mirror| &mirror.target).collect();
        self.sessions.retain(|target| targets.contains(target));
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

/// Names of the mirrors that feed a session.
fn feeding(desired: &Desired, target: &Target) -> Vec<String> {
    desired
        .mirrors
        .iter()
        .filter(|mirror| mirror.target == *target)
        .map(|mirror| mirror.name.clone())
        .collect()
}

fn gone(name: &str) -> Error {
    Error::new(ErrorKind::Kernel, format!("device {name} is gone right after it was made"))
}

/// Waits until no packet can still run under an earlier generation: `membarrier`'s global command waits for an
/// RCU grace period, in which every program that had begun has ended.
fn wait_for_packets() {
    if crate::sys::membarrier_global().is_err() {
        // The command is refused where CPUs run without the timer tick; programs run for microseconds.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
