//! The MTU of a pod's interface, both ends. In: the host end's name and bytes. Out: neither end is above it.
//!
//! The kernel names the pod's namespace by a number (`IFLA_LINK_NETNSID`). With that number a device can be read
//! from outside, not changed: a change request with it would move the device. So the namespace with that number is
//! looked for among the named ones and those of processes, and entered by a thread of its own.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use futures_util::{StreamExt, TryStreamExt};
use nix::sched::{CloneFlags, setns};
use rtnetlink::LinkUnspec;
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::nsid::{NsidAttribute, NsidMessage};

use crate::error::{Context, Error, ErrorKind};
use crate::netdev::Netdev;

/// Lowers the MTU of both ends to `mtu` bytes where it is larger.
///
/// # Errors
/// There is no such interface; its other end cannot be reached. The host end is done by then.
pub(crate) fn lower(netdev: &Netdev, name: &str, mtu: u32) -> Result<(), Error> {
    let mut answers = netdev.handle().link().get().match_name(name).execute();
    let Some(link) = netdev.wait(answers.try_next()).context(|| format!("reading device {name}"))? else {
        return Err(Error::new(ErrorKind::Kernel, format!("there is no device {name}")));
    };
    set(netdev, &link, mtu).context(|| format!("setting the MTU of device {name}"))?;
    let (mut peer, mut number) = (None, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Link(index) => peer = Some(*index),
            LinkAttribute::LinkNetNsId(id) => number = Some(*id),
            _ => {}
        }
    }
    let Some(peer) = peer else {
        return Ok(());
    };
    let what = || format!("setting the MTU of the pod's end of {name}");
    let mut question = netdev.handle().link().get().match_index(peer);
    question.message_mut().attributes.extend(number.map(LinkAttribute::IfNetnsId));
    let mut answers = question.execute();
    let Some(far) = netdev.wait(answers.try_next()).context(what)? else {
        return Ok(());
    };
    if bytes(&far) <= mtu {
        return Ok(());
    }
    let Some(number) = number else {
        return set(netdev, &far, mtu).context(what);
    };
    let Some(namespace) = namespaces().find(|file| self::number(netdev, file) == Some(number)) else {
        let what = format!("{}: its network namespace has no name and no process here", what());
        return Err(Error::new(ErrorKind::Kernel, what));
    };
    let inside = std::thread::Builder::new().name("pod-mtu".into()).spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).context(|| "entering the pod's namespace".into())?;
        set(&Netdev::open()?, &far, mtu).context(|| "changing the MTU".into())
    });
    match inside.context(what)?.join() {
        Ok(done) => done.map_err(|error| Error::caused(error.kind(), what(), error)),
        Err(_) => Err(Error::new(ErrorKind::Kernel, what())),
    }
}

fn set(netdev: &Netdev, link: &LinkMessage, mtu: u32) -> Result<(), rtnetlink::Error> {
    if bytes(link) <= mtu {
        return Ok(());
    }
    let message = LinkUnspec::new_with_index(link.header.index).mtu(mtu).build();
    netdev.wait(netdev.handle().link().set(message).execute())
}

fn bytes(link: &LinkMessage) -> u32 {
    let mtu = |attribute: &LinkAttribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    };
    link.attributes.iter().find_map(mtu).unwrap_or_default()
}

/// Network namespaces that have a name or a process, each once.
fn namespaces() -> impl Iterator<Item = File> {
    let inside =
        |folder: &str| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_process = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
    };
    let processes = inside("/proc").filter(is_process).map(|path| path.join("ns/net"));
    let mut seen = HashSet::new();
    inside("/run/netns").chain(processes).filter_map(move |path| {
        let known = fs::metadata(&path).ok()?;
        seen.insert((known.dev(), known.ino())).then(|| File::open(path).ok()).flatten()
    })
}

/// The number by which this namespace knows another one.
fn number(netdev: &Netdev, namespace: &File) -> Option<i32> {
    let mut question = NsidMessage::default();
    question.attributes.push(NsidAttribute::Fd(u32::try_from(namespace.as_raw_fd()).ok()?));
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetNsId(question));
    request.header.flags = NLM_F_REQUEST;
    let mut answers = netdev.handle().clone().request(request).ok()?;
    let answer = netdev.wait(async { Ok(answers.next().await) }).ok()??;
    let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNsId(message)) = answer.payload else {
        return None;
    };
    message.attributes.iter().find_map(|attribute| match attribute {
        NsidAttribute::Id(id) => Some(*id),
        _ => None,
    })
}
