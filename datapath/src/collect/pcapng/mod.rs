//! Frames as pcapng. In: batches. Out: files, each whole by itself: a section header, an interface for each session
//! that has frames in it, the frames, and statistics of each interface at the end.
//!
//! A session's interface is named as it (`erspan-ii-7`), its description has both ends, and its comment says when it
//! began. Times have nanoseconds. Where ERSPAN says the direction, the flags of a frame do: in and out are those of
//! the mirrored port.

mod encode;
mod file;
mod rotation;

use std::path::Path;

use hashbrown::HashMap;

pub use file::Compression;
pub use rotation::{Files, Rotation};

use super::account::Account;
use super::background::{Batch, Writer};
use super::session::Session;
use crate::error::{Context, Error};
use encode::Encoder;
use file::Output;

/// Encoded bytes that are written at once, at most.
const CHUNK: usize = 1 << 20;

/// See the module.
pub struct Pcapng {
    files: Files,
    compression: Compression,
    open: Option<Open>,
    /// Those that have not ended.
    sessions: HashMap<u64, (Session, Account)>,
    overflown: u64,
}

/// The file that is written to.
struct Open {
    encoder: Encoder,
    output: Output,
    began: u64,
    /// Frames in the encoder that are not in the file yet.
    pending: u64,
}

impl Pcapng {
    /// Opens the first file at once, so that a wrong path is told before anything is received.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(files: Files, compression: Compression) -> Result<Self, Error> {
        let mut this = Self { files, compression, open: None, sessions: HashMap::new(), overflown: 0 };
        this.begin(0)?;
        this.flush().map_err(|(_, error)| error)?;
        Ok(this)
    }

    fn begin(&mut self, now: u64) -> Result<(), Error> {
        let path = self.files.next();
        let about = || format!("writing {}", path.display());
        let output = Output::create(&path, self.compression).context(about)?;
        let encoder = Encoder::begin().context(about)?;
        self.open = Some(Open { encoder, output, began: now, pending: 0 });
        Ok(())
    }

    /// Puts what is encoded into the file.
    fn flush(&mut self) -> Result<(), (u64, Error)> {
        let path = self.files.current();
        let Some(open) = &mut self.open else { return Ok(()) };
        let written = open.output.write(open.encoder.bytes());
        open.encoder.written(written.is_ok());
        let lost = std::mem::take(&mut open.pending);
        written.map_err(|error| (lost, failure(&path, error)))
    }

    fn end_file(&mut self) -> Result<(), (u64, Error)> {
        if let Some(open) = &mut self.open {
            let mut sessions: Vec<_> = self.sessions.values().collect();
            sessions.sort_unstable_by_key(|(session, _)| session.number);
            for (session, account) in sessions {
                open.encoder.statistics(session.number, account, self.overflown);
            }
        }
        let written = self.flush();
        let path = self.files.current();
        let closed = self.open.take().map_or(Ok(()), |open| open.output.finish());
        written.and_then(|()| closed.map_err(|error| (0, failure(&path, error))))
    }

    fn write_frames(&mut self, batch: &Batch) -> Result<(), (u64, Error)> {
        let mut result = Ok(());
        let mut keep = |one: Result<(), (u64, Error)>| match (one, &mut result) {
            (Ok(()), _) => {}
            (Err(one), Ok(())) => result = Err(one),
            (Err((frames, _)), Err(first)) => first.0 += frames,
        };
        for (record, data) in batch.frames() {
            if self.is_over(record.time, data.len()) {
                keep(self.end_file());
            }
            if self.open.is_none()
                && let Err(error) = self.begin(record.time)
            {
                keep(Err((1, error)));
                continue;
            }
            let (Some(open), Some((session, _))) = (&mut self.open, self.sessions.get(&record.session))
            else {
                continue;
            };
            if open.began == 0 {
                open.began = record.time;
            }
            let interface = open.encoder.interface(session);
            open.encoder.frame(interface, record, data);
            open.pending += 1;
            if open.encoder.bytes().len() >= CHUNK {
                keep(self.flush());
            }
        }
        keep(self.flush());
        result
    }

    fn is_over(&self, now: u64, len: usize) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let bytes = open.output.bytes() + open.encoder.bytes().len() as u64 + len as u64;
            !open.encoder.is_empty() && self.files.is_over(bytes, now.saturating_sub(open.began))
        })
    }
}

impl Writer for Pcapng {
    fn write(&mut self, batch: &Batch) -> Result<(), (u64, Error)> {
        self.overflown += batch.overflown;
        for session in &batch.sessions {
            self.sessions.insert(session.number, (session.clone(), Account::default()));
        }
        let result = self.write_frames(batch);
        for (number, account) in &batch.accounts {
            if let Some((_, last)) = self.sessions.get_mut(number) {
                *last = *account;
            }
        }
        for number in &batch.ended {
            if let (Some((_, account)), Some(open)) = (self.sessions.remove(number), &mut self.open) {
                open.encoder.statistics(*number, &account, self.overflown);
            }
        }
        result
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.end_file().map_err(|(_, error)| error)
    }
}

fn failure(path: &Path, error: std::io::Error) -> Error {
    Err::<(), _>(error)
        .context(|| format!("writing {}", path.display()))
        .err()
        .unwrap_or_else(|| unreachable!("an error stays one"))
}

#[cfg(test)]
mod tests;
