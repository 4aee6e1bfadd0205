//! One boot. In: a kernel and the disks. Out: what each test came to, shown as it comes.

use std::{
    borrow::Cow,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{
    disk::Settings,
    kernel::Kernel,
    report::{Event, Report, Status},
    suite::Suite,
};
use crate::{terminal, workspace};

/// How long the guest may boot, and be silent beyond a test's own limit.
const BOOT: Duration = Duration::from_secs(180);
/// Bytes shown of a long line.
const HEAD: usize = 300;
const TAIL: usize = 600;

/// A guest to boot.
pub struct Guest<'a> {
    pub kernel: &'a Kernel,
    pub root: &'a Path,
    pub tests: &'a Path,
    /// Where its console's log goes.
    pub folder: &'a Path,
    pub settings: &'a Settings<'a>,
}

impl Guest<'_> {
    /// Boots it and follows it until it powers off, or hangs.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn run(&self, suite: &Suite) -> Result<Report> {
        let mut child = Qemu(
            self.qemu()?
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()
                .context("cannot start qemu-system-x86_64")?,
        );
        let stdout = child.0.stdout.take().context("QEMU has no output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    break;
                }
            }
        });
        let mut log = File::create(self.file("output"))
            .with_context(|| format!("cannot make {}", self.file("output").display()))?;
        let limit = BOOT + Duration::from_secs(u64::from(self.settings.seconds_per_test));
        let mut report = Report::new(&self.kernel.release, suite.tests.len());
        loop {
            match lines.recv_timeout(if report.is_up() { limit } else { BOOT }) {
                Ok(line) => {
                    writeln!(log, "{line}").context("writing what the guest says")?;
                    show(&report.line(&line), suite);
                }
                Err(RecvTimeoutError::Timeout) => {
                    report.lost("the guest hangs");
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        report.finish();
        if let Some(reason) = report.broken() {
            anstream::println!("  {reason}; its console: {}", self.file("console").display());
        }
        Ok(report)
    }

    /// The first serial line is the kernel's console, the second one speaks to this program.
    fn qemu(&self) -> Result<Command> {
        let mut command = self.machine()?;
        command.args(["-serial", &format!("file:{}", self.file("console").display()), "-serial", "stdio"]);
        Ok(command)
    }

    /// What boots it by hand, its console on the terminal.
    ///
    /// # Errors
    /// Without QEMU.
    pub fn shell_command(&self) -> Result<String> {
        let mut command = self.machine()?;
        command.args(["-serial", "stdio", "-serial", "null"]);
        let words: Vec<String> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .map(|word| if word.contains(' ') { format!("'{word}'") } else { word })
            .collect();
        Ok(words.join(" "))
    }

    /// Interpreted and with a plain processor: KVM and the richest processor both hang in nested machines.
    fn machine(&self) -> Result<Command> {
        let qemu = workspace::find_program("qemu-system-x86_64")
            .context("no qemu-system-x86_64 here: run `cargo xtask setup vm`")?;
        let mut command = Command::new(qemu);
        command
            .args(["-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", "2", "-m", "1536"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"])
            .arg("-kernel")
            .arg(self.kernel.image())
            .arg("-initrd")
            .arg(self.kernel.initramfs())
            // A panic ends QEMU, and a watchdog must not take a slow processor for a stuck one.
            .args(["-append", "console=ttyS0 panic=-1 loglevel=5 rdinit=/init mitigations=off nowatchdog"]);
        for disk in [self.root, self.tests] {
            // Options are parted by commas, so a comma in the name is doubled. Writes are forgotten.
            let file = disk.display().to_string().replace(',', ",,");
            command.args(["-drive", &format!("file={file},if=virtio,format=raw,snapshot=on")]);
        }
        Ok(command)
    }

    fn file(&self, what: &str) -> PathBuf {
        self.folder.join(format!("{what}-{}.log", self.kernel.release))
    }
}

fn show(event: &Event, suite: &Suite) {
    match event {
        Event::Up(seconds) => anstream::println!("  up after {}", terminal::seconds(*seconds)),
        Event::Ended { number, status, took, output, complaints } => {
            let Some(test) = suite.tests.get(*number) else { return };
            let name = format!("{}::{}", test.file, test.name);
            anstream::println!("  {:<8} {name} ({})", status.word(), terminal::seconds(*took));
            match status {
                Status::Skipped(reason) => anstream::println!("           {reason}"),
                Status::Passed => {}
                Status::Failed | Status::TimedOut => {
                    for line in output {
                        anstream::println!("           {}", cut(line));
                    }
                }
            }
            for complaint in complaints {
                anstream::println!("  kernel   {complaint}");
            }
        }
        Event::None => {}
    }
}

/// Both ends of a line that is too long to read: the verifier says what it refuses at the very end of its log.
fn cut(line: &str) -> Cow<'_, str> {
    let bytes = line.len();
    if bytes <= HEAD + TAIL {
        return Cow::Borrowed(line);
    }
    let (head, tail) = (line.floor_char_boundary(HEAD), line.ceil_char_boundary(bytes - TAIL));
    let (first, last) = (line.get(..head).unwrap_or_default(), line.get(tail..).unwrap_or_default());
    Cow::Owned(format!("{first} … {} bytes … {last}", tail - head))
}

/// Killed on drop, so that no guest outlives this program.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_keeps_both_ends() {
        let line = format!("begin{}end", "é".repeat(2000));
        let short = cut(&line);
        assert!(short.starts_with("begin") && short.ends_with("end") && short.len() < 1000, "{short}");
        assert_eq!(cut("short"), "short");
    }
}
