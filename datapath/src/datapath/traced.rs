//! Endpoints whose packets somebody traces. In: their names. Out: stages that look at what they receive, for as long; and
//! what a packet in their name looks like.

use std::collections::HashMap;

use podwire_core::abi::{Direction, TargetRow, limits};

use super::Datapath;
use crate::desired::Forwarding;
use crate::error::Error;
use crate::inject::Attachment;
use crate::links::Place;
use crate::netdev::Link;
use crate::program::TO_UPLINK;

impl Datapath {
    /// Where the CNI forwards, the uplink's egress hook is the last that sees a traced packet.
    pub(super) fn traced_uplink(&mut self, links: &HashMap<String, Link>) -> Option<(u32, Direction)> {
        self.uplink_is_seen = false;
        if self.traced.is_empty() || self.desired.network.forwarding == Forwarding::Native {
            return None;
        }
        let interface = self.options.uplink.clone()?;
        let ifindex = links.get(&interface)?.index;
        let place = Place { interface: &interface, ifindex, direction: Direction::Ingress };
        match self.attach_one(TO_UPLINK, place) {
            Ok(()) => self.uplink_is_seen = true,
            Err(error) => {
                tracing::warn!(%interface, %error, "what leaves is traced to the host's stack only")
            }
        }
        Some((ifindex, Direction::Ingress))
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
