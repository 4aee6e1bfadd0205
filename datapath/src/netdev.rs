//! The kernel's network devices, routes and neighbours, by netlink. Blocking: a private runtime drives the
//! socket, which stays in the network namespace of the thread that opened it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::mpsc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
#[cfg(feature = "xsk")]
use rtnetlink::packet_route::link::{LinkXdp, XdpAttached};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::sys::{AsyncSocket, SocketAddr};
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tokio::runtime::Runtime;

use crate::error::{Context, Error};
use crate::sys;

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV6_IFADDR`, `RTMGRP_IPV6_ROUTE`.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) up: bool,
    /// Whether something is at the other end.
    pub(crate) carrier: bool,
    /// Bytes of the network layer.
    pub(crate) mtu: u32,
    pub(crate) mac: [u8; 6],
    /// One end of a veth pair whose other end is in another network namespace.
    pub(crate) peer: bool,
    pub(crate) alias: Option<String>,
    /// The device that it is a port of.
    pub(crate) master: Option<u32>,
    /// What is sent to it stays on the node: a loopback, or a bridge.
    pub(crate) inner: bool,
    /// Frames that the device did not take.
    pub(crate) tx_dropped: u64,
}

/// The way to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) source: IpAddr,
    pub(crate) ifindex: u32,
    pub(crate) next_hop: IpAddr,
}

/// A netlink socket.
pub(crate) struct Netdev {
    runtime: Runtime,
    handle: Handle,
}

impl Netdev {
    pub(crate) fn open() -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .context(|| "starting the netlink runtime".into())?;
        let _guard = runtime.enter();
        let (connection, handle, _) =
            rtnetlink::new_connection().context(|| "opening a netlink socket".into())?;
        runtime.spawn(connection);
        drop(_guard);
        Ok(Self { runtime, handle })
    }

    /// The socket, for requests that this file does not know.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits for an answer of the kernel.
    pub(crate) fn wait<T>(
        &self,
        answer: impl Future<Output = Result<T, rtnetlink::Error>>,
    ) -> Result<T, rtnetlink::Error> {
        self.runtime.block_on(answer)
    }

    /// All devices by name.
    pub(crate) fn links(&self) -> Result<HashMap<String, Link>, Error> {
        let links = self.runtime.block_on(self.handle.link().get().execute().try_collect::<Vec<_>>());
        let links = links.context(|| "listing network devices".into())?;
        Ok(links.into_iter().filter_map(|message| read_link(&message)).collect())
    }

    /// Makes a veth pair, both ends up, for copies on their way: large frames, no addresses, no ARP.
    pub(crate) fn create_pair(&self, name: &str, peer: &str) -> Result<(), Error> {
        let request = self.handle.link().add(LinkVeth::new(name, peer).build());
        self.runtime.block_on(request.execute()).context(|| format!("creating device {name}"))
    }

    /// Makes an internal port: `far` for the tool, `near` without offloads.
    pub(crate) fn create_port(&self, far: &str, near: &str, alias: &str, mtu: u32) -> Result<(), Error> {
        // Under the near end's name first: an end that is half made is then found again.
        self.create_pair(near, far)?;
        let made = self.dress_port(far, near, alias, mtu);
        if made.is_err() {
            let _ = self.delete(near);
        }
        made
    }

    fn dress_port(&self, far: &str, near: &str, alias: &str, mtu: u32) -> Result<(), Error> {
        for end in [far, near] {
            // Nothing but redirected and copied frames shall be on it.
            quiet(end);
        }
        self.change(
            LinkUnspec::new_with_name(near).alias(alias).arp(false).multicast(false).mtu(mtu).build(),
            near,
        )?;
        sys::without_offload(near).context(|| format!("switching off offloads of device {near}"))?;
        self.change(LinkUnspec::new_with_name(far).multicast(false).mtu(mtu).up().build(), far)?;
        self.change(LinkUnspec::new_with_name(near).up().build(), near)
    }

    /// Brings both ends of an internal port up to a larger MTU; `far` may be in another namespace.
    pub(crate) fn grow_pair(&self, near: &str, far: Option<&str>, mtu: u32) -> Result<(), Error> {
        for end in far.into_iter().chain([near]) {
            self.change(LinkUnspec::new_with_name(end).mtu(mtu).up().build(), end)?;
        }
        Ok(())
    }

    fn change(&self, message: LinkMessage, name: &str) -> Result<(), Error> {
        let request = self.handle.link().set(message);
        self.runtime.block_on(request.execute()).context(|| format!("setting up device {name}"))
    }

    /// Brings a device up in the shape that the mirror program needs.
    pub(crate) fn prepare(&self, name: &str, index: u32) -> Result<(), Error> {
        let down = LinkUnspec::new_with_index(index).arp(false).multicast(false).mtu(MIRROR_MTU).build();
        let up = LinkUnspec::new_with_index(index).up().build();
        [down, up].into_iter().try_for_each(|message| self.change(message, name))
    }

    /// The kinds of a device's queueing disciplines, those inside others too.
    #[cfg(feature = "xsk")]
    pub(crate) fn disciplines(&self, ifindex: u32) -> Result<Vec<String>, Error> {
        use rtnetlink::packet_route::tc::TcAttribute;
        let index = i32::try_from(ifindex).unwrap_or_default();
        let all = self.handle.qdisc().get().index(index).execute().try_collect::<Vec<_>>();
        let all = self.runtime.block_on(all).context(|| "listing queueing disciplines".into())?;
        let kinds = all.into_iter().filter(|one| one.header.index == index).flat_map(|one| one.attributes);
        Ok(kinds
            .filter_map(|attribute| match attribute {
                TcAttribute::Kind(kind) => Some(kind),
                _ => None,
            })
            .collect())
    }

    /// Deletes a device; one that is gone already is no error.
    pub(crate) fn delete(&self, name: &str) -> Result<(), Error> {
        let Some(link) = self.links()?.remove(name) else {
            return Ok(());
        };
        self.runtime
            .block_on(self.handle.link().del(link.index).execute())
            .context(|| format!("deleting device {name}"))
    }

    /// The kernel's route to an address; `None` when there is none, or it does not leave this node.
    pub(crate) fn route(&self, remote: IpAddr) -> Option<Route> {
        let message = match remote {
            IpAddr::V4(address) => {
                RouteMessageBuilder::<std::net::Ipv4Addr>::new().destination_prefix(address, 32).build()
            }
            IpAddr::V6(address) => {
                RouteMessageBuilder::<std::net::Ipv6Addr>::new().destination_prefix(address, 128).build()
            }
        };
        let mut request = self.handle.route().get(message);
        // A question about one address, not a dump.
        let message = request.message_mut().clone();
        self.runtime
            .block_on(ask(self.handle.clone(), message))
            .and_then(|answer| read_route(&answer, remote))
    }

    /// Keeps the kernel's own knowledge of a neighbour fresh: an unknown one is looked for, one whose time is up
    /// is asked again and stays usable meanwhile. Copies go past the neighbour layer and would not do that.
    ///
    /// One that is known for good, or being asked, is left alone: a plain "use" would make it forget its address.
    pub(crate) fn probe_neighbour(&self, ifindex: u32, address: IpAddr) {
        let add = self.handle.neighbours().add(ifindex, address);
        let request = match self.neighbour_state(ifindex, address) {
            None => add.state(NeighbourState::None).flags(NeighbourFlags::Use),
            Some(NeighbourState::Failed) => {
                add.state(NeighbourState::None).flags(NeighbourFlags::Use).replace()
            }
            Some(NeighbourState::Stale) => {
                let mut request = add.state(NeighbourState::Probe).replace();
                // Without an address of ours the kernel keeps the one it has.
                let keep = |attribute: &NeighbourAttribute| {
                    !matches!(attribute, NeighbourAttribute::LinkLayerAddress(_))
                };
                request.message_mut().attributes.retain(keep);
                request
            }
            Some(_) => return,
        };
        // A device without neighbours (point to point) refuses, and needs none.
        if let Err(error) = self.runtime.block_on(request.execute()) {
            tracing::debug!(%address, %error, "the kernel does not look for this neighbour");
        }
    }

    /// The MAC address that the kernel knows of an address, on any device.
    pub(crate) fn neighbour_mac(&self, address: IpAddr) -> Option<[u8; 6]> {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let request = self.handle.neighbours().get().set_address_family(family);
        let known = self.runtime.block_on(request.execute().try_collect::<Vec<_>>()).ok()?;
        let wanted = NeighbourAttribute::Destination(match address {
            IpAddr::V4(address) => NeighbourAddress::Inet(address),
            IpAddr::V6(address) => NeighbourAddress::Inet6(address),
        });
        let of_it = known.iter().filter(|message| message.attributes.contains(&wanted));
        of_it.flat_map(|message| &message.attributes).find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(mac) => mac.as_slice().try_into().ok(),
            _ => None,
        })
    }

    fn neighbour_state(&self, ifindex: u32, address: IpAddr) -> Option<NeighbourState> {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let request = self.handle.neighbours().get().set_address_family(family);
        let known = self.runtime.block_on(request.execute().try_collect::<Vec<_>>()).ok()?;
        let wanted = match address {
            IpAddr::V4(address) => NeighbourAddress::Inet(address),
            IpAddr::V6(address) => NeighbourAddress::Inet6(address),
        };
        let is_it = |message: &&NeighbourMessage| {
            message.header.ifindex == ifindex
                && message.attributes.contains(&NeighbourAttribute::Destination(wanted.clone()))
        };
        known.iter().find(is_it).map(|message| message.header.state)
    }
}

/// All devices as the kernel tells them. On a thread of its own: callers may be inside a runtime.
#[cfg(feature = "xsk")]
fn messages() -> Option<Vec<LinkMessage>> {
    let ask = || {
        let netdev = Netdev::open().ok()?;
        let links = netdev.handle.link().get().execute().try_collect::<Vec<_>>();
        netdev.runtime.block_on(links).ok()
    };
    std::thread::spawn(ask).join().ok().flatten()
}

#[cfg(feature = "xsk")]
fn is_named(message: &LinkMessage, wanted: &str) -> bool {
    message.attributes.iter().any(|one| matches!(one, LinkAttribute::IfName(name) if name == wanted))
}

/// The other end of a veth pair, when it is in the caller's network namespace.
#[cfg(feature = "xsk")]
pub(crate) fn peer_of(interface: &str) -> Option<String> {
    let links = messages()?;
    let own = links.iter().find(|message| is_named(message, interface))?;
    let elsewhere = own.attributes.iter().any(|one| matches!(one, LinkAttribute::LinkNetNsId(_)));
    let index = own.attributes.iter().find_map(|one| match one {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    })?;
    let other = links.iter().find(|message| message.header.index == index && !elsewhere)?;
    other.attributes.iter().find_map(|one| match one {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

/// Whether a device's XDP program is in its driver and nowhere else.
#[cfg(feature = "xsk")]
pub(crate) fn has_driver_xdp(interface: &str) -> bool {
    let links = messages().unwrap_or_default();
    let own = links.iter().find(|message| is_named(message, interface));
    own.is_some_and(|own| {
        own.attributes.iter().any(|one| match one {
            LinkAttribute::Xdp(parts) => parts.contains(&LinkXdp::Attached(XdpAttached::Driver)),
            _ => false,
        })
    })
}

fn read_link(message: &LinkMessage) -> Option<(String, Link)> {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        mtu: 0,
        mac: [0; 6],
        peer: false,
        alias: None,
        master: None,
        inner: flags.contains(LinkFlags::Loopback),
        tx_dropped: 0,
    };
    let mut name = None;
    let (mut veth, mut elsewhere) = (false, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(mac) => link.mac = mac.as_slice().try_into().unwrap_or_default(),
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::LinkInfo(info) => {
                veth = info.contains(&LinkInfo::Kind(InfoKind::Veth));
                link.inner |= info.contains(&LinkInfo::Kind(InfoKind::Bridge));
            }
            LinkAttribute::IfName(text) => name = Some(text.clone()),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::IfAlias(text) => link.alias = Some(text.clone()),
            LinkAttribute::Controller(index) => link.master = Some(*index),
            LinkAttribute::Stats64(stats) => link.tx_dropped = stats.tx_dropped,
            _ => {}
        }
    }
    link.peer = veth && elsewhere;
    Some((name?, link))
}

/// Keeps the kernel from speaking on a device by itself. A kernel without IPv6 has nothing to say.
pub(crate) fn quiet(name: &str) {
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
}

/// Largest MTU of a veth device.
const MIRROR_MTU: u32 = 65535;

async fn ask(mut handle: Handle, message: RouteMessage) -> Option<RouteMessage> {
    use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage};
    use rtnetlink::packet_route::RouteNetlinkMessage;
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(message));
    request.header.flags = NLM_F_REQUEST;
    let mut answers = handle.request(request).ok()?;
    while let Some(answer) = answers.next().await {
        if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) = answer.payload {
            return Some(route);
        }
        if let NetlinkPayload::Error(_) = answer.payload {
            return None;
        }
    }
    None
}

fn read_route(answer: &RouteMessage, remote: IpAddr) -> Option<Route> {
    if answer.header.kind != RouteType::Unicast {
        return None;
    }
    let (mut source, mut ifindex, mut next_hop) = (None, None, remote);
    for attribute in &answer.attributes {
        match attribute {
            RouteAttribute::PrefSource(address) => source = plain(address),
            RouteAttribute::Oif(index) => ifindex = Some(*index),
            RouteAttribute::Gateway(address) => next_hop = plain(address).unwrap_or(remote),
            _ => {}
        }
    }
    Some(Route { source: source?, ifindex: ifindex?, next_hop })
}

fn plain(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

/// News of devices, addresses and routes of the network namespace in which it was opened.
pub struct Watch(mpsc::Receiver<()>);

impl Watch {
    /// Waits for news; `false` when none came in time. News that came together are told once.
    pub fn wait(&self, timeout: Duration) -> bool {
        match self.0.recv_timeout(timeout) {
            Ok(()) => {
                while self.0.try_recv().is_ok() {}
                true
            }
            Err(mpsc::RecvTimeoutError::Timeout) => false,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                // Without the listener there is still the caller's period.
                std::thread::sleep(timeout);
                false
            }
        }
    }
}

/// Starts to watch. What overflows the kernel's queue is told as news too: look at everything again.
///
/// # Errors
/// When the socket cannot be had.
pub fn watch() -> Result<Watch, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context(|| "starting the netlink runtime".into())?;
    let guard = runtime.enter();
    let (mut connection, handle, mut messages) =
        rtnetlink::new_connection().context(|| "opening a netlink socket".into())?;
    connection
        .socket_mut()
        .socket_mut()
        .bind(&SocketAddr::new(0, GROUPS))
        .context(|| "listening to network changes".into())?;
    drop(guard);
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("netdev-watch".into())
        .spawn(move || {
            runtime.block_on(async move {
                let _handle = handle;
                let drive = tokio::spawn(connection);
                while messages.next().await.is_some() {
                    if sender.send(()).is_err() {
                        break;
                    }
                }
                drive.abort();
            });
        })
        .context(|| "starting the netlink thread".into())?;
    Ok(Watch(receiver))
}
