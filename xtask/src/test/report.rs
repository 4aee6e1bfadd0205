//! Reads what a test runner prints. In: lines of `cargo test -- --show-output` or of nextest, as they come. Out: one
//! result per test, with the reason of those that skipped themselves.
//!
//! A test that cannot run on this kernel prints a line `SKIPPED: reason` and returns; to the runner it passed.

use std::collections::BTreeMap;

/// Tests that need root carry this prefix in the last part of their name.
const ROOT: &str = "root_";
const SKIPPED: &str = "SKIPPED:";

/// What became of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    /// Marked `#[ignore]`.
    Ignored,
}

/// Where a line of a passing test's own output goes: not to the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    Show,
    Hide,
}

/// All results so far.
#[derive(Debug, Default)]
pub struct Report {
    /// By test binary and test name.
    results: BTreeMap<(String, String), Outcome>,
    /// Skip reasons by the same key; they may come before or after the result.
    skips: BTreeMap<(String, String), String>,
    /// (passed, failed) as the runner itself counts them.
    counted: (usize, usize),
    /// Test binaries that ended without their closing line.
    broken: Vec<String>,
    binary: String,
    open: bool,
    /// The test that printed what comes now.
    speaker: Option<(String, String)>,
    /// Inside the repeated output of tests that passed.
    successes: bool,
}

/// Numbers for the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub passed: usize,
    pub failed: usize,
    pub ignored: usize,
    pub skipped: usize,
    /// Tests named `root_…` that passed or failed, skipped ones not counted.
    pub root: usize,
}

impl Report {
    /// Takes the next line of the runner.
    pub fn line(&mut self, line: &str) -> Echo {
        if let Some((status, binary, name)) = nextest_result(line) {
            self.result(binary, name, status);
            return self.echo();
        }
        if line.trim_start().starts_with("Summary [") {
            let (passed, failed) = nextest_summary(line);
            self.counted.0 += passed;
            self.counted.1 += failed;
            // nextest repeats every test's output below; failures were shown when they happened.
            self.successes = true;
            return Echo::Show;
        }
        self.libtest_line(line)
    }

    /// The lines that `cargo test` and its test binaries print.
    fn libtest_line(&mut self, line: &str) -> Echo {
        let trimmed = line.trim();
        if let Some(binary) = cargo_binary(line) {
            self.close_binary();
            self.binary = binary;
            self.speaker = None;
        } else if line.starts_with("running ") && line.trim_end().ends_with(['t', 's']) {
            self.open = true;
        } else if let Some((name, outcome)) = libtest_result(line) {
            let binary = self.binary.clone();
            self.result(binary, name, outcome);
        } else if let Some((passed, failed)) = libtest_summary(line) {
            self.counted.0 += passed;
            self.counted.1 += failed;
            self.open = false;
            self.successes = false;
            self.speaker = None;
        } else if line == "successes:" {
            self.successes = true;
        } else if line == "failures:" {
            self.successes = false;
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"))
        {
            self.speaker = Some((self.binary.clone(), test_name(name)));
        } else if let Some(reason) = trimmed.strip_prefix(SKIPPED) {
            let speaker = self.speaker.clone().unwrap_or_else(|| (self.binary.clone(), String::new()));
            self.skips.insert(speaker, reason.trim().to_owned());
        }
        self.echo()
    }

    fn echo(&self) -> Echo {
        if self.successes { Echo::Hide } else { Echo::Show }
    }

    fn result(&mut self, binary: String, name: String, outcome: Outcome) {
        let key = (binary, name);
        self.speaker = Some(key.clone());
        self.results.insert(key, outcome);
    }

    /// Counts a binary that was killed before its closing line.
    fn close_binary(&mut self) {
        if std::mem::take(&mut self.open) {
            self.broken.push(self.binary.clone());
        }
    }

    /// The runner has ended; another may follow.
    pub fn finish(&mut self) {
        self.close_binary();
        self.successes = false;
        self.speaker = None;
    }

    /// The numbers: as the runner counted them, for a program that a test starts may print what looks like a result;
    /// by name where the runner was stopped before it counted.
    pub fn summary(&self) -> Summary {
        let count =
            |wanted: fn(&Outcome) -> bool| self.results.values().filter(|outcome| wanted(outcome)).count();
        let skipped = self.skips.len();
        let passed = match self.counted {
            (0, 0) => count(|outcome| *outcome == Outcome::Passed),
            (passed, _) => passed,
        };
        let failed = count(|outcome| *outcome == Outcome::Failed).max(self.counted.1) + self.broken.len();
        let root = self
            .results
            .iter()
            .filter(|(key, outcome)| {
                is_root_test(&key.1) && **outcome != Outcome::Ignored && !self.skips.contains_key(key)
            })
            .count();
        let ignored = count(|outcome| *outcome == Outcome::Ignored);
        Summary { passed: passed.saturating_sub(skipped), failed, ignored, skipped, root }
    }

    /// `(test, reason)` of every test that skipped itself.
    pub fn skips(&self) -> impl Iterator<Item = (String, &str)> {
        self.skips.iter().map(|(key, reason)| (shown(key), reason.as_str()))
    }

    /// Every test that failed, and every binary that was killed.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        let failed = self.results.iter().filter(|(_, outcome)| **outcome == Outcome::Failed);
        let broken = self.broken.iter().map(|binary| format!("{binary}: ended before its last test"));
        failed.map(|(key, _)| shown(key)).chain(broken)
    }
}

