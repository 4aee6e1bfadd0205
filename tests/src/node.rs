//! The library inside a node's network namespace, driven from a test's thread.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use podwire_datapath::core::abi::{Direction, EndpointCounters, PolicyCounters, Reason, SessionCounters};
use podwire_datapath::traceflow::Tracer;
use podwire_datapath::{
    Applied, Attachment, Counters, Datapath, Desired, Hook, Injector, Options, Target, Watch, WatchOptions,
};
use podwire_harness::{NetNs, Scratch};

type Work = Box<dyn FnOnce(&mut Datapath) + Send>;

/// A datapath on a thread of its own. Dropping it leaves everything in force.
#[derive(Debug)]
pub struct Node {
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Node {
    /// Opens a datapath in `netns`, pinned under `scratch`.
    ///
    /// # Errors
    /// As the library says.
    pub fn open(netns: &NetNs, scratch: &Scratch, hook: Hook) -> Result<Self> {
        Self::open_with(netns, scratch, hook, "uplink0")
    }

    /// The same, where the uplink has another name.
    ///
    /// # Errors
    /// As the library says.
    pub fn open_with(netns: &NetNs, scratch: &Scratch, hook: Hook, uplink: &str) -> Result<Self> {
        let bpffs: PathBuf = scratch.bpf().join("podwire");
        let (work, todo): (Sender<Work>, Receiver<Work>) = channel();
        let (opened, wait) = channel();
        let uplink = Some(uplink.to_owned());
        let thread = netns.enter_later(move || {
            let mut datapath = match Datapath::open(Options { bpffs, hook, uplink, ..Options::default() }) {
                Ok(datapath) => datapath,
                Err(error) => {
                    let _ = opened.send(Err(error));
                    return Ok(());
                }
            };
            let _ = opened.send(Ok(()));
            while let Ok(work) = todo.recv() {
                work(&mut datapath);
            }
            datapath.close();
            Ok(())
        })?;
        wait.recv().context("the node's thread died")??;
        Ok(Self { work: Some(work), thread: Some(thread) })
    }

    fn ask<T: Send + 'static>(&self, work: impl FnOnce(&mut Datapath) -> T + Send + 'static) -> Result<T> {
        let (answer, wait) = channel();
        let sender = self.work.as_ref().context("closed")?;
        sender
            .send(Box::new(move |datapath| {
                let _ = answer.send(work(datapath));
            }))
            .map_err(|_| anyhow!("the node's thread is gone"))?;
        wait.recv().context("the node's thread died")
    }

    /// [`Datapath::apply`].
    ///
    /// # Errors
    /// As the library says.
    pub fn apply(&self, desired: &Desired) -> Result<Applied> {
        let desired = desired.clone();
        Ok(self.ask(move |datapath| datapath.apply(&desired))??)
    }

    /// [`Datapath::watch`].
    ///
    /// # Errors
    /// As the library says.
    pub fn watch(&self, options: WatchOptions) -> Result<Watch> {
        Ok(self.ask(move |datapath| datapath.watch(options))??)
    }

    /// [`Datapath::watch`], and a tracer on it.
    ///
    /// # Errors
    /// As the library says.
    pub fn tracer(&self) -> Result<Tracer> {
        let watch = self.watch(WatchOptions::default())?;
        Ok(Tracer::start(watch.watcher, watch.traces, watch.captures, |_| {})?)
    }

    /// [`Datapath::injector`].
    ///
    /// # Errors
    /// As the library says.
    pub fn injector(&self) -> Result<Injector> {
        Ok(self.ask(|datapath| datapath.injector())??)
    }

    /// [`Datapath::attachment`] of an endpoint that there is.
    ///
    /// # Errors
    /// As the library says, and when there is none.
    pub fn attachment(&self, endpoint: &str) -> Result<Attachment> {
        let name = endpoint.to_owned();
        let found = self.ask(move |datapath| datapath.attachment(&name))??;
        found.with_context(|| format!("no endpoint {endpoint}"))
    }

