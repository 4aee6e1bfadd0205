//! Tables. In: desired state, and the devices that there are. Out: the next generation in the idle bank, and the
//! flip to it.

use std::collections::{HashMap, HashSet};

use podwire_core::abi::{
    ABI_VERSION, ConfigRow, Direction, EgressRow, EndpointCounters, Generation, GuardCounters, LiveRow,
    Liveness, NetworkRow, PolicyCounters, PolicyRow, SessionCounters, SessionKind, SessionRow, TargetRow,
    layout, limits,
};

use super::ways::Network;
use super::{Datapath, InForce};
use crate::compile::{self, EndpointRules};
use crate::desired::{Desired, Engine, Target};
use crate::error::{Error, ErrorKind};
use crate::netdev::Link;
use crate::network;
use crate::plan::{self, SessionKey, SessionPlan};
use crate::status::{Applied, SessionState};

/// A session with its number.
struct Planned {
    session: u32,
    key: SessionKey,
    plan: SessionPlan,
}

impl Planned {
    fn state(self, desired: &Desired) -> SessionState {
        let feeds = |policy: &plan::AnyPolicy| policy.session == self.key;
        SessionState {
            session: self.session,
            policies: plan::policies(desired).filter(feeds).map(|policy| policy.name.to_owned()).collect(),
            target: self.key.target.clone(),
            options: self.key.options,
            engine: self.plan.engine,
            problem: self.plan.problem,
        }
    }
}

impl Datapath {
    /// Builds the next generation in the idle bank and flips to it, unless it equals the one in force.
    pub(super) fn install(
        &mut self,
        desired: &Desired,
        links: &HashMap<String, Link>,
        network: &Network,
    ) -> Result<Applied, Error> {
        let sessions = self.plan_sessions(desired, links)?;
        self.take_numbers(desired)?;
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
        let mut rules = plan::rules(
            desired,
            |name| slots.get(name).copied(),
            |session| self.sessions.find(session),
            |name| self.policies.find(&name.to_owned()),
        );
        self.add_leaving(desired, links, &slots, network, &mut rules);
        let image = compile::compile_with(&rules, &network.plan.destinations)?;
        let mut targets = network.plan.targets.clone();
        for (number, name) in &network.plan.pods {
            if self.traced.contains(name)
                || slots.get(name.as_str()).is_some_and(|slot| image.has_rules(*slot, Direction::Ingress))
            {
                targets[*number as usize].flags |= TargetRow::FLAG_STAGES;
            }
        }
        let mut rows = vec![SessionRow::FREE; limits::SESSIONS as usize];
        for planned in &sessions {
            rows[planned.session as usize] = planned.plan.row;
        }
        let next = InForce {
            image,
            sessions: rows,
            policies: self.policy_rows(desired),
            network: network.row,
            targets,
            egresses: network.egresses.clone(),
        };
        let config = self.maps.config.get(0)?;
        let unchanged = self.in_force.as_ref() == Some(&next)
            && config.mirror_ifindex == self.mirror_ifindex
            && config.segment_ifindex == self.segment_ifindex;
        let usage = next.image.usage();
        // Before the first packet is captured.
        self.tell_reader(&sessions);
        if !unchanged {
            self.write_and_flip(&next)?;
            self.in_force = Some(next);
        }
        self.pods = network.plan.pods.iter().map(|(number, name)| (*number, name.clone())).collect();
        self.tell_relay(&sessions);
        self.tell_liveness(&sessions)?;
        let sessions = sessions.into_iter().map(|planned| planned.state(desired)).collect();
        Ok(Applied { generation: self.generation.0, sessions, usage, ..Applied::default() })
    }

    /// Who of the endpoints is led, and under which Egress policies.
    fn add_leaving(
        &self,
        desired: &Desired,
        links: &HashMap<String, Link>,
        slots: &HashMap<&str, u32>,
        network: &Network,
        rules: &mut [EndpointRules],
    ) {
        for endpoint in &desired.endpoints {
            let Some(slot) = slots.get(endpoint.name.as_str()) else {
                continue;
            };
            let Some(rules) = rules.iter_mut().find(|rules| rules.slot == *slot) else {
                continue;
            };
            rules.gateway = links.get(&endpoint.interface).map_or([0; 6], |link| link.mac);
            let policies =
                network::leaving(desired, &endpoint.name, |name| self.ways.policies.find(&name.to_owned()));
            rules.answers = network::leaves_elsewhere(desired, &endpoint.name);
            if network.plan.native || network.judged || !policies.is_empty() {
                rules.leaving = Some(policies);
            }
        }
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
        self.maps.sessions.fill(bank * limits::SESSIONS, &next.sessions)?;
        self.maps.policies.fill(bank * limits::POLICIES, &next.policies)?;
        let targets = bank * limits::TARGETS;
        self.maps.targets.fill(targets, &next.targets)?;
        let absolute = |row: &EgressRow| match row.target {
            0 => *row,
            target => EgressRow { target: target + targets, ..*row },
        };
        let egresses: Vec<EgressRow> = next.egresses.iter().map(absolute).collect();
        self.maps.egresses.fill(bank * limits::EGRESSES, &egresses)?;
        let [routes_v4, routes_v6] = tables.routes;
        self.maps.network.fill(bank, &[NetworkRow { routes_v4, routes_v6, ..next.network }])?;
        self.maps.config.set(
            0,
            ConfigRow {
                generation: generation.0,
                abi_version: ABI_VERSION,
                mirror_ifindex: self.mirror_ifindex,
                segment_ifindex: self.segment_ifindex,
                copy_mark: self.options.copy_mark,
                layout_hash: layout::HASH,
                pad: 0,
            },
        )?;
        self.generation = generation;
        crate::sys::wait_for_packets();
        Ok(())
    }

