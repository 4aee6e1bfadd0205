//! What this node does for a trace. In: the object, what its ends are, and what this node has of them. Out: what is looked
//! for here, what is injected here, and who has the last word.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_datapath::core::abi::Direction;
use podwire_datapath::object::{
    Connection, TraceFamily, TraceIcmp, TracePacket, TracePorts, TraceTransport, Traceflow,
};
use podwire_datapath::traceflow::{Goal, Packet, Request, Transport};
use podwire_datapath::{Attachment, Filter, Flow, Place, TraceOptions};

/// An end of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Anywhere.
    Any,
    /// An address.
    Ip(IpAddr),
    /// A pod.
    Pod {
        /// `namespace/name`.
        name: String,
        /// Its addresses.
        ips: Vec<IpAddr>,
        /// Its node, when that is another one.
        node: Option<String>,
    },
    /// A Service: its addresses and its first port.
    Service {
        /// `namespace/name`.
        name: String,
        /// Its cluster addresses.
        ips: Vec<IpAddr>,
        /// What it is reached at, unless the packet says so.
        port: Option<u16>,
    },
}

impl End {
    fn ip(&self, family: TraceFamily) -> Option<IpAddr> {
        let of_family = |ip: &&IpAddr| ip.is_ipv4() == (family == TraceFamily::V4);
        match self {
            Self::Any => None,
            Self::Ip(ip) => Some(*ip).filter(|ip| of_family(&ip)),
            Self::Pod { ips, .. } | Self::Service { ips, .. } => ips.iter().find(of_family).copied(),
        }
    }

    fn ips(&self) -> Vec<IpAddr> {
        match self {
            Self::Any => Vec::new(),
            Self::Ip(ip) => vec![*ip],
            Self::Pod { ips, .. } | Self::Service { ips, .. } => ips.clone(),
        }
    }

    /// `pod default/web-0`.
    fn named(&self) -> String {
        match self {
            Self::Any => "any address".into(),
            Self::Ip(ip) => format!("address {ip}"),
            Self::Pod { name, .. } => format!("pod {name}"),
            Self::Service { name, .. } => format!("Service {name}"),
        }
    }
}

/// Both ends, and how this node has them.
#[derive(Clone, Debug)]
pub struct Ends {
    /// Where it comes from.
    pub source: End,
    /// Where it goes to.
    pub destination: End,
    /// The source pod's interface, when it is this node's.
    pub source_here: Option<Attachment>,
    /// The destination pod's.
    pub destination_here: Option<Attachment>,
}

/// What this node does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `sender` or `receiver`.
    pub role: &'static str,
    /// Whether this node begins the trace and says how it ended.
    pub owner: bool,
    /// Whether the packet can come to this node.
    pub concerned: bool,
    /// What is looked for.
    pub request: Request,
    /// What is injected, and at which interface.
    pub inject: Option<(Packet, u32)>,
    /// Endpoints of this node whose packets are looked at.
    pub endpoints: BTreeSet<String>,
    /// When it has seen enough.
    pub goal: Goal,
    /// The node that the destination is at, when it is another one.
    pub elsewhere: Option<String>,
}

/// Plans a trace on this node. `host`: the CNI forwards. `seed`: what every node makes the same numbers of.
///
/// # Errors
/// Why there can be no such trace.
pub fn plan(trace: &Traceflow, ends: &Ends, host: bool, seed: u64) -> Result<Plan, String> {
    let goal = Goal { packets: trace.count, replies: trace.replies, dropped_only: trace.dropped_only };
    let options = TraceOptions {
        ends: !trace.live && !trace.deliver,
        replies: trace.replies,
        // Where the host's stack forwards, it may translate as well.
        translated: host || matches!(ends.destination, End::Service { .. }),
        dropped_only: trace.dropped_only,
        ..TraceOptions::default()
    };
    let mut endpoints = BTreeSet::new();
    for (end, here) in [(&ends.source, ends.source_here), (&ends.destination, ends.destination_here)] {
        if let (End::Pod { name, .. }, Some(_)) = (end, here) {
            endpoints.insert(name.clone());
        }
    }
    let elsewhere = match &ends.destination {
        End::Pod { node, .. } if ends.destination_here.is_none() => node.clone(),
        _ => None,
    };
    let request = Request { duration: trace.timeout, options, ..Request::default() };
    let sender = ends.source_here.is_some();
    let mut plan = Plan {
        role: match (&ends.destination, sender) {
            (_, true) => "sender",
            (End::Pod { .. }, false) => "receiver",
            _ => "egress",
        },
        owner: sender,
        concerned: sender || ends.destination_here.is_some(),
        request,
        inject: None,
        endpoints,
        goal,
        elsewhere,
    };
    if trace.live {
        look_for(&mut plan, trace, ends, host)?;
        return Ok(plan);
    }
    let packet = made(trace, ends, seed)?;
    match (ends.source_here, ends.destination_here) {
        // The CNI brings the packet, and no tag.
        (None, Some(at)) if host => {
            plan.request.options.received = true;
            let place = Place::Hook { ifindex: at.ifindex, direction: Direction::Ingress };
            plan.request.live = vec![(place, exactly(&packet.flow()))];
        }
        (here, _) => {
            plan.request.flows = vec![packet.flow()];
            plan.inject = here.map(|at| (packet, at.ifindex));
        }
    }
    Ok(plan)
}

