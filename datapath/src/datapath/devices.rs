//! The devices that podwire makes for itself: the private mirror device, and the one that cuts super-packets up.

use std::collections::HashMap;

use podwire_core::abi::Direction;

use super::Datapath;
use crate::error::{Context, Error, ErrorKind};
use crate::links::{self, Place};
use crate::netdev::Link;
use crate::program::{MIRROR, SEGMENT};
use crate::sys;

impl Datapath {
    /// Whether both pairs are there and up.
    pub(super) fn private_devices_are_whole(&self, links: &HashMap<String, Link>) -> bool {
        let ends = [&self.options.mirror_device, &self.options.segment_device];
        ends.into_iter().all(|name| {
            [name.clone(), peer_of(name)].iter().all(|end| links.get(end).is_some_and(|link| link.up))
        })
    }

    pub(super) fn ensure_private_devices(&mut self, links: &HashMap<String, Link>) -> Result<(), Error> {
        let mirror = self.options.mirror_device.clone();
        let index = self.ensure_pair(&mirror, links)?.0;
        allow_forwarding(&mirror)?;
        let place = Place { interface: &mirror, ifindex: index, direction: Direction::Ingress };
        links::attach(&mut self.bpf, MIRROR, &self.pins, self.tcx, place)?;
        self.attached.insert((index, Direction::Ingress), mirror);
        self.mirror_ifindex = index;

        let segment = self.options.segment_device.clone();
        let (near, far) = self.ensure_pair(&segment, links)?;
        let far_end = peer_of(&segment);
        sys::without_offload(&segment).context(|| format!("switching off offloads of device {segment}"))?;
        allow_forwarding(&far_end)?;
        let place = Place { interface: &far_end, ifindex: far, direction: Direction::Egress };
        links::attach(&mut self.bpf, SEGMENT, &self.pins, self.tcx, place)?;
        self.attached.insert((far, Direction::Egress), far_end);
        self.segment_ifindex = near;
        Ok(())
    }

    /// Makes a pair, both ends up, and returns their indexes.
    fn ensure_pair(&self, name: &str, links: &HashMap<String, Link>) -> Result<(u32, u32), Error> {
        let peer = peer_of(name);
        let mut links = links.clone();
        if !(links.contains_key(name) && links.contains_key(&peer)) {
            self.netdev.create_pair(name, &peer)?;
            links = self.netdev.links()?;
        }
        let mut indexes = [0; 2];
        for (index, end) in indexes.iter_mut().zip([name, &peer]) {
            let link = links.get(end).ok_or_else(|| gone(end))?;
            if !link.up {
                // No address of its own, so that the kernel does not announce one on it.
                let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/addr_gen_mode"), "1");
                self.netdev.prepare(end, link.index)?;
            }
            *index = link.index;
        }
        Ok((indexes[0], indexes[1]))
    }
}

fn peer_of(name: &str) -> String {
    format!("{name}-p")
}

/// Copies count as received on these devices, so that the kernel's route lookup may forward them.
fn allow_forwarding(name: &str) -> Result<(), Error> {
    for family in ["ipv4", "ipv6"] {
        let path = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
        if let Err(error) = std::fs::write(&path, "1") {
            if family == "ipv4" {
                return Err(error).context(|| format!("writing {path}"));
            }
            tracing::debug!(%path, %error, "this kernel has no IPv6");
        }
    }
    Ok(())
}

fn gone(name: &str) -> Error {
    Error::new(ErrorKind::Kernel, format!("device {name} is gone right after it was made"))
}
