//! What a terminal shows meanwhile. In: what was written so far. Out: a count that stays in its line, and lines that stay.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::summary::Interface;

/// Between two counts.
const SHOWN: Duration = Duration::from_millis(500);

/// What a terminal shows meanwhile.
pub struct Progress {
    terminal: bool,
    last: Instant,
    shown: bool,
}

impl Progress {
    /// Counts are shown where packets are not.
    pub fn new(counts: bool) -> Self {
        Self { terminal: counts && std::io::stderr().is_terminal(), last: Instant::now(), shown: false }
    }

    /// Counts what is written, now and then.
    pub fn show(&mut self, interfaces: &[Interface]) {
        if !self.terminal || self.last.elapsed() < SHOWN {
            return;
        }
        self.last = Instant::now();
        self.shown = true;
        let packets: u64 = interfaces.iter().map(|one| one.packets).sum();
        let bytes: u64 = interfaces.iter().map(|one| one.bytes).sum();
        let mut stderr = anstream::stderr().lock();
        let _ = write!(stderr, "\r\x1b[K{packets} packets, {bytes} bytes");
        let _ = stderr.flush();
    }

    /// A line of its own.
    pub fn say(&mut self, line: &str) {
        let before = if std::mem::take(&mut self.shown) { "\r\x1b[K" } else { "" };
        let _ = writeln!(anstream::stderr().lock(), "{before}{line}");
    }
}
