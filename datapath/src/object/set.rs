//! All objects of a node. In: what several files and the socket hold. Out: one set without contradictions, and
//! the policies that had to stand back, with the reason.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use ipnet::IpNet;

use super::target::Port;
use super::traffic_control::{Action, TrafficControl};
use super::{Egress, Endpoint, Located, Metadata, Node, Object, Traceflow};

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
        set.check_nodes()?;
        Ok(set)
    }

    /// Puts objects together that come from where each stands for itself: of two that cannot both be, the one that
    /// is looked at later is left out, and told.
    pub fn build_without_conflicts(mut located: Vec<Located>) -> (Self, Vec<(Located, Conflict)>) {
        let mut left_out = Vec::new();
        loop {
            match Self::build(located.clone()) {
                Ok(set) => return (set, left_out),
                Err(conflict) => match located.iter().rposition(|object| object.place == conflict.place) {
                    Some(index) => left_out.push((located.remove(index), conflict)),
                    // A conflict is always of an object that was given.
                    None => return (Self::default(), left_out),
                },
            }
        }
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

    /// The TrafficControl policies in their order: priority, then age, then name.
    pub fn policies(&self) -> Vec<&TrafficControl> {
        let mut policies: Vec<&TrafficControl> = self
            .iter()
            .filter_map(|located| match &located.object {
                Object::TrafficControl(policy) => Some(&**policy),
                _ => None,
            })
            .collect();
        policies.sort_by_key(|policy| order(policy.priority, &policy.metadata));
        policies
    }

    /// The Egress policies in their order, which is that of [`policies`](Self::policies).
    pub fn egresses(&self) -> Vec<&Egress> {
        let mut egresses: Vec<&Egress> = self
            .iter()
            .filter_map(|located| match &located.object {
                Object::Egress(egress) => Some(&**egress),
                _ => None,
            })
            .collect();
        egresses.sort_by_key(|egress| order(egress.priority, &egress.metadata));
        egresses
    }

    /// The traces.
    pub fn traceflows(&self) -> impl Iterator<Item = &Traceflow> {
        self.iter().filter_map(|located| match &located.object {
            Object::Traceflow(traceflow) => Some(&**traceflow),
            _ => None,
        })
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

    /// Two definitions of one port: the policy that comes first keeps it.
    fn settle(&mut self) {
        let mut owners = Owners::default();
        let mut refused = BTreeMap::new();
        for policy in self.policies() {
            match owners.contradiction(policy) {
                Some(why) => {
                    refused.insert(policy.metadata.name.clone(), why);
                }
                None => owners.add(policy),
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

impl ObjectSet {
    /// An address, and what it lies in, leads to one node.
    fn check_nodes(&self) -> Result<(), Conflict> {
        let (mut addresses, mut prefixes) = (BTreeMap::new(), Vec::new());
        for located in self.iter() {
            let Object::Node(node) = &located.object else {
                continue;
            };
            for address in &node.addresses {
                if let Some(other) = addresses.insert(*address, located) {
                    return Err(two_nodes(located, "addresses", &address.to_string(), other));
                }
            }
            prefixes.extend(node.pod_cidrs.iter().map(|cidr| (*cidr, located)));
        }
        // In this order what holds a prefix comes before it, and nothing else lies between.
        prefixes.sort_by_key(|(cidr, _)| (cidr.network(), cidr.prefix_len()));
        let mut outer: Option<(IpNet, &Located)> = None;
        for (cidr, located) in prefixes {
            match outer {
                Some((holder, other)) if holder.contains(&cidr) => {
                    if other.identity() != located.identity() {
                        return Err(two_nodes(located, "podCIDRs", &cidr.to_string(), other));
                    }
                }
                _ => outer = Some((cidr, located)),
            }
        }
        Ok(())
    }
}

fn two_nodes(located: &Located, field: &str, value: &str, other: &Located) -> Conflict {
    let (own, other_identity) = (located.identity(), other.identity());
    let problem =
        format!("{own}: spec.{field}: {value} belongs to {other_identity} ({}) already", other.place);
    Conflict { place: located.place.clone(), problem }
}

fn order(priority: i32, metadata: &Metadata) -> (i32, &str, &str) {
    // What has no age is older than what has one: it was there before any API server spoke.
    (priority, metadata.created.as_deref().unwrap_or(""), &metadata.name)
}

/// The policies in force that defined a port first.
#[derive(Default)]
struct Owners<'a> {
    /// By target of mirrors: the session's parameters are theirs.
    targets: HashMap<&'a Port, &'a TrafficControl>,
    /// By name: the kind of port that has it.
    names: HashMap<&'a str, (&'static str, &'a TrafficControl)>,
}

impl<'a> Owners<'a> {
    fn add(&mut self, policy: &'a TrafficControl) {
        if policy.action == Action::Mirror {
            self.targets.entry(&policy.target).or_insert(policy);
        }
        for port in ports(policy) {
            if let Some(name) = port.name() {
                self.names.entry(name).or_insert((port.kind(), policy));
            }
        }
    }

    /// What a policy defines otherwise than an owner, and who that is.
    fn contradiction(&self, policy: &TrafficControl) -> Option<String> {
        let named = ports(policy).find_map(|port| {
            let name = port.name()?;
            let (_, owner) = self.names.get(name).filter(|(kind, _)| *kind != port.kind())?;
            Some((format!("the kinds of port {name}"), *owner))
        });
        let (what, owner) = named.or_else(|| {
            // A redirect's session is its own: packets go through it whole.
            let owner = *self.targets.get(&policy.target).filter(|_| policy.action == Action::Mirror)?;
            let field = parameter_that_differs(policy, owner)?;
            Some((format!("one target, but {field}"), owner))
        })?;
        let (owner, name) = (&owner.metadata.name, &policy.metadata.name);
        Some(format!(
            "{what} of TrafficControl/{owner} and TrafficControl/{name} differ; {owner} comes first"
        ))
    }
}

fn ports(policy: &TrafficControl) -> impl Iterator<Item = &Port> {
    std::iter::once(&policy.target).chain(&policy.return_port)
}

/// The parameter of a shared session that two policies set differently.
fn parameter_that_differs(one: &TrafficControl, other: &TrafficControl) -> Option<&'static str> {
    let (one, other) = (&one.options, &other.options);
    let fields = [
        ("truncate", one.truncate != other.truncate),
        ("sampling", one.sampling != other.sampling),
        ("rateLimit", one.rate_limit != other.rate_limit),
        ("oversize", one.oversize != other.oversize),
        ("engine", one.engine != other.engine),
    ];
    fields.into_iter().find(|(_, differs)| *differs).map(|(field, _)| field)
}
