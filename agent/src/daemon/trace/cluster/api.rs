//! Traceflow objects at the API server: what is asked and written. In: a client. Out: objects, and their status.
//!
//! podwire's kind has its results as a list by node, so that each agent writes its own by server-side apply. Antrea's
//! has a plain list: there each agent reads the whole, changes its own, and writes it back unless somebody else did.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, Error, ResourceExt};
use podwire_datapath::object::{API_VERSION, NamespacedName};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::daemon::trace::plan::End;
use crate::kubernetes::short;

/// A question that has no answer by then has none.
const PATIENCE: Duration = Duration::from_secs(4);
/// How often a write is tried anew that somebody else's came before.
const TRIES: usize = 8;

/// Which group's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// podwire's own.
    Podwire,
    /// Antrea's.
    Antrea,
}

impl Group {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Podwire, Self::Antrea];

    /// As the client wants it.
    pub fn resource(self) -> ApiResource {
        let (group, version) = match self {
            Self::Podwire => ("podwire.io", "v1alpha1"),
            Self::Antrea => ("crd.antrea.io", "v1beta1"),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, "Traceflow"), "traceflows")
    }

    /// Of an object.
    pub fn of(manifest: &Value) -> Self {
        if manifest["apiVersion"] == API_VERSION { Self::Podwire } else { Self::Antrea }
    }
}

/// Why an end is none.
#[derive(Debug)]
pub enum NoEnd {
    /// It is not there, or not fit.
    Refused(String),
    /// The server did not say.
    Away(String),
}

/// The API server.
#[derive(Clone)]
pub struct Server {
    client: Client,
    manager: String,
    node: String,
}

impl Server {
    pub fn new(client: Client, node: &str) -> Self {
        const LONGEST: usize = 128;
        let manager = format!("podwire-traces/{node}").chars().take(LONGEST).collect();
        Self { client, manager, node: node.to_owned() }
    }

