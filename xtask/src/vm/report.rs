//! What a guest says. In: lines of its second serial line (tests/vm/guest). Out: one result per test, and a table.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::suite::Suite;
use crate::terminal;

/// The exit code of timeout(1) when it had to end its command, and when that took a second blow.
const TIMED_OUT: [i32; 2] = [124, 137];

/// What became of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    Passed,
    Failed,
    TimedOut,
    /// It said so itself, with its reason.
    Skipped(String),
}

impl Status {
    /// The word that people read.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::TimedOut => "TIMEOUT",
            Self::Skipped(_) => "skipped",
        }
    }

    fn is_bad(&self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut)
    }
}

/// What a line told.
pub enum Event {
    None,
    /// The guest's own script runs, so long after the start.
    Up(Duration),
    Ended {
        /// From 0, as in the suite.
        number: usize,
        status: Status,
        took: Duration,
        output: Vec<String>,
        complaints: Vec<String>,
    },
}

/// All that one guest said.
pub struct Report {
    release: String,
    started: Instant,
    up: bool,
    done: bool,
    broken: Option<String>,
    results: Vec<Option<(Status, Duration)>>,
    /// What the verifier counted: program, JSON as the test printed it.
    verified: Vec<Value>,
    complaints: usize,
    current: Option<usize>,
    output: Vec<String>,
    heard: Vec<String>,
}

impl Report {
    /// A guest of so many tests is about to boot.
    pub fn new(release: &str, tests: usize) -> Self {
        Self {
            release: release.to_owned(),
            started: Instant::now(),
            up: false,
            done: false,
            broken: None,
            results: vec![None; tests],
            verified: Vec::new(),
            complaints: 0,
            current: None,
            output: Vec::new(),
            heard: Vec::new(),
        }
    }

    /// Takes the next line.
    pub fn line(&mut self, line: &str) -> Event {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "@guest" => {
                self.up = true;
                return Event::Up(self.started.elapsed());
            }
            "@begin" => {
                self.current = rest.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                self.output.clear();
                self.heard.clear();
            }
            "@kernel" => self.heard.push(rest.to_owned()),
            "@end" => return self.end(rest),
            "@lost" => self.lost(rest),
            "@done" => self.done = true,
            _ => self.output.push(line.to_owned()),
        }
        Event::None
    }

    fn end(&mut self, rest: &str) -> Event {
        let numbers: Vec<i32> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        let (Some(number), [_, code, milliseconds]) = (self.current.take(), &numbers[..]) else {
            return Event::None;
        };
        let took = Duration::from_millis(u64::try_from(*milliseconds).unwrap_or(0));
        let output = std::mem::take(&mut self.output);
        let complaints = std::mem::take(&mut self.heard);
        let status = status(*code, &output);
        self.complaints += complaints.len();
        self.verified.extend(output.iter().filter_map(|line| verified(line)));
        if let Some(result) = self.results.get_mut(number) {
            *result = Some((status.clone(), took));
        }
        Event::Ended { number, status, took, output, complaints }
    }

    /// Whether the guest's own script has begun.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// The guest cannot go on.
    pub fn lost(&mut self, reason: &str) {
        self.broken.get_or_insert_with(|| reason.to_owned());
    }

    /// Nothing more comes.
    pub fn finish(&mut self) {
        if !self.done {
            self.lost(if self.up { "the guest ended before its tests" } else { "the guest did not come up" });
        }
        if let (Some(number), Some(reason)) = (self.current.take(), self.broken.as_mut()) {
            let _ = write!(reason, " during test {}", number + 1);
            if let Some(result) = self.results.get_mut(number) {
                *result = Some((Status::Failed, Duration::ZERO));
            }
        }
    }

    /// Why it did not come to its end.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    fn count(&self, wanted: impl Fn(&Status) -> bool) -> usize {
        self.results.iter().flatten().filter(|(status, _)| wanted(status)).count()
    }

    /// All tests ran, at least one of them did not skip itself, and none failed; the kernel said nothing.
    pub fn is_good(&self) -> bool {
        self.broken.is_none()
            && self.complaints == 0
            && self.results.iter().all(|result| result.as_ref().is_some_and(|(status, _)| !status.is_bad()))
            && self.count(|status| *status == Status::Passed) > 0
    }

    /// `3 passed, 1 failed, 2 skipped`.
    pub fn summary(&self) -> String {
        let mut text = format!(
            "{} passed, {} failed, {} skipped",
            self.count(|status| *status == Status::Passed),
            self.count(Status::is_bad),
            self.count(|status| matches!(status, Status::Skipped(_)))
        );
        let missing = self.results.iter().filter(|result| result.is_none()).count();
        if missing > 0 {
            let _ = write!(text, ", {missing} not run");
        }
        if self.complaints > 0 {
            let _ = write!(text, ", {} complaints of the kernel", self.complaints);
        }
        text
    }
}

