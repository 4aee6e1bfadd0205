//! TrafficControl, podwire's own and Antrea's.

use std::time::Duration;

use podwire_core::abi::{Direction, limits};

use super::decode::{Field, Map};
use super::metadata::Metadata;
use super::rule::read_match;
use super::selector::{AppliedTo, read_applied_to};
use super::target::{self, Port};
use crate::compile::Rule;
use crate::desired::{Engine, Oversize, Sampling, SessionOptions};

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
    /// How copies are made, and how many; of a Redirect only what becomes of packets that do not fit.
    pub options: SessionOptions,
    /// Whether packets are dropped when a redirect's tool does not take them.
    pub closed: bool,
    /// A redirect's tool is dead when nothing comes back for so long.
    pub health_check: Option<Duration>,
}

/// What is done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A copy leaves.
    Mirror,
    /// The packet itself leaves.
    Redirect,
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
        _ => {}
    }
    if let Some((field, why)) = foreign_field(&spec, action?) {
        spec.contradiction(&format!("{field} {why}"));
        return None;
    }
    if own.stateful && own.rules.iter().any(|rule| rule.tcp_flags.is_some() || !rule.icmp.is_empty()) {
        spec.contradiction(
            "a stateful policy takes whole connections: tcpFlags and icmpType pick single packets",
        );
        return None;
    }
    check_engine(&spec, &own.options, target.as_ref())?;
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
        options: own.options,
        closed: own.closed,
        health_check: own.health_check,
    })
}

/// The fields that are podwire's own.
#[derive(Default)]
struct Own {
    priority: i32,
    rules: Vec<Rule>,
    stateful: bool,
    options: SessionOptions,
    closed: bool,
    health_check: Option<Duration>,
}

fn read_own(spec: &Map) -> Own {
    let number =
        |name, range| spec.get(name).and_then(|field| field.number(range)).map(|number| number as u32);
    let priority = spec.get("priority").and_then(|field| field.number(i32::MIN.into()..=i32::MAX.into()));
    let closed =
        spec.get("failurePolicy").and_then(|field| field.choice(&[("Open", false), ("Closed", true)]));
    Own {
        priority: priority.unwrap_or(0) as i32,
        rules: spec.get("match").map(|field| read_match(&field)).unwrap_or_default(),
        stateful: spec.get("stateful").and_then(|field| field.boolean()).unwrap_or(false),
        options: SessionOptions {
            truncate: number("truncate", 14..=65535),
            sampling: spec.get("sampling").and_then(|field| read_sampling(&field)),
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
            engine: spec.get("engine").and_then(|field| field.choice(&ENGINES)).unwrap_or_default(),
        },
        closed: closed.unwrap_or(false),
        health_check: spec.get("healthCheck").and_then(|field| read_health_check(&field)),
    }
}

const ENGINES: [(&str, Engine); 4] =
    [("auto", Engine::Auto), ("clone", Engine::Clone), ("segment", Engine::Segment), ("snap", Engine::Snap)];

/// `10`, one packet in ten, or `{oneIn: 10, by: flow}`.
fn read_sampling(field: &Field) -> Option<Sampling> {
    const RANGE: std::ops::RangeInclusive<i64> = 1..=1_000_000;
    if !field.is_map() {
        return field.number(RANGE).map(|number| Sampling { one_in: number as u32, by_flow: false });
    }
    let map = field.map()?;
    let one_in = map.required("oneIn").and_then(|field| field.number(RANGE));
    let by_flow = map.get("by").map(|field| field.choice(&[("packet", false), ("flow", true)]));
    map.finish();
    Some(Sampling { one_in: one_in? as u32, by_flow: by_flow.unwrap_or(Some(false))? })
}

/// `{timeout: 2s}`.
fn read_health_check(field: &Field) -> Option<Duration> {
    let map = field.map()?;
    let timeout = map.required("timeout").and_then(|field| field.duration(MIN_TIMEOUT..=MAX_TIMEOUT));
    map.finish();
    timeout
}

/// What a health check can tell from a slow tool, and what is of use.
const MIN_TIMEOUT: Duration = Duration::from_millis(200);
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// A field that belongs to the other action.
fn foreign_field(spec: &Map, action: Action) -> Option<(&'static str, &'static str)> {
    const MIRROR: &str = "belongs to action Mirror: a redirected packet stays as it is";
    const REDIRECT: &str = "belongs to action Redirect: a mirror never harms the original";
    let fields: &[_] = match action {
        Action::Mirror => &[("failurePolicy", REDIRECT), ("healthCheck", REDIRECT)],
        Action::Redirect => {
            &[("truncate", MIRROR), ("sampling", MIRROR), ("rateLimit", MIRROR), ("engine", MIRROR)]
        }
    };
    fields.iter().find(|(field, _)| spec.has(field)).copied()
}

/// Engines suit some sessions only.
fn check_engine(spec: &Map, options: &SessionOptions, target: Option<&Port>) -> Option<()> {
    let tunnel = target.is_some_and(|target| target.remote().is_some());
    let short = options.truncate.is_some_and(|bytes| bytes <= limits::SNAP_FRAME);
    match options.engine {
        Engine::Snap if !(tunnel && short) => {
            let most = limits::SNAP_FRAME;
            spec.contradiction(&format!(
                "engine snap is for tunnels and needs truncate, {most} bytes at most"
            ));
            None
        }
        Engine::Segment if !tunnel => {
            spec.contradiction("engine segment is for tunnels: internal ports get segments in any case");
            None
        }
        _ => Some(()),
    }
}
