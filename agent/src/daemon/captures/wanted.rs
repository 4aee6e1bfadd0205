//! What a request comes to. In: the request. Out: which packets of which directions, as rules for the classifier and as
//! filters for what rules cannot say.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use podwire_datapath::compile::{AddressSet, Rule};
use podwire_datapath::core::abi::Direction;
use podwire_datapath::{Desired, Filter};

use crate::capture::{Direction as Way, PodRequest, Request};
use crate::cli::Flow;

/// Pods of one capture.
const MOST_PODS: usize = 16;
/// Bytes of a frame that are captured at least: its Ethernet header.
const SHORTEST: u32 = 14;

/// A request that makes sense.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// As it came.
    pub request: Request,
    /// Which packets; any of them.
    pub filters: Filters,
    directions: Vec<Direction>,
}

/// Which packets: one filter, or that and its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filters {
    all: Vec<Filter>,
    /// The classifier has said all of it.
    is_said: bool,
}

impl Filters {
    fn new(filter: Filter, answers: bool) -> Self {
        let mut all = vec![filter];
        if answers && filter.reversed() != filter {
            all.push(filter.reversed());
        }
        Self { all, is_said: filter.rule().1 }
    }

    /// Whether a frame that the classifier let through is wanted.
    pub fn accept(&self, frame: &[u8]) -> bool {
        self.is_said || self.all.iter().any(|filter| filter.accepts(frame) == Ok(true))
    }
}

impl Wanted {
    /// Reads a request.
    ///
    /// # Errors
    /// What is wrong, in a line.
    pub fn read(request: Request) -> Result<Self, String> {
        let flow: Flow = request.flow.parse().map_err(|error| format!("flow: {error}"))?;
        let directions = match request.direction {
            Way::In => vec![Direction::Ingress],
            Way::Out => vec![Direction::Egress],
            Way::Both => Direction::ALL.to_vec(),
        };
        if !(1..=MOST_PODS).contains(&request.pods.len()) {
            return Err(format!("pods: allowed: 1 to {MOST_PODS}"));
        }
        if let Some(twice) = request
            .pods
            .iter()
            .enumerate()
            .find(|(at, pod)| request.pods[..*at].iter().any(|other| other.name == pod.name))
        {
            return Err(format!("pods: {} stands there twice", twice.1.name));
        }
        if request.snaplen.is_some_and(|bytes| bytes < SHORTEST) {
            return Err(format!("snaplen: allowed: {SHORTEST} or more"));
        }
        if request.duration_ms == Some(0) {
            return Err("durationMs: allowed: 1 or more".into());
        }
        let filters = Filters::new(flow.filter(), request.direction == Way::Both);
        Ok(Self { request, filters, directions })
    }

    /// When it ends by itself.
    pub fn duration(&self) -> Option<Duration> {
        self.request.duration_ms.map(Duration::from_millis)
    }

    /// Relative to the pod.
    pub(super) fn directions(&self) -> &[Direction] {
        &self.directions
    }

    /// Rules for the packets of one pod; `None` while nothing is known of who is at the other end.
    pub(super) fn rules(&self, pod: &PodRequest, desired: &Desired) -> Option<Vec<Rule>> {
        let peer = match &pod.peers {
            None => None,
            Some(peers) => {
                let cidrs: Vec<IpNet> = peers.iter().flat_map(|peer| addresses(peer, desired)).collect();
                if cidrs.is_empty() {
                    return None;
                }
                Some(AddressSet { cidrs, except: Vec::new() })
            }
        };
        let rules = self.filters.all.iter().map(|filter| Rule { peer: peer.clone(), ..filter.rule().0 });
        Some(rules.collect())
    }
}

/// Those of a pod of this node, or the address itself.
fn addresses(peer: &str, desired: &Desired) -> Vec<IpNet> {
    if let Ok(ip) = peer.parse::<IpAddr>() {
        return vec![ip.into()];
    }
    let found = desired.endpoints.iter().find(|endpoint| endpoint.name == peer);
    found.map(|endpoint| endpoint.ips.iter().map(|ip| (*ip).into()).collect()).unwrap_or_default()
}
