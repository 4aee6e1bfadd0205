//! From desired state to tables. In: what is wanted, and the devices and routes that there are. Out: rules to
//! compile, session and policy rows. Pure: it touches nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use podwire_core::abi::{Direction, Liveness, PolicyRow, SessionKind, SessionRow, TunnelKey, limits};
use podwire_core::stage::copy::is_numbered;
use podwire_core::wire::encap::{Encapsulation, OuterAddresses, OuterTemplate, Tunnel, TunnelKind};

use crate::compile::{EndpointRules, Guarded, Nature, Policy, Rule, Sources};
use crate::desired::{
    Allowed, Desired, Endpoint, Engine, Guard, Mirror, Oversize, Redirect, SessionOptions, Target,
};
use crate::error::{Error, ErrorKind};
use crate::internal;
use crate::netdev::{Link, Route};

/// What tells one session from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    pub(crate) target: Target,
    pub(crate) options: SessionOptions,
}

impl SessionKey {
    pub(crate) fn of_mirror(mirror: &Mirror) -> Self {
        Self { target: mirror.target.clone(), options: mirror.options }
    }

    pub(crate) fn of_redirect(redirect: &Redirect) -> Self {
        let oversize = if redirect.fragment { Oversize::Fragment } else { Oversize::Truncate };
        let options = SessionOptions { oversize, engine: Engine::Clone, ..SessionOptions::default() };
        Self { target: redirect.target.clone(), options }
    }
}

/// A session's row and what is known to be wrong with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SessionPlan {
    pub(crate) row: SessionRow,
    pub(crate) problem: Option<String>,
    pub(crate) live: Liveness,
    pub(crate) engine: Engine,
}

/// A policy of either kind, as far as both are alike.
pub(crate) struct AnyPolicy<'a> {
    pub(crate) name: &'a str,
    pub(crate) endpoints: &'a [String],
    directions: &'a [Direction],
    rules: &'a [Rule],
    stateful: bool,
    pub(crate) session: SessionKey,
    pub(crate) redirect: Option<(u16, &'a Redirect)>,
}

/// Mirrors, then redirects.
pub(crate) fn policies(desired: &Desired) -> impl Iterator<Item = AnyPolicy<'_>> {
    let mirrors = desired.mirrors.iter().map(|mirror| AnyPolicy {
        name: &mirror.name,
        endpoints: &mirror.endpoints,
        directions: &mirror.directions,
        rules: &mirror.rules,
        stateful: mirror.stateful,
        session: SessionKey::of_mirror(mirror),
        redirect: None,
    });
    let redirects = desired.redirects.iter().enumerate().map(|(rank, redirect)| AnyPolicy {
        name: &redirect.name,
        endpoints: &redirect.endpoints,
        directions: &redirect.directions,
        rules: &redirect.rules,
        stateful: redirect.stateful,
        session: SessionKey::of_redirect(redirect),
        redirect: Some((rank as u16, redirect)),
    });
    mirrors.chain(redirects)
}

/// Refuses what contradicts itself.
pub(crate) fn check(desired: &Desired) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
    let (mut endpoints, mut interfaces, mut names) = (HashSet::new(), HashMap::new(), HashSet::new());
    for endpoint in &desired.endpoints {
        if !endpoints.insert(endpoint.name.as_str()) {
            return invalid(format!("two endpoints are named {}", endpoint.name));
        }
        if let Some(other) = interfaces.insert(endpoint.interface.as_str(), &endpoint.name) {
            return invalid(format!(
                "endpoints {other} and {} share interface {}",
                endpoint.name, endpoint.interface
            ));
        }
    }
    for endpoint in &desired.endpoints {
        if endpoint.guard != Guard::Off && (endpoint.mac.is_none() || endpoint.ips.is_empty()) {
            return invalid(format!(
                "endpoint {} is guarded and needs its MAC and IP addresses",
                endpoint.name
            ));
        }
    }
    for policy in policies(desired) {
        if !names.insert(policy.name) {
            return invalid(format!("two policies are named {}", policy.name));
        }
        if let Some(unknown) = policy.endpoints.iter().find(|name| !endpoints.contains(name.as_str())) {
            return invalid(format!("policy {} names an endpoint that is not there: {unknown}", policy.name));
        }
    }
    if let Some((name, why)) = conflicts(desired).into_iter().next() {
        return invalid(format!("policy {name}: {why}"));
    }
    check_options(desired)?;
    check_redirects(desired)
}

