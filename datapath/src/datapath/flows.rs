//! Connections that have ended. In: the table of connections. Out: the same without those whose time is over.

use std::collections::HashSet;

use podwire_core::abi::{FlowKey, FlowRow};
use podwire_core::wire::protocol;

use super::Datapath;
use crate::error::{Context, Error};
use crate::maps::Row;
use crate::network;
use crate::relay::monotonic_ns;

const SECOND: u64 = 1_000_000_000;
const FIN: u32 = 0x01;
const RST: u32 = 0x04;
const ACK: u32 = 0x10;

impl Datapath {
    /// Removes connections that were silent for longer than their kind is kept.
    pub(super) fn expire_flows(&mut self) -> Result<(), Error> {
        let stateful = self.desired.mirrors.iter().any(|mirror| mirror.stateful)
            || self.desired.redirects.iter().any(|redirect| redirect.stateful)
            || self
                .desired
                .endpoints
                .iter()
                .any(|endpoint| network::leaves_elsewhere(&self.desired, &endpoint.name));
        if !stateful && self.flows_are_empty {
            return Ok(());
        }
        let now = monotonic_ns();
        let live: HashSet<u32> = self.endpoints.iter().map(|(_, (_, ifindex))| *ifindex).collect();
        let mut over = Vec::new();
        let mut count = 0;
        for entry in self.maps.flows.iter() {
            let (key, row) = entry.context(|| "reading map FLOWS".into())?;
            count += 1;
            let age = now.saturating_sub(row.0.seen);
            if !stateful || !live.contains(&key.0.ifindex) || age > kept_for(&key.0, &row.0) {
                over.push(key);
            }
        }
        self.flows_are_empty = over.len() == count;
        for key in over {
            let _ = self.maps.flows.remove(&Row(key.0));
        }
        Ok(())
    }
}

/// Nanoseconds of silence after which a connection is forgotten: as long as Linux' own connection tracking keeps
/// it, or less.
fn kept_for(key: &FlowKey, row: &FlowRow) -> u64 {
    let tcp = key.protocol == u32::from(protocol::TCP);
    SECOND
        * match row.tcp_flags {
            flags if tcp && flags & (FIN | RST) != 0 => 30,
            flags if tcp && flags & ACK == 0 => 60,
            _ if tcp => 3600,
            _ => 180,
        }
}
