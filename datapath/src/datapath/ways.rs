//! Where packets go: what the node's own kernel has to know of it, before and after the datapath does.
//!
//! What packets are about to need is there before the flip: the overlay device, the translation of new Egress marks.
//! What they no longer need goes after it. A part that cannot be had is the network's problem and stops nothing
//! else.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use podwire_core::abi::{AddressRow, Direction, EgressCounters, EgressPlace, EgressRow, NetworkRow, limits};

use super::Datapath;
use crate::desired::{Desired, EgressNode};
use crate::error::{Context, Error, ErrorKind};
use crate::host::{address, mtu, overlay, routes, snat, sysctl};
use crate::links::Place;
use crate::netdev::Link;
use crate::network::{self, NetworkPlan};
use crate::program::{FROM_OVERLAY, TO_OVERLAY};
use crate::slots::Slots;
use crate::status::EgressState;

/// An address of the overlay device where the CNI forwards: what comes in by a device without one is dropped by the
/// kernel's reverse path filter, loose or not, when the way back is another device (`__fib_validate_source`).
const UNUSED: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 112, 112));

/// What is kept of the ways between two applies.
pub(super) struct Ways {
    /// Egress policies by number.
    pub(super) policies: Slots<String>,
    /// Egress addresses by number less one.
    addresses: Slots<IpAddr>,
    snat: snat::Snat,
    own: address::Addresses,
    /// The overlay device.
    pub(super) overlay: Option<u32>,
    had_routes: bool,
    /// Unknown pods are held back.
    holds: bool,
    /// Pods' interfaces whose MTU is as it should be, and that MTU.
    lowered: HashMap<u32, u32>,
}

impl Ways {
    pub(super) fn new(mark: u32) -> Self {
        // All bits set say that no policy applies, none that nobody has looked.
        let numbers = (mark >> mark.trailing_zeros().min(31)).saturating_sub(1);
        Self {
            policies: Slots::new(limits::EGRESSES),
            addresses: Slots::new(numbers.min(limits::EGRESS_ADDRESSES - 2)),
            snat: snat::Snat::default(),
            own: address::Addresses::default(),
            overlay: None,
            had_routes: true,
            holds: false,
            lowered: HashMap::new(),
        }
    }
}

impl Ways {
    /// What the host dropped; nothing while there is no table.
    pub(super) fn snat(&self) -> Result<snat::Counters, Error> {
        if self.addresses.iter().next().is_none() && !self.holds {
            return Ok(snat::Counters::default());
        }
        self.snat.counters()
    }
}

/// The network of a generation that is to be.
pub(super) struct Network {
    pub(super) plan: NetworkPlan,
    pub(super) row: NetworkRow,
    pub(super) egresses: Vec<EgressRow>,
    pub(super) states: Vec<EgressState>,
    pub(super) judged: bool,
    pub(super) problems: Vec<String>,
}

impl Datapath {
    /// Plans the network and makes what new packets will need.
    pub(super) fn prepare_ways(
        &mut self,
        desired: &Desired,
        links: &HashMap<String, Link>,
    ) -> Result<Network, Error> {
        network::check(desired)?;
        let reachable = |address| self.netdev.route(address).is_some();
        let plan = network::plan(desired, links, self.options.uplink.as_deref(), reachable);
        if plan.targets.len() > limits::TARGETS as usize {
            let what = format!(
                "a node knows at most {} places to send to, pods of its own and two for each node; these are {}",
                limits::TARGETS - 1,
                plan.targets.len() - 1
            );
            return Err(Error::new(ErrorKind::TableFull, what));
        }
        let mut problems = plan.problems.clone();
        if plan.native {
            note(&mut problems, sysctl::forward());
        }
        self.ensure_overlay(&plan, &mut problems);
        self.number_egresses(desired)?;
        // What leaves under no policy is told from what nobody has looked at.
        let judged = !desired.egresses.is_empty() && !desired.network.pod_cidrs.is_empty();
        let overlay = self.ways.overlay.unwrap_or(0);
        let options = &self.options;
        let row = network::row(&plan, judged, overlay, options.overlay_vni, options.egress_mark);
        self.ways.holds = judged;
        let wish = self.snat_wish(desired, &row, judged, true);
        note(&mut problems, self.ways.snat.apply(&wish));
        let (egresses, states) = self.egress_rows(desired, &plan, &row)?;
        for (id, number) in self.ids(desired) {
            self.maps.egress_ids.insert(id, number, 0).context(|| "writing map EGRESS_IDS".into())?;
        }
        Ok(Network { plan, row, egresses, states, judged, problems })
    }

