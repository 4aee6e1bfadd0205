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

use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use podwire_core::xsk::{Action, LAYOUT};

pub use frame::{Inspected, Verdict};
pub use worker::Counts;

use super::front::{lock_enough, longest_frame, queues};
use super::options::Options;
use super::program::{LINK, Program, Work, links};
use super::receiver::{Receiver, Tally};
use crate::error::{Context, Error, ErrorKind};
use crate::{netdev, sys};
use worker::{Output, Shared, Worker};

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
        let folder = self.folder()?;
        let fresh = links(&folder).is_empty();
        let mut program = Program::load(&self.input, Some(&folder))?;
        match self.set_up(&mut program, make) {
            Ok(workers) => Running::start(program, workers, fresh),
            Err(error) => {
                // What was there before goes on without a worker; what was not is not left.
                if fresh || !folder.join(LINK).exists() {
                    program.remove();
                }
                Err(error)
            }
        }
    }

    /// Everything but the threads. Packets may come from here on, and wait.
    fn set_up<I: Inspect + 'static>(
        &self,
        program: &mut Program,
        mut make: impl FnMut(u32) -> I,
    ) -> Result<Vec<Worker<I>>, Error> {
        let frame = longest_frame(&self.input)?.max(longest_frame(&self.output)?);
        let out = nix::net::if_::if_nametoindex(self.output.as_str())
            .context(|| format!("interface {}", self.output))?;
        let action = match self.on_failure {
            OnFailure::Pass => Action::Bypass,
            OnFailure::Drop => Action::Drop,
        };
        let mut workers = (0..self.queues()?)
            .map(|queue| {
                let receiver = Receiver::open(program, &self.input, queue, frame, &self.options)?;
                let output =
                    Output { interface: self.output.clone(), queue, copying: self.options.copying, frame };
                Worker::new(receiver, output, make(queue))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        program.configure(&Work::Inspect { out, action }, frame, self.options.patience)?;
        workers.iter_mut().try_for_each(|worker| worker.begin(program))?;
        program.attach()?;
        Ok(workers)
    }

    /// As many as the input receives by: each has one of the output to itself.
    fn queues(&self) -> Result<u32, Error> {
        let inputs = queues(&self.input);
        let outputs = sys::queues(&self.output).map_or(1, |(_, send)| send.max(1));
        if inputs > outputs {
            let (input, output) = (&self.input, &self.output);
            let what = format!(
                "{input} receives by {inputs} queues, {output} sends by {outputs}: give it as many (ethtool -L)"
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(inputs)
    }

    /// Where the program is pinned: by interface, not by name, which another one may have by now.
    fn folder(&self) -> Result<PathBuf, Error> {
        let index = nix::net::if_::if_nametoindex(self.input.as_str())
            .context(|| format!("interface {}", self.input))?;
        let netns = sys::netns_cookie().context(|| "telling network namespaces apart".into())?;
        let all = self.bpffs.join("inspect");
        let mine = format!("-{netns:x}-");
        for entry in std::fs::read_dir(&all).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let old = name.split_once(&mine).and_then(|(_, index)| index.parse::<u32>().ok());
            // Its interface is gone, and so is what was attached.
            let gone = |index| matches!(if_indextoname(index), Err(Errno::ENXIO | Errno::ENODEV));
            if old.is_some_and(gone) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        Ok(all.join(format!("v{LAYOUT}{mine}{index}")))
    }

    fn check(&self) -> Result<(), Error> {
        self.options.check()?;
        if self.input == self.output {
            let what = format!("{}: frames would come back to where they are taken", self.input);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        // A sender's offload leaves checksums and cutting to the device, and this one is none. Podwire's own ports are
        // without already.
        if let Some(other) = netdev::peer_of(&self.input) {
            sys::without_checksum_offload(&other)
                .context(|| format!("switching the checksum offload of {other} off"))?;
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
    fn start<I: Inspect + 'static>(
        program: Program,
        workers: Vec<Worker<I>>,
        fresh: bool,
    ) -> Result<Self, Error> {
        let shared = workers.iter().map(Worker::shared).collect();
        let mut running = Self { end: Arc::default(), threads: Vec::new(), shared, program };
        for worker in workers {
            let end = running.end.clone();
            let thread = std::thread::Builder::new()
                .name("inspect".into())
                .spawn(move || worker.run(&end))
                .context(|| "starting an inspector's thread".into());
            match thread {
                Ok(thread) => running.threads.push(thread),
                Err(error) => {
                    running.end_workers();
                    if fresh {
                        running.program.remove();
                    }
                    return Err(error);
                }
            }
        }
        Ok(running)
    }

    /// What became of the frames, over all queues.
    pub fn counts(&self) -> Counts {
        self.shared.iter().fold(Counts::default(), |all, shared| all.plus(&shared.counts()))
    }

    /// What the program handed to each queue's worker, and what it did without one.
    pub fn tallies(&self) -> Vec<Tally> {
        self.program.tallies().into_iter().take(self.shared.len()).collect()
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
