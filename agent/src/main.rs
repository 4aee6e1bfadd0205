//! `podwire`: the daemon and the command line, one binary.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 it failed, 2 wrong
//! use, 3 the objects are refused, 4 the agent cannot be reached. 130 it was interrupted. `podwire traceflow` has its
//! own meaning for 0, 1 and 3, which its help tells.
#![forbid(unsafe_code)]

mod capture;
mod cli;
mod client;
mod daemon;
mod failure;
mod kubernetes;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = cli::Arguments::parse();
    match cli::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