    /// Takes away what packets no longer need, and gives the host's stack its ways.
    pub(super) fn settle_ways(
        &mut self,
        desired: &Desired,
        links: &HashMap<String, Link>,
        network: &mut Network,
    ) -> Result<(), Error> {
        self.lower_pods(desired, links, network);
        let problems = &mut network.problems;
        let (ways, neighbours) = network::host_ways(desired, links, &network.plan, self.ways.overlay);
        if self.ways.had_routes || !ways.is_empty() {
            self.ways.had_routes = !ways.is_empty();
            note(problems, routes::apply(&self.netdev, &ways, &neighbours));
        }
        let wanted: BTreeSet<IpAddr> =
            desired.egresses.iter().flat_map(|egress| egress.ips.clone()).collect();
        for (number, address) in self.ways.addresses.iter() {
            if !wanted.contains(address) {
                note(problems, self.maps.egress_addresses.set(number + 1, AddressRow::default()));
            }
        }
        self.ways.addresses.retain(|address| wanted.contains(address));
        let wish = self.snat_wish(desired, &network.row, network.judged, false);
        note(problems, self.ways.snat.apply(&wish));
        let wish = self.address_wish(desired, links, network.plan.native);
        note(problems, self.ways.own.apply(&self.netdev, &wish));
        let ids = self.ids(desired);
        let stale: Vec<u32> =
            self.maps.egress_ids.keys().flatten().filter(|id| !ids.contains_key(id)).collect();
        for id in stale {
            let _ = self.maps.egress_ids.remove(&id);
        }
        let names: BTreeSet<&str> = desired.egresses.iter().map(|egress| egress.name.as_str()).collect();
        self.ways.policies.retain(|name| names.contains(name.as_str()));
        if network.plan.overlay_mtu.is_none() && self.ways.overlay.take().is_some() {
            note(problems, overlay::remove(&self.netdev));
        }
        Ok(())
    }

    /// Lowers the MTU of pods to what the overlay carries, each once: who raises it again has a reason.
    fn lower_pods(&mut self, desired: &Desired, links: &HashMap<String, Link>, network: &mut Network) {
        let (true, true, Some(mtu)) =
            (network.plan.native, self.options.lower_pod_mtu, network.plan.overlay_mtu)
        else {
            return;
        };
        for endpoint in &desired.endpoints {
            let Some(link) = links.get(&endpoint.interface) else {
                continue;
            };
            if self.ways.lowered.insert(link.index, mtu) != Some(mtu) {
                note(&mut network.problems, mtu::lower(&self.netdev, &endpoint.interface, mtu));
            }
        }
        let known: BTreeSet<u32> = links.values().map(|link| link.index).collect();
        self.ways.lowered.retain(|ifindex, _| known.contains(ifindex));
    }

    /// The hooks of the overlay device.
    pub(super) fn overlay_hooks(&self) -> Vec<(u32, Direction)> {
        let both = |ifindex| Direction::ALL.map(|direction| (ifindex, direction));
        self.ways.overlay.into_iter().flat_map(both).collect()
    }

    /// Takes down what was asked of the host.
    pub(super) fn remove_ways(&mut self) -> Result<(), Error> {
        routes::apply(&self.netdev, &BTreeSet::new(), &BTreeSet::new())
            .and(self.ways.own.apply(&self.netdev, &BTreeSet::new()))
            .and(self.ways.snat.remove())
            .and(overlay::remove(&self.netdev))
    }