    /// [`Datapath::set_traced`].
    ///
    /// # Errors
    /// As the library says.
    pub fn set_traced(&self, endpoints: &[&str]) -> Result<()> {
        let names = endpoints.iter().map(|name| (*name).to_owned()).collect();
        Ok(self.ask(move |datapath| datapath.set_traced(names))??)
    }

    /// [`Datapath::refresh`].
    ///
    /// # Errors
    /// As the library says.
    pub fn refresh(&self) -> Result<Applied> {
        Ok(self.ask(Datapath::refresh)??)
    }

    /// [`Datapath::counters`].
    ///
    /// # Errors
    /// As the library says.
    pub fn counters(&self) -> Result<Counters> {
        Ok(self.ask(|datapath| datapath.counters())??)
    }

    /// The counters of the session to `target`, after checking that they add up.
    ///
    /// # Errors
    /// When there is no such session, or copies vanish from the books.
    pub fn session(&self, target: &Target) -> Result<SessionCounters> {
        let counters = self.counters()?;
        check(&counters)?;
        let found = counters.sessions.iter().find(|(_, other, _)| other == target);
        Ok(found.with_context(|| format!("no session to {target}"))?.2)
    }

    /// The counters of a mirror or redirect, after checking that everything adds up.
    ///
    /// # Errors
    /// When there is no such policy, or packets vanish from the books.
    pub fn policy(&self, name: &str) -> Result<PolicyCounters> {
        let counters = self.counters()?;
        check(&counters)?;
        let found = counters.policies.iter().find(|(other, _)| other == name);
        Ok(found.with_context(|| format!("no policy {name}"))?.1)
    }

    /// As the library says.
    pub fn check_health(&self) -> Result<Vec<(String, bool)>> {
        Ok(self.ask(|datapath| datapath.check_health())??)
    }

    /// The counters of an endpoint and direction, after checking that they add up.
    ///
    /// # Errors
    /// When there is no such endpoint, or packets vanish from the books.
    pub fn endpoint(&self, name: &str, direction: Direction) -> Result<EndpointCounters> {
        let counters = self.counters()?;
        check(&counters)?;
        let found = counters.endpoints.iter().find(|(other, way, _)| other == name && *way == direction);
        Ok(found.with_context(|| format!("no endpoint {name}"))?.2)
    }
}

impl Node {
    /// Waits for books that add up: packets may be on their way.
    fn last_books(&self) -> Result<()> {
        let mut books = Ok(());
        for _ in 0..LAST_LOOKS {
            books = check(&self.counters()?);
            if books.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        books
    }
}

/// How often a node's books are looked at before they count as wrong.
const LAST_LOOKS: usize = 20;

/// Every test ends with a look at the books.
impl Drop for Node {
    fn drop(&mut self) {
        let books = self.last_books();
        assert!(std::thread::panicking() || books.is_ok(), "{books:?}");
        self.work.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether the running kernel has tcx links.
pub fn has_tcx() -> bool {
    podwire_datapath::probe::features().iter().any(|feature| feature.name == "tcx links" && feature.present)
}

/// Copies lost for one reason.
pub fn lost(counters: &SessionCounters, reason: Reason) -> u64 {
    counters.lost_packets[reason.index()]
}

/// Copies lost for any reason.
pub fn all_lost(counters: &SessionCounters) -> u64 {
    counters.lost_packets.iter().sum()
}

/// Packets and copies are conserved: received = passed + redirected + dropped, and
/// matched + taken = sampled out + handed + sent + queued + lost.
///
/// # Errors
/// Naming the row that does not add up.
pub fn check(counters: &Counters) -> Result<()> {
    for (name, direction, row) in &counters.endpoints {
        anyhow::ensure!(
            row.received_packets == row.passed_packets + row.redirected_packets + row.dropped_packets
                && row.received_bytes == row.passed_bytes + row.redirected_bytes + row.dropped_bytes,
            "endpoint {name} {}: {row:?}",
            direction.as_str()
        );
    }
    for (_, target, row) in &counters.sessions {
        let booked = row.sampled_out_packets
            + row.handed_packets
            + row.sent_packets
            + row.queued_packets
            + all_lost(row);
        anyhow::ensure!(row.matched_packets + row.taken_packets == booked, "session to {target}: {row:?}");
    }
    Ok(())
}
