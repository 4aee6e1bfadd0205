//! Traceflow, podwire's own and Antrea's. In: the object. Out: which packet is made, or which packets are looked
//! for, and what is wanted of them.
//!
//! What can be refused without knowing the cluster is refused here: ends that are missing, families that differ,
//! fields of the other sort of trace.

mod packet;

use std::net::IpAddr;
use std::time::Duration;

pub use packet::{TraceFamily, TraceIcmp, TracePacket, TracePorts, TraceTransport};

use super::address::unicast;
use super::decode::{Field, Map};
use super::metadata::{Metadata, dns_name};

/// Packets of one trace at most.
const MAX_COUNT: i64 = 1_000;
/// Of so many packets one is traced, at most.
const MAX_SAMPLING: i64 = 1_000_000;
/// Seconds until a trace ends by itself.
const TIMEOUT: std::ops::RangeInclusive<i64> = 1..=300;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);

/// A trace: one packet that is made, or packets of the pods' own traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Traceflow {
    /// Name and labels.
    pub metadata: Metadata,
    /// Where the packet comes from; a pod when it is made.
    pub source: TraceSource,
    /// Where it goes to; known when it is made.
    pub destination: TraceDestination,
    /// What it is made of, or what a live packet must have.
    pub packet: TracePacket,
    /// Whether packets of the pods' own are traced, rather than one that is made.
    pub live: bool,
    /// Of live packets only those that are dropped.
    pub dropped_only: bool,
    /// When the trace ends by itself.
    pub timeout: Duration,
    /// Whether the packet that was made is handed to the destination in the end.
    pub deliver: bool,
    /// Live packets that are traced.
    pub count: u32,
    /// Whether the answer is traced as well.
    pub replies: bool,
    /// Of so many live packets that match one is traced.
    pub sampling: u32,
    /// Of which connections live packets may be.
    pub connection: Connection,
    /// Bytes of the packet that the result has besides its headers.
    pub capture: u32,
}

/// A pod or a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamespacedName {
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

/// Where a traced packet comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceSource {
    /// From anywhere; live only.
    Any,
    /// From a pod.
    Pod(NamespacedName),
    /// From an address; live only.
    Ip(IpAddr),
}

/// Where a traced packet goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceDestination {
    /// To anywhere; live only.
    Any,
    /// To a pod.
    Pod(NamespacedName),
    /// To a Service.
    Service(NamespacedName),
    /// To an address.
    Ip(IpAddr),
}

/// Of which connections live packets may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// Of those that begin with the packet.
    New,
    /// Of all.
    #[default]
    Any,
}

impl TraceSource {
    const fn ip(&self) -> Option<IpAddr> {
        if let Self::Ip(ip) = self { Some(*ip) } else { None }
    }
}

impl TraceDestination {
    const fn ip(&self) -> Option<IpAddr> {
        if let Self::Ip(ip) = self { Some(*ip) } else { None }
    }
}

pub(super) fn read(map: &Map, metadata: Option<Metadata>, antrea: bool) -> Option<Traceflow> {
    let spec = map.required("spec")?.map()?;
    let live = spec.get("liveTraffic").map_or(Some(false), |field| field.boolean());
    let source = spec.get("source").map_or(Some(TraceSource::Any), |field| read_source(&field, antrea));
    let destination =
        spec.get("destination").map_or(Some(TraceDestination::Any), |field| read_destination(&field, antrea));
    let ends =
        [source.as_ref().and_then(TraceSource::ip), destination.as_ref().and_then(TraceDestination::ip)];
    let v6 = ends.iter().flatten().any(IpAddr::is_ipv6);
    let written = spec.get("packet").map_or(Some(packet::Written::default()), |field| {
        packet::read(&field, antrea, live.unwrap_or(false), v6)
    });
    let dropped_only = spec.get("droppedOnly").and_then(|field| field.boolean()).unwrap_or(false);
    let timeout = spec.get("timeout").and_then(|field| field.number(TIMEOUT));
    let own = if antrea { Own::default() } else { read_own(&spec) };
    finish(&spec, antrea);
    // What was not understood has been reported; what else it contradicts is not known.
    let (live, source, destination, written) = (live?, source?, destination?, written?);
    check_ends(&spec, live, &source, &destination)?;
    check_sort(&spec, live, dropped_only, &own)?;
    let ends = [
        ("source.ip", "packet.srcIP", source.ip(), written.source_ip),
        ("destination.ip", "packet.dstIP", destination.ip(), written.destination_ip),
    ];
    for (end, field, one, other) in ends {
        if one.zip(other).is_some_and(|(one, other)| one != other) {
            spec.contradiction(&format!("{end} and {field} are different addresses"));
            return None;
        }
    }
    let addresses = ends
        .into_iter()
        .flat_map(|(end, field, one, other)| [one.map(|ip| (end, ip)), other.map(|ip| (field, ip))])
        .flatten();
    let packet = packet::settle(&spec, written, &addresses.collect::<Vec<_>>(), live)?;
    Some(Traceflow {
        metadata: metadata?,
        source,
        destination,
        packet,
        live,
        dropped_only,
        timeout: timeout.map_or(DEFAULT_TIMEOUT, |seconds| Duration::from_secs(seconds.unsigned_abs())),
        deliver: own.deliver,
        count: own.count.unwrap_or(1),
        replies: own.replies,
        sampling: own.sampling.unwrap_or(1),
        connection: own.connection,
        capture: own.capture,
    })
}