fn exactly(flow: &Flow) -> Filter {
    let port = |port| Some(port).filter(|port| *port != 0);
    Filter {
        source: Some(flow.source.into()),
        destination: Some(flow.destination.into()),
        protocol: Some(flow.protocol),
        source_port: port(flow.source_port),
        destination_port: port(flow.destination_port),
        ..Filter::default()
    }
}

/// Live packets: at the source pod, if there is one, else at the destination; other nodes go on with them.
fn look_for(plan: &mut Plan, trace: &Traceflow, ends: &Ends, host: bool) -> Result<(), String> {
    let place = match (ends.source_here, ends.destination_here, &ends.source) {
        (Some(at), ..) => Place::Hook { ifindex: at.ifindex, direction: Direction::Egress },
        (None, Some(at), End::Any | End::Ip(_)) => {
            plan.owner = true;
            Place::Hook { ifindex: at.ifindex, direction: Direction::Ingress }
        }
        // The CNI brings the packets, and no tag.
        (None, Some(at), End::Pod { .. }) if host => {
            plan.request.options.received = true;
            Place::Hook { ifindex: at.ifindex, direction: Direction::Ingress }
        }
        _ => Place::OtherNodes,
    };
    // Numbers of other nodes' packets were taken where they began.
    let counted = place != Place::OtherNodes && !plan.request.options.received;
    plan.request.count = match (counted, trace.dropped_only) {
        (true, false) => trace.count,
        _ => u32::MAX,
    };
    plan.request.sampling = if counted { trace.sampling } else { 1 };
    plan.request.capture = if counted { trace.capture.max(HEADERS) } else { 0 };
    let base = filter(trace);
    let sources = match place {
        Place::Hook { direction: Direction::Egress, .. } => Vec::new(),
        _ => ends.source.ips(),
    };
    let destinations = match place {
        Place::Hook { direction: Direction::Ingress, .. } => Vec::new(),
        // A Service's packets have a pod for their destination when they come to another node.
        Place::OtherNodes if matches!(ends.destination, End::Service { .. }) => Vec::new(),
        _ => ends.destination.ips(),
    };
    let sources = trace.packet.source_ip.map_or(sources, |ip| vec![ip]);
    let destinations = trace.packet.destination_ip.map_or(destinations, |ip| vec![ip]);
    for (source, destination) in pairs(&sources, &destinations) {
        let filter = Filter {
            source: source.map(IpNet::from).or(base.source),
            destination: destination.map(IpNet::from).or(base.destination),
            ..base
        };
        let families = [source, destination].into_iter().flatten().map(|ip| ip.is_ipv6());
        if base.v6.is_none_or(|v6| families.into_iter().all(|other| other == v6)) {
            plan.request.live.push((place, filter));
        }
    }
    if plan.request.live.is_empty() {
        let (source, destination) = (ends.source.named(), ends.destination.named());
        return Err(format!("address families differ: {source} and {destination} have none in common"));
    }
    Ok(())
}

/// Bytes that hold the headers of a captured packet.
const HEADERS: u32 = 128;

/// All pairs of one family; no address stands for any.
fn pairs(sources: &[IpAddr], destinations: &[IpAddr]) -> Vec<(Option<IpAddr>, Option<IpAddr>)> {
    let any = |ips: &[IpAddr]| -> Vec<Option<IpAddr>> {
        if ips.is_empty() { vec![None] } else { ips.iter().copied().map(Some).collect() }
    };
    let mut pairs = Vec::new();
    for source in any(sources) {
        for destination in any(destinations) {
            let differ = source.zip(destination).is_some_and(|(source, to)| source.is_ipv4() != to.is_ipv4());
            if !differ {
                pairs.push((source, destination));
            }
        }
    }
    pairs
}

