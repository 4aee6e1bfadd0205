//! Programs on hooks. In: the tables in force. Out: a program wherever packets have to be looked at, and nowhere
//! else.

use std::collections::{HashMap, HashSet};

use podwire_core::abi::Direction;

use super::Datapath;
use crate::error::Error;
use crate::links::{self, Place};
use crate::netdev::Link;
use crate::program::{FROM_POD, TO_POD};
use crate::status::EndpointState;

impl Datapath {
    /// Puts programs where rules are and takes them off where none are. A failure is the endpoint's own.
    pub(super) fn attach_endpoints(&mut self, links: &HashMap<String, Link>) -> Vec<EndpointState> {
        let mut wanted: HashSet<(u32, Direction)> = self.private_hooks(links).into_iter().collect();
        wanted.extend(self.returns.hooks());
        wanted.extend(self.overlay_hooks());
        wanted.extend(self.traced_exits(links));
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
                    if self.traced.contains(&endpoint.name)
                        || self.has_rules(&endpoint.name, ifindex, direction)
                    {
                        wanted.insert((ifindex, direction));
                        let place = Place { interface: &endpoint.interface, ifindex, direction };
                        match self.attach_one(program_of(direction), place) {
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
            self.updated.remove(&(ifindex, direction));
            if let Err(error) = links::detach(&self.pins, self.tcx, place) {
                tracing::warn!(%interface, %error, "a program could not be taken off");
                self.attached.insert((ifindex, direction), interface);
            }
        }
        states
    }

    pub(super) fn attach_one(&mut self, program: &str, place: Place) -> Result<(), Error> {
        let key = (place.ifindex, place.direction);
        // After a restart the program behind the link is the earlier run's: swapped once, then left alone.
        if self.updated.contains(&key) && self.attached.contains_key(&key) {
            return Ok(());
        }
        links::attach(&mut self.bpf, program, &self.pins, self.tcx, place)?;
        self.attached.insert(key, place.interface.to_owned());
        self.updated.insert(key);
        Ok(())
    }

    pub(super) fn has_rules(&self, name: &str, ifindex: u32, direction: Direction) -> bool {
        let Some(slot) = self.endpoints.find(&(name.to_owned(), ifindex)) else {
            return false;
        };
        self.in_force.as_ref().is_some_and(|in_force| in_force.image.has_rules(slot, direction))
    }

    /// Hooks of podwire's own devices.
    fn private_hooks(&self, links: &HashMap<String, Link>) -> Vec<(u32, Direction)> {
        let far_end = format!("{}-p", self.options.segment_device);
        let mut hooks = vec![(self.mirror_ifindex, Direction::Ingress)];
        hooks.extend(links.get(&far_end).map(|link| (link.index, Direction::Egress)));
        hooks
    }
}

fn program_of(direction: Direction) -> &'static str {
    match direction {
        Direction::Egress => FROM_POD,
        Direction::Ingress => TO_POD,
    }
}
