//! Kubernetes as the place where objects stand. In: the API server. Out: its objects for the datapath's thread, and
//! what became of them on this node as their status.

pub mod crd;
