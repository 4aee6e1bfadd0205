//! The overlay's device. In: name, port, MTU. Out: the kernel's VXLAN device in collect-metadata mode, up.
//!
//! One device for all nodes: the program that sends says remote and VNI with each packet. Every node's device has
//! the same MAC address, so that the inner Ethernet header needs no neighbours.

use futures_util::TryStreamExt;
use podwire_core::abi::OVERLAY_MAC;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage,
};
use rtnetlink::{LinkUnspec, LinkVxlan};

use super::sysctl;
use crate::error::{Context, Error, ErrorKind};
use crate::netdev::Netdev;

/// The alias by which podwire knows its device.
const ALIAS: &str = "podwire overlay";

/// The device that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Its name.
    pub(crate) name: String,
    /// UDP port, both ends.
    pub(crate) port: u16,
    /// Bytes of the inner network layer.
    pub(crate) mtu: u32,
}

/// Makes the device so; returns its ifindex.
///
/// # Errors
/// A device of this name is somebody else's; the port is taken; the kernel refuses.
pub(crate) fn ensure(netdev: &Netdev, wish: &Wish) -> Result<u32, Error> {
    let links = links(netdev)?;
    let named = links.iter().find(|link| name(link) == Some(&wish.name));
    if let Some(link) = named {
        if !is_ours(link) {
            let what = format!("device {} exists, and podwire did not make it: name another", wish.name);
            return Err(Error::new(ErrorKind::ForeignState, what));
        }
        if fits(link, wish) {
            return dress(netdev, wish, link.header.index, link);
        }
        delete(netdev, link)?;
    }
    // One that has the name of an earlier wish would keep the port.
    links
        .iter()
        .filter(|link| is_ours(link) && name(link) != Some(&wish.name))
        .try_for_each(|link| delete(netdev, link))?;
    create(netdev, wish)
}

/// Removes podwire's device, whatever its name.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn remove(netdev: &Netdev) -> Result<(), Error> {
    links(netdev)?.iter().filter(|link| is_ours(link)).try_for_each(|link| delete(netdev, link))
}

fn create(netdev: &Netdev, wish: &Wish) -> Result<u32, Error> {
    let message = LinkVxlan::new(&wish.name, 0)
        .collect_metadata(true)
        .learning(false)
        .port(wish.port)
        .address(OVERLAY_MAC.to_vec())
        .arp(false)
        .mtu(wish.mtu)
        .build();
    netdev
        .wait(netdev.handle().link().add(message).execute())
        .context(|| format!("creating device {}", wish.name))?;
    let made = links(netdev)?.into_iter().find(|link| name(link) == Some(&wish.name));
    let Some(link) = made else {
        return Err(Error::new(
            ErrorKind::Kernel,
            format!("device {} went as soon as it was made", wish.name),
        ));
    };
    let index = link.header.index;
    // The alias first: what fails half way is then known as ours.
    let alias = LinkUnspec::new_with_index(index).alias(ALIAS).build();
    let done = change(netdev, &wish.name, alias).and_then(|()| dress(netdev, wish, index, &link));
    if done.is_err() {
        let _ = delete(netdev, &link);
    }
    done
}

/// What can be changed while the device is there.
fn dress(netdev: &Netdev, wish: &Wish, index: u32, now: &LinkMessage) -> Result<u32, Error> {
    let mode = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
    let silent = now.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::AfSpecUnspec(families) => families.iter().any(|family| match family {
            AfSpecUnspec::Inet6(all) => all.contains(&AfSpecInet6::AddrGenMode(In6AddrGenMode::None)),
            _ => false,
        }),
        _ => false,
    });
    if !silent {
        let message = LinkUnspec::new_with_index(index)
            .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![mode]))
            .build();
        // Before it is up: afterwards the address would be there.
        if let Err(error) = change(netdev, &wish.name, message) {
            tracing::debug!(%error, "a kernel without IPv6 makes no addresses by itself");
        }
    }
    sysctl::set(&format!("net/ipv6/conf/{}/disable_ipv6", wish.name), "0")?;
    // Loose: what comes in by the overlay may have its way back elsewhere.
    sysctl::set(&format!("net/ipv4/conf/{}/rp_filter", wish.name), "2")?;
    let has = |wanted: LinkAttribute| now.attributes.contains(&wanted);
    let flags = now.header.flags;
    let same = has(LinkAttribute::Mtu(wish.mtu)) && has(LinkAttribute::Address(OVERLAY_MAC.to_vec()));
    if same && flags.contains(LinkFlags::Up) && flags.contains(LinkFlags::Noarp) {
        return Ok(index);
    }
    let message =
        LinkUnspec::new_with_index(index).address(OVERLAY_MAC.to_vec()).arp(false).mtu(wish.mtu).up().build();
    let up = netdev.wait(netdev.handle().link().set(message).execute());
    match up {
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::EADDRINUSE => {
            let what = format!(
                "UDP port {} is taken, by another VXLAN device or a program: the overlay needs one of its own",
                wish.port
            );
            Err(Error::new(ErrorKind::Busy, what))
        }
        up => up.context(|| format!("setting up device {}", wish.name)).map(|()| index),
    }
}

/// Whether what cannot be changed is as wished.
fn fits(link: &LinkMessage, wish: &Wish) -> bool {
    let Some(data) = vxlan(link) else {
        return false;
    };
    data.contains(&InfoVxlan::Port(wish.port)) && data.contains(&InfoVxlan::CollectMetadata(true))
}

fn vxlan(link: &LinkMessage) -> Option<&[InfoVxlan]> {
    let LinkAttribute::LinkInfo(infos) =
        link.attributes.iter().find(|attribute| matches!(attribute, LinkAttribute::LinkInfo(_)))?
    else {
        return None;
    };
    infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(data.as_slice()),
        _ => None,
    })
}

fn is_ours(link: &LinkMessage) -> bool {
    let kind = |info: &LinkInfo| *info == LinkInfo::Kind(InfoKind::Vxlan);
    let is_vxlan = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::LinkInfo(infos) if infos.iter().any(kind));
    link.attributes.contains(&LinkAttribute::IfAlias(ALIAS.to_owned()))
        && link.attributes.iter().any(is_vxlan)
}

fn name(link: &LinkMessage) -> Option<&String> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    })
}

fn links(netdev: &Netdev) -> Result<Vec<LinkMessage>, Error> {
    netdev
        .wait(netdev.handle().link().get().execute().try_collect())
        .context(|| "listing network devices".into())
}

fn change(netdev: &Netdev, name: &str, message: LinkMessage) -> Result<(), Error> {
    netdev.wait(netdev.handle().link().set(message).execute()).context(|| format!("setting up device {name}"))
}

fn delete(netdev: &Netdev, link: &LinkMessage) -> Result<(), Error> {
    netdev
        .wait(netdev.handle().link().del(link.header.index).execute())
        .context(|| "deleting the overlay's device".into())
}
