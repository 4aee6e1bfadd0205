//! Sessions: which stream a frame belongs to.

use std::fmt;
use std::net::IpAddr;

use podwire_core::wire::decap::{Decapsulated, Metadata};
use podwire_core::wire::encap::OuterAddresses;

use super::wanted::Kind;

/// What tells streams apart: the tunnel's ends, its kind, and the sender's identifier. Direction and hardware
/// identifier of ERSPAN do not: they share the session's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The sender.
    pub source: IpAddr,
    /// The address that it sends to.
    pub destination: IpAddr,
    /// How it sends.
    pub kind: Kind,
    /// VNI, GRE key, or ERSPAN session; none for GRE without a key and for ERSPAN I.
    pub id: Option<u32>,
}

impl Key {
    /// The stream of a frame.
    pub fn of(found: &Decapsulated) -> Self {
        let (source, destination) = match found.outer {
            OuterAddresses::V4 { local, remote } => (local.into(), remote.into()),
            OuterAddresses::V6 { local, remote } => (local.into(), remote.into()),
        };
        let id = match &found.metadata {
            Metadata::Vxlan { vni } | Metadata::Geneve { vni, .. } => Some(*vni),
            Metadata::Gre { key, .. } => *key,
            Metadata::ErspanI => None,
            Metadata::ErspanII { header, .. } => Some(header.session.into()),
            Metadata::ErspanIII { header, .. } => Some(header.session.into()),
        };
        Self { source, destination, kind: Kind::of(&found.metadata), id }
    }
}

/// As "ERSPAN II session 7 from 192.0.2.1 to 192.0.2.9".
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, destination, kind, id } = self;
        f.write_str(kind.as_str())?;
        if let Some(id) = id {
            write!(f, " {} {id}", kind.identifier())?;
        }
        write!(f, " from {source} to {destination}")
    }
}

/// A session as sinks know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Counts from 0 in the order in which sessions began. Never given again.
    pub number: u64,
    /// Which stream it is.
    pub key: Key,
    /// When its first frame came, in nanoseconds since 1970.
    pub since: u64,
}

impl Session {
    /// A short name without spaces: `erspan-ii-7`.
    pub fn name(&self) -> String {
        let kind = self.key.kind.as_str().to_lowercase().replace(' ', "-");
        match self.key.id {
            Some(id) => format!("{kind}-{id}"),
            None => kind,
        }
    }
}
