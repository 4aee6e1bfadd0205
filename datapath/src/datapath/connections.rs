//! Connections that leave with an Egress address. In: the kernel's connection tracking. Out: how many, by policy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::Datapath;
use crate::desired::{Egress, EgressNode};
use crate::error::{Context, Error};
use crate::host::conntrack;

impl Datapath {
    /// By the name of each Egress policy whose addresses are on this node: the connections, of pods of all nodes, that
    /// the kernel translates to one of its addresses and has not forgotten yet. The kernel knows a connection by its
    /// address: policies that share one are each told all of its connections.
    ///
    /// Every tracked connection of the node is read for it.
    ///
    /// # Errors
    /// `Kernel` when conntrack does not answer.
    pub fn connections(&self) -> Result<BTreeMap<String, u64>, Error> {
        let here: Vec<&Egress> =
            self.desired.egresses.iter().filter(|egress| egress.node == EgressNode::Here).collect();
        if here.is_empty() {
            return Ok(BTreeMap::new());
        }
        let by_address = conntrack::translations().context(|| "reading the connections".into())?;
        let of = |egress: &Egress| {
            let addresses: BTreeSet<&IpAddr> = egress.ips.iter().collect();
            addresses.into_iter().filter_map(|address| by_address.get(address)).sum()
        };
        Ok(here.into_iter().map(|egress| (egress.name.clone(), of(egress))).collect())
    }
}
