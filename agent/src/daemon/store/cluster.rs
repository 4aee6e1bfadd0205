//! A Kubernetes API server as the place where objects stand. In: its objects, and the kernel's knowledge of where
//! pods are. Out: the same objects as files would have, Endpoints included.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use anyhow::Result;
use podwire_datapath::locate::{self, Locator};
use podwire_datapath::object::{self, Located, Object, ObjectSet};
use serde_json::{Value, json};

use super::Objects;
use crate::kubernetes::{Link, Pod, Report, Snapshot, endpoint};

/// What was last known, and where this node's pods are.
#[derive(Clone)]
pub struct ClusterStore {
    link: Link,
    locator: Arc<Locator>,
    snapshot: Option<Arc<Snapshot>>,
    /// By the pod's own number, so that a pod that comes again is looked for again.
    places: BTreeMap<String, Place>,
}

/// Where a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    interface: String,
    /// Of a pod on this interface it stays what it first was: a pod does not choose it anew.
    mac: Option<String>,
}

impl fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterStore").field("places", &self.places).finish_non_exhaustive()
    }
}

impl ClusterStore {
    pub fn open(link: Link) -> Result<Self> {
        Ok(Self { link, locator: Arc::new(Locator::open()?), snapshot: None, places: BTreeMap::new() })
    }

    pub fn take(&mut self, snapshot: Snapshot) {
        self.link.connection.complete();
        self.snapshot = Some(Arc::new(snapshot));
    }

    pub fn reload(&self) -> Option<Self> {
        self.snapshot.as_ref()?;
        Some(Self { places: self.places_now(), ..self.clone() })
    }

    /// Pods whose interface has come, or is another one.
    pub fn stale(&self) -> bool {
        self.snapshot.is_some() && self.places_now() != self.places
    }

    /// Pods whose interface or MAC address the kernel does not know yet.
    pub fn is_unsettled(&self) -> bool {
        let mut pods = self.snapshot.iter().flat_map(|snapshot| &snapshot.pods);
        pods.any(|pod| self.places.get(&pod.uid).is_none_or(|place| place.mac.is_none()))
    }

    pub fn objects(&self) -> Objects {
        let Some(snapshot) = &self.snapshot else { return Objects::default() };
        // An Endpoint that somebody wrote says more than what is found out.
        let written: HashSet<String> = snapshot.objects.iter().map(Located::identity).collect();
        let found = snapshot.pods.iter().filter_map(|pod| {
            let place = self.places.get(&pod.uid)?;
            let value = endpoint(pod, &place.interface, place.mac.as_deref());
            let name = format!("pods {}/{}", pod.namespace, pod.name);
            let read = object::parse(&name, &value.to_string());
            let read = read.inspect_err(|errors| tracing::warn!("{errors}"));
            read.ok()?.pop().filter(|located| !written.contains(&located.identity()))
        });
        let all = snapshot.objects.iter().cloned().map(|located| with_labels(located, snapshot)).chain(found);
        let (set, left_out) = ObjectSet::build_without_conflicts(all.collect());
        let left_out = left_out.into_iter().map(|(located, conflict)| (located, conflict.problem)).collect();
        Objects { set, left_out }
    }

    pub fn refused(&self) -> Vec<Report> {
        let refused = self.snapshot.iter().flat_map(|snapshot| &snapshot.refused);
        refused.map(|(subject, why)| Report::refused(subject.clone(), why)).collect()
    }

    pub fn report(&self, reports: Vec<Report>) {
        self.link.reports.send_if_modified(|known| {
            let other = *known != reports;
            *known = reports;
            other
        });
    }

    pub fn describe(&self) -> Value {
        let mut description = self.link.connection.describe();
        let pods = self.snapshot.iter().flat_map(|snapshot| &snapshot.pods);
        let lost = pods.filter(|pod| !self.places.contains_key(&pod.uid));
        let lost: Vec<String> = lost.map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
        description["podsWithoutInterface"] = json!(lost);
        description
    }

