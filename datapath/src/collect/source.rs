//! Where frames come from.

use std::time::Duration;

use super::owners;
use super::packet_socket::PacketSocket;
use super::wanted::Wanted;
use crate::error::{Error, ErrorKind};

/// One whole outer frame, as it was on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// From the outer Ethernet header on, VLAN tags included.
    pub data: &'a [u8],
    /// When it came, in nanoseconds since 1970.
    pub time: u64,
}

/// Frames that a source or a sink lost, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses(pub Vec<(&'static str, u64)>);

impl Losses {
    /// Those that are not zero.
    pub fn some(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().copied().filter(|(_, count)| *count != 0)
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }
}

/// Gives frames. It gives at least those of the wanted tunnels; others may be among them.
pub trait Source {
    /// Waits for frames, at most for `wait`, and shows each to `each`. Returns how many there were.
    ///
    /// # Errors
    /// When the interface is gone, or the kernel refuses to wait.
    fn receive(&mut self, wait: Duration, each: &mut dyn FnMut(&Received<'_>)) -> Result<usize, Error>;

    /// Frames that were lost before they could be shown, since the beginning.
    fn losses(&mut self) -> Losses;

    /// What it is, in a few words: "AF_PACKET on eth0".
    fn describe(&self) -> String;
}

/// A source, and why it is not the fastest one.
pub struct Opened {
    /// The source.
    pub source: Box<dyn Source>,
    /// Why frames come through packet sockets; `None` where that was asked for, or they do not.
    pub fallback: Option<String>,
}

/// Opens the fastest source that this kernel and this interface allow.
///
/// # Errors
/// `Invalid`: there is no such interface; tunnels of this node use what is wanted. `PermissionDenied`: without
/// `CAP_NET_RAW`.
pub fn open(interface: &str, wanted: &Wanted) -> Result<Opened, Error> {
    if nix::net::if_::if_nametoindex(interface).is_err() {
        return Err(no_interface(interface));
    }
    owners::check(wanted)?;
    if wanted.af_packet {
        return Ok(Opened { source: Box::new(PacketSocket::open(interface, wanted)?), fallback: None });
    }
    match fastest(interface, wanted) {
        Ok(source) => Ok(Opened { source, fallback: None }),
        Err(why) => {
            // What neither of them can do is said once, by the second.
            let source = Box::new(PacketSocket::open(interface, wanted)?);
            Ok(Opened { source, fallback: Some(why) })
        }
    }
}

/// Names that are told.
const TOLD: usize = 8;

/// There is no such interface; which there are, when they are few.
pub(super) fn no_interface(interface: &str) -> Error {
    let there = nix::net::if_::if_nameindex()
        .map(|all| all.iter().map(|one| one.name().to_string_lossy().into_owned()).collect::<Vec<_>>());
    let there = match there {
        Ok(names) if names.len() <= TOLD => format!(": there are {}", names.join(", ")),
        _ => " (`ip link` shows those that do)".to_owned(),
    };
    Error::new(ErrorKind::Invalid, format!("interface {interface} does not exist{there}"))
}

#[cfg(feature = "xsk")]
fn fastest(interface: &str, wanted: &Wanted) -> Result<Box<dyn Source>, String> {
    let options = crate::xsk::Options { surplus: crate::xsk::Surplus::Drop, ..Default::default() };
    let source = crate::xsk::XskSource::open(interface, wanted, &options);
    source.map(|source| Box::new(source) as Box<dyn Source>).map_err(|error| error.to_string())
}

#[cfg(not(feature = "xsk"))]
fn fastest(_: &str, _: &Wanted) -> Result<Box<dyn Source>, String> {
    Err("this build has no AF_XDP sockets".to_owned())
}
