//! Captured frames. In: numbers of readers. Out: their frames, and what was counted of them.
//!
//! A mirror to a [`Target::Reader`] captures. Its frames are read before it is applied; when it applies to no endpoint any
//! more and [`Datapath::captured`] says that nothing is on its way, reading may stop and the mirror go.

use podwire_core::abi::SessionCounters;

use super::Datapath;
use crate::desired::Target;
use crate::error::Error;
use crate::reader::Frames;
use crate::relay::monotonic_ns;
use crate::status::sum_session;

impl Datapath {
    /// Reads the frames of mirrors to these readers, in one queue.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn read_frames(&mut self, readers: &[u32]) -> Result<Frames, Error> {
        // The reader's thread says so by itself, but not at once.
        self.maps.clock.set(2, monotonic_ns())?;
        Ok(self.reader.open(readers))
    }

    /// Ends what [`read_frames`](Self::read_frames) began.
    pub fn stop_reading(&self, readers: &[u32]) {
        self.reader.close(readers);
    }

    /// What became of the frames of a reader: `matched + taken = handed + sent + lost`, and what is handed and not taken
    /// is on its way. `None` when no mirror has it.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn captured(&self, reader: u32) -> Result<Option<SessionCounters>, Error> {
        let is_it = |target: &Target| matches!(target, Target::Reader { number } if *number == reader);
        let Some((session, _)) = self.sessions.iter().find(|(_, key)| is_it(&key.target)) else {
            return Ok(None);
        };
        let rows = self.maps.session_counters.get(session)?;
        let read = self.maps.relay_counters.get(session)?;
        Ok(Some(rows.iter().chain([&read]).fold(SessionCounters::default(), sum_session)))
    }
}
