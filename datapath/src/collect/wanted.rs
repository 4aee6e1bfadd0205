//! What a collector takes: kinds of tunnels, their ports, and which of their streams.

use std::fmt;

use podwire_core::wire::decap::Metadata;
use podwire_core::wire::{geneve, vxlan};
use serde::Serialize;

/// A kind of tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    /// VXLAN.
    Vxlan,
    /// GENEVE.
    Geneve,
    /// GRE with an Ethernet payload.
    Gre,
    /// ERSPAN type I.
    ErspanI,
    /// ERSPAN type II.
    ErspanII,
    /// ERSPAN type III.
    ErspanIII,
}

impl Kind {
    /// The kind that a tunnel header is of.
    pub fn of(metadata: &Metadata) -> Self {
        match metadata {
            Metadata::Vxlan { .. } => Self::Vxlan,
            Metadata::Geneve { .. } => Self::Geneve,
            Metadata::Gre { .. } => Self::Gre,
            Metadata::ErspanI => Self::ErspanI,
            Metadata::ErspanII { .. } => Self::ErspanII,
            Metadata::ErspanIII { .. } => Self::ErspanIII,
        }
    }

    /// The kind's usual name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vxlan => "VXLAN",
            Self::Geneve => "GENEVE",
            Self::Gre => "GRE",
            Self::ErspanI => "ERSPAN I",
            Self::ErspanII => "ERSPAN II",
            Self::ErspanIII => "ERSPAN III",
        }
    }

    /// What the identifier of a stream is called.
    pub const fn identifier(self) -> &'static str {
        match self {
            Self::Vxlan | Self::Geneve => "vni",
            Self::Gre => "key",
            Self::ErspanI | Self::ErspanII | Self::ErspanIII => "session",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which mirrored streams are taken. An empty list of identifiers means all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// UDP destination ports of VXLAN; none for no VXLAN.
    pub vxlan_ports: Vec<u16>,
    /// UDP destination ports of GENEVE; none for no GENEVE.
    pub geneve_ports: Vec<u16>,
    /// Whether GRE with an Ethernet payload is taken.
    pub gre: bool,
    /// Whether ERSPAN is taken, of all types.
    pub erspan: bool,
    /// Network identifiers of VXLAN and GENEVE, of 24 bits.
    pub vnis: Vec<u32>,
    /// Keys of GRE.
    pub keys: Vec<u32>,
    /// Session identifiers of ERSPAN II and III, of 10 bits.
    pub sessions: Vec<u16>,
    /// Packet sockets even where AF_XDP would do.
    pub af_packet: bool,
}

impl Default for Wanted {
    /// Everything, at the usual ports.
    fn default() -> Self {
        Self {
            vxlan_ports: vec![vxlan::PORT],
            geneve_ports: vec![geneve::PORT],
            gre: true,
            erspan: true,
            vnis: Vec::new(),
            keys: Vec::new(),
            sessions: Vec::new(),
            af_packet: false,
        }
    }
}

impl Wanted {
    /// Whether a stream is one of those.
    pub fn accepts(&self, metadata: &Metadata) -> bool {
        let any = |list: &[u32], id: Option<u32>| list.is_empty() || id.is_some_and(|id| list.contains(&id));
        let session = |id: u16| self.sessions.is_empty() || self.sessions.contains(&id);
        match metadata {
            Metadata::Vxlan { vni } | Metadata::Geneve { vni, .. } => any(&self.vnis, Some(*vni)),
            Metadata::Gre { key, .. } => self.gre && any(&self.keys, *key),
            Metadata::ErspanI => self.erspan && self.sessions.is_empty(),
            Metadata::ErspanII { header, .. } => self.erspan && session(header.session),
            Metadata::ErspanIII { header, .. } => self.erspan && session(header.session),
        }
    }

    /// Whether any tunnel over IP protocol 47 is taken.
    pub fn takes_gre(&self) -> bool {
        self.gre || self.erspan
    }

    /// All UDP ports that are listened to.
    pub fn udp_ports(&self) -> impl Iterator<Item = u16> + '_ {
        self.vxlan_ports.iter().chain(&self.geneve_ports).copied()
    }
}
