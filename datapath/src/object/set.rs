//! All objects of a node. In: what several files and the socket hold. Out: one set without contradictions, and
//! the policies that had to stand back, with the reason.

use std::collections::BTreeMap;
use std::fmt;

use super::target::Port;
use super::traffic_control::TrafficControl;
use super::{Endpoint, Located, Node, Object};

/// Objects by kind and name, in the order of names.
#[derive(Clone, Debug, Default)]
pub struct ObjectSet {
    objects: BTreeMap<String, Located>,
    /// Identities of policies that stand back, and why.
    refused: BTreeMap<String, String>,
}

/// Two objects that cannot both be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Place of the one that is refused, `FILE:LINE`.
    pub place: String,
    /// One line: who, with whom, why.
    pub problem: String,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl std::error::Error for Conflict {}

impl ObjectSet {
    /// Puts objects together.
    ///
    /// # Errors
    /// A name that is given twice, naming both places.
    pub fn build(located: Vec<Located>) -> Result<Self, Conflict> {
        let mut set = Self::default();
        for object in located {
            let identity = object.identity();
            if let Some(other) = set.objects.get(&identity) {
                let problem = format!("{identity}: stands at {} already", other.place);
                return Err(Conflict { place: object.place, problem });
            }
            set.objects.insert(identity, object);
        }
        set.settle();
        set.check_endpoints()?;
        Ok(set)
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &Located> {
        self.objects.values()
    }

    /// The endpoints.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.iter().filter_map(|located| match &located.object {
            Object::Endpoint(endpoint) => Some(endpoint),
            _ => None,
        })
    }

    /// The nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.iter().filter_map(|located| match &located.object {
            Object::Node(node) => Some(node),
            _ => None,
        })
    }

    /// The policies in their order: priority, then age, then name.
    pub fn policies(&self) -> Vec<&TrafficControl> {
        let mut policies: Vec<&TrafficControl> = self
            .iter()
            .filter_map(|located| match &located.object {
                Object::TrafficControl(policy) => Some(&**policy),
                _ => None,
            })
            .collect();
        policies.sort_by(|left, right| order(left).cmp(&order(right)));
        policies
    }

    /// Labels of a namespace; none when it is not known.
    pub fn namespace_labels(&self, name: &str) -> BTreeMap<String, String> {
        let known = self.objects.get(&format!("Namespace/{name}"));
        let mut labels = known.map(|located| located.object.metadata().labels.clone()).unwrap_or_default();
        // The API server sets this one on every namespace.
        labels.entry("kubernetes.io/metadata.name".into()).or_insert_with(|| name.to_owned());
        labels
    }

    /// Why a policy stands back for another one.
    pub fn refused(&self, policy: &str) -> Option<&str> {
        self.refused.get(policy).map(String::as_str)
    }

    /// Two definitions of one target: the policy that comes first keeps it.
    fn settle(&mut self) {
        let mut owners: Vec<(String, &TrafficControl)> = Vec::new();
        let mut refused = BTreeMap::new();
        for policy in self.policies() {
            let name = policy.metadata.name.clone();
            let clash = owners.iter().find_map(|(owner, other)| {
                let what = contradiction(policy, other)?;
                Some(format!(
                    "{what} of TrafficControl/{owner} and TrafficControl/{name} differ; {owner} comes first"
                ))
            });
            match clash {
                Some(why) => {
                    refused.insert(name, why);
                }
                None => owners.push((name, policy)),
            }
        }
        self.refused = refused;
    }

    fn check_endpoints(&self) -> Result<(), Conflict> {
        let mut interfaces: BTreeMap<&str, &Located> = BTreeMap::new();
        for located in self.iter() {
            let Object::Endpoint(endpoint) = &located.object else {
                continue;
            };
            if let Some(other) = interfaces.insert(&endpoint.interface, located) {
                let (own, other_identity) = (located.identity(), other.identity());
                let interface = &endpoint.interface;
                let problem = format!(
                    "{own}: spec.interface: {interface} belongs to {other_identity} ({}) already",
                    other.place
                );
                return Err(Conflict { place: located.place.clone(), problem });
            }
        }
        Ok(())
    }
}

fn order(policy: &TrafficControl) -> (i32, &str, &str) {
    // What has no age is older than what has one: it was there before any API server spoke.
    (policy.priority, policy.metadata.created.as_deref().unwrap_or(""), &policy.metadata.name)
}

/// What two policies define differently about one target.
fn contradiction(one: &TrafficControl, other: &TrafficControl) -> Option<String> {
    if let (Some(a), Some(b)) = (name(&one.target), name(&other.target))
        && a == b
        && one.target.kind() != other.target.kind()
    {
        return Some(format!("the kinds of port {a}"));
    }
    if one.target != other.target {
        return None;
    }
    let fields = [
        ("truncate", one.truncate != other.truncate),
        ("sampling", one.sampling != other.sampling),
        ("rateLimit", one.rate_limit != other.rate_limit),
        ("oversize", one.oversize != other.oversize),
    ];
    let (field, _) = fields.into_iter().find(|(_, differs)| *differs)?;
    Some(format!("one target, but {field}"))
}

fn name(port: &Port) -> Option<&str> {
    match port {
        Port::Internal { name } | Port::Device { name } => Some(name),
        _ => None,
    }
}
