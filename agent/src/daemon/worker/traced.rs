//! Traces, as far as the datapath's thread has to do with them. In: a Traceflow. Out: its ends, and programs at them.

use std::net::IpAddr;

use podwire_datapath::object::{Endpoint, NamespacedName, TraceDestination, TraceSource, Traceflow};
use podwire_datapath::{Attachment, Error, Forwarding};

use super::{Trouble, Worker};
use crate::daemon::trace::{End, Ends, Planned, plan};

impl Worker {
    pub(super) fn plan_trace(&mut self, trace: &Traceflow, seed: u64) -> Result<Planned, Trouble> {
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
        let failed = |error: Error| Trouble::Failed(error.to_string());
        let ends = Ends {
            source_here: self.attachment(&source).map_err(failed)?,
            destination_here: self.attachment(&destination).map_err(failed)?,
            source,
            destination,
        };
        let host = self.here.forwarding == Forwarding::Host;
        let plan = plan(trace, &ends, host, seed).map_err(|line| Trouble::Refused(vec![line]))?;
        let injector = self.datapath.injector().map_err(failed)?;
        for endpoint in &plan.endpoints {
            *self.traced.entry(endpoint.clone()).or_default() += 1;
        }
        self.tell_traced();
        let peers = self
            .objects
            .set
            .nodes()
            .flat_map(|node| node.addresses.iter().map(|address| (*address, node.metadata.name.clone())))
            .collect();
        Ok(Planned { plan, injector, peers })
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
