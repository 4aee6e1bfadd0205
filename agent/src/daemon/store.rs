//! Where objects stand: in files, or at a Kubernetes API server. In: either. Out: all objects as one set.

mod cluster;
mod files;

use anyhow::Result;
use podwire_datapath::object::{Located, ObjectSet};
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
