//! Two pods and an inspector between them.

use anyhow::Result;
use podwire_datapath::Hook;
use podwire_datapath::xsk::inspect::{Inspected, Running, Setup};
use podwire_harness::{Page, Scratch, Topology, TopologyOptions};

use crate::node::Node;
use crate::wish::{internal, redirect, redirects};

/// The same page over both families.
///
/// # Errors
/// When it does not come whole.
pub fn fetch(scene: &Topology, times: usize, bytes: usize) -> Result<()> {
    let [client, server] = &scene.pods[..] else { unreachable!("two pods") };
    for address in [&server.v4, &server.v6] {
        for _ in 0..times {
            Page { address: address.clone(), port: 8080, bytes }.fetch(&client.netns, &server.netns)?;
        }
    }
    Ok(())
}

/// Two pods, a redirect of the first one's packets through `ips-in` and `ips-out`.
pub struct Scene {
    /// Its datapath.
    pub node: Node,
    /// Who is there.
    pub topology: Topology,
    /// Its own bpffs.
    pub scratch: Scratch,
}

impl Scene {
    /// With the usual interfaces.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn new() -> Result<Self> {
        Self::with(TopologyOptions::default())
    }

    /// With these.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn with(options: TopologyOptions) -> Result<Self> {
        let (topology, scratch) = (Topology::with(options)?, Scratch::new()?);
        let node = Node::open(&topology.node, &scratch, Hook::Auto)?;
        let wish = redirect("inspect", &topology.pods[0], internal("ips-in"), internal("ips-out"));
        node.apply(&redirects(&topology, vec![wish]))?;
        Ok(Self { node, topology, scratch })
    }

    /// Between the redirect's ports, pinned in the bpffs of its own.
    pub fn setup(&self) -> Setup {
        Setup { bpffs: self.scratch.bpf().join("podwire"), ..Setup::new("ips-in", "ips-out") }
    }

    /// Starts an inspector that judges each frame so.
    ///
    /// # Errors
    /// As of [`Setup::start`].
    pub fn inspect(
        &self,
        setup: Setup,
        judge: impl FnMut(&mut Inspected<'_>) + Send + Clone + 'static,
    ) -> Result<Running> {
        self.topology.node.enter(move || Ok(setup.start(|_| judge.clone())?))
    }
}