fn shown((binary, name): &(String, String)) -> String {
    if name.is_empty() { format!("a test of {binary}") } else { format!("{binary} {name}") }
}

fn is_root_test(name: &str) -> bool {
    name.rsplit("::").next().is_some_and(|last| last.starts_with(ROOT))
}

/// nextest: `        PASS [   0.009s] (5/6) crate::binary module::test`, the status right-aligned in 12 columns.
fn nextest_result(line: &str) -> Option<(Outcome, String, String)> {
    let (status, rest) = line.split_at_checked(12)?;
    let rest = rest.strip_prefix(" [")?;
    let (_, rest) = rest.split_once("s] ")?;
    let rest = rest.trim_start();
    let rest = match rest.strip_prefix('(') {
        Some(counter) => counter.split_once(") ")?.1,
        None => rest,
    };
    let (binary, name) = rest.split_once(' ')?;
    let outcome = match status.trim() {
        "PASS" | "LEAK" => Outcome::Passed,
        "FAIL" | "TIMEOUT" | "ABORT" | "LEAK-FAIL" | "XFAIL" => Outcome::Failed,
        signal if signal.starts_with("SIG") => Outcome::Failed,
        _ => return None,
    };
    Some((outcome, binary.to_owned(), name.trim().to_owned()))
}

/// nextest: `     Summary [   0.163s] 6 tests run: 4 passed, 2 failed, 1 timed out, 1 skipped`.
fn nextest_summary(line: &str) -> (usize, usize) {
    let mut run = 0;
    let mut passed = 0;
    let words: Vec<&str> =
        line.split([' ', ',', ':', '(', ')', '/']).filter(|word| !word.is_empty()).collect();
    for pair in words.windows(2) {
        match (pair[0].parse::<usize>(), pair[1]) {
            (Ok(number), "tests" | "test") => run = number,
            (Ok(number), "passed") => passed = number,
            _ => {}
        }
    }
    (passed, run.max(passed) - passed)
}

/// cargo: `     Running unittests src/lib.rs (target/debug/deps/x-72ee6507dc2c5010)` or `   Doc-tests x`.
fn cargo_binary(line: &str) -> Option<String> {
    let trimmed = line.trim_start();
    if let Some(name) = trimmed.strip_prefix("Doc-tests ") {
        return Some(format!("{} (doc)", name.trim()));
    }
    let (_, path) = trimmed.strip_prefix("Running ")?.rsplit_once('(')?;
    let file = path.trim_end().strip_suffix(')')?.rsplit('/').next()?;
    Some(file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned())
}

/// libtest: `test module::name ... ok`, `FAILED` or `ignored, reason`.
fn libtest_result(line: &str) -> Option<(String, Outcome)> {
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let outcome = match outcome.trim_end() {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        word if word == "ignored" || word.starts_with("ignored,") => Outcome::Ignored,
        _ => return None,
    };
    Some((test_name(name), outcome))
}

/// Without the note on how it is meant to end.
fn test_name(name: &str) -> String {
    name.trim().trim_end_matches(" - should panic").to_owned()
}

