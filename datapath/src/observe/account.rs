//! What became of observations. In: the datapath's counters and the reader's. Out: an [`Account`] since the stream
//! was opened.

use podwire_core::abi::{Class, ObservationCounters};

use super::reader::Tally;
use crate::error::Error;
use crate::maps::CpuTable;
use crate::pins::Pins;

/// Observations of one class since its stream was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// All that the stages had to tell.
    pub generated: u64,
    /// Left out by the datapath: more drops in a tenth of a second than were asked for.
    pub rate_limited: u64,
    /// Lost because the ring was full.
    pub ring_full: u64,
    /// Lost because the queue was full.
    pub queue_full: u64,
    /// Lost because the record cannot be read.
    pub unreadable: u64,
    /// Waiting in the queue.
    pub waiting: u64,
    /// Taken by [`super::Stream::next`].
    pub delivered: u64,
}

impl Account {
    /// All that is not delivered and never will be.
    pub const fn lost(&self) -> u64 {
        self.rate_limited + self.ring_full + self.queue_full + self.unreadable
    }

    /// Whether everything that was generated is accounted for. Not while records wait in the ring.
    pub const fn is_balanced(&self) -> bool {
        self.generated == self.lost() + self.waiting + self.delivered
    }
}

/// The counters, and what they said at the beginning.
pub(super) struct Source {
    table: CpuTable<ObservationCounters>,
    class: Class,
    begin: Vec<ObservationCounters>,
}

impl Source {
    pub(super) fn open(pins: &Pins, class: Class) -> Result<Self, Error> {
        let table = CpuTable::reopen(pins, "OBSERVATION_COUNTERS")?;
        let begin = table.get(class as u32)?;
        Ok(Self { table, class, begin })
    }

    /// How many there had been at the beginning, by CPU.
    pub(super) fn begun_at(&self) -> Vec<u64> {
        self.begin.iter().map(|row| row.generated).collect()
    }

    pub(super) fn read(&self, tally: &Tally) -> Result<Account, Error> {
        // The reader's figures first: what comes meanwhile is then missing from them, not from the total.
        let mut account = tally.account();
        for (now, begin) in self.table.get(self.class as u32)?.iter().zip(&self.begin) {
            account.generated += now.generated.wrapping_sub(begin.generated);
            account.rate_limited += now.suppressed.wrapping_sub(begin.suppressed);
            account.ring_full += now.lost.wrapping_sub(begin.lost);
        }
        Ok(account)
    }
}
