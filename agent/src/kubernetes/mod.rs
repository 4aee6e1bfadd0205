//! Kubernetes as the place where objects stand. In: the API server. Out: its objects for the datapath's thread, and
//! what became of them on this node as their status.
//!
//! ```text
//!  API server ─► follow (a task per resource) ─► gather ─► Snapshot ─► the datapath's thread
//!      ▲                                                                       │
//!      └──────────────── status (server-side apply, this node's part) ◄── reports
//! ```
//! A server that is slow or away changes nothing here: what was last known stays.

mod access;
mod connection;
pub mod crd;
mod follow;
mod gather;
mod objects;
mod report;
mod resource;
mod snapshot;
mod status;

use anyhow::{Context, Result};
use tokio::sync::watch;

pub use access::Access;
pub use connection::{Connection, short};
pub use objects::{endpoint, pod};
pub use report::{EgressReport, Report, Subject};
pub use snapshot::{Pod, Snapshot};

use resource::Resource;

/// The way to the API server, from the datapath's thread.
#[derive(Clone, Debug)]
pub struct Link {
    /// How it stands.
    pub connection: Connection,
    /// Takes what became of the objects, all of them each time.
    pub reports: watch::Sender<Vec<Report>>,
}

/// Follows the API server in a thread of its own; each new state of the objects is handed on.
///
/// # Errors
/// When the configuration cannot be read. A server that is away is none: it is waited for.
pub fn start(
    access: &Access,
    node: &str,
    hand_on: impl Fn(Snapshot) -> bool + Send + 'static,
) -> Result<Link> {
    let (reports, written) = watch::channel(Vec::new());
    let link = Link { connection: Connection::default(), reports };
    let (connection, node) = (link.connection.clone(), node.to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(access.client())?;
    let run = async move {
        let (news, gathered) = tokio::sync::mpsc::channel(256);
        let (again, _) = watch::channel(0);
        for resource in Resource::ALL {
            let follower = follow::Follower {
                client: client.clone(),
                resource,
                node: node.clone(),
                connection: connection.clone(),
                news: news.clone(),
                again: again.subscribe(),
            };
            tokio::spawn(follower.run());
        }
        tokio::spawn(status::write(client.clone(), node.clone(), written, connection.clone()));
        tokio::spawn(connection::watch(client, connection, again));
        gather::run(gathered, &node, hand_on).await;
    };
    std::thread::Builder::new()
        .name("kubernetes".into())
        .spawn(move || runtime.block_on(run))
        .context("starting the thread for the API server")?;
    Ok(link)
}