/// The fields that are podwire's own.
#[derive(Default)]
struct Own {
    deliver: bool,
    count: Option<u32>,
    replies: bool,
    sampling: Option<u32>,
    connection: Connection,
    capture: u32,
}

fn read_own(spec: &Map) -> Own {
    let number =
        |name, range| spec.get(name).and_then(|field| field.number(range)).map(|number| number as u32);
    let boolean = |name| spec.get(name).and_then(|field| field.boolean()).unwrap_or(false);
    Own {
        deliver: boolean("deliver"),
        count: number("count", 1..=MAX_COUNT),
        replies: boolean("replies"),
        sampling: number("sampling", 1..=MAX_SAMPLING),
        connection: spec
            .get("connection")
            .and_then(|field| field.choice(&[("new", Connection::New), ("any", Connection::Any)]))
            .unwrap_or_default(),
        capture: number("capture", 0..=65535).unwrap_or(0),
    }
}

/// Reports fields that are unknown, or not Antrea's.
fn finish(map: &Map, antrea: bool) {
    map.finish_with(if antrea {
        " of crd.antrea.io; fields beyond it are podwire.io/v1alpha1's"
    } else {
        ""
    });
}

fn read_source(field: &Field, antrea: bool) -> Option<TraceSource> {
    let map = field.map()?;
    let namespace = map.get("namespace").map(|field| dns_name(&field, 63));
    let pod = map.get("pod").map(|field| dns_name(&field, 253));
    let ip = map.get("ip").map(|field| unicast(&field));
    finish(&map, antrea);
    one_of(&map, &["pod", "ip"], &["pod"])?;
    match (pod, ip) {
        (Some(pod), _) => named(namespace, pod).map(TraceSource::Pod),
        (None, Some(ip)) => ip.map(TraceSource::Ip),
        (None, None) => Some(TraceSource::Any),
    }
}

fn read_destination(field: &Field, antrea: bool) -> Option<TraceDestination> {
    let map = field.map()?;
    let namespace = map.get("namespace").map(|field| dns_name(&field, 63));
    let pod = map.get("pod").map(|field| dns_name(&field, 253));
    let service = map.get("service").map(|field| dns_name(&field, 63));
    let ip = map.get("ip").map(|field| unicast(&field));
    finish(&map, antrea);
    one_of(&map, &["pod", "service", "ip"], &["pod", "service"])?;
    match (pod, service, ip) {
        (Some(pod), ..) => named(namespace, pod).map(TraceDestination::Pod),
        (None, Some(service), _) => named(namespace, service).map(TraceDestination::Service),
        (None, None, Some(ip)) => ip.map(TraceDestination::Ip),
        (None, None, None) => Some(TraceDestination::Any),
    }
}

/// An end is one thing, and only what is in a namespace has one.
fn one_of(map: &Map, fields: &[&str], namespaced: &[&str]) -> Option<()> {
    let written: Vec<&str> = fields.iter().copied().filter(|field| map.has(field)).collect();
    let problem = match written.as_slice() {
        [_, _, ..] => format!("{} are given; an end is one of them", written.join(" and ")),
        _ if map.has("namespace") && !namespaced.iter().any(|field| map.has(field)) => {
            format!("namespace is that of {}, which is not given", namespaced.join(" or "))
        }
        _ => return Some(()),
    };
    map.contradiction(&problem);
    None
}

/// In namespace `default` unless said otherwise.
fn named(namespace: Option<Option<String>>, name: Option<String>) -> Option<NamespacedName> {
    let namespace = namespace.unwrap_or_else(|| Some("default".into()));
    Some(NamespacedName { namespace: namespace?, name: name? })
}

/// Packets are seen at pods: one end is one.
fn check_ends(spec: &Map, live: bool, source: &TraceSource, destination: &TraceDestination) -> Option<()> {
    match (source, destination) {
        (TraceSource::Ip(ip), _) if !live => spec.contradiction(&format!(
            "source.ip {ip} is for live traffic; a packet that is made starts at source.pod and may have packet.srcIP"
        )),
        (TraceSource::Any, _) if !live => {
            spec.missing("source.pod is required: without liveTraffic the packet starts at a pod");
        }
        (_, TraceDestination::Any) if !live => spec.missing(
            "destination.pod, destination.service or destination.ip is required: without liveTraffic a packet is sent there",
        ),
        (TraceSource::Pod(_), _) | (_, TraceDestination::Pod(_)) => return Some(()),
        _ => spec.missing("source.pod or destination.pod is required: packets are seen at pods"),
    }
    None
}

/// A field that belongs to the other sort of trace.
fn check_sort(spec: &Map, live: bool, dropped_only: bool, own: &Own) -> Option<()> {
    let many = |number: Option<u32>| number.is_some_and(|number| number > 1);
    let live_only = [
        ("droppedOnly", dropped_only),
        ("count", many(own.count)),
        ("sampling", many(own.sampling)),
        ("connection", own.connection == Connection::New),
    ];
    let problem = if live && own.deliver {
        "deliver is for a packet that is made; live traffic is delivered in any case".to_owned()
    } else if !live && let Some((field, _)) = live_only.iter().find(|(_, said)| *said) {
        format!("{field} is for live traffic (liveTraffic: true)")
    } else if !live && own.replies && !own.deliver {
        "replies needs deliver: what nobody receives is not answered".to_owned()
    } else {
        return Some(());
    };
    spec.contradiction(&problem);
    None
}
