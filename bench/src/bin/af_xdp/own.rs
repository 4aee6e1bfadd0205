//! podwire's side: a thread that receives by [`Front`], or sends by [`Port`], bound to the same processor as the
//! rival's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::unistd::gettid;
use podwire_datapath::collect::Wanted;
use podwire_datapath::xsk::{Copying, Front, Options, Pool, Port, Surplus};
use podwire_harness::NetNs;

use crate::site::{Worker, pin};

/// Frames that are handed over at once, as many as the rival's.
const BATCH: usize = 64;

/// The thread is idle when nothing came for so long.
const IDLE: Duration = Duration::from_millis(5);

/// What both sides share.
#[derive(Default)]
struct Shared {
    packets: AtomicU64,
    let_go: AtomicU64,
    go: AtomicBool,
    end: AtomicBool,
}

/// The running thread.
pub struct Own {
    shared: Arc<Shared>,
    worker: Worker,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Own {
    /// Receives VXLAN of an interface, and counts.
    pub fn receive(netns: &NetNs, interface: &str, processor: usize) -> Result<Self> {
        let interface = interface.to_owned();
        Self::start(netns, processor, move |shared, ready| {
            let options = Options { copying: Copying::Copy, surplus: Surplus::Drop, ..Options::default() };
            let mut front = Front::collect(&interface, &wanted(), &options)?;
            ready()?;
            while !shared.end.load(Ordering::Relaxed) {
                for receiver in &mut front.receivers {
                    let mut batch = receiver.receive(IDLE)?;
                    let mut count = 0;
                    while batch.next().is_some() {
                        count += 1;
                    }
                    drop(batch);
                    if count == 0 {
                        let tally = receiver.tally();
                        shared.let_go.store(tally.behind + tally.dead, Ordering::Relaxed);
                    }
                    let packets = shared.packets.load(Ordering::Relaxed);
                    shared.packets.store(packets + count, Ordering::Relaxed);
                }
            }
            Ok(())
        })
    }

    /// Sends a frame again and again while it shall.
    pub fn send(netns: &NetNs, interface: &str, frame: Vec<u8>, processor: usize) -> Result<Self> {
        let interface = interface.to_owned();
        Self::start(netns, processor, move |shared, ready| {
            let mut pool = Pool::take(Options::default().buffers, 2048)?;
            let mut port = Port::open(&pool, &interface, 0, Copying::Copy, 1522)?;
            let mut frames = Vec::with_capacity(BATCH);
            ready()?;
            while !shared.end.load(Ordering::Relaxed) {
                let go = shared.go.load(Ordering::Relaxed);
                if !go && port.sending() == 0 {
                    std::thread::sleep(Duration::from_micros(500));
                    continue;
                }
                while go && frames.len() < BATCH {
                    let Some(frame) = pool.write(&frame) else { break };
                    frames.push(frame);
                }
                port.send(&mut pool, &mut frames);
                port.flush()?;
                let done = port.reap(&mut pool) as u64;
                shared.packets.fetch_add(done, Ordering::Relaxed);
            }
            Ok(())
        })
    }

    fn start(
        netns: &NetNs,
        processor: usize,
        work: impl FnOnce(&Shared, &dyn Fn() -> Result<()>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (told, ready) = mpsc::channel();
        let thread = {
            let shared = shared.clone();
            netns.enter_later(move || {
                pin(0, processor)?;
                work(&shared, &|| told.send(gettid().as_raw()).context("nobody waits"))
            })?
        };
        match ready.recv() {
            Ok(id) => Ok(Self { shared, worker: Worker(id), thread: Some(thread) }),
            Err(_) => {
                let ended = thread.join().map_err(|_| anyhow!("podwire's thread panicked"))?;
                Err(ended.err().unwrap_or_else(|| anyhow!("podwire's thread ended")))
            }
        }
    }

    /// Packets received, or sent.
    pub fn packets(&self) -> u64 {
        self.shared.packets.load(Ordering::Relaxed)
    }

    /// Packets that the program let go; as it was when the thread was last idle.
    pub fn let_go(&self) -> u64 {
        self.shared.let_go.load(Ordering::Relaxed)
    }

    /// Has it send, or stop.
    pub fn go(&self, on: bool) {
        self.shared.go.store(on, Ordering::Relaxed);
    }

    /// Its thread.
    pub fn worker(&self) -> Worker {
        self.worker
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// VXLAN at its usual port.
pub fn wanted() -> Wanted {
    Wanted {
        vxlan_ports: vec![4789],
        geneve_ports: Vec::new(),
        gre: false,
        erspan: false,
        ..Wanted::default()
    }
}
