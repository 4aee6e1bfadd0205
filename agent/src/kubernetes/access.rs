//! How the API server is reached.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// A connection that is not there by then is tried anew.
const CONNECT: Duration = Duration::from_secs(5);

/// Where address and credentials come from.
#[derive(Clone, Debug)]
pub enum Access {
    /// A file, as `kubectl` has one.
    Kubeconfig(PathBuf),
    /// The service account of the pod that the agent runs in.
    InCluster,
}

impl Access {
    /// A client; nothing is asked yet.
    ///
    /// # Errors
    /// When the configuration cannot be read.
    pub async fn client(&self) -> Result<Client> {
        self.client_with(None).await
    }

    /// A client for questions that are answered at once, or not at all.
    ///
    /// # Errors
    /// As for [`client`](Self::client).
    pub async fn impatient_client(&self) -> Result<Client> {
        self.client_with(Some(CONNECT)).await
    }

    async fn client_with(&self, read: Option<Duration>) -> Result<Client> {
        let mut config = match self {
            Self::Kubeconfig(path) => {
                let read = || Kubeconfig::read_from(path);
                let kubeconfig = read().with_context(|| format!("reading {}", path.display()))?;
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                    .await
                    .with_context(|| format!("reading {}", path.display()))?
            }
            Self::InCluster => Config::incluster().context(
                "--kubernetes is for an agent in a pod with a service account; elsewhere --kubeconfig says how the API server is reached",
            )?,
        };
        config.connect_timeout = Some(CONNECT);
        if read.is_some() {
            (config.read_timeout, config.write_timeout) = (read, read);
        }
        Client::try_from(config).context("making a client for the API server")
    }
}