fn status(code: i32, output: &[String]) -> Status {
    let skipped = output.iter().find_map(|line| line.split_once("SKIPPED:")).map(|(_, reason)| reason.trim());
    match (code, skipped) {
        (0, Some(reason)) => Status::Skipped(reason.to_owned()),
        // libtest ends well when the name matches nothing.
        (0, None) if output.iter().any(|line| line.starts_with("test result: ok. 1 passed")) => {
            Status::Passed
        }
        (code, _) if TIMED_OUT.contains(&code) => Status::TimedOut,
        _ => Status::Failed,
    }
}

/// A line of the verifier's test: `{"program":…,"verified_instructions":…}`.
fn verified(line: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(line.get(line.find('{')?..)?).ok()?;
    value["verified_instructions"].is_u64().then_some(value)
}

/// Tests by kernel, then what skipped itself, then what the verifier counted.
pub fn table(suite: &Suite, reports: &[Report]) -> String {
    let mut text = String::new();
    let names: Vec<String> = suite.tests.iter().map(|test| format!("{}::{}", test.file, test.name)).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0);
    let _ = write!(text, "{:width$}", "test");
    for report in reports {
        let _ = write!(text, "  {:<26}", report.release);
    }
    text.push('\n');
    for (number, name) in names.iter().enumerate() {
        let _ = write!(text, "{name:width$}");
        for report in reports {
            let cell = match report.results.get(number).and_then(Option::as_ref) {
                Some((status, took)) => format!("{} {}", status.word(), terminal::seconds(*took)),
                None => "not run".to_owned(),
            };
            let _ = write!(text, "  {cell:<26}");
        }
        text.push('\n');
    }
    for report in reports {
        for (name, result) in names.iter().zip(&report.results) {
            if let Some((Status::Skipped(reason), _)) = result {
                let _ = writeln!(text, "skipped on {}: {name}: {reason}", report.release);
            }
        }
        for value in &report.verified {
            let _ = writeln!(
                text,
                "verifier on {}: {:<10} {:>7} instructions walked, {:>6} bytes",
                report.release,
                value["program"].as_str().unwrap_or("?"),
                value["verified_instructions"],
                value["bpf_bytes"],
            );
        }
        if let Some(reason) = &report.broken {
            let _ = writeln!(text, "failed on {}: {reason}", report.release);
        }
    }
    for report in reports {
        let _ = writeln!(text, "{}: {}", report.release, report.summary());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "test root_a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured";

    fn read(tests: usize, text: &str) -> Report {
        let mut report = Report::new("6.1.0", tests);
        for line in text.lines() {
            report.line(line);
        }
        report.finish();
        report
    }

    #[test]
    fn a_good_run_is_good() {
        let text = format!(
            "@guest 6.1.0\n@begin 1\n{GOOD}\n@end 1 0 2500\n@begin 2\nSKIPPED: no tcx\n{GOOD}\n@end 2 0 90\n@done\n"
        );
        let report = read(2, &text);
        assert!(report.is_good());
        assert_eq!(report.summary(), "1 passed, 0 failed, 1 skipped");
        assert_eq!(report.results[0], Some((Status::Passed, Duration::from_millis(2500))));
        assert_eq!(report.results[1].as_ref().unwrap().0, Status::Skipped("no tcx".into()));
    }

    #[test]
    fn what_ran_nothing_or_skipped_all_is_not_good() {
        assert!(!read(0, "@guest x\n@done\n").is_good());
        let nothing = "@guest x\n@begin 1\ntest result: ok. 0 passed; 0 failed\n@end 1 0 9\n@done\n";
        assert_eq!(read(1, nothing).summary(), "0 passed, 1 failed, 0 skipped");
        let skipped = format!("@guest x\n@begin 1\nSKIPPED: no veth\n{GOOD}\n@end 1 0 9\n@done\n");
        assert!(!read(1, &skipped).is_good());
    }

    #[test]
    fn failures_hangs_and_panics_are_told_apart() {
        let report = read(3, "@guest x\n@begin 1\n@end 1 101 9\n@begin 2\n@end 2 124 9\n@begin 3\nhalf");
        let statuses: Vec<&Status> = report.results.iter().flatten().map(|(status, _)| status).collect();
        assert_eq!(statuses, [&Status::Failed, &Status::TimedOut, &Status::Failed]);
        assert_eq!(report.broken(), Some("the guest ended before its tests during test 3"));
    }

    #[test]
    fn the_kernels_complaint_spoils_a_run() {
        let text = format!("@guest x\n@begin 1\n{GOOD}\n@kernel WARNING: CPU: 1\n@end 1 0 9\n@done\n");
        assert!(!read(1, &text).is_good());
    }

    #[test]
    fn the_verifiers_counts_are_read() {
        let line = r#"{"program":"mirror","verified_instructions":512,"bpf_bytes":8,"machine_code_bytes":9}"#;
        let text = format!("@guest x\n@begin 1\n{line}\n{GOOD}\n@end 1 0 9\n@done\n");
        assert_eq!(read(1, &text).verified.len(), 1);
    }
}
