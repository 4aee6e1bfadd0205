//! Captures, as far as the datapath's thread has to do with them. In: requests. Out: mirrors to readers in force, and
//! their account at the end.

use std::time::{Duration, Instant};

use podwire_datapath::core::abi::SessionCounters;
use podwire_datapath::{Desired, Error};
use serde_json::Value;

use super::{Trouble, Worker, convert};
use crate::capture::meant;
use crate::daemon::captures::{Begun, MOST, Wanted};

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
            self.forget_capture(begun.id, &begun.readers, &[], None);
            return Err(error);
        }
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
        let Some(readers) = self.captures.begin_end(id) else {
            return false;
        };
        if let Err(trouble) = self.apply_captures() {
            tracing::error!(?trouble, "taking a capture's mirrors down");
        }
        let counters = self.drained(&readers);
        self.forget_capture(id, &readers, &counters, None);
        true
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

    fn forget_capture(&mut self, id: u64, readers: &[u32], counters: &[SessionCounters], why: Option<&str>) {
        self.datapath.stop_reading(readers);
        self.captures.end(id, counters, why);
        if let Err(trouble) = self.apply_captures() {
            tracing::error!(?trouble, "taking a capture's mirrors down");
        }
    }

    /// Ends all of them, because what users want has no room beside them or the agent ends.
    pub(super) fn end_captures(&mut self, why: &str) {
        for id in self.captures.numbers() {
            if let Some(readers) = self.captures.begin_end(id) {
                let counters = readers.iter().map(|reader| self.captured(*reader)).collect::<Vec<_>>();
                self.datapath.stop_reading(&readers);
                self.captures.end(id, &counters, Some(why));
            }
        }
    }

    /// Takes down what captures left, before the agent ends.
    pub(super) fn take_captures_down(&mut self) {
        if !self.captures.is_empty() {
            self.end_captures("the agent ends");
            if let Err(trouble) = self.apply_captures() {
                tracing::error!(?trouble, "taking captures down");
            }
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
