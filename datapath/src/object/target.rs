//! Target and return ports.

use std::net::IpAddr;

use podwire_core::wire::{geneve, vxlan};

use super::address::unicast;
use super::decode::{Field, Map};
use super::endpoint::interface_name;

/// Where packets go or come back from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// A port that podwire makes.
    Internal {
        /// Its name.
        name: String,
    },
    /// A device that exists.
    Device {
        /// Its name.
        name: String,
    },
    /// VXLAN.
    Vxlan {
        /// The other end.
        remote: IpAddr,
        /// 24 bits.
        vni: u32,
        /// UDP port.
        port: u16,
    },
    /// GENEVE.
    Geneve {
        /// The other end.
        remote: IpAddr,
        /// 24 bits.
        vni: u32,
        /// UDP port.
        port: u16,
    },
    /// GRE.
    Gre {
        /// The other end.
        remote: IpAddr,
        /// All 32 bits; `None` for a header without key.
        key: Option<u32>,
    },
    /// ERSPAN.
    Erspan {
        /// The other end.
        remote: IpAddr,
        /// 1 (type II) or 2 (type III).
        version: u8,
        /// 10 bits.
        session: u16,
        /// Version 1: 20 bits.
        index: u32,
        /// Version 2: fixed direction, `None` for each packet's own.
        direction: Option<u8>,
        /// Version 2: 6 bits.
        hardware_id: u8,
    },
}

impl Port {
    /// The other end of a tunnel.
    pub const fn remote(&self) -> Option<IpAddr> {
        match self {
            Self::Internal { .. } | Self::Device { .. } => None,
            Self::Vxlan { remote, .. }
            | Self::Geneve { remote, .. }
            | Self::Gre { remote, .. }
            | Self::Erspan { remote, .. } => Some(*remote),
        }
    }

    /// The device's name, of those that have one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Internal { name } | Self::Device { name } => Some(name),
            Self::Vxlan { .. } | Self::Geneve { .. } | Self::Gre { .. } | Self::Erspan { .. } => None,
        }
    }

    /// The field's name.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Internal { .. } => "internal",
            Self::Device { .. } => "device",
            Self::Vxlan { .. } => "vxlan",
            Self::Geneve { .. } => "geneve",
            Self::Gre { .. } => "gre",
            Self::Erspan { .. } => "erspan",
        }
    }
}

/// A target port: a [`Port`] that may be any of them.
pub type TargetPort = Port;

/// What the names of podwire's own devices begin with.
const RESERVED: [&str; 3] = ["pw-mirror", "pw-segment", "pwi"];

const VNI: std::ops::RangeInclusive<i64> = 0..=0xff_ffff;

/// Reads a port: exactly one of its fields.
pub(super) fn read(field: &Field, antrea: bool, erspan: bool) -> Option<Port> {
    let map = field.map()?;
    let internal = if antrea { "ovsInternal" } else { "internal" };
    let mut ports = Vec::new();
    let mut given = 0;
    for name in [internal, "device", "vxlan", "geneve", "gre", "erspan"] {
        if name == "erspan" && !erspan {
            continue;
        }
        if let Some(field) = map.get(name) {
            given += 1;
            ports.extend(read_one(name, &field));
        }
    }
    map.finish();
    if given != 1 {
        let last = if erspan { ", erspan" } else { "" };
        let allowed = format!("exactly one of {internal}, device, vxlan, geneve, gre{last}");
        field.refuse(&format!("{given} ports are given"), Some(&allowed));
        return None;
    }
    ports.pop()
}

fn read_one(name: &str, field: &Field) -> Option<Port> {
    let map = field.map()?;
    let port = match name {
        "device" | "internal" | "ovsInternal" => {
            let text = map.required("name");
            map.finish();
            let field = text?;
            let text = interface_name(&field)?;
            if RESERVED.iter().any(|prefix| text.starts_with(prefix)) {
                field.refuse(&format!("{text} is a name of podwire's own devices"), None);
                return None;
            }
            if name == "device" { Port::Device { name: text } } else { Port::Internal { name: text } }
        }
        "vxlan" | "geneve" => read_udp(name, &map)?,
        "gre" => {
            let remote = remote(&map);
            let key = map.get("key").map(|key| key.number(0..=0xffff_ffff));
            map.finish();
            Port::Gre { remote: remote?, key: transpose(key)?.map(|key| key as u32) }
        }
        _ => read_erspan(&map)?,
    };
    Some(port)
}

fn read_udp(name: &str, map: &Map) -> Option<Port> {
    let remote = remote(map);
    let vni = map.get("vni").map(|vni| vni.number(VNI));
    let port = map.get("destinationPort").map(|port| port.number(1..=65535));
    map.finish();
    let (remote, vni, port) = (remote?, transpose(vni)?.unwrap_or(0) as u32, transpose(port)?);
    Some(if name == "vxlan" {
        Port::Vxlan { remote, vni, port: port.map_or(vxlan::PORT, |port| port as u16) }
    } else {
        Port::Geneve { remote, vni, port: port.map_or(geneve::PORT, |port| port as u16) }
    })
}

fn read_erspan(map: &Map) -> Option<Port> {
    let remote = remote(map);
    let version = map.required("version").and_then(|field| field.number(1..=2));
    let session = map.get("sessionID").map(|field| field.number(0..=1023));
    let index = map.get("index").map(|field| field.number(0..=0xf_ffff));
    let direction = map.get("dir").map(|field| field.number(0..=1));
    let hardware = map.get("hardwareID").map(|field| field.number(0..=63));
    map.finish();
    let version = version?;
    if version == 1 && (map.has("dir") || map.has("hardwareID")) {
        map.contradiction("dir and hardwareID belong to version 2");
        return None;
    }
    if version == 2 && map.has("index") {
        map.contradiction("index belongs to version 1");
        return None;
    }
    Some(Port::Erspan {
        remote: remote?,
        version: version as u8,
        session: transpose(session)?.unwrap_or(0) as u16,
        index: transpose(index)?.unwrap_or(0) as u32,
        direction: transpose(direction)?.map(|direction| direction as u8),
        hardware_id: transpose(hardware)?.unwrap_or(0) as u8,
    })
}

/// `None` when a field is there and wrong, which is reported.
fn transpose(value: Option<Option<i64>>) -> Option<Option<i64>> {
    match value {
        None => Some(None),
        Some(read) => read.map(Some),
    }
}

fn remote(map: &Map) -> Option<IpAddr> {
    unicast(&map.required("remoteIP")?)
}
