//! A collector's frames by AF_XDP. In: an interface. Out: outer frames of the wanted tunnels, past the kernel's stack.
//!
//! Packets that meet no buffer go on to the stack, which drops them unseen, for nobody there wants them: they are
//! counted as lost.

use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::front::Front;
use super::options::{Attached, Options};
use super::receiver::Tally;
use crate::collect::{Losses, Quiet, Source, Wanted};
use crate::error::{Context, Error};
use crate::relay::{clock_offset, monotonic_ns};

/// Packets taken from one queue before the next one's turn.
const TURN: usize = 256;

/// A collector's frames by AF_XDP, of all queues of an interface.
pub struct XskSource {
    interface: String,
    front: Front,
    /// How long a round waits at most: the workers have to be seen alive.
    sleep: Duration,
    _quiet: Quiet,
}

impl XskSource {
    /// Takes the wanted packets of an interface.
    ///
    /// # Errors
    /// As of [`Front::collect`].
    pub fn open(interface: &str, wanted: &Wanted, options: &Options) -> Result<Self, Error> {
        let front = Front::collect(interface, wanted, options)?;
        Ok(Self {
            interface: interface.to_owned(),
            front,
            sleep: options.sleep(),
            _quiet: Quiet::listen(wanted),
        })
    }

    /// What became of the packets of each queue, those without a worker too.
    pub fn tallies(&self) -> Vec<Tally> {
        self.front.tallies()
    }

    /// Waits at each queue that has nothing.
    fn take(
        &mut self,
        wait: Duration,
        each: &mut dyn FnMut(&crate::collect::Received<'_>),
    ) -> Result<usize, Error> {
        let mut count = 0;
        for receiver in &mut self.front.receivers {
            let (before, mut wait) = (count, wait);
            loop {
                let mut batch = receiver.receive(wait)?;
                if batch.is_empty() {
                    break;
                }
                wait = Duration::ZERO;
                // One reading of the clock for a batch, after the last of it came.
                let time = monotonic_ns().wrapping_add(clock_offset());
                while let Some(packet) = batch.next() {
                    each(&crate::collect::Received { data: &packet.bytes(), time });
                    count += 1;
                }
                if count - before >= TURN {
                    break;
                }
            }
        }
        Ok(count)
    }
}

impl Source for XskSource {
    fn receive(
        &mut self,
        wait: Duration,
        each: &mut dyn FnMut(&crate::collect::Received<'_>),
    ) -> Result<usize, Error> {
        if self.front.receivers.len() == 1 {
            // It knows when it is worth looking out for more.
            return self.take(wait.min(self.sleep), each);
        }
        let count = self.take(Duration::ZERO, each)?;
        if count > 0 || wait.is_zero() {
            return Ok(count);
        }
        let mut fds: Vec<PollFd<'_>> = self
            .front
            .receivers
            .iter()
            .map(|receiver| PollFd::new(receiver.fd(), PollFlags::POLLIN))
            .collect();
        let timeout = PollTimeout::try_from(wait.min(self.sleep)).unwrap_or(PollTimeout::ZERO);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error).context(|| format!("waiting for {}", self.interface)),
        }
        self.take(Duration::ZERO, each)
    }

    fn losses(&mut self) -> Losses {
        let mut all = Tally::default();
        for tally in self.tallies() {
            all.dead += tally.dead;
            all.behind += tally.behind;
            all.unbound += tally.unbound;
            all.long += tally.long;
            all.vanished += tally.vanished;
            all.kernel.dropped += tally.kernel.dropped + tally.kernel.ring_full;
        }
        Losses(vec![
            ("collector too slow", all.behind),
            ("collector stopped", all.dead + all.unbound),
            ("frame too long", all.long),
            ("vanished", all.vanished),
            ("dropped by the kernel", all.kernel.dropped),
        ])
    }

    fn describe(&self) -> String {
        let how = match self.front.attached() {
            Attached::Native => "native",
            Attached::Generic => "generic",
        };
        let binding = self.front.receivers.first().map(super::Receiver::binding);
        let copy = if binding.is_some_and(|binding| binding.zero_copy) { "zero-copy" } else { "copy" };
        let queues = self.front.receivers.len();
        format!(
            "AF_XDP on {} ({how}, {copy}, {queues} queue{})",
            self.interface,
            if queues == 1 { "" } else { "s" }
        )
    }
}
