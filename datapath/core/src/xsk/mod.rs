//! What the XDP program and the AF_XDP workers of user space share: rows, the credit between them, and which
//! packets are a collector's.
//!
//! | map | kind | index or key | value |
//! |---|---|---|---|
//! | `XSK_CONFIG` | array | 0 | [`ConfigRow`] |
//! | `XSK_QUEUES` | array, mapped into the worker's memory | receive queue | [`QueueRow`] |
//! | `XSK_SOCKETS` | XSK map | receive queue | the worker's socket |
//! | `XSK_IDS` | hash | [`IdKey`] | 1 |
//! | `XSK_FRAGMENTS` | LRU hash | [`FragmentKey`] | when its first came, `u64` ns |
//! | `XSK_BYPASS` | device map | 0 | where packets go that no worker takes |
//!
//! ```text
//!             ┌ not a collector's ──────────────────────────► the stack
//!  packet ► which? ► credit? ┬ yes ► socket of its queue ► worker
//!                            └ no: worker dead, or behind ► the stated action
//! ```

pub mod credit;
mod rows;
mod tunnel;

pub use credit::{Admission, Shared, admit};
pub use rows::{Action, ConfigRow, FragmentKey, IdKey, IdKind, QueueRow, Role};
pub use tunnel::{Found, Fragment, Window, find};

/// The layout of the rows. Maps of another one are not adopted: raise it with every change.
pub const LAYOUT: u32 = 2;
/// Queues of one interface that can have a worker.
pub const QUEUES: u32 = 64;
/// Identifiers of sessions that a collector can ask for.
pub const IDS: u32 = 4096;
/// For how many nanoseconds later fragments follow their first.
pub const FRAGMENT_TIME: u64 = 1_000_000_000;
/// Fragmented tunnel packets on their way at once.
pub const FRAGMENTS: u32 = 4096;
