//! `podwire capture` as a user runs it, and what is in its files.

mod file;
mod scene;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_harness::binary;

pub use file::{Frame, Interface, PcapNg, plain, same, tcpdumps};
pub use scene::{Scene, datagrams, nothing_is_left, transfer};

/// A command that captures.
#[derive(Debug)]
pub struct Capturing {
    child: Child,
    said: Receiver<String>,
    lines: Vec<String>,
    /// Its file.
    pub file: PathBuf,
}

/// How it ended.
#[derive(Debug)]
pub struct Captured {
    /// Its exit code; of one that was killed the signal's number below zero.
    pub code: i32,
    /// What it said.
    pub said: String,
    /// What is in its file.
    pub file: PcapNg,
}

impl Capturing {
    /// Starts it against agents by their sockets, writing to `file`, and returns when it says that it captures.
    ///
    /// # Errors
    /// When it ends before.
    pub fn start(sockets: &[&Path], file: &Path, words: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary());
        for socket in sockets {
            command.arg("--socket").arg(socket);
        }
        command.arg("capture").args(words).arg("-w").arg(file);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take().context("no standard error")?;
        let (sender, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut capturing = Self { child, said, lines: Vec::new(), file: file.to_owned() };
        capturing.wait_for("capturing at")?;
        Ok(capturing)
    }

    /// Waits for a line.
    ///
    /// # Errors
    /// When it does not come within ten seconds.
    pub fn wait_for(&mut self, words: &str) -> Result<()> {
        loop {
            let Ok(line) = self.said.recv_timeout(Duration::from_secs(10)) else {
                bail!("it does not say {words:?}: {:?}", self.lines);
            };
            self.lines.push(line.clone());
            if line.contains(words) {
                return Ok(());
            }
        }
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.child.id().try_into()?), signal)?)
    }

    /// Ctrl-C, a moment after the last packet.
    ///
    /// # Errors
    /// When it does not end, or its file is not whole.
    pub fn interrupt(self) -> Result<Captured> {
        std::thread::sleep(Duration::from_millis(200));
        self.signal(Signal::SIGINT)?;
        self.finish()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end within half a minute, or its file is not whole.
    pub fn finish(mut self) -> Result<Captured> {
        let mut status = None;
        for _ in 0..3000 {
            status = self.child.try_wait()?;
            if status.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let Some(status) = status else {
            self.child.kill()?;
            self.child.wait()?;
            bail!("it does not end: {:?}", self.lines);
        };
        self.lines.extend(self.said.iter());
        let code = status.code().or(status.signal().map(|signal| -signal)).context("no code")?;
        let file = PcapNg::read(&self.file)?;
        Ok(Captured { code, said: self.lines.join("\n"), file })
    }
}

impl Captured {
    /// Nothing was lost, and the file says what was counted.
    ///
    /// # Errors
    /// With what was lost.
    pub fn is_whole(&self) -> Result<()> {
        ensure!(self.said.contains("; lost 0"), "{}", self.said);
        self.books()?;
        let lost =
            self.file.interfaces.iter().filter_map(|interface| Some(interface.counts?[1])).sum::<u64>();
        ensure!(lost == 0, "{:?}", self.file.interfaces);
        Ok(())
    }

    /// What is said to be written is, at each interface.
    ///
    /// # Errors
    /// With what is not.
    pub fn books(&self) -> Result<()> {
        for (number, interface) in self.file.interfaces.iter().enumerate() {
            let written =
                self.file.frames.iter().filter(|frame| frame.interface == number as u32).count() as u64;
            let [received, dropped, delivered] = interface.counts.context("no statistics")?;
            ensure!(delivered == written && received >= written + dropped, "{interface:?} {written}");
        }
        Ok(())
    }

    /// It ended with this code.
    ///
    /// # Errors
    /// With what it said.
    pub fn ended(self, code: i32) -> Result<Self> {
        ensure!(self.code == code, "code {}, not {code}: {}", self.code, self.said);
        Ok(self)
    }
}
