//! What long work looks like: a live line on a terminal, plain lines elsewhere, the output's tail on failure.

use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, IsTerminal as _},
    process::{Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

/// Lines of output that a failure shows.
const TAIL: usize = 60;
/// How often the live line is drawn.
const FRAME: Duration = Duration::from_millis(120);
/// How often work that nobody sees on a terminal says that it still goes on.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// Runs a command without showing its output, and says how long it took.
///
/// # Errors
/// When it cannot be started or fails; the end of its output was printed then.
pub fn run_quietly(title: &str, command: &mut Command) -> Result<()> {
    let (reader, writer) = std::io::pipe().context("no pipe for the output")?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    // The pipe ends only when the command's own copies of the writing end are gone too.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
        }
    });

    let mut view = View::open(title);
    let mut tail = VecDeque::with_capacity(TAIL);
    loop {
        match lines.recv_timeout(FRAME) {
            Ok(line) => {
                view.show(&line);
                if tail.len() == TAIL {
                    tail.pop_front();
                }
                tail.push_back(line);
            }
            Err(RecvTimeoutError::Timeout) => view.tick(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.wait()?;
    let took = view.close();
    if status.success() {
        anstream::eprintln!("  {title}: {}", seconds(took));
        return Ok(());
    }
    for line in &tail {
        anstream::eprintln!("    {line}");
    }
    bail!("{title} failed after {} ({status}); the end of its output is above", seconds(took));
}

/// A duration as people say it: `0.3 s`, `12 s`, `3 min 05 s`.
pub fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    match whole {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..120 => format!("{whole} s"),
        _ => format!("{} min {:02} s", whole / 60, whole % 60),
    }
}

/// The live line, or its stand-in where there is no terminal.
struct View {
    started: Instant,
    title: String,
    last: String,
    bar: Option<ProgressBar>,
    beats: u32,
}

impl View {
    fn open(title: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("  {spinner} {prefix} {elapsed:>4}  {wide_msg:.dim}");
            let bar = ProgressBar::new_spinner().with_prefix(title.to_owned());
            style.map_or(bar.clone(), |style| bar.with_style(style))
        });
        if bar.is_none() {
            anstream::eprintln!("  {title} …");
        }
        Self { started: Instant::now(), title: title.to_owned(), last: String::new(), bar, beats: 0 }
    }

    fn show(&mut self, line: &str) {
        line.trim().clone_into(&mut self.last);
        if let Some(bar) = &self.bar {
            bar.set_message(self.last.clone());
        }
        self.tick();
    }

    fn tick(&mut self) {
        let elapsed = self.started.elapsed();
        if let Some(bar) = &self.bar {
            bar.tick();
        } else if elapsed > HEARTBEAT * (self.beats + 1) {
            self.beats += 1;
            anstream::eprintln!("  {} … {}: {}", self.title, seconds(elapsed), self.last);
        }
    }

    fn close(self) -> Duration {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        self.started.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable() {
        assert_eq!(seconds(Duration::from_millis(340)), "0.3 s");
        assert_eq!(seconds(Duration::from_secs(70)), "70 s");
        assert_eq!(seconds(Duration::from_secs(185)), "3 min 05 s");
    }

    #[test]
    fn a_failing_command_is_an_error_with_its_status() {
        let error = run_quietly("listing", Command::new("sh").args(["-c", "echo lost; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    #[test]
    fn output_without_a_newline_or_utf8_does_not_block() {
        run_quietly("odd output", Command::new("printf").arg("\\377no newline")).unwrap();
    }
}