    fn ensure_overlay(&mut self, plan: &NetworkPlan, problems: &mut Vec<String>) {
        let Some(mtu) = plan.overlay_mtu else {
            return;
        };
        let name = self.options.overlay_device.clone();
        let wish = overlay::Wish { name: name.clone(), port: self.options.overlay_port, mtu };
        let made = overlay::ensure(&self.netdev, &wish).and_then(|ifindex| {
            for (program, direction) in [(FROM_OVERLAY, Direction::Egress), (TO_OVERLAY, Direction::Ingress)]
            {
                self.attach_one(program, Place { interface: &name, ifindex, direction })?;
            }
            Ok(ifindex)
        });
        match made {
            Ok(ifindex) => self.ways.overlay = Some(ifindex),
            Err(error) => {
                problems.push(format!("the overlay: {error}"));
                self.ways.overlay = None;
            }
        }
    }

    /// Numbers policies and addresses.
    fn number_egresses(&mut self, desired: &Desired) -> Result<(), Error> {
        let left = self.left_numbers()?;
        for egress in &desired.egresses {
            self.number_policy(&egress.name, &left)?;
            if egress.node == EgressNode::Here {
                egress.ips.iter().try_for_each(|ip| self.number_address(*ip, &left))?;
            }
        }
        for (row, number) in &left.addresses {
            let adopted = |(taken, ip): (u32, &IpAddr)| taken == *number && address_row(*ip) == *row;
            if !self.ways.addresses.iter().any(adopted) {
                self.maps.egress_addresses.set(number + 1, AddressRow::default())?;
            }
        }
        Ok(())
    }

    /// What an earlier run numbered keeps its numbers, which are on packets.
    fn left_numbers(&self) -> Result<Left, Error> {
        let mut left = Left::default();
        if !self.is_restart() {
            return Ok(left);
        }
        for number in 0..limits::EGRESSES {
            let row = self.maps.egresses.get(self.generation.bank() * limits::EGRESSES + number)?;
            if row.name_hash != 0 {
                left.policies.insert(row.name_hash, number);
            }
        }
        for number in 1..limits::EGRESS_ADDRESSES - 1 {
            let row = self.maps.egress_addresses.get(number)?;
            if row.family != 0 {
                left.addresses.push((row, number - 1));
            }
        }
        Ok(left)
    }

    fn number_policy(&mut self, name: &String, left: &Left) -> Result<(), Error> {
        let policies = &mut self.ways.policies;
        let known = left.policies.get(&crate::plan::name_hash(name));
        if policies.find(name).is_some() || known.is_some_and(|number| policies.adopt(*number, name.clone()))
        {
            return Ok(());
        }
        let free = |number: &u32| !left.policies.values().any(|taken| taken == number);
        let full = || Error::new(ErrorKind::TableFull, format!("no room for another Egress policy, {name}"));
        let number = policies.take_where(name.clone(), free).ok_or_else(full)?;
        self.maps.egress_counters.reset(number, EgressCounters::default())
    }

    fn number_address(&mut self, ip: IpAddr, left: &Left) -> Result<(), Error> {
        let (addresses, row) = (&mut self.ways.addresses, address_row(ip));
        let known = left.addresses.iter().find(|(other, _)| *other == row);
        if addresses.find(&ip).is_some() || known.is_some_and(|(_, number)| addresses.adopt(*number, ip)) {
            return Ok(());
        }
        let free = |number: &u32| !left.addresses.iter().any(|(_, taken)| taken == number);
        let (mark, most) = (self.options.egress_mark, addresses.size());
        let full = || {
            let what =
                format!("the Egress mark {mark:#x} has numbers for {most} addresses; none is left for {ip}");
            Error::new(ErrorKind::TableFull, what)
        };
        let number = addresses.take_where(ip, free).ok_or_else(full)?;
        self.maps.egress_addresses.set(number + 1, row)
    }