/// libtest: `test result: FAILED. 2 passed; 1 failed; 1 ignored; …`.
fn libtest_summary(line: &str) -> Option<(usize, usize)> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |word: &str| {
        numbers.split(';').find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<usize>().ok())
    };
    Some((number("passed")?, number("failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Report {
        let mut report = Report::default();
        for line in text.lines() {
            report.line(line);
        }
        report.finish();
        report
    }

    const NEXTEST: &str = "
    Starting 5 tests across 2 binaries (1 test skipped)
        PASS [   0.006s] (1/5) nx tests::a
        FAIL [   0.137s] (2/5) nx tests::bad
  stdout ───

    test tests::bad ... FAILED

    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.12s

     SIGABRT [   0.007s] (3/5) nx::e2e mirror::root_abort
        PASS [   0.009s] (4/5) nx::e2e mirror::root_skip
        PASS [   0.017s] (5/5) nx::e2e mirror::root_ok
────────────
     Summary [   0.163s] 5 tests run: 3 passed, 2 failed, 1 skipped
        PASS [   0.009s] (4/5) nx::e2e mirror::root_skip
  stdout ───

    running 1 test
    test mirror::root_skip ... ok

    test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.00s

  stderr ───
    SKIPPED: no tcx in this kernel

        PASS [   0.017s] (5/5) nx::e2e mirror::root_ok
  stdout ───

    hello
    test root_fake ... ok
        FAIL [   0.137s] (2/5) nx tests::bad
error: test run failed
";

    #[test]
    fn nextest_output_is_counted() {
        let report = read(NEXTEST);
        let wanted = Summary { passed: 2, failed: 2, ignored: 0, skipped: 1, root: 2 };
        assert_eq!(report.summary(), wanted);
        let skips: Vec<_> = report.skips().collect();
        assert_eq!(skips, [("nx::e2e mirror::root_skip".to_owned(), "no tcx in this kernel")]);
        let failures: Vec<_> = report.failures().collect();
        assert_eq!(failures, ["nx tests::bad", "nx::e2e mirror::root_abort"]);
    }

    #[test]
    fn what_nextest_repeats_is_not_shown_twice() {
        let mut report = Report::default();
        let shown: Vec<&str> = NEXTEST.lines().filter(|line| report.line(line) == Echo::Show).collect();
        assert!(shown.last().unwrap().contains("Summary ["), "{shown:?}");
    }

    const LIBTEST: &str = "
    Finished `test` profile [unoptimized + debuginfo] target(s) in 0.01s
     Running unittests src/lib.rs (target/debug/deps/nx-72ee6507dc2c5010)

running 4 tests
test tests::a ... ok
test tests::ign ... ignored, slow
test tests::bad ... FAILED
test tests::shp - should panic ... ok

successes:

---- tests::shp stdout ----
thread 'tests::shp' (10289) panicked at src/lib.rs:8:36:

successes:
    tests::a
    tests::shp

failures:

---- tests::bad stdout ----
out

failures:
    tests::bad

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s

     Running tests/e2e.rs (target/debug/deps/e2e_mirror-c5ed259cc999594e)

running 3 tests
test mirror::root_ok ... ok
test mirror::root_skip ... ok

successes:

---- mirror::root_skip stdout ----
SKIPPED: no tcx in this kernel

successes:
    mirror::root_ok
    mirror::root_skip

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
   Doc-tests nx

running 1 test
test src/lib.rs - (line 1) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.11s
";

    #[test]
    fn cargo_test_output_is_counted() {
        let report = read(LIBTEST);
        assert_eq!(report.summary(), Summary { passed: 4, failed: 1, ignored: 1, skipped: 1, root: 1 });
        assert_eq!(report.failures().collect::<Vec<_>>(), ["nx tests::bad"]);
        assert_eq!(report.skips().next().unwrap().0, "e2e_mirror mirror::root_skip");
    }

    #[test]
    fn a_binary_killed_in_the_middle_is_a_failure() {
        let cut = "     Running tests/e2e.rs (target/debug/deps/e2e-c5ed)\n\nrunning 3 tests\ntest root_a ... ok\n\
                   error: test failed, to rerun pass `--test e2e`\n   Doc-tests nx\n\nrunning 0 tests\n\n\
                   test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        let summary = read(cut).summary();
        assert_eq!((summary.passed, summary.failed, summary.root), (1, 1, 1));
    }

    #[test]
    fn a_result_torn_by_a_child_process_still_counts() {
        let torn = "     Running tests/e2e.rs (target/debug/deps/e2e-c5ed)\n\nrunning 1 test\ntest root_a ... noise\nok\n\
                    test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        let summary = read(torn).summary();
        assert_eq!((summary.passed, summary.failed), (1, 0));
    }

    #[test]
    fn what_looks_like_a_result_is_not_counted() {
        let noisy = "     Running tests/e2e.rs (target/debug/deps/e2e-c5ed)\n\nrunning 1 test\ntest fake ... ok\n\
                     test root_a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(read(noisy).summary().passed, 1);
    }

    #[test]
    fn only_the_last_part_of_a_name_makes_a_root_test() {
        assert!(is_root_test("mirror::root_copies"));
        assert!(is_root_test("root_copies"));
        assert!(!is_root_test("root_cause::copies"));
        assert!(!is_root_test("uproot_copies"));
    }
}
