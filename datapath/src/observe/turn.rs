//! Whose turn it is to read the rings of observations. A ring has one reader: two would each move its position, and
//! one that finds its own behind the kernel's never comes to an end.

use std::sync::{Arc, Mutex, PoisonError};

/// Of one datapath.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<u64>);

/// A watch's turn. It is over when the next one begins.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    number: u64,
}

impl Turn {
    /// Begins a turn, once whoever reads at this moment is done.
    pub(super) fn begin(turns: &Arc<Turns>) -> Self {
        let mut now = turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now += 1;
        Self { turns: turns.clone(), number: *now }
    }

    /// Does something with the rings; `None` when the turn is over.
    pub(super) fn take<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let now = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        (*now == self.number).then(work)
    }
}
