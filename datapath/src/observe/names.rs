//! Names behind numbers. In: the desired state, at each apply. Out: what an observation calls things.
//!
//! What is gone keeps its name for a while: observations of it may still be on their way.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use podwire_core::abi::ObservationRow;
use podwire_core::stage::{Key, leave::spread};

use crate::desired::{Desired, EgressNode};
use crate::plan::{self, name_hash};

/// How long a name outlives its thing.
const KEEP: Duration = Duration::from_secs(30);

/// Shared by the datapath, which writes, and the streams, which read.
#[derive(Default)]
pub(crate) struct Names(RwLock<All>);

#[derive(Default)]
struct All {
    /// By interface index.
    endpoints: Table<u32, String>,
    /// By hash of the name.
    policies: Table<u64, String>,
    egresses: Table<u64, EgressName>,
    /// The kernel's reasons for drops, by number.
    reasons: HashMap<u32, String>,
}

/// What is known of an Egress policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EgressName {
    pub(super) name: String,
    pub(super) node: Option<String>,
    ips: Vec<IpAddr>,
}

impl EgressName {
    /// The address that the packet will leave with.
    pub(super) fn address(&self, row: &ObservationRow) -> Option<IpAddr> {
        let ours: Vec<&IpAddr> =
            self.ips.iter().filter(|address| address.is_ipv4() == (row.family == 4)).collect();
        let [high, low] = row.source;
        let count = u32::try_from(ours.len()).ok().filter(|count| *count != 0)?;
        ours.get((spread(Key { high, low }) % count) as usize).copied().copied()
    }
}

impl Names {
    /// Learns the names of what is about to be in force.
    pub(crate) fn learn(&self, desired: &Desired, ifindex_of: impl Fn(&str) -> Option<u32>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.endpoints.replace(
            desired
                .endpoints
                .iter()
                .filter_map(|endpoint| Some((ifindex_of(&endpoint.interface)?, endpoint.name.clone()))),
        );
        all.policies
            .replace(plan::policies(desired).map(|policy| (name_hash(policy.name), policy.name.to_owned())));
        all.egresses.replace(desired.egresses.iter().map(|egress| {
            let node = match &egress.node {
                EgressNode::Peer(name) => Some(name.clone()),
                _ => None,
            };
            let name = EgressName { name: egress.name.clone(), node, ips: egress.ips.clone() };
            (name_hash(&egress.name), name)
        }));
    }

    /// Learns what the kernel calls its reasons for drops.
    pub(crate) fn learn_reasons(&self, reasons: impl Iterator<Item = (u32, String)>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).reasons = reasons.collect();
    }

    /// What the kernel calls a reason.
    pub(super) fn kernel_reason(&self, number: u32) -> String {
        self.read(|all| all.reasons.get(&number).cloned()).unwrap_or_else(|| number.to_string())
    }

    pub(super) fn endpoint(&self, ifindex: u32) -> Option<String> {
        self.read(|all| all.endpoints.get(&ifindex))
    }

    pub(super) fn policy(&self, hash: u64) -> Option<String> {
        self.read(|all| all.policies.get(&hash))
    }

    pub(super) fn egress(&self, hash: u64) -> Option<EgressName> {
        self.read(|all| all.egresses.get(&hash))
    }

    fn read<T>(&self, of: impl Fn(&All) -> Option<T>) -> Option<T> {
        of(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Names, and since when their thing is gone.
struct Table<K, V>(HashMap<K, (V, Option<Instant>)>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, V: Clone> Table<K, V> {
    fn replace(&mut self, names: impl Iterator<Item = (K, V)>) {
        let now = Instant::now();
        for (_, gone) in self.0.values_mut() {
            gone.get_or_insert(now);
        }
        self.0.extend(names.map(|(key, name)| (key, (name, None))));
        self.0.retain(|_, (_, gone)| gone.is_none_or(|since| now.duration_since(since) < KEEP));
    }

    fn get(&self, key: &K) -> Option<V> {
        self.0.get(key).map(|(name, _)| name.clone())
    }
}

/// An address as map rows keep it; `None` for family 0.
pub(super) fn address(family: u32, bytes: [u8; 16]) -> Option<IpAddr> {
    match (family, bytes) {
        (4, [a, b, c, d, ..]) => Some(Ipv4Addr::new(a, b, c, d).into()),
        (6, bytes) => Some(Ipv6Addr::from(bytes).into()),
        _ => None,
    }
}
