//! `cargo xtask test`: all tests against BPF programs rebuilt from source, then the proof that nothing is left
//! behind. In: the tree. Out: the runner's output, a summary, and `N passed, N failed` as the last line.

mod leftovers;
mod report;
mod runner;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Args;

use crate::{
    ebpf,
    setup::{self, Group},
    terminal, workspace,
};
use report::{Report, Summary};
use runner::Runner;

pub use runner::as_root_runner;

/// `cargo xtask test`.
#[derive(Args)]
pub struct Options {
    /// Install nothing and test the object in the repository instead of rebuilding it
    #[arg(long)]
    fast: bool,
    /// Which runner: nextest where it is installed, else cargo test
    #[arg(long, value_enum)]
    runner: Option<Runner>,
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// Runs `cargo xtask test`.
pub fn command(options: &Options, install: bool) -> Result<ExitCode> {
    let mut steps = Steps::default();
    let root = workspace::root()?;
    if install && !options.fast {
        steps.time("setup", || setup::ensure(&[Group::Build, Group::Test, Group::Kubernetes]))?;
    }
    let record = steps.time("hash of the BPF sources", || ebpf::check(&root))?;
    let object = match options.fast {
        true => None,
        false => Some(steps.time("rebuild of the BPF programs", || ebpf::rebuild(&root, &record))?),
    };

    let run = runner::Run {
        runner: options.runner.unwrap_or_else(Runner::preferred),
        filter: options.filter.as_deref(),
        object: object.as_deref(),
    };
    steps.time("build of the tests", || run.build())?;
    let before = leftovers::snapshot();
    let (report, runner_succeeded) = steps.time("tests", || run.tests())?;
    let left = steps.time("leftovers", || Ok(leftovers::since(&before)))?;

    let faults = print(&report, runner_succeeded, &left, options.filter.is_some());
    steps.print();
    let summary = report.summary();
    // A fault that is no test's own counts as one failure, so that the last line never looks better than the run.
    let failed = if faults > 0 { summary.failed.max(1) } else { summary.failed };
    anstream::println!("{}", closing_line(&summary, failed));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the summary and gives the number of faults beyond failing tests.
fn print(report: &Report, runner_succeeded: bool, left: &[String], filtered: bool) -> usize {
    let summary = report.summary();
    let faults = faults(&summary, runner_succeeded, left, filtered);
    anstream::println!();
    for failure in report.failures() {
        anstream::println!("failed   {failure}");
    }
    for (test, reason) in report.skips() {
        anstream::println!("skipped  {test}: {reason}");
    }
    for fault in &faults {
        anstream::println!("failed   {fault}");
    }
    let Summary { passed, failed, ignored, skipped, root } = summary;
    let ran = passed + failed;
    anstream::println!(
        "{ran} tests ran, {root} of them as root; {skipped} skipped themselves, {ignored} are ignored"
    );
    faults.len()
}

/// What makes a run fail although each test passed.
fn faults(summary: &Summary, runner_succeeded: bool, left: &[String], filtered: bool) -> Vec<String> {
    let mut faults: Vec<String> = left.iter().map(|what| format!("left behind: {what}")).collect();
    if summary.passed + summary.failed + summary.skipped == 0 {
        faults.push("no test ran".to_owned());
    } else if summary.root == 0 && !filtered {
        faults.push("no test named root_… ran: nothing was tested on real packets".to_owned());
    }
    if !runner_succeeded && summary.failed == 0 {
        faults
            .push("the test runner failed, though no test is known to have; its output is above".to_owned());
    }
    faults
}

fn closing_line(summary: &Summary, failed: usize) -> String {
    let skipped = summary.skipped + summary.ignored;
    let more = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
    format!("{} passed, {failed} failed{more}", summary.passed)
}

/// How long each step took.
#[derive(Default)]
struct Steps {
    took: Vec<(&'static str, Duration)>,
}

impl Steps {
    fn time<T>(&mut self, name: &'static str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let outcome = step();
        self.took.push((name, started.elapsed()));
        outcome
    }

    fn print(&self) {
        for (name, took) in &self.took {
            anstream::println!("{:>14}  {name}", terminal::seconds(*took));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Summary = Summary { passed: 9, failed: 0, ignored: 0, skipped: 0, root: 4 };

    #[test]
    fn a_good_run_has_no_fault() {
        assert_eq!(faults(&GOOD, true, &[], false), Vec::<String>::new());
    }

    #[test]
    fn a_run_without_root_tests_fails_unless_it_was_filtered() {
        let summary = Summary { root: 0, ..GOOD };
        assert_eq!(faults(&summary, true, &[], false).len(), 1);
        assert_eq!(faults(&summary, true, &[], true).len(), 0);
    }

    #[test]
    fn no_test_at_all_fails_even_when_filtered() {
        assert_eq!(faults(&Summary::default(), true, &[], true), ["no test ran"]);
    }

    #[test]
    fn leftovers_and_a_broken_runner_are_faults() {
        let left = ["mount /run/podwire-test-1/bpf".to_owned()];
        assert_eq!(faults(&GOOD, false, &left, false).len(), 2);
    }

    #[test]
    fn the_closing_line_counts_what_did_not_run() {
        assert_eq!(closing_line(&GOOD, 0), "9 passed, 0 failed");
        let some = Summary { skipped: 2, ignored: 1, ..GOOD };
        assert_eq!(closing_line(&some, 1), "9 passed, 1 failed, 3 skipped");
    }
}
