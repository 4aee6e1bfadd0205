//! Egress addresses on the node. In: which address on which device. Out: they are there as podwire's, announced
//! when taken and when the device's carrier comes back; podwire's other ones are gone.
//!
//! podwire's have [`PROTOCOL`] as their origin (`IFA_PROTO`, Linux 5.18). One that somebody else put there is left,
//! and is not taken away later.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressProtocol};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};

use super::PROTOCOL;
use super::announce::{Announcer, Place};
use crate::error::{Context, Error};
use crate::netdev::Netdev;

/// Addresses, each with the ifindex of its device.
pub(crate) type Wish = BTreeSet<Place>;

/// What is remembered between two calls: which devices had a carrier, and what is still being announced.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    carrier: BTreeMap<u32, bool>,
    announcer: Announcer,
}

impl Addresses {
    /// Makes podwire's addresses these.
    ///
    /// # Errors
    /// The kernel does not list what is there; or refuses one, and all others are as they should be.
    pub(crate) fn apply(&mut self, netdev: &Netdev, wish: &Wish) -> Result<(), Error> {
        self.announcer.keep_only(wish);
        let present = netdev
            .wait(netdev.handle().address().get().execute().try_collect::<Vec<_>>())
            .context(|| "listing addresses".into())?;
        let there: Wish = present.iter().filter_map(place).collect();
        let mut news: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
        let mut done = Ok(());
        for &(ifindex, address) in wish.difference(&there) {
            match add(netdev, ifindex, address) {
                Ok(()) => news.entry(ifindex).or_default().push(address),
                refused => done = done.and(refused),
            }
        }
        for message in present {
            let Some((ifindex, address)) = place(&message) else {
                continue;
            };
            if is_ours(&message) && !wish.contains(&(ifindex, address)) {
                let removed = netdev.wait(netdev.handle().address().del(message).execute());
                done = done.and(removed.context(|| format!("removing address {address}")));
            } else if is_ours(&message) && self.carrier.get(&ifindex) == Some(&false) {
                news.entry(ifindex).or_default().push(address);
            }
        }
        done.and(self.announce(netdev, wish, news))
    }

    fn announce(
        &mut self,
        netdev: &Netdev,
        wish: &Wish,
        mut news: BTreeMap<u32, Vec<IpAddr>>,
    ) -> Result<(), Error> {
        let devices: BTreeSet<u32> = wish.iter().map(|(ifindex, _)| *ifindex).collect();
        self.carrier.retain(|ifindex, _| devices.contains(ifindex));
        if devices.is_empty() {
            return Ok(());
        }
        let links = netdev.handle().link().get().execute().try_collect::<Vec<_>>();
        let mut done = Ok(());
        let links = netdev.wait(links).context(|| "listing network devices".into());
        if links.is_err() {
            // Tried again with the next change.
            self.carrier.extend(news.keys().map(|ifindex| (*ifindex, false)));
        }
        for link in links? {
            let ifindex = link.header.index;
            if !devices.contains(&ifindex) {
                continue;
            }
            let carrier = link.header.flags.contains(LinkFlags::LowerUp);
            self.carrier.insert(ifindex, carrier);
            let mac = link.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::Address(mac) => <[u8; 6]>::try_from(mac.as_slice()).ok(),
                _ => None,
            });
            // On a device without neighbours nobody listens.
            let heard = carrier && !link.header.flags.contains(LinkFlags::Noarp);
            if let (true, Some(mac), Some(addresses)) = (heard, mac, news.remove(&ifindex)) {
                let announced = self.announcer.announce(ifindex, mac, addresses);
                if announced.is_err() {
                    // Tried again with the next change.
                    self.carrier.insert(ifindex, false);
                }
                done = done.and(announced);
            }
        }
        done
    }
}

fn add(netdev: &Netdev, ifindex: u32, address: IpAddr) -> Result<(), Error> {
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let mut add = netdev.handle().address().add(ifindex, address, whole);
    let message = add.message_mut();
    message.attributes.push(AddressAttribute::Protocol(AddressProtocol::from(PROTOCOL)));
    if address.is_ipv6() {
        // The address comes from another node: asking who has it would keep it from working meanwhile.
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    netdev.wait(add.execute()).context(|| format!("adding address {address}"))
}

fn place(message: &AddressMessage) -> Option<(u32, IpAddr)> {
    // The local one: of a point-to-point device `IFA_ADDRESS` is the other end.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let plain = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    Some((message.header.index, local.or(plain)?))
}

fn is_ours(message: &AddressMessage) -> bool {
    message.attributes.contains(&AddressAttribute::Protocol(AddressProtocol::from(PROTOCOL)))
}
