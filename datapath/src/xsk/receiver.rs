//! A worker's receiving side. In: the packets that the program hands to its queue. Out: batches of them.
//!
//! Going round keeps the worker alive in the program's eyes: [`Receiver::receive`] has to be called again within
//! [`super::Options::patience`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::batch::Batch;
use super::heart::Heart;
use super::ledger::{Ledger, Place};
use super::memory::Frame;
use super::options::{Binding, Options};
use super::pool::Pool;
use super::port::{BATCH, Port, QueueLosses};
use super::program::Program;
use crate::error::{Context, Error, ErrorKind};
use crate::relay::monotonic_ns;
use crate::sys::wait_for_packets;

/// How long it works at most without a sign of life, in ns. The program reads the row for each packet: a row that is
/// written in each round would have to travel between processors as often.
const BEAT: u64 = 500_000;
/// Frames per millisecond from which on the next ones come sooner than a sleep begins and ends.
const BRISK: u64 = 3_000;
/// How long it then looks out for them before it sleeps, in ns. Waking a sleeper costs the processor that receives a
/// microsecond and more: with a portion of 64 packets, some 20 ns a packet.
const LOOKOUT: u64 = 20_000;
/// How often the kernel is asked for what it lost, in ns.
const LOOK: u64 = 20_000_000;

/// What became of one queue's packets, since its row was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets that the program handed to a worker.
    pub handed: u64,
    /// Packets that workers were done with.
    pub taken: u64,
    /// Packets that earlier workers had in hand when they ended.
    pub lost_with_worker: u64,
    /// Packets that took the stated action: the worker was dead.
    pub dead: u64,
    /// The same: the worker had no buffer.
    pub behind: u64,
    /// The same: the queue had no socket.
    pub unbound: u64,
    /// The same: the packet is longer than any that the worker takes.
    pub long: u64,
    /// Later fragments whose first one did not come by: they are the stack's.
    pub orphans: u64,
    /// Of dead, behind, unbound and long: those that were dropped.
    pub dropped: u64,
    /// Buffers' worth of packets that were handed over and never came, beyond what the kernel counts.
    pub vanished: u64,
    /// What the kernel lost between the program and the present worker; some 20 ms old.
    pub kernel: QueueLosses,
}

impl Tally {
    /// What program and workers counted.
    pub(super) fn of(heart: &Heart) -> Self {
        let row = heart.read();
        Self {
            handed: row.handed(),
            taken: row.taken_packets,
            lost_with_worker: row.lost_packets,
            dead: row.dead_packets,
            behind: row.behind_packets,
            unbound: row.unbound_packets,
            long: row.long_packets,
            orphans: row.orphan_packets,
            dropped: row.dropped_packets,
            vanished: row.vanished_buffers,
            kernel: QueueLosses {
                dropped: row.kernel_dropped,
                ring_full: row.kernel_full,
                fill_empty: row.kernel_empty,
                invalid: row.kernel_invalid,
            },
        }
    }
}

/// How fast frames came of late.
#[derive(Debug, Default)]
struct Pace {
    since: u64,
    frames: u64,
    brisk: bool,
}

impl Pace {
    /// Until when to look out before sleeping.
    fn lookout(&self, now: u64) -> u64 {
        if self.brisk { now + LOOKOUT } else { now }
    }

    fn count(&mut self, now: u64, frames: u64) {
        const MILLISECOND: u64 = 1_000_000;
        self.frames += frames;
        let time = now - self.since;
        if time >= MILLISECOND {
            self.brisk = self.frames >= BRISK * (time / MILLISECOND);
            (self.since, self.frames) = (now, 0);
        }
    }
}

/// One queue's packets.
pub struct Receiver {
    pub(super) pool: Pool,
    pub(super) port: Port,
    heart: Heart,
    queue: u32,
    interface: String,
    pub(super) frames: Vec<Frame>,
    /// Buffers are given to the kernel when there are so many.
    portion: usize,
    /// How long it sleeps at most.
    sleep: Duration,
    /// The kernel's drops that were made up for.
    repaid: u64,
    /// Times by the monotonic clock, in ns: of the last sign of life, and when the kernel was last asked.
    beaten: u64,
    looked: u64,
    pace: Pace,
    /// Since when nothing came, and `used` when that had lasted.
    quiet: Option<(u64, Option<u64>)>,
    ending: bool,
    /// The kernel said that the interface is gone; it says so once.
    gone: bool,
}

impl Receiver {
    /// Opens a queue; [`Self::begin`] makes its socket the program's. `frame` is the longest frame that can come.
    pub(super) fn open(
        program: &Program,
        interface: &str,
        queue: u32,
        frame: u32,
        options: &Options,
    ) -> Result<Self, Error> {
        let pool = Pool::take(options.buffers, buffer_size(frame))?;
        let port = Port::succeed(&pool, interface, queue, options.copying, frame)?;
        let heart = program.heart(queue)?;
        Ok(Self {
            pool,
            port,
            heart,
            queue,
            interface: interface.to_owned(),
            frames: Vec::with_capacity(2 * BATCH),
            portion: BATCH.min(options.buffers as usize / 4).max(1),
            sleep: options.sleep(),
            repaid: 0,
            beaten: 0,
            looked: monotonic_ns(),
            pace: Pace::default(),
            quiet: None,
            ending: false,
            gone: false,
        })
    }

    /// Takes over from whoever had the queue before. From now on packets come.
    pub(super) fn begin(&mut self, program: &mut Program) -> Result<(), Error> {
        self.heart.begin(!self.port.binding().several_buffers);
        self.go_round();
        program.enter(self.queue, &self.port)
    }