    fn plan_sessions(
        &mut self,
        desired: &Desired,
        links: &HashMap<String, Link>,
    ) -> Result<Vec<Planned>, Error> {
        let mut planned = Vec::new();
        let mut seen = HashSet::new();
        for key in plan::policies(desired).map(|policy| policy.session) {
            if !seen.insert(key.clone()) {
                continue;
            }
            let plan = plan::session(&key, links, |remote| {
                let route = self.netdev.route(remote)?;
                self.netdev.probe_neighbour(route.ifindex, route.next_hop);
                Some(route)
            })?;
            planned.push(Planned { session: self.session_slot(&key, &plan)?, key, plan });
        }
        planned.sort_by_key(|planned| planned.session);
        Ok(planned)
    }

    /// The session's number: its own, or that of an equal row which an earlier run left in force, or a free one.
    fn session_slot(&mut self, key: &SessionKey, plan: &SessionPlan) -> Result<u32, Error> {
        if let Some(session) = self.sessions.find(key) {
            return Ok(session);
        }
        // All readers' rows are alike; an earlier run's went with it.
        let adoptable = plan.row.kind != SessionKind::Reader as u32;
        if adoptable && self.is_restart() {
            for session in 0..limits::SESSIONS {
                let row = self.maps.sessions.get(self.generation.bank() * limits::SESSIONS + session)?;
                if row == plan.row && self.sessions.adopt(session, key.clone()) {
                    return Ok(session);
                }
            }
        }
        let full = || {
            let what =
                format!("a node has at most {} sessions; no room for {}", limits::SESSIONS, key.target);
            Error::new(ErrorKind::TableFull, what)
        };
        let session = self.sessions.take(key.clone()).ok_or_else(full)?;
        self.maps.session_counters.reset(session, SessionCounters::default())?;
        self.maps.relay_counters.set(session, SessionCounters::default())?;
        self.maps.sequences.set(session, 0)?;
        self.maps.paces.set(session, 0)?;
        self.live.remove(&session);
        Ok(session)
    }

    /// Nothing was applied by this run, but something by an earlier one.
    pub(super) fn is_restart(&self) -> bool {
        self.in_force.is_none() && self.generation != Generation(0)
    }

    /// Numbers the policies; those that an earlier run left keep theirs.
    fn take_numbers(&mut self, desired: &Desired) -> Result<(), Error> {
        let mut left = HashMap::new();
        if self.is_restart() {
            for number in 0..limits::POLICIES {
                let row = self.maps.policies.get(self.generation.bank() * limits::POLICIES + number)?;
                if row.name_hash != 0 {
                    left.insert(row.name_hash, number);
                }
            }
        }
        for name in plan::policies(desired).map(|policy| policy.name.to_owned()) {
            if self.policies.find(&name).is_some() {
                continue;
            }
            let number = left.get(&plan::name_hash(&name)).copied();
            if number.is_some_and(|number| self.policies.adopt(number, name.clone())) {
                continue;
            }
            let full = || {
                let what = format!("a node has at most {} policies; no room for {name}", limits::POLICIES);
                Error::new(ErrorKind::TableFull, what)
            };
            // Numbers of the earlier run that are still to be adopted are left free.
            let free = |number: &u32| !left.values().any(|taken| taken == number);
            let number = self.policies.take_where(name.clone(), free).ok_or_else(full)?;
            self.maps.policy_counters.reset(number, PolicyCounters::default())?;
        }
        Ok(())
    }

    fn policy_rows(&self, desired: &Desired) -> Vec<PolicyRow> {
        let mut rows = vec![PolicyRow::default(); limits::POLICIES as usize];
        for policy in plan::policies(desired) {
            if let Some(number) = self.policies.find(&policy.name.to_owned()) {
                rows[number as usize] = plan::policy_row(&policy);
            }
        }
        rows
    }

    /// Sessions whose frames go through user space.
    fn tell_relay(&self, sessions: &[Planned]) {
        let needs = |planned: &&Planned| {
            let row = &planned.plan.row;
            row.kind == SessionKind::Tunnel as u32
                && (planned.plan.engine == Engine::Snap || row.has(SessionRow::FLAG_FRAGMENT))
        };
        self.relay.set_sessions(
            sessions.iter().filter(needs).map(|planned| (planned.session, planned.plan.row)).collect(),
        );
    }

    fn tell_reader(&self, sessions: &[Planned]) {
        let readers = sessions.iter().filter_map(|planned| match planned.key.target {
            Target::Reader { number } => Some((planned.session, number)),
            _ => None,
        });
        self.reader.set_sessions(readers.collect());
    }

    fn tell_liveness(&mut self, sessions: &[Planned]) -> Result<(), Error> {
        for planned in sessions {
            let silent = self.is_silent(&planned.key);
            let state = match planned.plan.live {
                Liveness::Live if silent => Liveness::Silent,
                state => state,
            };
            self.set_liveness(planned.session, state)?;
        }
        Ok(())
    }

    pub(super) fn set_liveness(&mut self, session: u32, state: Liveness) -> Result<(), Error> {
        if self.live.get(&session) != Some(&state) {
            self.maps.live.set(session, LiveRow { state: state as u32, ..LiveRow::default() })?;
            self.live.insert(session, state);
        }
        Ok(())
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
            self.maps.guard_counters.reset(slot, GuardCounters::default())?;
            self.maps.set_interface_slot(link.index, Some(slot))?;
        }
        Ok(())
    }
}
