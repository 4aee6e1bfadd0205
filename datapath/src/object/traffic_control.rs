//! TrafficControl, podwire's own and Antrea's.

use podwire_core::abi::Direction;

use super::decode::Map;
use super::metadata::Metadata;
use super::rule::read_match;
use super::selector::{AppliedTo, read_applied_to};
use super::target::{self, Port};
use crate::compile::Rule;

/// A policy: which packets of which pods are mirrored or redirected, and where to.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficControl {
    /// Name and labels.
    pub metadata: Metadata,
    /// Which pods.
    pub applied_to: AppliedTo,
    /// Directions relative to the pod.
    pub directions: Vec<Direction>,
    /// What is done.
    pub action: Action,
    /// Lower comes first; 0 unless said.
    pub priority: i32,
    /// Which packets; empty for all.
    pub rules: Vec<Rule>,
    /// Whether the direction is that of the connection.
    pub stateful: bool,
    /// Where to.
    pub target: Port,
    /// Where redirected packets come back.
    pub return_port: Option<Port>,
    /// Bytes of each copy that are sent.
    pub truncate: Option<u32>,
    /// One in so many.
    pub sampling: Option<u32>,
    /// Packets per second at most.
    pub rate_limit: Option<u32>,
    /// What becomes of a copy that does not fit.
    pub oversize: Oversize,
    /// Whether packets pass when a redirect's target is dead; `None` for the default.
    pub open: Option<bool>,
}

/// What is done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A copy leaves.
    Mirror,
    /// The packet itself leaves.
    Redirect,
}

/// What becomes of a copy that does not fit its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oversize {
    /// It is cut.
    #[default]
    Truncate,
    /// It is sent in fragments.
    Fragment,
    /// It is dropped.
    Drop,
}

/// A field that this version does not carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// The field.
    pub field: &'static str,
    /// What this version does not do.
    pub why: &'static str,
}

impl TrafficControl {
    /// What this version does not carry out; such a policy is kept, and not in force.
    pub fn unserved(&self) -> Vec<Unserved> {
        let v6 = self.target.remote().is_some_and(|remote| remote.is_ipv6());
        let served = matches!(self.target, Port::Device { .. } | Port::Vxlan { .. });
        [
            (self.action == Action::Redirect, "spec.action", "Redirect is not served yet"),
            (!served, "spec.targetPort", "only device and vxlan are served yet"),
            (served && v6, "spec.targetPort.vxlan.remoteIP", "IPv6 outer headers are not served yet"),
            (self.stateful, "spec.stateful", "stateful matching is not served yet"),
            (self.truncate.is_some(), "spec.truncate", "truncate is not served yet"),
            (self.sampling.is_some(), "spec.sampling", "sampling is not served yet"),
            (self.rate_limit.is_some(), "spec.rateLimit", "rateLimit is not served yet"),
            (self.oversize != Oversize::Truncate, "spec.oversize", "only truncate is served yet"),
            (self.open.is_some(), "spec.failurePolicy", "failurePolicy is not served yet"),
        ]
        .into_iter()
        .filter(|(applies, ..)| *applies)
        .map(|(_, field, why)| Unserved { field, why })
        .collect()
    }
}

pub(super) fn read(map: &Map, metadata: Option<Metadata>, antrea: bool) -> Option<TrafficControl> {
    let spec = map.required("spec")?.map()?;
    let applied_to = read_applied_to(&spec);
    let directions = spec.required("direction").and_then(|field| {
        field.choice(&[
            ("Ingress", &[Direction::Ingress][..]),
            ("Egress", &[Direction::Egress][..]),
            ("Both", &Direction::ALL[..]),
        ])
    });
    let action = spec
        .required("action")
        .and_then(|field| field.choice(&[("Mirror", Action::Mirror), ("Redirect", Action::Redirect)]));
    let target = spec.required("targetPort").and_then(|field| target::read(&field, antrea, true));
    let return_port = spec.get("returnPort").and_then(|field| target::read(&field, antrea, false));
    let own = if antrea { Own::default() } else { read_own(&spec) };
    spec.finish_with(if antrea {
        " of crd.antrea.io; fields beyond it are podwire.io/v1alpha1's"
    } else {
        ""
    });
    match action? {
        Action::Redirect if !spec.has("returnPort") => {
            spec.contradiction("action Redirect needs returnPort, where the packets come back");
            return None;
        }
        Action::Mirror if spec.has("returnPort") => {
            spec.contradiction("action Mirror has no returnPort: copies do not come back");
            return None;
        }
        Action::Mirror if spec.has("failurePolicy") && !antrea => {
            spec.contradiction("failurePolicy belongs to action Redirect: a mirror never harms the original");
            return None;
        }
        _ => {}
    }
    let same_name = return_port
        .as_ref()
        .and_then(Port::name)
        .is_some_and(|name| target.as_ref().and_then(Port::name) == Some(name));
    if same_name || (return_port.is_some() && return_port == target) {
        spec.contradiction("targetPort and returnPort are the same");
        return None;
    }
    Some(TrafficControl {
        metadata: metadata?,
        applied_to: applied_to?,
        directions: directions?.to_vec(),
        action: action?,
        priority: own.priority,
        rules: own.rules,
        stateful: own.stateful,
        target: target?,
        return_port,
        truncate: own.truncate,
        sampling: own.sampling,
        rate_limit: own.rate_limit,
        oversize: own.oversize,
        open: own.open,
    })
}

/// The fields that are podwire's own.
#[derive(Default)]
struct Own {
    priority: i32,
    rules: Vec<Rule>,
    stateful: bool,
    truncate: Option<u32>,
    sampling: Option<u32>,
    rate_limit: Option<u32>,
    oversize: Oversize,
    open: Option<bool>,
}

fn read_own(spec: &Map) -> Own {
    let number =
        |name, range| spec.get(name).and_then(|field| field.number(range)).map(|number| number as u32);
    let priority = spec.get("priority").and_then(|field| field.number(i32::MIN.into()..=i32::MAX.into()));
    Own {
        priority: priority.unwrap_or(0) as i32,
        rules: spec.get("match").map(|field| read_match(&field)).unwrap_or_default(),
        stateful: spec.get("stateful").and_then(|field| field.boolean()).unwrap_or(false),
        truncate: number("truncate", 14..=65535),
        sampling: number("sampling", 1..=1_000_000),
        rate_limit: number("rateLimit", 1..=0xffff_ffff),
        oversize: spec
            .get("oversize")
            .and_then(|field| {
                field.choice(&[
                    ("truncate", Oversize::Truncate),
                    ("fragment", Oversize::Fragment),
                    ("drop", Oversize::Drop),
                ])
            })
            .unwrap_or_default(),
        open: spec.get("failurePolicy").and_then(|field| field.choice(&[("Open", true), ("Closed", false)])),
    }
}
