//! Captures, as far as the datapath's thread has to do with them. In: requests. Out: mirrors to readers in force, and
//! their account at the end.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use podwire_datapath::core::abi::SessionCounters;
use podwire_datapath::{Datapath, Desired, Error};
use serde_json::Value;

use super::{Message, Trouble, Worker, convert};
use crate::capture::meant;
use crate::daemon::captures::{Begun, Cause, MOST, Wanted};

/// Between two looks at captures that end.
pub(super) const LOOK: Duration = Duration::from_millis(1);

impl Worker {
    pub(super) fn begin_capture(
        &mut self,
        wanted: Wanted,
        worker: mpsc::Sender<Message>,
    ) -> Result<Begun, Trouble> {
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
        let begun = self.captures.add(&self.here.node, wanted, readers, frames, worker);
        if let Err(error) = self.apply_captures() {
            self.datapath.stop_reading(&begun.readers);
            self.captures.forget(begun.id);
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

    /// Ends a capture: nothing more is captured; when what was captured is read, it is gone. `false` for one that is gone
    /// already.
    pub(super) fn end_capture(&mut self, id: u64) -> bool {
        let known = self.captures.numbers().contains(&id);
        if known && self.captures.begin_end(&[id], None, Instant::now()) {
            self.apply_or_tell();
            self.look_at_captures();
        }
        known
    }

    /// Ends those whose time is over, and forgets those that end and are read. Waits for nothing.
    pub(super) fn look_at_captures(&mut self) {
        let now = Instant::now();
        let over = self.captures.over(now);
        if self.captures.begin_end(&over, None, now) {
            self.apply_or_tell();
        }
        if self.captures.are_ending() && self.end_read() {
            self.apply_or_tell();
        }
    }

    /// Ends all of them. Their mirrors go with what is applied next.
    pub(super) fn end_captures(&mut self, cause: Cause) {
        let all = self.captures.numbers();
        self.captures.begin_end(&all, Some(cause), Instant::now());
        self.apply_or_tell();
        loop {
            self.end_read();
            if self.captures.is_empty() {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Forgets those that end and are read; says whether there were any.
    fn end_read(&mut self) -> bool {
        let datapath = &self.datapath;
        let ended = self.captures.end_read(Instant::now(), |reader| captured(datapath, reader));
        for (id, readers) in &ended {
            self.datapath.stop_reading(readers);
            tracing::info!(capture = id, "a capture has ended");
        }
        !ended.is_empty()
    }

    /// Takes down what captures left, before the agent ends.
    pub(super) fn take_captures_down(&mut self) {
        if !self.captures.is_empty() {
            self.end_captures(Cause::AgentEnds);
            self.apply_or_tell();
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
        self.captures.view(&self.applied, |reader| captured(&self.datapath, reader))
    }
}

fn captured(datapath: &Datapath, reader: u32) -> SessionCounters {
    match datapath.captured(reader) {
        Ok(counters) => counters.unwrap_or_default(),
        Err(error) => {
            tracing::error!(%error, "counting captured frames");
            SessionCounters::default()
        }
    }
}

fn failed(error: Error) -> Trouble {
    use podwire_datapath::ErrorKind::{Invalid, TableFull};
    match error.kind() {
        Invalid | TableFull => Trouble::Refused(vec![error.to_string()]),
        _ => Trouble::Failed(error.to_string()),
    }
}
