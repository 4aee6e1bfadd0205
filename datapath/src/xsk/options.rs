//! How a queue is opened, and what came of it.

use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// How a queue is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Buffers of the pool; a power of two.
    pub buffers: u32,
    /// Whether packets are copied between the driver's memory and the pool.
    pub copying: Copying,
    /// A worker that did not go round for so long counts as dead: its packets take the stated action. At least
    /// [`Self::LEAST_PATIENCE`]. A round has up to 64 frames.
    pub patience: Duration,
    /// What becomes of a collector's packets while its worker lives and has no buffer for them.
    pub surplus: Surplus,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            buffers: 4096,
            copying: Copying::Copy,
            patience: Duration::from_millis(40),
            surplus: Surplus::Stack,
        }
    }
}

/// What becomes of a collector's packets while its worker lives and has no buffer for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Surplus {
    /// They go on to the stack.
    #[default]
    Stack,
    /// They are dropped, and counted: where nobody else wants them, the stack's work would take time from the worker.
    Drop,
}

impl Options {
    /// The least patience.
    pub const LEAST_PATIENCE: Duration = Duration::from_millis(10);

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.patience < Self::LEAST_PATIENCE {
            let (had, least) = (self.patience, Self::LEAST_PATIENCE);
            return Err(Error::new(ErrorKind::Invalid, format!("patience of {had:?}: at least {least:?}")));
        }
        Ok(())
    }

    /// How long a worker sleeps at most, to be heard of in time.
    pub(super) fn sleep(&self) -> Duration {
        (self.patience / 4).min(Duration::from_millis(5))
    }
}

/// Whether packets are copied between the driver's memory and the pool.
///
/// Without copies every packet of the queue, the stack's too, comes in one of the pool's buffers: while the worker
/// hangs, the stack gets nothing from that queue either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Copying {
    /// As the driver can.
    Auto,
    /// They are copied.
    #[default]
    Copy,
    /// They are not; a driver that cannot do so is an error.
    Zero,
}

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attached {
    /// In the driver.
    Native,
    /// In the stack: the driver has no XDP. Slower; frames are copied once more.
    Generic,
}

/// What came of opening a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Whether packets are in the pool without a copy.
    pub zero_copy: bool,
    /// Whether a packet may take several buffers.
    pub several_buffers: bool,
    /// Bytes of a packet that one buffer holds.
    pub room: u32,
}
