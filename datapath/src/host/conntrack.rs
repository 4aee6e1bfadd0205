//! Flows whose source conntrack translates. In: addresses. Out: how many there are by address; or, when an address is
//! no longer theirs, those flows forgotten, so that their next packet is judged anew.
//!
//! ctnetlink (linux/netfilter/nfnetlink_conntrack.h): a dump of all entries, and a deletion by original tuple,
//! zone and id for each that matches. Filters in the kernel are younger than the kernels that podwire runs on.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET` and `…_DELETE`.
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
/// Message types of netlink itself.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `struct nlmsghdr` and `struct nfgenmsg`.
const HEADER: usize = 16;
const GENERIC: usize = 4;
/// Attributes of an entry.
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// Attributes of a tuple and of its addresses.
const TUPLE_IP: u16 = 1;
const SOURCES: [u16; 2] = [1, 3];
const DESTINATIONS: [u16; 2] = [2, 4];
/// `~(NLA_F_NESTED | NLA_F_NET_BYTEORDER)`.
const KIND: u16 = 0x3fff;

/// How many flows have their source translated to each address.
///
/// # Errors
/// conntrack's netlink cannot be had, or refuses.
pub(crate) fn translations() -> io::Result<BTreeMap<IpAddr, u64>> {
    let mut flows = BTreeMap::new();
    dump(&open()?, |body| {
        if let Some(address) = translated(body) {
            *flows.entry(address).or_default() += 1;
        }
    })?;
    Ok(flows)
}

/// Forgets the flows whose source was translated to one of the addresses; returns how many.
///
/// # Errors
/// conntrack's netlink cannot be had, or refuses.
pub(crate) fn forget_translations(addresses: &BTreeSet<IpAddr>) -> io::Result<usize> {
    let socket = open()?;
    let mut doomed = Vec::new();
    dump(&socket, |body| {
        if translated(body).is_some_and(|address| addresses.contains(&address)) {
            doomed.extend(deletion(body));
        }
    })?;
    for message in &doomed {
        socket.send(message, 0)?;
        match answers(&socket, |_| ()) {
            // It ended by itself meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            result => result?,
        }
    }
    Ok(doomed.len())
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Every entry there is.
fn dump(socket: &Socket, each: impl FnMut(&[u8])) -> io::Result<()> {
    socket.send(&message(GET, REQUEST | DUMP, 0, &[]), 0)?;
    answers(socket, each)
}

/// The address that an entry's source is translated to. The node's own flows from an address are not translated.
fn translated(body: &[u8]) -> Option<IpAddr> {
    let entry = body.get(GENERIC..)?;
    let end = |tuple, kinds: [u16; 2]| address(find(find(entry, tuple)?, TUPLE_IP)?, kinds);
    let address = end(TUPLE_REPLY, DESTINATIONS)?;
    (end(TUPLE_ORIGINAL, SOURCES)? != address).then_some(address)
}

/// The message that deletes an entry.
fn deletion(body: &[u8]) -> Option<Vec<u8>> {
    let family = *body.first()?;
    let entry = body.get(GENERIC..)?;
    let named: Vec<u8> = attributes(entry)
        .filter(|(kind, _, _)| [TUPLE_ORIGINAL, ID, ZONE].contains(kind))
        .flat_map(|(_, whole, _)| {
            let mut padded = whole.to_vec();
            padded.resize(whole.len().next_multiple_of(4), 0);
            padded
        })
        .collect();
    Some(message(DELETE, REQUEST | ACK, family, &named))
}

fn message(kind: u16, flags: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
    let len = (HEADER + GENERIC + attributes.len()) as u32;
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
    // Sequence and port: one question at a time.
    bytes.extend([0; 8]);
    bytes.extend([family, 0, 0, 0]);
    bytes.extend(attributes);
    bytes
}

/// Reads until the kernel says that it is done.
fn answers(socket: &Socket, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = &datagram[..];
        while let (Some(len), Some(kind)) = (number32(rest, 0), number16(rest, 4)) {
            let len = len as usize;
            let Some(body) = rest.get(HEADER..len) else {
                break;
            };
            match (kind, number32(body, 0)) {
                (DONE, _) | (ERROR, Some(0)) => return Ok(()),
                (ERROR, code) => {
                    return Err(io::Error::from_raw_os_error((code.unwrap_or(0) as i32).wrapping_neg()));
                }
                _ => each(body),
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// Attributes one by one: type, the whole, the value.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(number16(bytes, 0)?);
        let kind = number16(bytes, 2)? & KIND;
        let (whole, value) = (bytes.get(..len)?, bytes.get(4..len)?);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, whole, value))
    })
}

fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(it, _, _)| *it == kind).map(|(_, _, value)| value)
}

fn address(bytes: &[u8], kinds: [u16; 2]) -> Option<IpAddr> {
    let value = kinds.into_iter().find_map(|kind| find(bytes, kind))?;
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
    }
}

fn number16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}
