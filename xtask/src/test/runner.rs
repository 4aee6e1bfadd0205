//! Runs the tests and reads along. Tests get root's rights, the build does not.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use super::report::{Echo, Report};
use crate::{
    ebpf::{self, compiler::Version},
    privilege,
    setup::kubernetes,
    workspace,
};

/// What runs the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Runner {
    /// cargo-nextest: a process for each test, and a limit on how long a test may hang
    Nextest,
    /// cargo test: on every machine that has Rust
    Cargo,
}

impl Runner {
    /// nextest where it is installed.
    pub fn preferred() -> Self {
        if workspace::find_program("cargo-nextest").is_some() { Self::Nextest } else { Self::Cargo }
    }
}

/// One run of all tests.
pub struct Run<'a> {
    pub runner: Runner,
    pub filter: Option<&'a str>,
    /// The object to test; none for the one in the repository.
    pub object: Option<&'a Path>,
}

impl Run<'_> {
    /// Compiles all tests and the programs that they start, with cargo's own progress.
    ///
    /// # Errors
    /// When they do not compile.
    pub fn build(&self) -> Result<()> {
        let mut command = workspace::cargo()?;
        // One call: apart, the same crates would be compiled once with the tests' features and once without.
        command.args(["build", "--workspace", "--bins", "--examples", "--tests"]);
        workspace::run(&mut command, "the build of the tests")
    }

    /// Runs them and gives what they said, and whether every runner ended well.
    ///
    /// # Errors
    /// When a runner cannot be started, or root's rights are not to be had.
    pub fn tests(&self) -> Result<(Report, bool)> {
        let mut report = Report::default();
        let mut good = true;
        match self.runner {
            Runner::Nextest => {
                good &= self.follow(&mut self.nextest()?, &mut report)?;
                // nextest does not know documentation tests.
                let mut documentation = workspace::cargo()?;
                documentation.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
                documentation.args(self.filter.map(|filter| ["--", filter]).into_iter().flatten());
                good &= self.follow(&mut documentation, &mut report)?;
            }
            Runner::Cargo => {
                let mut command = workspace::cargo()?;
                command
                    .args(["test", "--workspace", "--no-fail-fast", "--", "--show-output"])
                    .args(self.filter);
                good &= self.follow(&mut command, &mut report)?;
            }
        }
        Ok((report, good))
    }

    fn nextest(&self) -> Result<Command> {
        let config = workspace::root()?.join("xtask/nextest.toml");
        let mut command = workspace::cargo()?;
        command
            .args(["nextest", "run", "--workspace", "--no-fail-fast", "--no-tests=pass"])
            .args(["--failure-output", "immediate", "--success-output", "final", "--status-level", "all"])
            .arg("--tool-config-file")
            .arg(format!("xtask:{}", config.display()))
            .args(self.filter);
        Ok(command)
    }

    /// Shows a runner's output while it is read.
    fn follow(&self, command: &mut Command, report: &mut Report) -> Result<bool> {
        if let Some(object) = self.object {
            command.env(ebpf::OBJECT_VARIABLE, object);
        }
        if let Ok(cache) = kubernetes::cache() {
            command.env(kubernetes::CACHE_VARIABLE, cache);
        }
        if !privilege::is_root() {
            let (variable, runner) = as_root_runner()?;
            command.env(variable, runner);
        }
        let (reader, writer) = std::io::pipe().context("no pipe for the tests' output")?;
        command.env("CARGO_TERM_COLOR", "never").stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().context("cannot start the test runner")?;
        command.stdout(Stdio::null()).stderr(Stdio::null());
        for line in BufReader::new(reader).split(b'\n') {
            let line = line.context("the tests' output")?;
            let line = String::from_utf8_lossy(&line);
            if report.line(line.trim_end_matches('\r')) == Echo::Show {
                anstream::println!("{line}");
            }
        }
        report.finish();
        Ok(child.wait()?.success())
    }
}

/// The variable and its value by which cargo and nextest start what they built as root.
///
/// # Errors
/// When there is no sudo or it refuses.
pub fn as_root_runner() -> Result<(String, &'static str)> {
    privilege::as_root("true", "running tests and benches on real packets")?;
    let version = Version::parse(&workspace::output(Command::new("rustc").arg("-vV"))?)?;
    Ok((format!("CARGO_TARGET_{}_RUNNER", version.host.to_uppercase().replace('-', "_")), "sudo -E --"))
}
