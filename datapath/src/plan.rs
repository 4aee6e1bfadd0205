//! From desired state to tables. In: what is wanted, and the devices and routes that there are. Out: rules to
//! compile and session rows. Pure: it touches nothing.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use podwire_core::abi::{Direction, SessionKind, SessionRow};
use podwire_core::wire::encap::{Encapsulation, OuterAddresses, OuterTemplate};

use crate::compile::{self, EndpointRules};
use crate::desired::{Desired, Target};
use crate::error::{Error, ErrorKind};
use crate::netdev::{Link, Route};

/// A session's row and what is known to be wrong with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SessionPlan {
    pub(crate) row: SessionRow,
    pub(crate) problem: Option<String>,
}

/// The row of a free slot.
pub(crate) const FREE: SessionRow =
    SessionRow { kind: SessionKind::Free as u32, ifindex: 0, template: OuterTemplate::EMPTY };

/// Refuses what contradicts itself.
pub(crate) fn check(desired: &Desired) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
    let (mut endpoints, mut interfaces, mut mirrors) = (HashSet::new(), HashMap::new(), HashSet::new());
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
    for mirror in &desired.mirrors {
        if !mirrors.insert(mirror.name.as_str()) {
            return invalid(format!("two mirrors are named {}", mirror.name));
        }
        if let Some(unknown) = mirror.endpoints.iter().find(|name| !endpoints.contains(name.as_str())) {
            return invalid(format!("mirror {} names an endpoint that is not there: {unknown}", mirror.name));
        }
    }
    Ok(())
}

/// The rules of the endpoints that have a slot.
pub(crate) fn rules(
    desired: &Desired,
    slot_of: impl Fn(&str) -> Option<u32>,
    session_of: impl Fn(&Target) -> Option<u32>,
) -> Vec<EndpointRules> {
    let mut by_endpoint: HashMap<&str, EndpointRules> = desired
        .endpoints
        .iter()
        .filter_map(|endpoint| {
            let slot = slot_of(&endpoint.name)?;
            Some((endpoint.name.as_str(), EndpointRules { slot, ingress: Vec::new(), egress: Vec::new() }))
        })
        .collect();
    for mirror in &desired.mirrors {
        let Some(session) = session_of(&mirror.target) else {
            continue;
        };
        let compiled = compile::Mirror { session: session as u16, rules: mirror.rules.clone() };
        for name in mirror.endpoints.iter().collect::<HashSet<_>>() {
            let Some(rules) = by_endpoint.get_mut(name.as_str()) else {
                continue;
            };
            if mirror.directions.contains(&Direction::Ingress) {
                rules.ingress.push(compiled.clone());
            }
            if mirror.directions.contains(&Direction::Egress) {
                rules.egress.push(compiled.clone());
            }
        }
    }
    by_endpoint.into_values().collect()
}

/// A session's row.
pub(crate) fn session(
    target: &Target,
    links: &HashMap<String, Link>,
    route: impl FnOnce(IpAddr) -> Option<Route>,
) -> Result<SessionPlan, Error> {
    match target {
        Target::Device { name } => {
            let link = links.get(name);
            let problem = match link {
                None => Some(format!("device {name} does not exist")),
                Some(link) if !link.up => Some(format!("device {name} is down")),
                Some(_) => None,
            };
            let ifindex = link.map_or(0, |link| link.index);
            let row =
                SessionRow { kind: SessionKind::Device as u32, ifindex, template: OuterTemplate::EMPTY };
            Ok(SessionPlan { row, problem })
        }
        Target::Tunnel { remote, tunnel } => {
            let route = route(*remote);
            let problem = route.is_none().then(|| format!("no route to {remote}"));
            // Without a route the datapath counts copies as lost; the address is put in when one appears.
            let unspecified = match remote {
                IpAddr::V4(_) => IpAddr::from([0; 4]),
                IpAddr::V6(_) => IpAddr::from([0; 16]),
            };
            let local = route.map_or(unspecified, |route| route.source);
            let addresses = OuterAddresses::new(local, *remote).ok_or_else(|| {
                Error::new(ErrorKind::Invalid, format!("{local} and {remote} are of different families"))
            })?;
            let template = OuterTemplate::new(&Encapsulation::new(addresses, *tunnel))
                .map_err(|error| Error::new(ErrorKind::Invalid, format!("{target}: {error}")))?;
            let row = SessionRow { kind: SessionKind::Tunnel as u32, ifindex: 0, template };
            Ok(SessionPlan { row, problem })
        }
    }
}
