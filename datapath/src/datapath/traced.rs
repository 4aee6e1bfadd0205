//! Endpoints whose packets somebody traces. In: their names. Out: stages that look at what they receive, for as long; and
//! what a packet in their name looks like.

use std::collections::HashMap;

use podwire_core::abi::{Direction, TargetRow, limits};

use super::Datapath;
use crate::desired::{Forwarding, Target};
use crate::error::Error;
use crate::inject::Attachment;
use crate::internal;
use crate::links::Place;
use crate::netdev::Link;
use crate::program::TO_UPLINK;

impl Datapath {
    /// Where the CNI forwards, packets leave by the uplink or by a tunnel of the CNI's; the egress hook there is the last
    /// that sees a traced packet.
    pub(super) fn traced_exits(&mut self, links: &HashMap<String, Link>) -> Vec<(u32, Direction)> {
        self.exits_are_seen = false;
        if self.traced.is_empty() || self.desired.network.forwarding == Forwarding::Native {
            return Vec::new();
        }
        let mut hooks = Vec::new();
        for (interface, link) in links {
            if !self.is_exit(interface, link) {
                continue;
            }
            let place = Place { interface, ifindex: link.index, direction: Direction::Ingress };
            match self.attach_one(TO_UPLINK, place) {
                Ok(()) => hooks.push((link.index, Direction::Ingress)),
                Err(error) => {
                    tracing::warn!(%interface, %error, "what leaves by it is traced to the host's stack only");
                }
            }
        }
        self.exits_are_seen = !hooks.is_empty();
        hooks
    }

    /// Whether what is sent to a device leaves the node: pods' interfaces do not, nor podwire's own devices.
    fn is_exit(&self, interface: &str, link: &Link) -> bool {
        if self.options.uplink.as_deref() == Some(interface) {
            return true;
        }
        let own = [link.index == self.mirror_ifindex, link.index == self.segment_ifindex].contains(&true)
            || self.ways.overlay == Some(link.index)
            || link.alias.as_deref().is_some_and(internal::is_near_end)
            || [&self.options.mirror_device, &self.options.segment_device]
                .into_iter()
                .any(|name| interface == format!("{name}-p"));
        let endpoint = self.desired.endpoints.iter().any(|endpoint| endpoint.interface == interface);
        link.up && !link.inner && !link.peer && !own && !endpoint && !self.is_tools(interface)
    }

    /// Whether a device is where a tool gets packets, or gives them back.
    fn is_tools(&self, interface: &str) -> bool {
        let mirrors = self.desired.mirrors.iter().map(|mirror| &mirror.target);
        let redirects = self.desired.redirects.iter();
        let redirects = redirects.flat_map(|redirect| [&redirect.target, &redirect.return_port]);
        mirrors.chain(redirects).any(|target| match target {
            Target::Internal { name } | Target::Device { name } => name == interface,
            Target::Tunnel { .. } | Target::Reader { .. } => false,
        })
    }

    /// In the generation in force, in place: one word of a row changes.
    pub(super) fn give_stages(&mut self) -> Result<(), Error> {
        let slots: HashMap<String, u32> =
            self.endpoints.iter().map(|(slot, (name, _))| (name.clone(), slot)).collect();
        let base = self.generation.bank() * limits::TARGETS;
        let Some(in_force) = &mut self.in_force else {
            return Ok(());
        };
        for (number, name) in &self.pods {
            let ruled =
                slots.get(name).is_some_and(|slot| in_force.image.has_rules(*slot, Direction::Ingress));
            let Some(row) = in_force.targets.get_mut(*number as usize) else {
                continue;
            };
            let flags = if ruled || self.traced.contains(name) {
                row.flags | TargetRow::FLAG_STAGES
            } else {
                row.flags & !TargetRow::FLAG_STAGES
            };
            if flags != row.flags {
                row.flags = flags;
                self.maps.targets.set(base + number, *row)?;
            }
        }
        Ok(())
    }

    pub(super) fn attachment_of(&self, name: &str) -> Result<Option<Attachment>, Error> {
        let Some(endpoint) = self.desired.endpoints.iter().find(|endpoint| endpoint.name == name) else {
            return Ok(None);
        };
        let links = self.netdev.links()?;
        let Some(link) = links.get(&endpoint.interface) else {
            return Ok(None);
        };
        let bridge = link.master.and_then(|master| links.values().find(|link| link.index == master));
        let mac = match endpoint.mac {
            Some(mac) => Some(mac),
            None => endpoint.ips.iter().find_map(|ip| self.netdev.neighbour_mac(*ip)),
        };
        Ok(Some(Attachment {
            ifindex: link.index,
            mac: mac.unwrap_or(link.mac),
            gateway: bridge.unwrap_or(link).mac,
            bridge: link.master,
        }))
    }
}
