//! Captures, as far as the datapath's thread has to do with them. In: requests. Out: mirrors to readers in force, and
//! their account at the end.

use std::time::{Duration, Instant};

use podwire_datapath::core::abi::SessionCounters;
use podwire_datapath::{Desired, Error};
use serde_json::Value;

use super::{Trouble, Worker, convert};
use crate::capture::meant;
use crate::daemon::captures::{Begun, Cause, MOST, Wanted};

/// How long frames that are in the ring are waited for: the reader takes milliseconds.
const DRAIN: Duration = Duration::from_secs(1);

impl Worker {
    pub(super) fn begin_capture(&mut self, wanted: Wanted) -> Result<Begun, Trouble> {
        // Until this run has put its objects in force, what an earlier one left stays as it is.
        if self.applied.generation == 0 {
            let line = "the agent has not put its objects in force yet; podwire get status says why";
            return Err(Trouble::Refused(vec![line.into()]));
        }
        if !self.captures.has_room() {
            let line = format!("{MOST} captures run on this node already; podwire get captures lists them");
            return Err(Trouble::Refused(vec![line]));
        }
        if !wanted.request.wait {
            self.pods_are_known(&wanted)?;
        }
        let readers = self.captures.take_readers(wanted.request.pods.len());
        let frames = self.datapath.read_frames(&readers).map_err(failed)?;
        let begun = self.captures.add(&self.here.node, wanted, readers, frames);
        if let Err(error) = self.apply_captures() {
            self.datapath.stop_reading(&begun.readers);
            self.captures.end(begun.id, &[], None);
            self.apply_or_tell();
            return Err(error);
        }
        tracing::info!(capture = begun.id, "a capture begins");
        Ok(begun)
    }

    fn pods_are_known(&self, wanted: &Wanted) -> Result<(), Trouble> {
        let desired = self.desired();
        let known: Vec<&str> = desired.endpoints.iter().map(|endpoint| endpoint.name.as_str()).collect();
        let unknown = wanted.request.pods.iter().find(|pod| !known.contains(&pod.name.as_str()));
        match unknown {
            None => Ok(()),
            Some(pod) => {
                let (node, meant) = (&self.here.node, meant(&pod.name, &known));
                Err(Trouble::NotFound(format!("pod {}: not known at {node}{meant}", pod.name)))
            }
        }
    }

    /// Ends a capture: nothing more is captured, what was captured is read, and then it is gone. `false` for one that has
    /// ended before.
    pub(super) fn end_capture(&mut self, id: u64) -> bool {
        let known = self.captures.numbers().contains(&id);
        if known {
            self.end_some(&[id], None);
            self.apply_or_tell();
        }
        known
    }

    /// Ends all of them. Their mirrors go with what is applied next.
    pub(super) fn end_captures(&mut self, cause: Cause) {
        let all = self.captures.numbers();
        self.end_some(&all, Some(cause));
    }

    fn end_some(&mut self, ids: &[u64], cause: Option<Cause>) {
        let ending: Vec<(u64, Vec<u32>)> =
            ids.iter().filter_map(|id| Some((*id, self.captures.begin_end(*id)?))).collect();
        self.apply_or_tell();
        for (id, readers) in ending {
            let counters = self.drained(&readers);
            self.datapath.stop_reading(&readers);
            self.captures.end(id, &counters, cause);
            tracing::info!(capture = id, ?cause, "a capture has ended");
        }
    }

    /// Takes down what captures left, before the agent ends.
    pub(super) fn take_captures_down(&mut self) {
        if !self.captures.is_empty() {
            self.end_captures(Cause::AgentEnds);
            self.apply_or_tell();
        }
    }

    /// The counters of its readers, when all that was captured is read.
    fn drained(&self, readers: &[u32]) -> Vec<SessionCounters> {
        let deadline = Instant::now() + DRAIN;
        loop {
            let counters: Vec<_> = readers.iter().map(|reader| self.captured(*reader)).collect();
            let read = counters.iter().all(|row| row.handed_packets <= row.taken_packets);
            if read || Instant::now() > deadline {
                return counters;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn captured(&self, reader: u32) -> SessionCounters {
        match self.datapath.captured(reader) {
            Ok(counters) => counters.unwrap_or_default(),
            Err(error) => {
                tracing::error!(%error, "counting captured frames");
                SessionCounters::default()
            }
        }
    }

    fn apply_or_tell(&mut self) {
        if let Err(trouble) = self.apply_captures() {
            tracing::error!(?trouble, "captures are not as they should be");
        }
    }

    /// What users want, with the captures of now.
    fn apply_captures(&mut self) -> Result<(), Trouble> {
        let mut desired = self.desired();
        self.captures.add_to(&mut desired);
        let applied = self.datapath.apply(&desired).map_err(failed)?;
        self.take(applied);
        Ok(())
    }

    /// What users want.
    fn desired(&self) -> Desired {
        convert(&self.objects.set, &self.here).desired
    }

    pub(super) fn view_captures(&self) -> Value {
        self.captures.view(&self.applied, |reader| self.captured(reader))
    }
}

fn failed(error: Error) -> Trouble {
    use podwire_datapath::ErrorKind::{Invalid, TableFull};
    match error.kind() {
        Invalid | TableFull => Trouble::Refused(vec![error.to_string()]),
        _ => Trouble::Failed(error.to_string()),
    }
}