    pub fn api(&self, group: Group) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &group.resource())
    }

    fn core(&self, namespace: Option<&str>, kind: &str, plural: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", kind), plural);
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Creates an object.
    pub async fn create(&self, manifest: &Value) -> Result<DynamicObject, Error> {
        let object: DynamicObject = serde_json::from_value(manifest.clone()).map_err(Error::SerdeError)?;
        self.api(Group::of(manifest)).create(&PostParams::default(), &object).await
    }

    /// Deletes an object; one that is gone is as good.
    pub async fn delete(&self, group: Group, name: &str) -> Result<bool, Error> {
        match self.api(group).delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(true),
            Err(Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes a status unless somebody has written meanwhile; says whether it stands.
    pub async fn claim(&self, object: &DynamicObject, status: Value) -> Result<bool, Error> {
        let mut object = object.clone();
        object.data["status"] = status;
        let group = Group::of(&json!({"apiVersion": object.types.as_ref().map(|types| &types.api_version)}));
        let parameters = PostParams { field_manager: Some(self.manager.clone()), ..PostParams::default() };
        match self.api(group).replace_status(&object.name_any(), &parameters, &object).await {
            Ok(_) => Ok(true),
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes what this node says: `status` has its own result, and more where this node has the last word.
    pub async fn say(&self, group: Group, name: &str, status: &Value) -> Result<(), Error> {
        match group {
            Group::Podwire => self.apply(group, name, status).await,
            Group::Antrea => self.exchange(group, name, status).await,
        }
    }

    async fn apply(&self, group: Group, name: &str, status: &Value) -> Result<(), Error> {
        let resource = group.resource();
        let body = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name},
            "status": status,
        });
        let parameters = PatchParams::apply(&self.manager).force();
        self.api(group).patch_status(name, &parameters, &Patch::Apply(body)).await.map(drop)
    }

    async fn exchange(&self, group: Group, name: &str, status: &Value) -> Result<(), Error> {
        for _ in 0..TRIES {
            let mut object = self.api(group).get(name).await?;
            let known = merged(&object.data["status"], status, &self.node);
            object.data["status"] = known;
            match self.api(group).replace_status(name, &PostParams::default(), &object).await {
                Err(Error::Api(status)) if status.code == 409 => {}
                other => return other.map(drop),
            }
        }
        Ok(())
    }

    /// A pod.
    pub async fn pod(&self, pod: &NamespacedName) -> Result<End, NoEnd> {
        let NamespacedName { namespace, name } = pod;
        let found = ask(self.core(Some(namespace), "Pod", "pods").get_opt(name)).await?;
        let Some(found) = found else {
            return Err(NoEnd::Refused(format!("pod {namespace}/{name}: not found")));
        };
        self.end_of(&found).ok_or_else(|| {
            NoEnd::Refused(if found.data["spec"]["hostNetwork"] == true {
                format!("pod {namespace}/{name}: it is on the host network and has no interface of its own")
            } else {
                format!("pod {namespace}/{name}: it has no address yet")
            })
        })
    }

    fn end_of(&self, pod: &DynamicObject) -> Option<End> {
        let known = crate::kubernetes::pod(pod)?;
        let node = pod.data["spec"]["nodeName"].as_str().filter(|node| *node != self.node);
        Some(End::Pod {
            name: format!("{}/{}", known.namespace, known.name),
            ips: known.ips,
            node: node.map(str::to_owned),
        })
    }

    /// The pod that has an address, or the address itself.
    pub async fn behind(&self, ip: IpAddr) -> Result<End, NoEnd> {
        // The server finds pods by their first address; by another one, among those of its node.
        let mut found = self.pods(&format!("status.podIP={ip}")).await?;
        if found.is_empty()
            && let Some(node) = self.node_of(ip).await?
        {
            found = self.pods(&format!("spec.nodeName={node}")).await?;
        }
        let has = |end: &End| matches!(end, End::Pod { ips, .. } if ips.contains(&ip));
        Ok(match found.iter().find_map(|pod| self.end_of(pod).filter(has)) {
            Some(End::Pod { name, node, .. }) => End::Pod { name, node, ips: vec![ip] },
            _ => End::Ip(ip),
        })
    }

    async fn pods(&self, selector: &str) -> Result<Vec<DynamicObject>, NoEnd> {
        let fields = ListParams::default().fields(selector);
        Ok(ask(self.core(None, "Pod", "pods").list(&fields)).await?.items)
    }

    /// The node whose pods have such addresses.
    async fn node_of(&self, ip: IpAddr) -> Result<Option<String>, NoEnd> {
        let nodes = ask(self.core(None, "Node", "nodes").list(&ListParams::default())).await?;
        let holds = |node: &&DynamicObject| {
            let several = node.data["spec"]["podCIDRs"].as_array().into_iter().flatten();
            several.filter_map(|cidr| cidr.as_str()?.parse::<IpNet>().ok()).any(|cidr| cidr.contains(&ip))
        };
        Ok(nodes.items.iter().find(holds).map(ResourceExt::name_any))
    }

    /// A Service.
    pub async fn service(&self, service: &NamespacedName) -> Result<End, NoEnd> {
        let NamespacedName { namespace, name } = service;
        let found = ask(self.core(Some(namespace), "Service", "services").get_opt(name)).await?;
        let Some(found) = found else {
            return Err(NoEnd::Refused(format!("Service {namespace}/{name}: not found")));
        };
        let spec = &found.data["spec"];
        let several = spec["clusterIPs"].as_array().into_iter().flatten();
        let ips: Vec<IpAddr> =
            several.chain([&spec["clusterIP"]]).filter_map(|ip| ip.as_str()?.parse().ok()).collect();
        if ips.is_empty() {
            let line =
                format!("Service {namespace}/{name}: it has no address of its own; name one of its pods");
            return Err(NoEnd::Refused(line));
        }
        let port = spec["ports"][0]["port"].as_u64().and_then(|port| u16::try_from(port).ok());
        Ok(End::Service { name: format!("{namespace}/{name}"), ips, port })
    }
}

async fn ask<T>(question: impl Future<Output = Result<T, Error>>) -> Result<T, NoEnd> {
    match timeout(PATIENCE, question).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(NoEnd::Away(format!("the API server: {}", short(&error)))),
        Err(_) => Err(NoEnd::Away(format!("the API server: no answer within {} s", PATIENCE.as_secs()))),
    }
}

/// A status with what one node says: its result among the others, and what else it has.
fn merged(known: &Value, said: &Value, node: &str) -> Value {
    let mut status = known.as_object().cloned().unwrap_or_default();
    let mut results = known["results"].as_array().cloned().unwrap_or_default();
    let at = results.iter().position(|result| result["node"] == node);
    for (name, value) in said.as_object().into_iter().flatten().filter(|(name, _)| *name != "results") {
        status.insert(name.clone(), value.clone());
    }
    match (at, said["results"].as_array().and_then(|own| own.first())) {
        (Some(at), Some(own)) => results[at] = own.clone(),
        (None, Some(own)) => results.push(own.clone()),
        (Some(at), None) => drop(results.remove(at)),
        (None, None) => {}
    }
    status.insert("results".into(), results.into());
    status.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::merged;

    #[test]
    fn a_node_changes_its_own_result_alone() {
        let known = json!({"phase": "Running", "results": [{"node": "a", "x": 1}, {"node": "b"}]});
        let said = json!({"results": [{"node": "b", "y": 2}]});
        let now = merged(&known, &said, "b");
        assert_eq!(
            now,
            json!({"phase": "Running", "results": [{"node": "a", "x": 1}, {"node": "b", "y": 2}]})
        );
        let now = merged(&now, &json!({"phase": "Succeeded"}), "a");
        assert_eq!(now, json!({"phase": "Succeeded", "results": [{"node": "b", "y": 2}]}));
    }
}
