//! Where objects stand: in files, or at a Kubernetes API server. In: either. Out: all objects as one set.

mod cluster;
mod files;

use anyhow::Result;
use podwire_datapath::object::{Located, Object, ObjectSet};
use serde_json::{Value, json};

use super::options::Options;
use super::worker::Trouble;
use crate::kubernetes::{Link, Report, Snapshot};
use cluster::ClusterStore;
use files::FileStore;

/// Objects by where they stand.
#[derive(Clone, Debug)]
pub enum Store {
    /// In files, and some that came over the socket.
    Files(FileStore),
    /// At an API server.
    Cluster(ClusterStore),
}

/// All objects, and those that had to be left out, each with the reason.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// All that can be together.
    pub set: ObjectSet,
    /// The others.
    pub left_out: Vec<(Located, String)>,
}

impl Objects {
    /// Leaves out the newest policy that is new or other than `before`: where objects stand each for itself, one that
    /// does not fit keeps no other from being in force. False when there is none.
    pub fn leave_out_newest(&mut self, before: &ObjectSet, why: &str) -> bool {
        let is_new = |located: &&Located| {
            let policy = matches!(located.object, Object::TrafficControl(_) | Object::Egress(_));
            policy && !before.iter().any(|known| known == *located)
        };
        let age = |located: &&Located| {
            let metadata = located.object.metadata();
            (metadata.created.clone(), located.identity())
        };
        let Some(newest) = self.set.iter().filter(is_new).max_by_key(age).cloned() else { return false };
        let others = self.set.iter().filter(|located| **located != newest).cloned().collect();
        let (set, more) = ObjectSet::build_without_conflicts(others);
        self.set = set;
        self.left_out.extend(more.into_iter().map(|(located, conflict)| (located, conflict.problem)));
        self.left_out.push((newest, why.to_owned()));
        true
    }
}

impl Store {
    /// Opens the one that the options name; `link` is the way to an API server.
    pub fn open(options: &Options, link: Option<Link>) -> Result<Self> {
        Ok(match link {
            Some(link) => Self::Cluster(ClusterStore::open(link)?),
            None => Self::Files(FileStore::open(&options.config, &options.state)?),
        })
    }

    /// The store with everything as it is now; `None` while that is not known.
    ///
    /// # Errors
    /// Every mistake of every file, a line each; nothing of the new state is usable then.
    pub fn reload(&self) -> Result<Option<Self>, Vec<String>> {
        match self {
            Self::Files(store) => store.reload().map(|store| Some(Self::Files(store))),
            Self::Cluster(store) => Ok(store.reload().map(Self::Cluster)),
        }
    }

    /// Whether things are other than when they were read.
    pub fn stale(&self) -> bool {
        match self {
            Self::Files(store) => store.stale(),
            Self::Cluster(store) => store.stale(),
        }
    }

    /// Whether something is missing that comes without any news.
    pub fn is_unsettled(&self) -> bool {
        match self {
            Self::Files(_) => false,
            Self::Cluster(store) => store.is_unsettled(),
        }
    }

    /// All objects.
    pub fn objects(&self) -> Result<Objects, Vec<String>> {
        match self {
            Self::Files(store) => store.set().map(|set| Objects { set, left_out: Vec::new() }),
            Self::Cluster(store) => Ok(store.objects()),
        }
    }

    /// Takes what the API server has now; it is in [`Store::reload`] from then on.
    pub fn take(&mut self, snapshot: Snapshot) {
        if let Self::Cluster(store) = self {
            store.take(snapshot);
        }
    }

    /// The files' store, for what comes over the socket.
    ///
    /// # Errors
    /// With Kubernetes.
    pub fn files(&mut self) -> Result<&mut FileStore, Trouble> {
        match self {
            Self::Files(store) => Ok(store),
            Self::Cluster(_) => Err(Trouble::Refused(vec![
                "this agent's objects stand at the Kubernetes API server; change them there, with kubectl"
                    .into(),
            ])),
        }
    }

    /// Whether each object stands for itself, rather than all or none.
    pub fn is_lenient(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Policies that could not even be read, as reports.
    pub fn refused(&self) -> Vec<Report> {
        match self {
            Self::Files(_) => Vec::new(),
            Self::Cluster(store) => store.refused(),
        }
    }

    /// Hands on what became of the objects.
    pub fn report(&self, reports: impl FnOnce() -> Vec<Report>) {
        if let Self::Cluster(store) = self {
            store.report(reports());
        }
    }

    /// For the command line.
    pub fn describe(&self) -> Value {
        match self {
            Self::Files(_) => json!({"kind": "files", "summary": "files"}),
            Self::Cluster(store) => store.describe(),
        }
    }
}

#[cfg(test)]
mod tests {
    use podwire_datapath::object::{ObjectSet, parse};

    use super::Objects;

    fn egress(name: &str, created: u8) -> String {
        format!(
            "---\napiVersion: podwire.io/v1alpha1\nkind: Egress\n\
             metadata: {{name: {name}, creationTimestamp: \"2026-01-0{created}T00:00:00Z\"}}\n\
             spec: {{appliedTo: {{podSelector: {{}}}}, egressIP: 203.0.113.7}}\n"
        )
    }

    fn set(text: &str) -> ObjectSet {
        ObjectSet::build(parse("t", text).expect("valid")).expect("consistent")
    }

    #[test]
    fn the_newest_of_what_is_new_is_left_out_first() {
        let before = set(&egress("old", 9));
        let mut objects = Objects {
            set: set(&(egress("old", 9) + &egress("b", 3) + &egress("a", 2))),
            left_out: Vec::new(),
        };
        let mut names = Vec::new();
        while objects.leave_out_newest(&before, "too many") {
            names.extend(objects.left_out.last().map(|(located, _)| located.object.metadata().name.clone()));
        }
        // The place is a part of an object, and the first one's is the same.
        assert_eq!(names, ["b", "a"]);
        assert_eq!(objects.set.egresses().len(), 1);
    }
}
