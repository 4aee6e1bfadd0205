//! Return ports. In: redirects. Out: programs and rows by which packets come back, in force before the first
//! packet is sent away, and taken down only when the last one has had time to return.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use podwire_core::abi::{Direction, TunnelKey};

use super::Datapath;
use crate::desired::{Desired, Target};
use crate::error::{Context, Error, ErrorKind};
use crate::internal;
use crate::links::Place;
use crate::maps::Row;
use crate::netdev::Link;
use crate::plan::{return_number, tunnel_key};
use crate::program::{FROM_UPLINK, RETURNED};

/// How long packets may be away when their policy goes.
const LINGER: Duration = Duration::from_secs(2);

/// What is in force, and since when it is not wanted any more.
#[derive(Default)]
pub(super) struct Returns {
    ports: HashMap<u32, Option<Instant>>,
    tunnels: HashMap<TunnelKey, Option<Instant>>,
    uplink: Option<(u32, Option<Instant>)>,
    /// Internal ports that nobody wants.
    unused: HashMap<String, Instant>,
}

impl Returns {
    /// The hooks that carry a program.
    pub(super) fn hooks(&self) -> Vec<(u32, Direction)> {
        let uplink = self.uplink.iter().map(|(ifindex, _)| *ifindex);
        self.ports.keys().copied().chain(uplink).map(|ifindex| (ifindex, Direction::Egress)).collect()
    }
}

impl Datapath {
    /// Takes over what an earlier run left.
    pub(super) fn find_returns(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        for ifindex in self.maps.return_ports.keys() {
            let ifindex = ifindex.context(|| "reading map RETURN_PORTS".into())?;
            self.returns.ports.insert(ifindex, Some(now));
        }
        for key in self.maps.return_tunnels.keys() {
            let key = key.context(|| "reading map RETURN_TUNNELS".into())?;
            self.returns.tunnels.insert(key.0, Some(now));
        }
        Ok(())
    }

    /// Opens the return ports. Returns what is wrong with one, by the port.
    pub(super) fn attach_returns(
        &mut self,
        desired: &Desired,
        links: &HashMap<String, Link>,
    ) -> BTreeMap<String, String> {
        let mut problems = BTreeMap::new();
        let ports: HashSet<&Target> =
            desired.redirects.iter().map(|redirect| &redirect.return_port).collect();
        for port in ports {
            if let Err(error) = self.open_return(port, links) {
                problems.insert(port.to_string(), error.to_string());
            }
        }
        problems
    }

    fn open_return(&mut self, port: &Target, links: &HashMap<String, Link>) -> Result<(), Error> {
        let missing = |what: String| Error::new(ErrorKind::Kernel, what);
        let number = return_number(port);
        let (name, program) = match port {
            Target::Internal { name } => (internal::near_end(name), RETURNED),
            Target::Device { name } => (name.clone(), RETURNED),
            Target::Tunnel { .. } => {
                let uplink = self.options.uplink.clone();
                (uplink.ok_or_else(|| missing("a tunnel needs to know the uplink".into()))?, FROM_UPLINK)
            }
            Target::Reader { .. } => {
                return Err(missing(format!("return {port}: readers give nothing back")));
            }
        };
        let link = links
            .get(&name)
            .ok_or_else(|| missing(format!("return {port}: device {name} does not exist")))?;
        let ifindex = link.index;
        if let Some(key) = tunnel_key(port) {
            self.maps
                .return_tunnels
                .insert(Row(key), number, 0)
                .context(|| format!("opening return {port}"))?;
            self.returns.tunnels.insert(key, None);
            self.returns.uplink = Some((ifindex, None));
        } else {
            self.maps.return_ports.insert(ifindex, number, 0).context(|| format!("opening return {port}"))?;
            self.returns.ports.insert(ifindex, None);
        }
        self.attach_one(program, Place { interface: &name, ifindex, direction: Direction::Egress })
    }

    /// Closes the ports that nobody wants any more, each after its time. Returns when to come again for that.
    pub(super) fn retire(&mut self, links: &HashMap<String, Link>) -> Result<Option<Duration>, Error> {
        let now = Instant::now();
        self.mark_unwanted(links, now);
        let over = |since: &Option<Instant>| since.is_some_and(|since| now.duration_since(since) >= LINGER);
        for ifindex in keys_where(&self.returns.ports, over) {
            let _ = self.maps.return_ports.remove(&ifindex);
            self.returns.ports.remove(&ifindex);
        }
        for key in keys_where(&self.returns.tunnels, over) {
            let _ = self.maps.return_tunnels.remove(&Row(key));
            self.returns.tunnels.remove(&key);
        }
        if self.returns.uplink.as_ref().is_some_and(|(_, since)| over(since)) {
            self.returns.uplink = None;
        }
        for port in keys_where(&self.returns.unused, |since| now.duration_since(*since) >= LINGER) {
            internal::remove(&self.netdev, &port)?;
            self.returns.unused.remove(&port);
        }
        let waiting = self.returns.ports.values().chain(self.returns.tunnels.values()).any(Option::is_some)
            || !self.returns.unused.is_empty();
        Ok(waiting.then_some(LINGER))
    }

    /// Notes since when something is not wanted.
    fn mark_unwanted(&mut self, links: &HashMap<String, Link>, now: Instant) {
        let (mut ports, mut tunnels) = (HashSet::new(), HashSet::new());
        for redirect in &self.desired.redirects {
            match &redirect.return_port {
                Target::Internal { name } => {
                    ports.extend(links.get(&internal::near_end(name)).map(|link| link.index));
                }
                Target::Device { name } => ports.extend(links.get(name).map(|link| link.index)),
                port @ Target::Tunnel { .. } => tunnels.extend(tunnel_key(port)),
                Target::Reader { .. } => {}
            }
        }
        for (ifindex, since) in &mut self.returns.ports {
            *since = if ports.contains(ifindex) { None } else { since.or(Some(now)) };
        }
        for (key, since) in &mut self.returns.tunnels {
            *since = if tunnels.contains(key) { None } else { since.or(Some(now)) };
        }
        if let Some((_, since)) = &mut self.returns.uplink {
            *since = if tunnels.is_empty() { since.or(Some(now)) } else { None };
        }
        let wanted = internal::wanted(&self.desired);
        self.returns.unused.retain(|port, _| !wanted.contains(port));
        for port in internal::existing(links) {
            if !wanted.contains(&port) {
                self.returns.unused.entry(port).or_insert(now);
            }
        }
    }
}

fn keys_where<K: Clone + Eq + std::hash::Hash, V>(map: &HashMap<K, V>, is_so: impl Fn(&V) -> bool) -> Vec<K> {
    map.iter().filter(|(_, value)| is_so(value)).map(|(key, _)| key.clone()).collect()
}
