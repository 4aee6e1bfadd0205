//! All queues of a collector's interface. In: an interface and what is wanted. Out: a receiver for each queue, and
//! the program that feeds them.

use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use podwire_core::xsk::QUEUES;

use super::options::{Attached, Options};
use super::program::{Program, Work};
use super::receiver::{Receiver, Tally};
use crate::collect::Wanted;
use crate::error::{Context, Error};
use crate::sys;

/// Bytes that a frame is longer than the interface's MTU: an Ethernet header and two VLAN tags.
const LINK_HEADER: u32 = 14 + 2 * 4;

/// A collector's interface. Dropped, everything is as before.
pub struct Front {
    /// One for each queue. Dropped before the program is.
    pub receivers: Vec<Receiver>,
    program: Program,
    attached: Attached,
}

impl Front {
    /// Takes tunnel packets of an interface past the stack.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unsupported`] when the interface takes no XDP program or frames as long as its MTU do not fit,
    /// [`crate::ErrorKind::Busy`] when it has a program of others or one of its queues has a socket,
    /// [`crate::ErrorKind::PermissionDenied`] without CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, or enough locked memory.
    pub fn collect(interface: &str, wanted: &Wanted, options: &Options) -> Result<Self, Error> {
        options.check()?;
        lock_enough();
        let frame = longest_frame(interface)?;
        let mut program = Program::load(interface, None)?;
        program.configure(&Work::Collect(wanted.clone(), options.surplus), frame, options.patience)?;
        let mut receivers = (0..queues(interface))
            .map(|queue| Receiver::open(&program, interface, queue, frame, options))
            .collect::<Result<Vec<_>, Error>>()?;
        receivers.iter_mut().try_for_each(|receiver| receiver.begin(&mut program))?;
        let attached = program.attach()?;
        Ok(Self { receivers, program, attached })
    }

    /// How the program is attached.
    pub fn attached(&self) -> Attached {
        self.attached
    }

    /// What the program and the workers counted of every queue, those without a worker too.
    pub fn tallies(&self) -> Vec<Tally> {
        self.program.tallies()
    }

    /// The receivers, and the program without which none of them gets anything.
    pub(super) fn split(self) -> (Vec<Receiver>, Program) {
        (self.receivers, self.program)
    }
}

/// More memory may be locked than usual. Where the limit cannot be raised it may still be enough.
pub(super) fn lock_enough() {
    if let Err(error) = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY) {
        tracing::debug!(%error, "RLIMIT_MEMLOCK stays as it is");
    }
}

/// The longest frame of an interface, in bytes.
pub(super) fn longest_frame(interface: &str) -> Result<u32, Error> {
    let mtu = sys::mtu(interface).context(|| format!("interface {interface}"))?;
    Ok(mtu + LINK_HEADER)
}

/// How many receive queues of an interface can have a worker. Packets of others take the stated action.
pub(super) fn queues(interface: &str) -> u32 {
    sys::queues(interface).map_or(1, |(receive, _)| receive).clamp(1, QUEUES)
}
