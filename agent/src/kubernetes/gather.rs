//! All resources together. In: news of each. Out: snapshots, the first when each resource has been listed once.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::DynamicObject;
use podwire_datapath::object::{self, Located};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::follow::News;
use super::objects;
use super::report::Subject;
use super::resource::Resource;
use super::snapshot::{Pod, Snapshot};

/// Changes that come together are handed on together, but none waits longer than this.
const SETTLE: Duration = Duration::from_millis(30);
const LONGEST: Duration = Duration::from_millis(300);

/// `podwire.io/node` of an Endpoint without a pod: the node that it is for.
const NODE: &str = "podwire.io/node";

/// What an object came to.
#[derive(Clone, Debug)]
enum Known {
    Pod(Pod),
    /// It, and the node that it is for, where it says one.
    Object(Box<Located>, Option<String>),
    Refused(Subject, String),
}

/// Objects by resource, namespace and name.
type Resources = BTreeMap<Resource, BTreeMap<(String, String), Known>>;

/// Until the followers end or nobody takes the snapshots.
pub async fn run(mut news: mpsc::Receiver<(Resource, News)>, node: &str, hand_on: impl Fn(Snapshot) -> bool) {
    let mut resources = Resources::new();
    while let Some((resource, first)) = news.recv().await {
        let begun = Instant::now();
        take(&mut resources, resource, first);
        loop {
            let settled = (Instant::now() + SETTLE).min(begun + LONGEST);
            match timeout_at(settled, news.recv()).await {
                Ok(Some((resource, more))) => take(&mut resources, resource, more),
                Ok(None) => return,
                Err(_) => break,
            }
        }
        if resources.len() == Resource::ALL.len() && !hand_on(snapshot(&resources, node)) {
            return;
        }
    }
}

fn take(resources: &mut Resources, resource: Resource, news: News) {
    match news {
        News::All(objects) => {
            let all = objects.iter().filter_map(|object| Some((key(object), read(resource, object)?)));
            resources.insert(resource, all.collect());
        }
        News::Changed(object) => {
            let Some(objects) = resources.get_mut(&resource) else { return };
            match read(resource, &object) {
                Some(known) => objects.insert(key(&object), known),
                None => objects.remove(&key(&object)),
            };
        }
        News::Gone(object) => {
            resources.entry(resource).and_modify(|objects| drop(objects.remove(&key(&object))));
        }
    }
}

fn key(object: &DynamicObject) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// `None` for what is nothing to podwire.
fn read(resource: Resource, object: &DynamicObject) -> Option<Known> {
    let value = match resource {
        Resource::Pods => return objects::pod(object).map(Known::Pod),
        Resource::Nodes => objects::node(object)?,
        Resource::Namespaces => objects::namespace(object),
        _ => serde_json::to_value(object).ok()?,
    };
    Some(parse(resource, object, &value))
}

/// By the reader of all objects, so that the same is valid everywhere.
fn parse(resource: Resource, object: &DynamicObject, value: &Value) -> Known {
    let name =
        object.namespace().map_or_else(|| object.name_any(), |it| format!("{it}/{}", object.name_any()));
    let place = format!("{} {name}", resource.name());
    let refused = |why: String| {
        tracing::warn!(object = %place, "{why}");
        Known::Refused(Subject::of(resource, object), why)
    };
    match object::parse(&place, &value.to_string()) {
        Ok(mut objects) => match objects.pop() {
            Some(located) => Known::Object(Box::new(located), object.annotations().get(NODE).cloned()),
            None => refused("it is empty".into()),
        },
        // Lines and columns are of a text that nobody wrote.
        Err(errors) => refused(errors.iter().map(in_words).collect::<Vec<_>>().join("; ")),
    }
}

fn in_words(error: &object::ObjectError) -> String {
    let field = if error.field().is_empty() { String::new() } else { format!("{}: ", error.field()) };
    let allowed = error.allowed().map_or_else(String::new, |allowed| format!("; allowed: {allowed}"));
    format!("{field}{}{allowed}", error.problem())
}

fn snapshot(resources: &Resources, node: &str) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let pods = resources.get(&Resource::Pods);
    for (resource, objects) in resources {
        for (key, known) in objects {
            match known {
                Known::Pod(pod) => snapshot.pods.push(pod.clone()),
                Known::Refused(subject, why) => snapshot.refused.push((subject.clone(), why.clone())),
                Known::Object(located, place) => {
                    // An Endpoint is for the node of its pod; without one, for the node that it names.
                    let here =
                        pods.is_some_and(|pods| pods.contains_key(key)) || place.as_deref() == Some(node);
                    if *resource != Resource::Endpoints || here {
                        snapshot.objects.push((**located).clone());
                    }
                }
            }
        }
    }
    snapshot
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{News, Resource, Resources, snapshot, take};

    fn all(resources: &mut Resources, resource: Resource, objects: &[Value]) {
        let objects = objects.iter().map(|it| serde_json::from_value(it.clone()).expect("an object"));
        take(resources, resource, News::All(objects.collect()));
    }

    #[test]
    fn what_cannot_be_read_is_told_and_the_rest_goes_on() {
        let egress = |name: &str, ip: &str| {
            json!({
                "apiVersion": "podwire.io/v1alpha1", "kind": "Egress", "metadata": {"name": name, "generation": 3},
                "spec": {"appliedTo": {"podSelector": {}}, "egressIP": ip},
            })
        };
        let mut resources = Resources::new();
        all(&mut resources, Resource::Egresses, &[egress("good", "203.0.113.7"), egress("bad", "none")]);
        let found = snapshot(&resources, "node-1");
        assert_eq!(found.objects.len(), 1);
        let (subject, why) = &found.refused[0];
        assert_eq!((subject.name.as_str(), subject.generation), ("bad", 3));
        assert!(why.starts_with("spec.egressIP: \"none\" is not an address"), "{why}");
        take(
            &mut resources,
            Resource::Egresses,
            News::Changed(Box::new(serde_json::from_value(egress("bad", "203.0.113.8")).expect("an object"))),
        );
        assert_eq!(snapshot(&resources, "node-1").objects.len(), 2);
    }

    #[test]
    fn an_endpoint_is_for_the_node_of_its_pod_or_the_one_that_it_names() {
        let endpoint = |name: &str, node: &str| {
            json!({
                "apiVersion": "podwire.io/v1alpha1", "kind": "Endpoint",
                "metadata": {"namespace": "default", "name": name, "annotations": {"podwire.io/node": node}},
                "spec": {"interface": name},
            })
        };
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": "here"},
            "status": {"podIP": "10.0.0.5"},
        });
        let mut resources = Resources::new();
        all(&mut resources, Resource::Pods, &[pod]);
        all(
            &mut resources,
            Resource::Endpoints,
            &[endpoint("here", ""), endpoint("named", "node-1"), endpoint("elsewhere", "node-2")],
        );
        let names: Vec<String> = snapshot(&resources, "node-1")
            .objects
            .iter()
            .map(|it| it.object.metadata().name.clone())
            .collect();
        assert_eq!(names, ["here", "named"]);
    }
}
