//! All objects of one moment, as this node needs them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use podwire_datapath::object::Located;

use super::report::Subject;

/// All objects of one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Nodes, namespaces, policies; Endpoints of this node.
    pub objects: Vec<Located>,
    /// This node's pods that have addresses of their own.
    pub pods: Vec<Pod>,
    /// Policies that cannot be read, and why.
    pub refused: Vec<(Subject, String)>,
}

/// A pod with addresses of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Tells it from another one of its name.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// `podwire.io/interface`: the host side of its interface, said outright.
    pub interface: Option<String>,
    /// `podwire.io/mac`: its MAC address, said outright.
    pub mac: Option<String>,
}