fn filter(trace: &Traceflow) -> Filter {
    let packet = &trace.packet;
    let mut filter = Filter {
        v6: packet.family.map(|family| family == TraceFamily::V6),
        protocol: packet.protocol,
        ttl: packet.ttl,
        length: packet.length,
        ip_flags: packet.ip_flags,
        ..Filter::default()
    };
    match &packet.transport {
        Some(TraceTransport::Tcp { ports, flags }) => {
            with_ports(&mut filter, ports);
            filter.tcp_flags = flags.map(|flags| (flags.value, flags.mask));
        }
        Some(TraceTransport::Udp(ports) | TraceTransport::Sctp(ports)) => with_ports(&mut filter, ports),
        Some(TraceTransport::Icmp(icmp)) => {
            (filter.icmp_type, filter.icmp_code) = (icmp.kind, icmp.code);
            (filter.echo_id, filter.echo_sequence) = (icmp.id, icmp.sequence);
        }
        None => {}
    }
    if trace.connection == Connection::New {
        const SYN: u8 = 2;
        const ACK: u8 = 16;
        let (value, mask) = filter.tcp_flags.unwrap_or((0, 0));
        filter.protocol = Some(TCP);
        filter.tcp_flags = Some((value | SYN, mask | SYN | ACK));
    }
    filter
}

const TCP: u8 = 6;

fn with_ports(filter: &mut Filter, ports: &TracePorts) {
    (filter.source_port, filter.destination_port) = (ports.source, ports.destination);
}

/// The packet that is injected.
fn made(trace: &Traceflow, ends: &Ends, seed: u64) -> Result<Packet, String> {
    let packet = &trace.packet;
    let destination_ip = packet.destination_ip;
    let family = destination_ip
        .or(match ends.destination {
            End::Ip(ip) => Some(ip),
            _ => None,
        })
        .map(TraceFamily::of)
        .or(packet.family)
        .unwrap_or(TraceFamily::V4);
    let lacks =
        |end: &End| format!("address families differ: {} has no {} address", end.named(), family.as_str());
    let source = packet.source_ip.or_else(|| ends.source.ip(family)).ok_or_else(|| lacks(&ends.source))?;
    let destination =
        destination_ip.or_else(|| ends.destination.ip(family)).ok_or_else(|| lacks(&ends.destination))?;
    let at = ends.source_here;
    let bridged = at.and_then(|at| at.bridge);
    let neighbour = ends.destination_here.filter(|there| bridged.is_some() && there.bridge == bridged);
    let transport = transport(packet, ends, seed);
    Ok(Packet {
        source_mac: at.map_or([0; 6], |at| at.mac),
        destination_mac: neighbour.map(|there| there.mac).or(at.map(|at| at.gateway)).unwrap_or_default(),
        source,
        destination,
        ttl: packet.ttl.unwrap_or(64),
        dont_fragment: packet.ip_flags.is_some_and(|flags| flags & 2 != 0),
        identification: (seed >> 48) as u16,
        transport,
        payload: payload(packet, family, &transport),
    })
}

fn transport(packet: &TracePacket, ends: &Ends, seed: u64) -> Transport {
    /// The kernel's usual range of ports for who asks (`ip_local_port_range`).
    const FIRST: u64 = 32768;
    const PORTS: u64 = 60999 - FIRST + 1;
    let port = match &ends.destination {
        End::Service { port, .. } => *port,
        _ => None,
    };
    let of = |ports: &TracePorts| {
        let source = ports.source.unwrap_or((FIRST + seed % PORTS) as u16);
        (source, ports.destination.or(port).unwrap_or(0))
    };
    match &packet.transport {
        Some(TraceTransport::Tcp { ports, flags }) => {
            let (source, destination) = of(ports);
            let flags = flags.map_or(2, |flags| flags.value);
            Transport::Tcp { source, destination, flags, sequence: (seed >> 16) as u32 }
        }
        Some(TraceTransport::Udp(ports)) => {
            let (source, destination) = of(ports);
            Transport::Udp { source, destination }
        }
        Some(TraceTransport::Sctp(ports)) => {
            let (source, destination) = of(ports);
            Transport::Sctp { source, destination }
        }
        Some(TraceTransport::Icmp(TraceIcmp { kind, code, id, sequence })) => Transport::Icmp {
            kind: *kind,
            code: code.unwrap_or(0),
            id: id.unwrap_or((seed >> 16) as u16),
            sequence: sequence.unwrap_or((seed >> 32) as u16),
        },
        None => {
            Transport::Icmp { kind: None, code: 0, id: (seed >> 16) as u16, sequence: (seed >> 32) as u16 }
        }
    }
}

fn payload(packet: &TracePacket, family: TraceFamily, transport: &Transport) -> u16 {
    let headers = match transport {
        Transport::Tcp { .. } => 20,
        Transport::Sctp { .. } => 32,
        _ => 8,
    } + if family == TraceFamily::V4 { 20 } else { 0 };
    match (packet.payload_length, packet.length) {
        (Some(length), _) => length,
        (None, Some(length)) => length.saturating_sub(headers),
        (None, None) => 0,
    }
}

/// The flow of the packets of a plan, where it is known.
pub fn flow(plan: &Plan) -> Option<Flow> {
    plan.request.flows.first().copied()
}
