//! The node's own tunnels. In: what is wanted. Out: a refusal where a tunnel device of this network namespace uses
//! the same port or identifier: its packets are no mirror, and a collector would take them for one.

use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{
    InfoData, InfoGeneve, InfoKind, InfoVxlan, LinkAttribute, LinkInfo, LinkMessage,
};

use super::wanted::Wanted;
use crate::error::{Context, Error, ErrorKind};
use crate::netdev::Netdev;

/// A tunnel device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    name: String,
    port: u16,
    /// `None`: it takes any.
    vni: Option<u32>,
    vxlan: bool,
}

/// Whether what is wanted is nobody's.
///
/// # Errors
/// `Invalid`, naming the device and what to do.
pub(super) fn check(wanted: &Wanted) -> Result<(), Error> {
    let netdev = Netdev::open()?;
    let links = netdev.wait(netdev.handle().link().get().execute().try_collect::<Vec<_>>());
    let links = links.context(|| "listing network devices".into())?;
    links.iter().filter_map(owner).try_for_each(|owner| refuse(&owner, wanted))
}

fn refuse(owner: &Owner, wanted: &Wanted) -> Result<(), Error> {
    let (kind, ports, option) = match owner.vxlan {
        true => ("VXLAN", &wanted.vxlan_ports, "--vxlan-port"),
        false => ("GENEVE", &wanted.geneve_ports, "--geneve-port"),
    };
    let Owner { name, port, .. } = owner;
    if !ports.contains(port) {
        return Ok(());
    }
    let about = match owner.vni {
        _ if wanted.vnis.is_empty() => format!(
            "device {name} of this node receives {kind} at port {port}: say which streams are a mirror's with \
             --vni, or take another port with {option}"
        ),
        Some(vni) if wanted.vnis.contains(&vni) => format!(
            "VNI {vni} at {kind} port {port} is that of device {name} of this node: take another one with --vni, \
             or another port with {option}"
        ),
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, about))
}

fn owner(link: &LinkMessage) -> Option<Owner> {
    let (mut name, mut kind, mut data) = (None, None, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text.clone()),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(one) => kind = Some(one),
                        LinkInfo::Data(one) => data = Some(one),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let (name, mut owner) = (name?, Owner { name: String::new(), port: 0, vni: None, vxlan: false });
    let mut any = false;
    match (kind?, data) {
        (InfoKind::Vxlan, Some(InfoData::Vxlan(infos))) => {
            owner.vxlan = true;
            for info in infos {
                match info {
                    InfoVxlan::Port(port) => owner.port = *port,
                    InfoVxlan::Id(vni) => owner.vni = Some(*vni),
                    InfoVxlan::CollectMetadata(on) => any |= *on,
                    _ => {}
                }
            }
        }
        (InfoKind::Geneve, Some(InfoData::Geneve(infos))) => {
            for info in infos {
                match info {
                    InfoGeneve::Port(port) => owner.port = *port,
                    InfoGeneve::Id(vni) => owner.vni = Some(*vni),
                    InfoGeneve::CollectMetadata => any = true,
                    _ => {}
                }
            }
        }
        _ => return None,
    }
    owner.name = name;
    owner.vni = owner.vni.filter(|_| !any);
    Some(owner)
}