    /// To wait for packets of several queues together.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }

    /// What came of opening the queue.
    pub fn binding(&self) -> Binding {
        self.port.binding()
    }

    /// Where the buffers are.
    pub fn ledger(&self) -> &Ledger {
        self.pool.ledger()
    }

    /// Waits for packets, for `wait` at most, and takes those that are there.
    ///
    /// # Errors
    /// When the interface is gone.
    pub fn receive(&mut self, wait: Duration) -> Result<Batch<'_>, Error> {
        self.fetch(wait)?;
        Ok(Batch::new(self))
    }

    /// The same, as whole packets' frames. [`Self::finish`] says when they are done with.
    pub(super) fn receive_frames(&mut self, wait: Duration) -> Result<Vec<Frame>, Error> {
        self.fetch(wait)?;
        Ok(std::mem::take(&mut self.frames))
    }

    /// So many packets are done with.
    pub(super) fn finish(&self, packets: u64) {
        self.heart.add_taken(packets);
    }

    /// Whether packets are in the kernel's hands or the worker's.
    pub(super) fn is_idle(&self) -> bool {
        let row = self.heart.read();
        row.handed() == row.taken_packets
    }

    fn fetch(&mut self, wait: Duration) -> Result<(), Error> {
        let mut now = self.go_round();
        let until = now.saturating_add(wait.as_nanos() as u64);
        let mut lookout = self.pace.lookout(now);
        let received = loop {
            let received = self.port.receive(&mut self.pool, &mut self.frames);
            if received > 0 {
                break received;
            }
            if now < lookout.min(until) {
                std::hint::spin_loop();
                now = monotonic_ns();
                continue;
            }
            if self.gone {
                let what = format!("interface {} is gone", self.interface);
                return Err(Error::new(ErrorKind::Kernel, what));
            }
            self.settle(now);
            if now >= until {
                return Ok(());
            }
            let sleep = Duration::from_nanos(until - now).min(self.sleep).as_millis().max(1) as i32;
            self.port.wait(sleep).context(|| "waiting for packets".into())?;
            now = self.go_round();
            self.pace.count(now, 0);
            lookout = self.pace.lookout(now);
        };
        self.pace.count(now, received as u64);
        self.quiet = None;
        Ok(())
    }

    /// The worker will not come again: from now on packets take the stated action.
    pub(super) fn quit(&mut self) {
        self.ending = true;
        self.heart.stop();
        // A packet that still saw it alive is on its way.
        wait_for_packets();
    }

    /// A sign of life, and buffers for the kernel. Returns the time.
    fn go_round(&mut self) -> u64 {
        let now = monotonic_ns();
        if now - self.beaten >= BEAT && !self.ending {
            self.beaten = now;
            self.heart.beat(now);
        }
        self.pool.reclaim();
        self.refill();
        if now - self.looked >= LOOK {
            self.looked = now;
            self.gone |= self.port.is_gone();
            self.repay();
        }
        now
    }

    fn refill(&mut self) {
        let kernel = self.pool.ledger().count(Place::Fill) as usize;
        if self.pool.free_frames().len() < self.portion && kernel >= self.portion {
            return;
        }
        let given = self.port.fill(&mut self.pool, usize::MAX);
        if given > 0 {
            self.heart.add_credit(given as u64);
        }
    }

    /// Packets that the kernel dropped behind the program took no buffer, but credit.
    fn repay(&mut self) {
        let Ok(losses) = self.port.losses() else { return };
        self.heart.tell(&losses);
        let lost = losses.dropped + losses.ring_full;
        if lost > self.repaid {
            self.heart.add_credit(lost - self.repaid);
            self.repaid = lost;
        }
    }

    /// When nothing has come for a while, nothing is on its way either, and the credit is what the kernel has to fill.
    fn settle(&mut self, now: u64) {
        let Some((since, before)) = self.quiet else {
            self.quiet = Some((now, None));
            return;
        };
        if now - since < LOOK {
            return;
        }
        let used = self.heart.used();
        if before == Some(used) {
            // What the kernel dropped until now is in this, and not paid again.
            self.repay();
            let exact = used + self.pool.ledger().count(Place::Fill);
            self.heart.add_vanished(exact.saturating_sub(self.heart.credit()));
            self.heart.set_credit(exact);
        }
        self.quiet = Some((now, Some(used)));
    }

    /// What became of the queue's packets.
    pub fn tally(&self) -> Tally {
        let kernel = self.port.losses().unwrap_or_default();
        Tally { kernel, ..Tally::of(&self.heart) }
    }

    /// Takes frames back.
    pub(super) fn free_all(&mut self, frames: impl IntoIterator<Item = Frame>) {
        for frame in frames {
            self.pool.free(frame);
        }
    }

    pub(super) fn put_back(&mut self, mut emptied: Vec<Frame>) {
        emptied.clear();
        self.frames = emptied;
    }

    pub(super) fn count_taken(&self, frames: &[Frame]) {
        let packets = match self.port.binding().several_buffers {
            false => frames.len(),
            true => frames.iter().filter(|frame| !frame.has_more()).count(),
        };
        if packets > 0 {
            self.heart.add_taken(packets as u64);
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.heart.stop();
        self.repay();
    }
}

/// Buffers of this size hold a frame of so many bytes in one piece, where one can.
pub(super) const fn buffer_size(frame: u32) -> u32 {
    if frame <= 2048 - super::memory::HEADROOM { 2048 } else { 4096 }
}

/// The interface went away.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::ENETDOWN))
}
