//! Routes and permanent neighbours of podwire's own. In: all that are wanted. Out: the kernel has these and no
//! other ones of podwire's; those of others stay.
//!
//! podwire's have [`PROTOCOL`] as their origin. First what is missing is added, then the rest is taken away: a way
//! that changes is never without any.

use std::collections::BTreeSet;
use std::net::IpAddr;

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope};

use super::PROTOCOL;
use crate::error::{Context, Error, ErrorKind};
use crate::netdev::Netdev;

/// A route to a device, without a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    /// Where to.
    pub(crate) destination: IpNet,
    /// By which device.
    pub(crate) ifindex: u32,
    /// The node's own address on that way.
    pub(crate) source: Option<IpAddr>,
}

/// A neighbour that is known for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Neighbour {
    /// On which device.
    pub(crate) ifindex: u32,
    /// Its address.
    pub(crate) address: IpAddr,
    /// Its MAC address.
    pub(crate) mac: [u8; 6],
}

/// Makes podwire's routes and neighbours these.
///
/// # Errors
/// The kernel refuses one, or somebody else made the neighbour for good; the others are in force.
pub(crate) fn apply(
    netdev: &Netdev,
    routes: &BTreeSet<Route>,
    neighbours: &BTreeSet<Neighbour>,
) -> Result<(), Error> {
    let wanted: BTreeSet<Route> =
        routes.iter().map(|route| Route { destination: route.destination.trunc(), ..*route }).collect();
    let all = neighbours_of_all(netdev)?;
    let had_neighbours: BTreeSet<Neighbour> =
        all.iter().filter(|it| is_ours(it)).filter_map(read_neighbour).collect();
    let had_routes = own_routes(netdev)?;
    // One that cannot be had keeps no other one from being made; the first is told.
    let mut outcome = Ok(());
    for neighbour in neighbours.difference(&had_neighbours) {
        let foreign = all.iter().filter(|it| !is_ours(it) && it.header.state == NeighbourState::Permanent);
        let taken = foreign
            .filter_map(read_neighbour)
            .any(|it| (it.ifindex, it.address) == (neighbour.ifindex, neighbour.address));
        outcome = outcome.and(if taken {
            let what = format!("neighbour {} was made for good by somebody else", neighbour.address);
            Err(Error::new(ErrorKind::ForeignState, what))
        } else {
            add_neighbour(netdev, neighbour)
        });
    }
    let mut replaced = BTreeSet::new();
    let present: BTreeSet<Route> = had_routes.iter().map(|(route, _)| *route).collect();
    for route in wanted.difference(&present) {
        // IPv4 keeps one route per destination and metric: a replacement is the one step without a gap.
        let old = had_routes.iter().any(|(had, _)| had.destination == route.destination);
        let added = add_route(netdev, route, old);
        if old && added.is_ok() {
            replaced.insert(route.destination);
        }
        outcome = outcome.and(added);
    }
    for (route, message) in had_routes.into_iter().filter(|(route, _)| !wanted.contains(route)) {
        if !replaced.contains(&route.destination) {
            let delete = netdev.handle().route().del(message);
            gone(netdev.wait(delete.execute()))
                .context(|| format!("deleting the route to {}", route.destination))?;
        }
    }
    for neighbour in had_neighbours.difference(neighbours) {
        // Another MAC address went over the old one.
        let again =
            |wanted: &Neighbour| (wanted.ifindex, wanted.address) == (neighbour.ifindex, neighbour.address);
        if !neighbours.iter().any(again) {
            let mut message = netdev.handle().neighbours().add(neighbour.ifindex, neighbour.address);
            let delete = netdev.handle().neighbours().del(message.message_mut().clone());
            gone(netdev.wait(delete.execute()))
                .context(|| format!("deleting neighbour {}", neighbour.address))?;
        }
    }
    outcome
}

/// What is gone with its device already is no error.
fn gone(result: Result<(), rtnetlink::Error>) -> Result<(), rtnetlink::Error> {
    match result {
        Err(rtnetlink::Error::NetlinkError(error))
            if [-libc::ESRCH, -libc::ENOENT, -libc::ENODEV].contains(&error.raw_code()) =>
        {
            Ok(())
        }
        result => result,
    }
}

fn add_route(netdev: &Netdev, route: &Route, replace: bool) -> Result<(), Error> {
    let what = || format!("adding the route to {}", route.destination);
    let mut message = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(route.destination.addr(), route.destination.prefix_len())
        .context(what)?
        .output_interface(route.ifindex)
        .scope(if route.destination.addr().is_ipv4() { RouteScope::Link } else { RouteScope::Universe })
        .protocol(RouteProtocol::from(PROTOCOL));
    if let Some(source) = route.source {
        message = message.pref_source(source).context(what)?;
    }
    let add = netdev.handle().route().add(message.build());
    let add = if replace { add.replace() } else { add };
    netdev.wait(add.execute()).context(what)
}

fn add_neighbour(netdev: &Netdev, neighbour: &Neighbour) -> Result<(), Error> {
    let mut add = netdev
        .handle()
        .neighbours()
        .add(neighbour.ifindex, neighbour.address)
        .link_layer_address(&neighbour.mac)
        .state(NeighbourState::Permanent)
        .replace();
    add.message_mut().attributes.push(NeighbourAttribute::Protocol(RouteProtocol::from(PROTOCOL)));
    netdev.wait(add.execute()).context(|| format!("adding neighbour {}", neighbour.address))
}

fn own_routes(netdev: &Netdev) -> Result<Vec<(Route, RouteMessage)>, Error> {
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        let answer = netdev.handle().route().get(question).execute().try_collect::<Vec<_>>();
        let messages = netdev.wait(answer).context(|| "listing routes".into())?;
        let own =
            messages.into_iter().filter(|message| message.header.protocol == RouteProtocol::from(PROTOCOL));
        found.extend(own.filter_map(|message| Some((read_route(&message)?, message))));
    }
    Ok(found)
}

fn read_route(message: &RouteMessage) -> Option<Route> {
    let plain = |address: &RouteAddress| match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    };
    let any = match message.header.address_family {
        AddressFamily::Inet => IpAddr::from([0; 4]),
        _ => IpAddr::from([0; 16]),
    };
    let (mut destination, mut ifindex, mut source) = (any, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = plain(address)?,
            RouteAttribute::Oif(index) => ifindex = Some(*index),
            RouteAttribute::PrefSource(address) => source = plain(address),
            _ => {}
        }
    }
    let destination = IpNet::new(destination, message.header.destination_prefix_length).ok()?;
    Some(Route { destination, ifindex: ifindex?, source })
}

fn neighbours_of_all(netdev: &Netdev) -> Result<Vec<NeighbourMessage>, Error> {
    let answer = netdev.handle().neighbours().get().execute().try_collect::<Vec<_>>();
    netdev.wait(answer).context(|| "listing neighbours".into())
}

fn is_ours(message: &NeighbourMessage) -> bool {
    message.attributes.contains(&NeighbourAttribute::Protocol(RouteProtocol::from(PROTOCOL)))
}

fn read_neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    let (mut address, mut mac) = (None, [0; 6]);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(it)) => address = Some(IpAddr::V4(*it)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(it)) => address = Some(IpAddr::V6(*it)),
            NeighbourAttribute::LinkLayerAddress(it) => mac = it.as_slice().try_into().unwrap_or_default(),
            _ => {}
        }
    }
    Some(Neighbour { ifindex: message.header.ifindex, address: address?, mac })
}
