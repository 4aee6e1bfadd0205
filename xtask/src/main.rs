//! `cargo xtask`: the project's own commands. In: a command line. Out: a machine that can build and test podwire,
//! the built BPF object, a test report, a running demo.
#![forbid(unsafe_code)]

mod bench;
mod demo;
mod ebpf;
mod fuzz;
mod miri;
mod privilege;
mod setup;
mod terminal;
mod test;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::setup::Group;

/// The project's own commands; each installs what it needs first.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    /// Install nothing and take the machine as it is
    #[arg(long, global = true)]
    no_setup: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what is missing: Debian packages and the tools that cargo builds
    Setup {
        /// Only these groups of work (default: build test demo)
        #[arg(value_enum)]
        groups: Vec<Group>,
        /// Only say what is missing; exit code 1 if anything is
        #[arg(long)]
        check: bool,
    },
    /// Build the BPF programs and write datapath/bpf/podwire.bpf.o with its record
    Ebpf(ebpf::Options),
    /// Run all tests, those that need root included, against BPF programs rebuilt from source
    Test(test::Options),
    /// Two pods, a node and a collector on this machine: watch chosen traffic being mirrored
    Demo {
        /// Passed on to the demo
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the benches
    Bench {
        /// Passed on to `cargo bench -p podwire-bench`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the fuzz targets one after the other
    Fuzz(fuzz::Options),
    /// Run what touches no kernel under Miri (a nightly is installed for it); some ten minutes
    Miri,
    /// Boot other kernels in QEMU and run the tests that need root inside
    Vm(vm::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let install = !cli.no_setup;
    let outcome = match cli.command {
        Command::Setup { groups, check } => setup::command(&groups, check),
        Command::Ebpf(options) => ebpf::command(&options, install),
        Command::Test(options) => test::command(&options, install),
        Command::Demo { arguments } => demo::command(&arguments, install),
        Command::Bench { arguments } => bench::command(&arguments, install),
        Command::Fuzz(options) => fuzz::command(&options, install),
        Command::Miri => miri::command(install),
        Command::Vm(options) => vm::command(&options, install),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            anstream::eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
