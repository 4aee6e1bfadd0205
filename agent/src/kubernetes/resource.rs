//! The resources that are followed.

use kube::api::ApiResource;
use kube::core::GroupVersionKind;

/// A kind of object at the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Pods of this node.
    Pods,
    /// All nodes.
    Nodes,
    /// All namespaces.
    Namespaces,
    /// podwire's policies.
    TrafficControls,
    /// podwire's Egress policies.
    Egresses,
    /// Interfaces that are said outright.
    Endpoints,
    /// Antrea's policies.
    AntreaTrafficControls,
    /// Antrea's Egress policies.
    AntreaEgresses,
}

const PODWIRE: &str = "podwire.io";
const ANTREA: &str = "crd.antrea.io";

impl Resource {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Pods,
        Self::Nodes,
        Self::Namespaces,
        Self::TrafficControls,
        Self::Egresses,
        Self::Endpoints,
        Self::AntreaTrafficControls,
        Self::AntreaEgresses,
    ];

    /// Group, version, kind and plural.
    const fn names(self) -> [&'static str; 4] {
        match self {
            Self::Pods => ["", "v1", "Pod", "pods"],
            Self::Nodes => ["", "v1", "Node", "nodes"],
            Self::Namespaces => ["", "v1", "Namespace", "namespaces"],
            Self::TrafficControls => [PODWIRE, "v1alpha1", "TrafficControl", "trafficcontrols"],
            Self::Egresses => [PODWIRE, "v1alpha1", "Egress", "egresses"],
            Self::Endpoints => [PODWIRE, "v1alpha1", "Endpoint", "endpoints"],
            Self::AntreaTrafficControls => [ANTREA, "v1alpha2", "TrafficControl", "trafficcontrols"],
            Self::AntreaEgresses => [ANTREA, "v1beta1", "Egress", "egresses"],
        }
    }

    /// As the client wants it.
    pub fn api(self) -> ApiResource {
        let [group, version, kind, plural] = self.names();
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// `pods`, `egresses.podwire.io`: as `kubectl` names it, and its definition.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::TrafficControls => "trafficcontrols.podwire.io",
            Self::Egresses => "egresses.podwire.io",
            Self::Endpoints => "endpoints.podwire.io",
            Self::AntreaTrafficControls => "trafficcontrols.crd.antrea.io",
            Self::AntreaEgresses => "egresses.crd.antrea.io",
        }
    }

    /// Whether a server can be without it.
    pub const fn is_defined(self) -> bool {
        !matches!(self, Self::Pods | Self::Nodes | Self::Namespaces)
    }

    /// Whether its absence is worth a word: podwire's policies are what an operator means to use.
    pub const fn is_expected(self) -> bool {
        matches!(self, Self::TrafficControls | Self::Egresses)
    }

    /// Of which objects this node is told, as a field selector.
    pub fn selector(self, node: &str) -> Option<String> {
        (self == Self::Pods).then(|| format!("spec.nodeName={node}"))
    }
}
