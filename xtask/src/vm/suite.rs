//! The tests to run. In: the tree. Out: each test that needs root, with the program that holds it.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::workspace;

/// Tests that need root carry this prefix in the last part of their name.
const ROOT: &str = "root_";
/// Tests that ask nothing of a kernel and want an API server, which guests do not carry.
const SERVER: &str = "root_kubernetes";
/// What tests start: the daemon and the library's example, with what else the crates build.
const PACKAGES: [&str; 4] = ["podwire-tests", "podwire-harness", "podwire", "podwire-datapath"];

/// A test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Its program, a file in cargo's target folder.
    pub program: PathBuf,
    /// The source file's name.
    pub file: String,
    /// Its name within the program.
    pub name: String,
}

/// What a run of the guests takes with it.
pub struct Suite {
    /// In the order in which they run.
    pub tests: Vec<Test>,
    /// The programs that tests start.
    pub programs: Vec<PathBuf>,
}

/// Compiles the tests, with cargo's own progress, and asks each program what it holds.
///
/// # Errors
/// When they do not compile, or no test is left.
pub fn build(filter: &[String]) -> Result<Suite> {
    let mut command = workspace::cargo()?;
    // Together with their friends: apart, the same crates would be compiled once for each set of features.
    for package in PACKAGES {
        command.args(["--package", package]);
    }
    let mut ordered = workspace::cargo()?;
    ordered.args(["build", "--bins", "--examples", "--tests", "--message-format=json-render-diagnostics"]);
    ordered.args(command.get_args());
    let output = ordered.stderr(std::process::Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the build of the tests failed ({})", output.status);
    }
    let mut suite = Suite { tests: Vec::new(), programs: Vec::new() };
    for artifact in String::from_utf8_lossy(&output.stdout).lines().filter_map(artifact) {
        if artifact.test {
            if artifact.file.starts_with(SERVER) {
                anstream::eprintln!(
                    "  {}: not in guests, which have no Kubernetes API server",
                    artifact.file
                );
            } else if artifact.file.starts_with(ROOT) {
                suite.tests.extend(tests(&artifact, filter)?);
            }
        } else {
            suite.programs.push(artifact.program);
        }
    }
    suite.tests.sort_by(|one, other| (&one.file, &one.name).cmp(&(&other.file, &other.name)));
    if suite.tests.is_empty() {
        bail!("no test named {ROOT}… is left: nothing would be tested");
    }
    Ok(suite)
}

/// A program that cargo built.
struct Artifact {
    program: PathBuf,
    file: String,
    test: bool,
}

/// A line of cargo's `--message-format=json`.
fn artifact(line: &str) -> Option<Artifact> {
    let message: Value = serde_json::from_str(line).ok()?;
    Some(Artifact {
        program: PathBuf::from(message["executable"].as_str()?),
        file: message["target"]["name"].as_str()?.to_owned(),
        test: message["profile"]["test"].as_bool()?,
    })
}

fn tests(artifact: &Artifact, filter: &[String]) -> Result<Vec<Test>> {
    let listing = workspace::output(Command::new(&artifact.program).args(["--list", "--format", "terse"]))?;
    Ok(names(&listing)
        .filter(|name| is_wanted(&artifact.file, name, filter))
        .map(|name| Test {
            program: artifact.program.clone(),
            file: artifact.file.clone(),
            name: name.to_owned(),
        })
        .collect())
}

/// libtest: a line `module::name: test`.
fn names(listing: &str) -> impl Iterator<Item = &str> {
    listing
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|name| name.rsplit("::").next().is_some_and(|last| last.starts_with(ROOT)))
}

fn is_wanted(file: &str, name: &str, filter: &[String]) -> bool {
    let whole = format!("{file}::{name}");
    filter.is_empty() || filter.iter().any(|part| whole.contains(part.as_str()))
}

#[cfg(test)]
mod tests_of_this {
    use super::*;

    #[test]
    fn only_programs_are_artifacts() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"root_mirror","kind":["test"]},"profile":{"test":true},"executable":"/t/root_mirror-1"}"#;
        assert!(artifact(line).is_some_and(|found| found.test && found.file == "root_mirror"));
        let library = r#"{"reason":"compiler-artifact","target":{"name":"x"},"profile":{"test":false},"executable":null}"#;
        assert!(artifact(library).is_none());
        assert!(artifact("warning: text").is_none());
    }

    #[test]
    fn tests_that_need_no_root_stay_outside() {
        let listing = "root_a: test\nmodel::agrees: test\nmodel::root_b: test\nroot_c: benchmark\n";
        assert_eq!(names(listing).collect::<Vec<_>>(), ["root_a", "model::root_b"]);
    }

    #[test]
    fn a_filter_is_any_of_its_parts() {
        let parts = ["mirror".to_owned(), "root_b".to_owned()];
        assert!(is_wanted("root_mirror", "root_x", &parts) && is_wanted("root_z", "root_b", &parts));
        assert!(!is_wanted("root_z", "root_x", &parts));
    }
}