    fn egress_rows(
        &self,
        desired: &Desired,
        plan: &NetworkPlan,
        network: &NetworkRow,
    ) -> Result<(Vec<EgressRow>, Vec<EgressState>), Error> {
        let mut rows = vec![EgressRow::default(); limits::EGRESSES as usize];
        let mut states = Vec::new();
        let clashes = network::clashes(desired);
        for egress in &desired.egresses {
            let (mut row, mut problem) = network::egress_row(egress, plan);
            if let Some(owner) = clashes.get(&egress.name) {
                row.place = EgressPlace::Nowhere as u32;
                problem = Some(format!("other nodes cannot tell its name from that of {owner}: rename it"));
            }
            if row.place == EgressPlace::Peer as u32 && self.ways.overlay.is_none() {
                problem = Some("there is no overlay to its node".into());
            }
            for ip in &egress.ips {
                let family = usize::from(ip.is_ipv6());
                let at = row.counts[family] as usize;
                if let (Some(number), true) = (self.ways.addresses.find(ip), at < EgressRow::ADDRESSES) {
                    row.numbers[family][at] = number as u16 + 1;
                    row.counts[family] += 1;
                    // Not with another address: with none.
                    if egress.node == EgressNode::Here
                        && !self.ways.snat.translates(network.mark_of(number + 1), *ip)
                    {
                        row.place = EgressPlace::Nowhere as u32;
                        problem = Some(format!("nothing translates to {ip}: see the node's problems"));
                    }
                }
            }
            let state = EgressState { name: egress.name.clone(), id: row.id, problem };
            states.push(state);
            if let Some(number) = self.ways.policies.find(&egress.name) {
                rows[number as usize] = row;
            }
        }
        Ok((rows, states))
    }

    fn ids(&self, desired: &Desired) -> BTreeMap<u32, u32> {
        let clashes = network::clashes(desired);
        let here = desired.egresses.iter().filter(|egress| egress.node == EgressNode::Here);
        here.filter(|egress| !clashes.contains_key(&egress.name))
            .filter_map(|egress| Some((network::id(&egress.name), self.ways.policies.find(&egress.name)?)))
            .collect()
    }

    /// `all`: with the addresses that packets on their way may still be marked for.
    fn snat_wish(&self, desired: &Desired, row: &NetworkRow, judged: bool, all: bool) -> snat::Wish {
        let wanted: BTreeSet<&IpAddr> = desired
            .egresses
            .iter()
            .filter(|egress| egress.node == EgressNode::Here)
            .flat_map(|egress| &egress.ips)
            .collect();
        let addresses = self
            .ways
            .addresses
            .iter()
            .filter(|(_, address)| all || wanted.contains(address))
            .map(|(number, address)| (row.mark_of(number + 1), *address))
            .collect();
        snat::Wish {
            mask: row.egress_mark,
            judged: row.judged(),
            addresses,
            hold: if judged { desired.network.pod_cidrs.clone() } else { Vec::new() },
            inside: if judged { network::inside(desired) } else { Vec::new() },
        }
    }

    fn address_wish(&self, desired: &Desired, links: &HashMap<String, Link>, native: bool) -> address::Wish {
        let uplink = self.options.uplink.as_ref().and_then(|name| links.get(name));
        let own = desired.egresses.iter().filter(|egress| egress.own && egress.node == EgressNode::Here);
        let egress = own.flat_map(|egress| &egress.ips).filter_map(|address| Some((uplink?.index, *address)));
        // The host's stack speaks to pods of other nodes as this address, and sends its errors from it.
        let overlay: Vec<IpAddr> = if native {
            desired.network.pod_cidrs.iter().map(IpNet::network).collect()
        } else {
            vec![UNUSED]
        };
        let overlay = overlay.into_iter().filter_map(|address| Some((self.ways.overlay?, address)));
        egress.chain(overlay).collect()
    }
}

/// Numbers that an earlier run gave.
#[derive(Default)]
struct Left {
    /// By the hash of the policy's name.
    policies: HashMap<u64, u32>,
    /// Addresses, each with its number less one.
    addresses: Vec<(AddressRow, u32)>,
}

fn address_row(ip: IpAddr) -> AddressRow {
    let (bytes, family) = network::bytes(ip);
    AddressRow { bytes, family }
}

fn note(problems: &mut Vec<String>, result: Result<(), Error>) {
    if let Err(error) = result {
        tracing::warn!(%error, "the node's network is not as it should be");
        problems.push(error.to_string());
    }
}
