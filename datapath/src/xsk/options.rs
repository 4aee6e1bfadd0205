//! How a queue is opened, and what came of it.

use std::time::Duration;

/// How a queue is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Buffers of the pool; a power of two.
    pub buffers: u32,
    /// Whether packets are copied between the driver's memory and the pool.
    pub copying: Copying,
    /// A worker that did not go round for so long counts as dead: its packets take the stated action. At least
    /// 5 ms.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { buffers: 4096, copying: Copying::Auto, patience: Duration::from_millis(40) }
    }
}

/// Whether packets are copied between the driver's memory and the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Copying {
    /// As the driver can.
    #[default]
    Auto,
    /// They are copied.
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
