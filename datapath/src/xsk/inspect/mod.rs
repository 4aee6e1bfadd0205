//! An inline inspector. In: the frames of a redirected stream. Out: those that it passes, in order, changed ones
//! with whole checksums.
//!
//! ```text
//!  pod ─► redirect ─► ips-in ─► XDP ┬ alive ─► worker ─► inspect ┬ pass, changed ─► ips-out ─► back to the pod's hook
//!                                   │                            └ drop
//!                                   └ dead, behind ─► the stated action: bypass (to ips-out) or drop
//! ```
//!
//! The two ports are those that a redirect's `targetPort` and `returnPort` name. The program stays on its port when
//! the process ends, however it ends, and does the stated action until another one takes over;
//! [`Running::stop`] takes it down.

mod checksums;
mod frame;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use podwire_core::xsk::Action;

pub use frame::{Inspected, Verdict};
pub use worker::Counts;

use super::front::{lock_enough, longest_frame, queues};
use super::memory::HEADROOM;
use super::options::Options;
use super::port::Port;
use super::program::{Program, Work};
use super::receiver::{Receiver, Tally, buffer_size};
use crate::error::{Context, Error, ErrorKind};
use crate::{netdev, sys};
use worker::{Shared, Worker};

/// Judges frames.
pub trait Inspect: Send {
    /// Judges a batch, in the order of arrival. What is not judged passes. It has to return within
    /// [`Options::patience`], or the stream does without it meanwhile.
    fn inspect(&mut self, batch: &mut [Inspected<'_>]);
}

impl<F: FnMut(&mut Inspected<'_>) + Send> Inspect for F {
    fn inspect(&mut self, batch: &mut [Inspected<'_>]) {
        batch.iter_mut().for_each(self);
    }
}

/// What becomes of frames while no worker is there to judge them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// They pass uninspected.
    #[default]
    Pass,
    /// They are dropped.
    Drop,
}

/// Where an inspector works, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The port that frames come by: a redirect's `targetPort`.
    pub input: String,
    /// The port that they go back by: its `returnPort`.
    pub output: String,
    /// What becomes of frames while no worker is there to judge them.
    pub on_failure: OnFailure,
    /// Folder of a bpffs under which the program is pinned; it has to lie in a mounted one.
    pub bpffs: PathBuf,
    /// Buffers, copying, patience.
    pub options: Options,
}

impl Setup {
    /// Between these ports, with what is usual otherwise.
    pub fn new(input: impl Into<String>, output: impl Into<String>) -> Self {
        Self {
            input: input.into(),
            output: output.into(),
            on_failure: OnFailure::Pass,
            bpffs: PathBuf::from("/sys/fs/bpf/podwire"),
            options: Options::default(),
        }
    }

    /// Starts a worker for each queue of the input. `make` gives the inspector of a queue.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the input has a program of others or a queue has a socket, [`ErrorKind::Unsupported`]
    /// when frames cannot pass uninspected because the other end of the output is not in this network namespace, or
    /// a port takes no XDP program, [`ErrorKind::PermissionDenied`] without the capabilities.
    pub fn start<I: Inspect + 'static>(&self, make: impl FnMut(u32) -> I) -> Result<Running, Error> {
        self.check()?;
        lock_enough();
        let frame = longest_frame(&self.input)?.max(longest_frame(&self.output)?);
        let folder = self.bpffs.join("inspect").join(&self.input);
        let mut program = Program::load(&self.input, Some(&folder))?;
        let room = buffer_size(frame) - HEADROOM;
        let out = nix::net::if_::if_nametoindex(self.output.as_str())
            .context(|| format!("interface {}", self.output))?;
        let action = match self.on_failure {
            OnFailure::Pass => Action::Bypass,
            OnFailure::Drop => Action::Drop,
        };
        let workers = self.workers(&mut program, frame, make)?;
        program.configure(&Work::Inspect { out, action }, room, self.options.patience)?;
        program.attach()?;
        let end = Arc::new(AtomicBool::new(false));
        let mut running = Running { end: end.clone(), threads: Vec::new(), shared: Vec::new(), program };
        for worker in workers {
            running.shared.push(worker.shared());
            let end = end.clone();
            let thread = std::thread::Builder::new()
                .name("inspect".into())
                .spawn(move || worker.run(&end))
                .context(|| "starting an inspector's thread".into())?;
            running.threads.push(thread);
        }
        Ok(running)
    }

    fn workers<I: Inspect + 'static>(
        &self,
        program: &mut Program,
        frame: u32,
        mut make: impl FnMut(u32) -> I,
    ) -> Result<Vec<Worker<I>>, Error> {
        let (inputs, outputs) = (queues(&self.input)?, queues(&self.output)?);
        (0..inputs)
            .map(|queue| {
                let receiver = Receiver::open(program, &self.input, queue, frame, &self.options)?;
                let out = Port::succeed(
                    &receiver.pool,
                    &self.output,
                    queue % outputs,
                    self.options.copying,
                    frame,
                )?;
                Ok(Worker::new(receiver, out, make(queue)))
            })
            .collect()
    }

    fn check(&self) -> Result<(), Error> {
        if self.input == self.output {
            let what = format!("{}: frames would come back to where they are taken", self.input);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        if self.on_failure == OnFailure::Drop {
            return Ok(());
        }
        // The kernel's XDP takes a frame to a veth's other end only where that one has GRO on.
        let other = netdev::peer_of(&self.output).ok_or_else(|| {
            let what = format!(
                "frames cannot pass uninspected: the other end of {} is not in this network namespace",
                self.output
            );
            Error::new(ErrorKind::Unsupported, what)
        })?;
        sys::with_gro(&other).context(|| format!("switching GRO of {other} on"))
    }
}

/// What became of an inspector's frames in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Over all queues.
    pub counts: Counts,
    /// Each queue's.
    pub tallies: Vec<Tally>,
    /// Whether every buffer was where it should be.
    pub balances: bool,
}

/// An inspector at work. Dropped, its threads end and the stated action begins.
pub struct Running {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    shared: Vec<Arc<Shared>>,
    program: Program,
}

impl Running {
    /// What became of the frames, over all queues.
    pub fn counts(&self) -> Counts {
        self.shared.iter().fold(Counts::default(), |all, shared| all.plus(&shared.counts()))
    }

    /// What the program handed to each queue's worker, and what it did without one.
    pub fn tallies(&self) -> Vec<Tally> {
        let queues = 0..self.shared.len() as u32;
        queues.filter_map(|queue| self.program.heart(queue).ok()).map(|heart| Tally::of(&heart)).collect()
    }

    /// Whether every worker is at work.
    pub fn is_alive(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Ends the workers when they have judged what was handed to them, and takes the program off its port.
    pub fn stop(mut self) -> Ended {
        self.end_workers();
        self.program.remove();
        let balances = self.shared.iter().all(|shared| shared.balances.load(Ordering::Relaxed));
        Ended { counts: self.counts(), tallies: self.tallies(), balances }
    }

    fn end_workers(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end_workers();
    }
}
