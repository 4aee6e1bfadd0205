//! Failures and their exit codes.

use std::io::Write;
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// It ran, and failed.
    Run(String),
    /// The objects are refused; a line each.
    Refused(Vec<String>),
    /// The agent cannot be reached.
    Unreachable(String),
    /// What was asked for does not exist; a line each.
    NotFound(Vec<String>),
    /// The words do not make sense together; a line each.
    Usage(Vec<String>),
    /// It was interrupted.
    Interrupted(String),
    /// Its result has been shown and says itself what is wrong; the exit code.
    Shown(u8),
    /// Standard output is closed: nobody reads on, and nothing is wrong.
    Closed,
}

impl Failure {
    /// Says it on standard error, a line each, and returns the exit code.
    pub fn report(self) -> ExitCode {
        let (lines, code) = match self {
            Self::Run(line) => (vec![line], 1),
            Self::Refused(lines) => (lines, 3),
            Self::Unreachable(line) => (vec![line], 4),
            Self::NotFound(lines) => (lines, 1),
            Self::Usage(lines) => (lines, 2),
            Self::Interrupted(line) => (vec![line], 130),
            Self::Shown(code) => return ExitCode::from(code),
            Self::Closed => return ExitCode::SUCCESS,
        };
        let mut stderr = anstream::stderr().lock();
        for line in lines {
            let _ = writeln!(stderr, "error: {line}");
        }
        ExitCode::from(code)
    }
}

impl Failure {
    /// What it says, in one line.
    pub fn line(&self) -> String {
        match self {
            Self::Run(line) | Self::Unreachable(line) | Self::Interrupted(line) => line.clone(),
            Self::Refused(lines) | Self::NotFound(lines) | Self::Usage(lines) => lines.join("; "),
            Self::Shown(_) | Self::Closed => String::new(),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Run(format!("{error:#}"))
    }
}

impl From<podwire_datapath::Error> for Failure {
    fn from(error: podwire_datapath::Error) -> Self {
        Self::Run(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Self::Closed
        } else {
            Self::Run(error.to_string())
        }
    }
}
