//! Traces, as far as the datapath's thread has to do with them. In: a Traceflow. Out: its ends, and programs at them.

use std::net::IpAddr;

use podwire_datapath::object::{Endpoint, NamespacedName, TraceDestination, TraceSource, Traceflow};
use podwire_datapath::{Attachment, Error, Forwarding};

use super::{Trouble, Worker};
use crate::daemon::trace::{End, Ends, Plan, Planned, plan};

/// Stands for the node among traced endpoints: its exits are looked at, and what its kernel drops.
const NODE: &str = "";

impl Worker {
    /// `ends`: where they are known better than here.
    pub(super) fn plan_trace(
        &mut self,
        trace: &Traceflow,
        seed: u64,
        ends: Option<(End, End)>,
    ) -> Result<Planned, Trouble> {
        let (source, destination) = match ends {
            Some(ends) => ends,
            None => self.own_ends(trace)?,
        };
        let failed = |error: Error| Trouble::Failed(error.to_string());
        let ends = Ends {
            source_here: self.attachment(&source).map_err(failed)?,
            destination_here: self.attachment(&destination).map_err(failed)?,
            source,
            destination,
        };
        for (end, here) in [(&ends.source, ends.source_here), (&ends.destination, ends.destination_here)] {
            if let (End::Pod { name, node: None, .. }, None) = (end, here) {
                let node = &self.here.node;
                let line = format!("pod {name}: {node} does not know its interface yet");
                return Err(Trouble::Refused(vec![line]));
            }
        }
        let host = self.here.forwarding == Forwarding::Host;
        let mut plan = plan(trace, &ends, host, seed).map_err(|line| Trouble::Refused(vec![line]))?;
        self.add_egress(&mut plan, &ends);
        if plan.concerned {
            plan.endpoints.insert(NODE.to_owned());
        }
        if host && trace.live && plan.owner {
            // Whoever of this node's pods gets such a packet gets it without its tag.
            plan.endpoints.extend(self.endpoints().map(|(name, _)| name));
        }
        let injector = self.datapath.injector().map_err(failed)?;
        for endpoint in &plan.endpoints {
            *self.traced.entry(endpoint.clone()).or_default() += 1;
        }
        self.tell_traced();
        let nodes = self.objects.set.nodes();
        let peers = nodes
            .flat_map(|node| node.addresses.iter().map(|address| (*address, node.metadata.name.clone())))
            .collect();
        Ok(Planned { plan, injector, peers })
    }

    /// What leaves the cluster may do so at the node of an Egress policy.
    fn add_egress(&self, plan: &mut Plan, ends: &Ends) {
        let End::Pod { name, node, .. } = &ends.source else { return };
        if matches!(ends.destination, End::Pod { .. }) {
            return;
        }
        let here = &self.here.node;
        let policies = self.objects.set.egresses();
        let mut places = policies.iter().filter_map(|egress| self.egresses.get(&egress.metadata.name));
        if node.is_some() {
            plan.concerned |= places.any(|policy| policy.place.node.as_ref() == Some(here));
            return;
        }
        let applies = places.find(|policy| policy.endpoints.contains(name));
        plan.elsewhere = applies.and_then(|policy| policy.place.node.clone()).filter(|node| node != here);
    }

    /// The ends as this node knows them.
    fn own_ends(&self, trace: &Traceflow) -> Result<(End, End), Trouble> {
        let source = match &trace.source {
            TraceSource::Any => End::Any,
            TraceSource::Ip(ip) => self.behind(*ip),
            TraceSource::Pod(pod) => self.pod(pod)?,
        };
        let destination = match &trace.destination {
            TraceDestination::Any => End::Any,
            TraceDestination::Ip(ip) => self.behind(*ip),
            TraceDestination::Pod(pod) => self.pod(pod)?,
            TraceDestination::Service(NamespacedName { namespace, name }) => {
                let line =
                    format!("Service {namespace}/{name}: Services are known by the Kubernetes API alone");
                return Err(Trouble::NotFound(line));
            }
        };
        Ok((source, destination))
    }

    pub(super) fn end_trace(&mut self, endpoints: impl IntoIterator<Item = String>) {
        for endpoint in endpoints {
            if let Some(count) = self.traced.get_mut(&endpoint) {
                *count = count.saturating_sub(1);
            }
        }
        self.traced.retain(|_, count| *count > 0);
        self.tell_traced();
    }

    fn tell_traced(&mut self) {
        if let Err(error) = self.datapath.set_traced(self.traced.keys().cloned().collect()) {
            tracing::error!(%error, "programs for traces");
        }
        let seen = self.datapath.sees_uplink();
        if let Err(error) = self.feed.tracer().with_watcher(|watcher| watcher.watch_uplink(seen)) {
            tracing::error!(%error, "saying that the uplink is watched");
        }
    }

    fn endpoints(&self) -> impl Iterator<Item = (String, &Endpoint)> {
        self.objects.set.endpoints().map(|endpoint| {
            let namespace = endpoint.metadata.namespace.as_deref().unwrap_or("default");
            (format!("{namespace}/{}", endpoint.metadata.name), endpoint)
        })
    }

    fn pod(&self, pod: &NamespacedName) -> Result<End, Trouble> {
        let wanted = format!("{}/{}", pod.namespace, pod.name);
        let found = self.endpoints().find(|(name, _)| *name == wanted);
        let Some((name, endpoint)) = found else {
            let node = &self.here.node;
            return Err(Trouble::NotFound(format!(
                "pod {wanted}: not known at {node}; podwire get endpoints lists its pods"
            )));
        };
        Ok(End::Pod { name, ips: endpoint.ips.clone(), node: None })
    }

    /// The pod that has an address, or the address itself.
    fn behind(&self, ip: IpAddr) -> End {
        match self.endpoints().find(|(_, endpoint)| endpoint.ips.contains(&ip)) {
            Some((name, _)) => End::Pod { name, ips: vec![ip], node: None },
            None => End::Ip(ip),
        }
    }

    fn attachment(&self, end: &End) -> Result<Option<Attachment>, Error> {
        match end {
            End::Pod { name, .. } => self.datapath.attachment(name),
            _ => Ok(None),
        }
    }
}
