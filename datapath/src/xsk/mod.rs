//! AF_XDP. In: frames of an interface's queues, past the kernel's stack. Out: frames in the caller's hands, by
//! batches, and frames sent.
//!
//! ```text
//!            ┌───────── free ◄───── completion ◄────┐
//!            ▼            ▲                         │
//!          fill ─► rx ─► the caller's hands ─► tx ──┘
//!                             │       ▲
//!                             └───────┘ other threads, as `bytes`
//! ```
//!
//! A buffer is in one place at a time: [`Frame`] is its handle while it is in the caller's hands, cannot be
//! copied, and is taken by whatever puts it elsewhere. The [`Ledger`] counts the places and refuses what does not
//! fit. xsk-rs has the rings.
//!
//! The XDP program hands a packet to a worker only while that one is alive and has a buffer for it
//! (`podwire_core::xsk::credit`). Otherwise the packet takes the stated action, at once; it is never lost in
//! between.

mod batch;
mod front;
#[allow(unsafe_code, reason = "memory that the kernel writes to as well")]
mod heart;
pub mod inspect;
mod ledger;
#[allow(unsafe_code, reason = "xsk-rs lets two handles see one buffer")]
mod memory;
mod options;
mod packet;
mod pool;
#[allow(unsafe_code, reason = "xsk-rs trusts descriptors")]
mod port;
mod program;
mod receiver;
mod source;
mod workers;

pub use batch::{Batch, Received};
pub use front::Front;
pub use ledger::{Ledger, Place};
pub use memory::Frame;
pub use options::{Attached, Binding, Copying, Options, Surplus};
pub use packet::Packet;
pub use pool::Pool;
pub use port::{Port, QueueLosses};
pub use program::Program;
pub use receiver::{Receiver, Tally};
pub use source::XskSource;
pub use workers::Workers;
