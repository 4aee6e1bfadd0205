//! The daemon. In: files and objects over the socket, or those of a Kubernetes API server. Out: a datapath that does what they say.
//!
//! ```text
//!  files ─┐                                   ┌─► Datapath (its own thread)
//!         ├─► Store ─► ObjectSet ─► Desired ──┤
//!  socket ┘     ▲                             └─► views for the command line
//!               └── file changes, interface changes, a period
//! ```

mod captures;
mod changes;
mod convert;
mod events;
mod files;
mod observe;
mod options;
mod place;
mod report;
mod server;
mod store;
mod trace;
mod view;
mod worker;

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use tracing_subscriber::EnvFilter;

pub use files::manifest_files;
pub use options::Options;

use crate::failure::Failure;
use crate::kubernetes::{self, Access, Link};
use observe::Feed;
use options::LogFormat;
use tokio::runtime::Runtime;
use trace::Traces;
use worker::{Message, Worker};

/// Runs until SIGINT or SIGTERM.
pub fn run(options: Options, socket: &Path) -> Result<(), Failure> {
    start_log(options.log_format);
    let _lock = lock_state(&options.state)?;
    server::refuse_taken(socket)?;
    let before = lock_pins(&options.bpffs)?;
    let (sender, messages) = mpsc::channel();
    let _watch = files::watch(&options.config, sender.clone());
    watch_devices(sender.clone())?;
    let link = options.access().map(|access| follow(&access, &options.node, sender.clone())).transpose()?;
    let worker = Worker::open(&options, link)?;
    let (feed, tracer) = (worker.feed(), worker.tracer());
    // Opening may have mounted a bpffs over the folder: the lock has to be on what the next agent will find.
    drop(before);
    let _pins = lock_pins(&options.bpffs)?;
    tracing::info!(node = %options.node, uplink = %options.uplink, "the datapath is loaded");
    let worker = std::thread::Builder::new()
        .name("datapath".into())
        .spawn(move || worker.run(&messages))
        .context("starting the datapath's thread")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let traces =
        Traces::open(&options.node, tracer, sender.clone(), runtime.handle().clone(), &options.state);
    if let Some(access) = options.access() {
        let clients =
            runtime.block_on(async { tokio::try_join!(access.client(), access.impatient_client()) })?;
        traces.follow(clients.0, clients.1);
    }
    let served = serve(&runtime, socket, &sender, &feed, &traces);
    runtime.shutdown_timeout(Duration::from_millis(100));
    feed.stop();
    let _ = sender.send(Message::Stop { remove: options.remove_on_exit });
    let stopped = worker.join().map_err(|_| Failure::Run("the datapath's thread panicked".into()))?;
    served?;
    Ok(stopped?)
}

/// Follows an API server; what it has comes as messages.
fn follow(access: &Access, node: &str, sender: mpsc::Sender<Message>) -> Result<Link> {
    kubernetes::start(access, node, move |snapshot| sender.send(Message::Cluster(Box::new(snapshot))).is_ok())
}

fn serve(
    runtime: &Runtime,
    socket: &Path,
    sender: &mpsc::Sender<Message>,
    feed: &Feed,
    traces: &Traces,
) -> Result<()> {
    runtime.block_on(async {
        let listener = server::listen(socket)?;
        tracing::info!(socket = %socket.display(), "serving");
        let served = server::run(listener, sender.clone(), feed.clone(), traces.clone()).await;
        // Only here: a socket that could not be taken is another agent's.
        let _ = std::fs::remove_file(socket);
        served
    })
}

fn start_log(format: LogFormat) {
    let filter =
        EnvFilter::try_from_env("PODWIRE_LOG").unwrap_or_else(|_| EnvFilter::new("info,kube_runtime=off"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none();
    // A second logger would be a caller's own: then that one stays.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(ansi).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}

/// One agent per state folder.
fn lock_state(state: &Path) -> Result<Flock<std::fs::File>> {
    std::fs::create_dir_all(state).with_context(|| format!("creating {}", state.display()))?;
    let path = state.join("lock");
    let file = std::fs::File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    lock(file).with_context(|| {
        format!("{} is held by another agent; give each agent its own --state", path.display())
    })
}

/// Takes a lock; waits a moment for an agent that is just ending.
fn lock(mut file: std::fs::File) -> Result<Flock<std::fs::File>> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, error)) if Instant::now() >= deadline => return Err(error.into()),
            Err((back, _)) => file = back,
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// How long a new agent waits for an old one's locks.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// One agent per folder of pins: two would undo each other's state. `None` when there is no folder yet.
fn lock_pins(bpffs: &Path) -> Result<Option<Flock<std::fs::File>>> {
    let folder = match std::fs::File::open(bpffs) {
        Ok(folder) => folder,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("opening {}", bpffs.display())),
    };
    let held = || format!("{} is held by another agent; give each agent its own --bpffs", bpffs.display());
    lock(folder).with_context(held).map(Some)
}

fn watch_devices(sender: mpsc::Sender<Message>) -> Result<()> {
    let watch = podwire_datapath::netdev::watch().context("watching network devices")?;
    std::thread::Builder::new().name("devices".into()).spawn(move || {
        while !watch.wait(Duration::from_secs(1)) || sender.send(Message::Refresh).is_ok() {}
    })?;
    Ok(())
}
