//! Endpoint: what a pod's interface is, where that cannot be found out.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pod's interface on its node. Podwire finds pods' interfaces by itself; an Endpoint of the pod's name and namespace
/// says more, or otherwise.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "podwire.io",
    version = "v1alpha1",
    kind = "Endpoint",
    namespaced,
    shortname = "ep",
    category = "podwire",
    doc = "A pod's interface, said outright.",
    printcolumn = r#"{"name":"Interface","type":"string","jsonPath":".spec.interface"}"#,
    printcolumn = r#"{"name":"SpoofGuard","type":"string","jsonPath":".spec.spoofGuard"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSpec {
    /// Host side of the interface.
    #[schemars(length(min = 1, max = 15))]
    interface: String,
    /// The pod's MAC address.
    #[schemars(pattern("^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$"))]
    mac: Option<String>,
    /// The pod's addresses.
    ips: Option<Vec<String>>,
    /// Further source addresses that it may use: addresses, prefixes, MAC addresses.
    allowed_addresses: Option<Vec<String>>,
    /// What becomes of packets with a source that is not its own.
    spoof_guard: Option<Guard>,
}

/// What SpoofGuard does.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub enum Guard {
    Enforce,
    Observe,
    Off,
}
