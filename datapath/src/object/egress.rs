//! Egress, podwire's own and Antrea's.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::address::{cidr_list, lies_in, unicast, unicast_list};
use super::decode::{Field, Map};
use super::metadata::{Metadata, dns_name};
use super::quantity;
use super::selector::{AppliedTo, read_applied_to};
use crate::desired::Bandwidth;

/// Addresses of one family at most.
const MAX_IPS: usize = 16;

/// Bits per second: less is of no use, more no wire has.
const RATE: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000;
/// Bits at once: what is smaller than a packet lets none through.
const BURST: std::ops::RangeInclusive<u64> = 12_000..=1_000_000_000_000;
/// Bits at once that an unsaid burst has at least: a super-packet.
const LEAST_BURST: u64 = 65_536 * 8;

/// A policy: with which address the traffic of which pods leaves the cluster, and at which node.
#[derive(Clone, Debug, PartialEq)]
pub struct Egress {
    /// Name and labels.
    pub metadata: Metadata,
    /// Which pods.
    pub applied_to: AppliedTo,
    /// Lower comes first; 0 unless said.
    pub priority: i32,
    /// The addresses, one at least.
    pub ips: Vec<IpAddr>,
    /// Name of the node that has them; `None` where that is to be found out.
    pub node: Option<String>,
    /// Whether podwire puts them on that node.
    pub own: bool,
    /// Destinations that it applies to; none for all outside of the cluster.
    pub destinations: Vec<IpNet>,
    /// Destinations that it does not apply to.
    pub except: Vec<IpNet>,
    /// How much may leave.
    pub bandwidth: Option<Bandwidth>,
}

pub(super) fn read(map: &Map, metadata: Option<Metadata>, antrea: bool) -> Option<Egress> {
    let spec = map.required("spec")?.map()?;
    let applied_to = read_applied_to(&spec);
    let single = spec.get("egressIP").map(|field| unicast(&field));
    let list =
        spec.get("egressIPs").filter(|_| !spec.is_empty_list("egressIPs")).map(|field| read_ips(&field));
    let bandwidth = spec.get("bandwidth").and_then(|field| read_bandwidth(&field));
    let more = if antrea { read_pools(&spec) } else { read_own(&spec) };
    spec.finish_with(if antrea {
        " of crd.antrea.io; fields beyond it are podwire.io/v1alpha1's"
    } else {
        ""
    });
    let ips = match (single, list) {
        (Some(single), None) => single.into_iter().collect(),
        (None, Some(list)) => list,
        (Some(_), Some(_)) => {
            spec.contradiction("egressIP and egressIPs are two ways to say one thing; one of both is enough");
            return None;
        }
        (None, None) if antrea && more.own => {
            spec.contradiction(
                "podwire takes no addresses from pools; egressIP says which one of the pool it is",
            );
            return None;
        }
        (None, None) => {
            spec.missing("egressIP or egressIPs is required");
            return None;
        }
    };
    check_destinations(&spec, &more, &ips)?;
    Some(Egress {
        metadata: metadata?,
        applied_to: applied_to?,
        priority: more.priority,
        ips,
        node: more.node,
        own: more.own,
        destinations: more.destinations,
        except: more.except,
        bandwidth,
    })
}

/// The fields that only one of the two kinds has.
#[derive(Default)]
struct More {
    priority: i32,
    node: Option<String>,
    own: bool,
    destinations: Vec<IpNet>,
    except: Vec<IpNet>,
}

fn read_own(spec: &Map) -> More {
    let priority = spec.get("priority").and_then(|field| field.number(i32::MIN.into()..=i32::MAX.into()));
    let prefixes = |items: Option<Vec<Field>>| items.map(|items| cidr_list(&items)).unwrap_or_default();
    More {
        priority: priority.unwrap_or(0) as i32,
        node: spec.get("egressNode").and_then(|field| dns_name(&field, 253)),
        own: spec.get("own").and_then(|field| field.boolean()).unwrap_or(false),
        destinations: prefixes(spec.get("destinations").map(|list| list.filled_list())),
        except: prefixes(spec.get("except").map(|list| list.list())),
    }
}

/// Antrea puts an address of a pool on a node of its choice. Which pool makes no difference here.
fn read_pools(spec: &Map) -> More {
    let single = spec.get("externalIPPool").and_then(|field| field.text().map(|name| !name.is_empty()));
    let list = spec.get("externalIPPools").map(|field| !field.list().is_empty());
    More { own: single.unwrap_or(false) || list.unwrap_or(false), ..More::default() }
}

fn read_ips(field: &Field) -> Vec<IpAddr> {
    let ips = unicast_list(&field.list());
    for (family, count) in [
        ("IPv4", ips.iter().filter(|ip| ip.is_ipv4()).count()),
        ("IPv6", ips.iter().filter(|ip| ip.is_ipv6()).count()),
    ] {
        if count > MAX_IPS {
            let allowed = format!("at most {MAX_IPS} of each family");
            field.refuse(&format!("{count} {family} addresses"), Some(&allowed));
        }
    }
    ips
}

/// Refuses what governs nothing.
fn check_destinations(spec: &Map, more: &More, ips: &[IpAddr]) -> Option<()> {
    let destinations = &more.destinations;
    if destinations.is_empty() {
        return Some(());
    }
    let governed = |cidr: &IpNet| ips.iter().any(|ip| ip.is_ipv4() == matches!(cidr, IpNet::V4(_)));
    let without: BTreeSet<IpNet> = more.except.iter().copied().collect();
    let problem = if destinations.iter().all(|cidr| lies_in(*cidr, &without)) {
        "except leaves nothing of destinations"
    } else if !ips.is_empty() && !destinations.iter().any(governed) {
        "destinations and egress addresses are of different families"
    } else {
        return Some(());
    };
    spec.contradiction(problem);
    None
}

/// `{rate: 800M, burst: 2G}`, in bits.
fn read_bandwidth(field: &Field) -> Option<Bandwidth> {
    let map = field.map()?;
    let rate = map.required("rate");
    let burst = map.get("burst");
    map.finish();
    let rate = quantity::read(&rate?, RATE, "1k to 1T bits per second, as 300k, 100M, 2G")?;
    let burst = match burst {
        Some(burst) => quantity::read(&burst, BURST, "12k to 1T bits, as 300k, 100M, 2G")?,
        None => rate.max(LEAST_BURST),
    };
    Some(Bandwidth { rate, burst: burst.div_ceil(8) })
}