    fn places_now(&self) -> BTreeMap<String, Place> {
        let pods: Vec<&Pod> = self.snapshot.iter().flat_map(|snapshot| &snapshot.pods).collect();
        let ips: Vec<_> = pods.iter().map(|pod| pod.ips.clone()).collect();
        let asked = self.locator.find(&ips).and_then(|found| Ok((found, self.locator.devices()?)));
        let (found, devices) = match asked {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%error, "looking for pods' interfaces");
                return self.places.clone();
            }
        };
        pods.into_iter()
            .zip(found)
            .filter_map(|(pod, found)| {
                let old = self.places.get(&pod.uid).filter(|place| devices.contains(&place.interface));
                Some((pod.uid.clone(), place(pod, found, old)?))
            })
            .collect()
    }
}

/// What the pod says outright, else what was found, else what was known.
fn place(pod: &Pod, found: Option<locate::Located>, old: Option<&Place>) -> Option<Place> {
    let seen = found.map(|found| Place { interface: found.interface, mac: found.mac.map(written) });
    let interface = match (&pod.interface, &seen, old) {
        (Some(interface), ..) => interface.clone(),
        (None, Some(seen), _) => seen.interface.clone(),
        (None, None, old) => old?.interface.clone(),
    };
    let known = old.filter(|old| old.interface == interface).and_then(|old| old.mac.clone());
    let seen = seen.filter(|seen| seen.interface == interface).and_then(|seen| seen.mac);
    Some(Place { mac: pod.mac.clone().or(known).or(seen), interface })
}

fn written(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// An Endpoint of a pod has the pod's labels.
fn with_labels(mut located: Located, snapshot: &Snapshot) -> Located {
    if let Object::Endpoint(endpoint) = &mut located.object {
        let metadata = &mut endpoint.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or("default");
        let pod = snapshot.pods.iter().find(|pod| pod.name == metadata.name && pod.namespace == namespace);
        if let Some(pod) = pod {
            metadata.labels.extend(pod.labels.clone());
        }
    }
    located
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use podwire_datapath::locate::Located;

    use super::{Place, place};
    use crate::kubernetes::Pod;

    fn pod(interface: Option<&str>, mac: Option<&str>) -> Pod {
        Pod {
            namespace: "default".into(),
            name: "web-0".into(),
            uid: "1".into(),
            labels: BTreeMap::new(),
            ips: Vec::new(),
            interface: interface.map(str::to_owned),
            mac: mac.map(str::to_owned),
        }
    }

    fn found(interface: &str, last: u8) -> Option<Located> {
        Some(Located { interface: interface.into(), mac: (last != 0).then_some([2, 0, 0, 0, 0, last]) })
    }

    fn at(interface: &str, mac: Option<&str>) -> Place {
        Place { interface: interface.into(), mac: mac.map(str::to_owned) }
    }

    #[test]
    fn a_pod_keeps_its_address_as_long_as_its_interface() {
        let (five, six) = (Some("02:00:00:00:00:05"), Some("02:00:00:00:00:06"));
        let old = at("veth0", five);
        let plain = pod(None, None);
        for (pod, found, old, wanted) in [
            (&plain, None, None, None),
            (&plain, found("veth0", 0), None, Some(at("veth0", None))),
            (&plain, found("veth0", 5), None, Some(at("veth0", five))),
            (&plain, found("veth0", 6), Some(&old), Some(at("veth0", five))),
            (&plain, found("veth1", 6), Some(&old), Some(at("veth1", six))),
            (&plain, None, Some(&old), Some(at("veth0", five))),
            (&pod(Some("veth2"), None), found("veth0", 5), None, Some(at("veth2", None))),
            (&pod(Some("veth2"), six), None, None, Some(at("veth2", six))),
        ] {
            assert_eq!(place(pod, found, old), wanted);
        }
    }
}
