//! Short forms of what tests wish for.

use anyhow::{Context, Result};
use podwire_datapath::core::abi::Direction;
use podwire_datapath::core::wire::encap::Tunnel;
use podwire_datapath::{Desired, Endpoint, Mirror, Redirect, SessionOptions, Target};
use podwire_harness::{Pod, Topology};

/// A pod as an endpoint.
pub fn endpoint(pod: &Pod) -> Endpoint {
    Endpoint {
        name: format!("default/{}", pod.name),
        interface: pod.interface.clone(),
        ..Endpoint::default()
    }
}

/// A mirror of all of a pod's packets.
pub fn mirror(name: &str, pod: &Pod, target: Target) -> Mirror {
    Mirror {
        name: name.into(),
        endpoints: vec![endpoint(pod).name],
        directions: Direction::ALL.to_vec(),
        rules: Vec::new(),
        stateful: false,
        target,
        options: SessionOptions::default(),
    }
}

/// A redirect of all of a pod's packets, open.
pub fn redirect(name: &str, pod: &Pod, target: Target, return_port: Target) -> Redirect {
    Redirect {
        name: name.into(),
        endpoints: vec![endpoint(pod).name],
        directions: Direction::ALL.to_vec(),
        rules: Vec::new(),
        stateful: false,
        target,
        return_port,
        closed: false,
        health_check: None,
        fragment: false,
    }
}

/// All pods of a scene, with these mirrors.
pub fn mirrors(scene: &Topology, mirrors: Vec<Mirror>) -> Desired {
    Desired { endpoints: scene.pods.iter().map(endpoint).collect(), mirrors, ..Desired::default() }
}

/// All pods of a scene, with these redirects.
pub fn redirects(scene: &Topology, redirects: Vec<Redirect>) -> Desired {
    Desired { endpoints: scene.pods.iter().map(endpoint).collect(), redirects, ..Desired::default() }
}

/// An existing device.
pub fn device(name: &str) -> Target {
    Target::Device { name: name.into() }
}

/// A port that podwire makes.
pub fn internal(name: &str) -> Target {
    Target::Internal { name: name.into() }
}

/// A tunnel.
///
/// # Errors
/// When `remote` is no address.
pub fn tunnel(remote: &str, tunnel: Tunnel) -> Result<Target> {
    Ok(Target::Tunnel { remote: remote.parse().context("the remote address")?, tunnel })
}
