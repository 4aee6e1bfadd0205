//! One resource, followed. In: list and watch. Out: all its objects, then what changes.

use std::time::Duration;

use futures_util::{StreamExt, pin_mut};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::connection::{Connection, short};
use super::resource::Resource;

/// After a failure, before the next try: doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// What is new of a resource.
#[derive(Debug)]
pub enum News {
    /// These are all.
    All(Vec<DynamicObject>),
    /// It is new or other than before.
    Changed(Box<DynamicObject>),
    /// It is gone.
    Gone(Box<DynamicObject>),
}

/// Follows one resource.
pub struct Follower {
    pub client: Client,
    pub resource: Resource,
    /// This node.
    pub node: String,
    pub connection: Connection,
    pub news: mpsc::Sender<(Resource, News)>,
    /// Changes when everything is to be listed anew.
    pub again: watch::Receiver<u64>,
}

impl Follower {
    /// For ever, or until nobody wants its news.
    pub async fn run(mut self) {
        while self.follow().await.is_some() {}
    }

    /// Until everything is to be listed anew; `None` when nobody wants its news.
    async fn follow(&mut self) -> Option<()> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.resource.api());
        let mut config = watcher::Config::default();
        if let Some(selector) = self.resource.selector(&self.node) {
            config = config.fields(&selector);
        }
        let events = watcher(api, config);
        pin_mut!(events);
        let (mut listed, mut wait) = (Vec::new(), FIRST_WAIT);
        loop {
            let event = tokio::select! {
                event = events.next() => event?,
                changed = self.again.changed() => return changed.ok(),
            };
            match event {
                Ok(event) => {
                    // Each try begins with this one, before the server is asked.
                    if !matches!(event, Event::Init) {
                        wait = FIRST_WAIT;
                        self.connection.note(self.resource.name(), "");
                    }
                    self.take(event, &mut listed).await?;
                }
                Err(error) => {
                    self.explain(&error).await?;
                    tokio::select! {
                        () = sleep(wait) => {}
                        changed = self.again.changed() => return changed.ok(),
                    }
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
    }

    async fn take(&self, event: Event<DynamicObject>, listed: &mut Vec<DynamicObject>) -> Option<()> {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => listed.push(lean(object)),
            Event::InitDone => self.tell(News::All(std::mem::take(listed))).await?,
            Event::Apply(object) => self.tell(News::Changed(Box::new(lean(object)))).await?,
            Event::Delete(object) => self.tell(News::Gone(Box::new(lean(object)))).await?,
        }
        Some(())
    }

    async fn tell(&self, news: News) -> Option<()> {
        self.news.send((self.resource, news)).await.ok()
    }

    /// A kind that the server does not know has no objects. A server that has just started may not know it yet:
    /// whether it will is asked where definitions are kept.
    async fn explain(&self, error: &watcher::Error) -> Option<()> {
        if self.resource.is_defined() && is_not_found(error) && self.is_undefined().await {
            let missing = "the API server has no such objects: deploy/crds defines them";
            self.connection
                .note(self.resource.name(), if self.resource.is_expected() { missing } else { "" });
            return self.tell(News::All(Vec::new())).await;
        }
        self.connection.note(self.resource.name(), &short(error));
        Some(())
    }

    async fn is_undefined(&self) -> bool {
        let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let definitions = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &definitions);
        matches!(api.get_opt(self.resource.name()).await, Ok(None))
    }
}

fn is_not_found(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

/// Who wrote which field is of no use here, and long.
fn lean(mut object: DynamicObject) -> DynamicObject {
    object.managed_fields_mut().clear();
    object
}