/// Policies whose target or return port stands in the way of pods, and why.
pub(crate) fn conflicts(desired: &Desired) -> BTreeMap<String, String> {
    let owners: HashMap<&str, &str> = desired
        .endpoints
        .iter()
        .map(|endpoint| (endpoint.interface.as_str(), endpoint.name.as_str()))
        .collect();
    let selected: HashSet<&str> =
        policies(desired).flat_map(|policy| policy.endpoints).map(String::as_str).collect();
    let owner = |target: &Target| match target {
        Target::Device { name } => owners.get(name.as_str()).map(|owner| (name.clone(), *owner)),
        Target::Internal { .. } | Target::Tunnel { .. } | Target::Reader { .. } => None,
    };
    let mut found = BTreeMap::new();
    for policy in policies(desired) {
        // A copy of what a pod receives would be one more packet for it; what it sends would come back to it.
        if let Some((device, owner)) = owner(&policy.session.target)
            && policy.endpoints.iter().any(|name| name == owner)
        {
            let why = format!(
                "target device {device} is the interface of endpoint {owner}, which the policy applies to"
            );
            found.insert(policy.name.to_owned(), why);
        }
        // Its hook carries one program of podwire's: the endpoint's.
        if let Some((_, redirect)) = policy.redirect
            && let Some((device, owner)) = owner(&redirect.return_port)
            && selected.contains(owner)
        {
            let why = format!(
                "return device {device} is the interface of endpoint {owner}, which policies apply to"
            );
            found.insert(policy.name.to_owned(), why);
        }
    }
    found
}

/// One target has one set of options.
fn check_options(desired: &Desired) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
    let mut owners: HashMap<&Target, &Mirror> = HashMap::new();
    for mirror in &desired.mirrors {
        let owner = *owners.entry(&mirror.target).or_insert(mirror);
        if owner.options != mirror.options {
            return invalid(format!(
                "mirrors {} and {} want different options of {}",
                owner.name, mirror.name, mirror.target
            ));
        }
        let options = &mirror.options;
        let short = options.truncate.is_some_and(|bytes| bytes <= limits::SNAP_FRAME);
        let tunnel = matches!(mirror.target, Target::Tunnel { .. });
        if options.engine == Engine::Snap && !(short && tunnel) {
            return invalid(format!(
                "mirror {}: snapshots are for tunnels and need truncate, {} bytes at most",
                mirror.name,
                limits::SNAP_FRAME
            ));
        }
        if matches!(mirror.target, Target::Reader { .. }) && options.engine != Engine::Auto {
            return invalid(format!("mirror {}: a reader has an engine of its own", mirror.name));
        }
        if options.engine == Engine::Segment && !tunnel {
            return invalid(format!("mirror {}: segments are for tunnels", mirror.name));
        }
        if options.truncate == Some(0) || options.rate_limit == Some(0) {
            return invalid(format!("mirror {}: truncate and rate limit are above 0", mirror.name));
        }
    }
    Ok(())
}

