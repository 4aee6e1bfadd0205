//! Pods' interfaces, by their addresses. In: addresses. Out: the host side of each pod's interface, and the pod's MAC
//! address, as far as the kernel knows them.
//!
//! A route that leads straight to the address names the device. Where that is a bridge, the neighbour's MAC address
//! and the bridge's own table lead to the port.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};

use crate::error::{Context, Error};
use crate::netdev::Netdev;

/// Finds pods' interfaces in the network namespace of the thread that opened it.
pub struct Locator(Netdev);

/// A pod's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Host side of it.
    pub interface: String,
    /// The pod's MAC address, once it has spoken.
    pub mac: Option<[u8; 6]>,
}

/// What the kernel knows at one time.
struct Tables {
    names: HashMap<u32, String>,
    /// Devices that others are ports of.
    controllers: HashSet<u32>,
    neighbours: HashMap<(u32, IpAddr), [u8; 6]>,
    /// Ports by bridge and station.
    ports: HashMap<(u32, [u8; 6]), u32>,
}

impl Locator {
    /// Opens a netlink socket.
    ///
    /// # Errors
    /// When there is none to be had.
    pub fn open() -> Result<Self, Error> {
        Netdev::open().map(Self)
    }

    /// For each pod, given by its addresses, its interface. A pod that has not been heard of is asked for, so that
    /// it is known the next time.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn find(&self, pods: &[Vec<IpAddr>]) -> Result<Vec<Option<Located>>, Error> {
        let tables = self.tables()?;
        Ok(pods.iter().map(|ips| self.find_one(ips, &tables)).collect())
    }

    /// The names of all devices.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn devices(&self) -> Result<HashSet<String>, Error> {
        Ok(self.0.links()?.into_keys().collect())
    }

    fn find_one(&self, ips: &[IpAddr], tables: &Tables) -> Option<Located> {
        let ways: Vec<(IpAddr, u32)> = ips
            .iter()
            .filter_map(|ip| self.0.route(*ip).filter(|route| route.next_hop == *ip))
            .map(|route| (route.next_hop, route.ifindex))
            .collect();
        let mut found = None;
        for (ip, device) in ways {
            let mac = tables.neighbours.get(&(device, ip)).copied();
            if mac.is_none() {
                self.0.probe_neighbour(device, ip);
            }
            let port = match mac {
                _ if !tables.controllers.contains(&device) => Some(device),
                Some(mac) => tables.ports.get(&(device, mac)).copied(),
                None => None,
            };
            let Some(interface) = port.and_then(|port| tables.names.get(&port)) else { continue };
            let located = Located { interface: interface.clone(), mac };
            if mac.is_some() {
                return Some(located);
            }
            found = found.or(Some(located));
        }
        found
    }

    fn tables(&self) -> Result<Tables, Error> {
        let links = self.0.handle().link().get().execute().try_collect::<Vec<_>>();
        let links = self.0.wait(links).context(|| "listing network devices".into())?;
        let (mut names, mut controllers) = (HashMap::new(), HashSet::new());
        for link in links {
            for attribute in link.attributes {
                match attribute {
                    LinkAttribute::IfName(name) => {
                        names.insert(link.header.index, name);
                    }
                    LinkAttribute::Controller(index) => {
                        controllers.insert(index);
                    }
                    _ => {}
                }
            }
        }
        let neighbours = self.0.handle().neighbours().get().execute().try_collect::<Vec<_>>();
        let neighbours = self.0.wait(neighbours).context(|| "listing neighbours".into())?;
        let bridges = self.0.handle().neighbours().get().set_address_family(AddressFamily::Bridge).execute();
        // A kernel without bridges has no such table.
        let ports = self.0.wait(bridges.try_collect::<Vec<_>>()).unwrap_or_default();
        Ok(Tables {
            names,
            controllers,
            neighbours: neighbours.iter().filter_map(read_neighbour).collect(),
            ports: ports.iter().filter_map(read_port).collect(),
        })
    }
}

fn read_neighbour(message: &NeighbourMessage) -> Option<((u32, IpAddr), [u8; 6])> {
    use NeighbourState::{Failed, Incomplete, None as Unknown};
    if matches!(message.header.state, Failed | Incomplete | Unknown) {
        return None;
    }
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })?;
    Some(((message.header.ifindex, address), mac(message)?))
}

/// An entry of a bridge's table; what is permanent are the bridge's own addresses.
fn read_port(message: &NeighbourMessage) -> Option<((u32, [u8; 6]), u32)> {
    let bridge = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Controller(index) => Some(*index),
        _ => None,
    })?;
    let own = message.header.state == NeighbourState::Permanent;
    (!own).then_some(((bridge, mac(message)?), message.header.ifindex))
}

fn mac(message: &NeighbourMessage) -> Option<[u8; 6]> {
    let mac: Option<[u8; 6]> = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(mac) => mac.as_slice().try_into().ok(),
        _ => None,
    });
    mac.filter(|mac| *mac != [0; 6])
}
