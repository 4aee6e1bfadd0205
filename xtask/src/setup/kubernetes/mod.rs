//! A real Kubernetes API server and its client for tests. In: what this machine has. Out: `kube-apiserver` in the
//! user's cache folder, and a `kubectl`, in the path or there.
//!
//! Both are kept outside of the tree, so that a clone more or a clean build costs nothing.

mod kubectl;
mod server;

use std::{env, path::PathBuf};

use anyhow::{Context as _, Result};

/// By which tests find the cache folder, also where they run as another user.
pub const CACHE_VARIABLE: &str = "PODWIRE_CACHE";

/// What tests need and packages do not bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `kube-apiserver`.
    Server,
    /// `kubectl`.
    Client,
}

impl Part {
    /// What is missing on this machine.
    pub fn missing() -> Vec<Self> {
        [Self::Server, Self::Client].into_iter().filter(|part| !part.is_here()).collect()
    }

    fn is_here(self) -> bool {
        match self {
            Self::Server => server::path().is_ok_and(|path| path.is_file()),
            Self::Client => kubectl::find().is_some(),
        }
    }

    /// Its name and what it is for.
    pub fn describe(self) -> String {
        match self {
            Self::Server => format!(
                "{:<16} is the cluster's API in tests (Debian's source of {}, built here once: {})",
                "kube-apiserver",
                server::RELEASE,
                server::TAKES
            ),
            Self::Client => format!("{:<16} changes objects in tests, as a user would", "kubectl"),
        }
    }

    /// Fetches it, builds it.
    ///
    /// # Errors
    /// When it is not to be had here.
    pub fn install(self) -> Result<()> {
        match self {
            Self::Server => server::build(),
            Self::Client => kubectl::fetch(),
        }
    }
}

/// Says aloud what a machine without them does not test.
pub fn do_without(part: Part, error: &anyhow::Error) {
    let name = match part {
        Part::Server => "kube-apiserver",
        Part::Client => "kubectl",
    };
    anstream::eprintln!("  {name} cannot be had here: {error:#}");
    anstream::eprintln!(
        "  THE TESTS root_kubernetes… WILL FAIL: they want a real API server, etcd and kubectl"
    );
}

/// `${XDG_CACHE_HOME:-~/.cache}/podwire`.
///
/// # Errors
/// When the user has no home folder.
pub fn cache() -> Result<PathBuf> {
    if let Some(folder) = env::var_os(CACHE_VARIABLE) {
        return Ok(PathBuf::from(folder));
    }
    let folder = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let home = || env::home_dir().map(|home| home.join(".cache"));
    Ok(folder.or_else(home).context("no home folder to keep built programs in")?.join("podwire"))
}