fn check_redirects(desired: &Desired) -> Result<(), Error> {
    for redirect in &desired.redirects {
        let numbered = |target: &Target| {
            matches!(
                target,
                Target::Tunnel { tunnel: Tunnel::ErspanII { .. } | Tunnel::ErspanIII { .. }, .. }
            )
        };
        if [&redirect.target, &redirect.return_port].iter().any(|port| matches!(port, Target::Reader { .. }))
        {
            let what = format!("redirect {}: readers are for mirrors", redirect.name);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        if numbered(&redirect.return_port) {
            let what = format!("redirect {}: nothing comes back by ERSPAN", redirect.name);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        if redirect.target == redirect.return_port {
            let what = format!("redirect {}: target and return port are the same", redirect.name);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
    }
    Ok(())
}

/// The rules of the endpoints that have a slot.
pub(crate) fn rules(
    desired: &Desired,
    slot_of: impl Fn(&str) -> Option<u32>,
    session_of: impl Fn(&SessionKey) -> Option<u32>,
    number_of: impl Fn(&str) -> Option<u32>,
) -> Vec<EndpointRules> {
    let mut by_endpoint: HashMap<&str, EndpointRules> = desired
        .endpoints
        .iter()
        .filter_map(|endpoint| {
            let slot = slot_of(&endpoint.name)?;
            let rules = EndpointRules { slot, sources: sources(endpoint), ..EndpointRules::default() };
            Some((endpoint.name.as_str(), rules))
        })
        .collect();
    for policy in policies(desired) {
        let (Some(session), Some(number)) = (session_of(&policy.session), number_of(policy.name)) else {
            continue;
        };
        let options = &policy.session.options;
        let nature = Nature {
            redirect: policy.redirect.map(|(rank, _)| rank),
            stateful: policy.stateful,
            limited: options.sampling.is_some_and(|sampling| sampling.one_in > 1)
                || options.rate_limit.is_some(),
            snaps: engine(&policy.session) == Engine::Snap,
            reader: matches!(policy.session.target, Target::Reader { .. }),
        };
        let compiled =
            Policy { number: number as u16, session: session as u16, nature, rules: policy.rules.to_vec() };
        for name in policy.endpoints.iter().collect::<HashSet<_>>() {
            let Some(rules) = by_endpoint.get_mut(name.as_str()) else {
                continue;
            };
            if policy.directions.contains(&Direction::Ingress) {
                rules.ingress.push(compiled.clone());
            }
            if policy.directions.contains(&Direction::Egress) {
                rules.egress.push(compiled.clone());
            }
        }
    }
    by_endpoint.into_values().collect()
}

/// The sources that are an endpoint's own; `None` when they are not known.
fn sources(endpoint: &Endpoint) -> Option<Sources> {
    if endpoint.mac.is_none() && endpoint.ips.is_empty() {
        return None;
    }
    let mut sources = Sources {
        macs: endpoint.mac.into_iter().collect(),
        prefixes: endpoint.ips.iter().map(|address| IpNet::from(*address)).collect(),
        guard: match endpoint.guard {
            Guard::Off => None,
            Guard::Observe => Some(Guarded::Observed),
            Guard::Enforce => Some(Guarded::Dropped),
        },
    };
    for allowed in &endpoint.allowed {
        match allowed {
            Allowed::Prefix(prefix) => sources.prefixes.push(*prefix),
            Allowed::Mac(mac) => sources.macs.push(*mac),
        }
    }
    let link_local: Vec<IpNet> =
        sources.macs.iter().map(|mac| IpNet::from(IpAddr::from(link_local(*mac)))).collect();
    sources.prefixes.extend(link_local);
    Some(sources)
}

/// The link-local address that the kernel makes of a MAC address (RFC 4291 appendix A).
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.map(u16::from);
    Ipv6Addr::new(0xfe80, 0, 0, 0, (a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f)
}

/// A policy's row.
pub(crate) fn policy_row(policy: &AnyPolicy) -> PolicyRow {
    let (returns, flags) = match policy.redirect {
        Some((_, redirect)) => {
            let closed = if redirect.closed { PolicyRow::FLAG_CLOSED } else { 0 };
            (return_number(&redirect.return_port), closed)
        }
        None => (0, 0),
    };
    PolicyRow { name_hash: name_hash(policy.name), returns, flags }
}

/// FNV-1a over 64 bits; never 0.
pub(crate) fn name_hash(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

/// The number of a return port: the same on every start, so that packets which are away find back.
pub(crate) fn return_number(target: &Target) -> u32 {
    let hash = name_hash(&target.to_string());
    ((hash >> 32) as u32 ^ hash as u32).max(1)
}

/// What packets that come back by a tunnel look like.
pub(crate) fn tunnel_key(target: &Target) -> Option<TunnelKey> {
    let Target::Tunnel { remote, tunnel } = target else {
        return None;
    };
    let (kind, id, port) = match *tunnel {
        Tunnel::Vxlan { vni, port } => (TunnelKind::Vxlan, vni, u32::from(port)),
        Tunnel::Geneve { vni, port } => (TunnelKind::Geneve, vni, u32::from(port)),
        Tunnel::Gre { key, .. } => (TunnelKind::Gre, key.unwrap_or(0), u32::from(key.is_some())),
        Tunnel::ErspanII { .. } | Tunnel::ErspanIII { .. } => return None,
    };
    let mut bytes = [0; 16];
    let family = match remote {
        IpAddr::V4(address) => {
            bytes[..4].copy_from_slice(&address.octets());
            4
        }
        IpAddr::V6(address) => {
            bytes = address.octets();
            6
        }
    };
    Some(TunnelKey { remote: bytes, family, kind: kind as u32, id, port })
}

/// The engine that a session runs on.
pub(crate) fn engine(session: &SessionKey) -> Engine {
    let tunnel = match session.target {
        Target::Tunnel { tunnel, .. } => tunnel,
        Target::Reader { .. } => return Engine::Snap,
        Target::Internal { .. } | Target::Device { .. } => return Engine::Clone,
    };
    let options = &session.options;
    match options.engine {
        Engine::Auto if options.truncate.is_some_and(|bytes| bytes <= limits::SNAP_FRAME) => Engine::Snap,
        Engine::Auto => match tunnel {
            Tunnel::ErspanII { .. } | Tunnel::ErspanIII { .. } | Tunnel::Gre { sequence: true, .. } => {
                Engine::Segment
            }
            _ => Engine::Clone,
        },
        chosen => chosen,
    }
}

/// A session's row.
pub(crate) fn session(
    session: &SessionKey,
    links: &HashMap<String, Link>,
    route: impl FnOnce(IpAddr) -> Option<Route>,
) -> Result<SessionPlan, Error> {
    let engine = engine(session);
    let mut plan = match &session.target {
        Target::Device { name } => device(links.get(name), &format!("device {name}")),
        Target::Internal { name } => internal_port(name, links),
        Target::Tunnel { remote, tunnel } => tunnelled(&session.target, *remote, *tunnel, route(*remote))?,
        Target::Reader { .. } => {
            let row = SessionRow { kind: SessionKind::Reader as u32, ..SessionRow::FREE };
            SessionPlan { row, problem: None, live: Liveness::Live, engine }
        }
    };
    plan.engine = engine;
    let options = &session.options;
    let row = &mut plan.row;
    row.truncate = options.truncate.unwrap_or(0);
    if let Some(sampling) = options.sampling {
        row.sampling = sampling.one_in;
        row.flags |= if sampling.by_flow { SessionRow::FLAG_BY_FLOW } else { 0 };
    }
    if let Some(rate) = options.rate_limit {
        row.interval = SECOND / u64::from(rate.max(1));
        row.burst = BURST;
    }
    row.flags |= match options.oversize {
        Oversize::Truncate => 0,
        Oversize::Fragment => SessionRow::FLAG_FRAGMENT,
        Oversize::Drop => SessionRow::FLAG_DROP,
    };
    // A snapshot that cannot be taken becomes a clone: numbered sessions need segments then too.
    if engine == Engine::Segment || engine == Engine::Snap && is_numbered(&row.template) {
        row.flags |= SessionRow::FLAG_SEGMENT;
    }
    Ok(plan)
}

/// Nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// How much of a second's frames may come at once.
const BURST: u64 = SECOND / 20;

fn internal_port(name: &str, links: &HashMap<String, Link>) -> SessionPlan {
    let near = links.get(&internal::near_end(name));
    let mut plan = device(near, &format!("internal port {name}"));
    if near.is_none() && links.contains_key(name) {
        plan.problem = Some(format!("a device {name} exists, and podwire did not make it"));
    }
    plan
}

fn device(link: Option<&Link>, what: &str) -> SessionPlan {
    let (problem, live) = match link {
        None => (Some(format!("{what} does not exist")), Liveness::Dead),
        Some(link) if !link.up => (Some(format!("{what} is down")), Liveness::Dead),
        Some(link) if !link.carrier => (Some(format!("{what} has no carrier")), Liveness::Dead),
        Some(_) => (None, Liveness::Live),
    };
    let row = SessionRow {
        kind: SessionKind::Device as u32,
        ifindex: link.map_or(0, |link| link.index),
        mtu: link.map_or(0, |link| link.mtu),
        ..SessionRow::FREE
    };
    SessionPlan { row, problem, live, engine: Engine::Clone }
}

fn tunnelled(
    target: &Target,
    remote: IpAddr,
    tunnel: Tunnel,
    route: Option<Route>,
) -> Result<SessionPlan, Error> {
    let problem = route.is_none().then(|| format!("no route to {remote}"));
    // Without a route the datapath counts copies as lost; the address is put in when one appears.
    let unspecified = match remote {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let local = route.map_or(unspecified, |route| route.source);
    let addresses = OuterAddresses::new(local, remote).ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("{local} and {remote} are of different families"))
    })?;
    let template = OuterTemplate::new(&Encapsulation::new(addresses, tunnel))
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("{target}: {error}")))?;
    let row = SessionRow { kind: SessionKind::Tunnel as u32, template, ..SessionRow::FREE };
    Ok(SessionPlan { row, problem, live: Liveness::Live, engine: Engine::Clone })
}
