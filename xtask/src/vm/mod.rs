//! `cargo xtask vm`: the tests that need root, inside other kernels. In: the tree, Debian's kernels. Out: a table of
//! tests by kernel, what skipped itself and why, what the verifier counted.
//!
//! QEMU interprets the guest's instructions, so this runs on any machine and is some twenty times slower than it.

mod disk;
mod guest;
mod kernel;
mod report;
mod suite;
mod userland;

use std::{fs, process::ExitCode, time::Instant};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use crate::{
    setup::{self, Group},
    terminal, workspace,
};
use disk::Settings;
use guest::Guest;
use kernel::Kernel;
use report::Report;

/// Which kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Series {
    /// Debian 12's own: no tcx
    #[value(name = "6.1")]
    V6_1,
    /// Its backports': tcx and netkit
    #[value(name = "6.12")]
    V6_12,
    /// Both, one after the other
    All,
}

/// `cargo xtask vm`.
#[derive(Args)]
pub struct Options {
    /// The kernel to boot
    #[arg(long, value_enum, default_value = "all")]
    kernel: Series,
    /// Only tests whose `program::name` contains one of these
    #[arg(long, num_args = 1.., value_name = "NAME")]
    filter: Vec<String>,
    /// Seconds before a test that has not ended is stopped
    #[arg(long, default_value_t = 900)]
    seconds_per_test: u32,
    /// A command that starts each test, in the guest, such as `setpriv --bounding-set -perfmon`
    #[arg(long, default_value = "", value_name = "COMMAND")]
    prefix: String,
    /// Keep the run's disk, its logs and the command that boots it
    #[arg(long)]
    keep: bool,
    /// Passed on to the test binaries
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Runs `cargo xtask vm`.
pub fn command(options: &Options, install: bool) -> Result<ExitCode> {
    if install {
        setup::ensure(&[Group::Build, Group::Test, Group::Vm])?;
    }
    let folder = workspace::target()?.join("vm");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let kernels: Vec<Kernel> =
        options.kernel.each().iter().map(|series| Kernel::fetch(&folder, series)).collect::<Result<_>>()?;
    let suite = suite::build(&options.filter)?;
    let settings = Settings {
        seconds_per_test: options.seconds_per_test,
        prefix: &options.prefix,
        arguments: &options.arguments,
    };
    let tests = disk::tests(&folder, &suite, &settings)?;
    let mut reports = Vec::new();
    for kernel in &kernels {
        let root = disk::userland(&folder, kernel)?;
        let started = Instant::now();
        let guest = Guest { kernel, root: &root, tests: &tests, folder: &folder, settings: &settings };
        anstream::println!("Linux {} …", kernel.release);
        if options.keep {
            anstream::println!("  {}", guest.shell_command()?);
        }
        let report = guest.run(&suite)?;
        anstream::println!(
            "Linux {}: {} in {}",
            kernel.release,
            report.summary(),
            terminal::seconds(started.elapsed())
        );
        reports.push(report);
    }
    if !options.keep {
        fs::remove_file(&tests).with_context(|| format!("cannot remove {}", tests.display()))?;
    }
    anstream::println!("\n{}", report::table(&suite, &reports));
    Ok(if reports.iter().all(Report::is_good) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Series {
    /// Debian's names of the series.
    fn each(self) -> &'static [&'static str] {
        match self {
            Self::V6_1 => &["6.1"],
            Self::V6_12 => &["6.12"],
            Self::All => &["6.1", "6.12"],
        }
    }
}
