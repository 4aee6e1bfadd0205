//! Installs what is missing. In: groups of work. Out: a machine that has the packages and programs for them.
//!
//! Each missing item is named with its reason before anything is installed; a machine that has all of it is told
//! so in one line.

mod apt;
pub mod kubernetes;
mod packages;
mod toolchain;

use std::{process::ExitCode, slice, time::Instant};

use anyhow::{Result, bail};

pub use packages::Group;

use crate::{terminal, workspace};
use kubernetes::Part;
use packages::Package;
use toolchain::Step;

/// More steps than a toolchain can need; beyond it, a step does not do what it should.
const STEPS: usize = 6;

/// What a newcomer needs; the other groups are installed by those who ask for them.
const USUAL: [Group; 3] = [Group::Build, Group::Test, Group::Demo];

/// A program that cargo builds from its registry.
struct CargoTool {
    group: Group,
    name: &'static str,
    release: &'static str,
    why: &'static str,
    /// How long its build takes on two cores.
    takes: &'static str,
}

const TOOLS: [CargoTool; 2] = [
    CargoTool {
        group: Group::Lint,
        name: "cargo-deny",
        release: "0.20.2",
        why: "checks licences, bans and sources of the dependencies",
        takes: "3 to 4 minutes",
    },
    CargoTool {
        group: Group::Fuzz,
        name: "cargo-fuzz",
        release: "0.13.2",
        why: "builds and runs the fuzz targets",
        takes: "about a minute",
    },
];

/// `cargo xtask setup`.
pub fn command(groups: &[Group], check: bool) -> Result<ExitCode> {
    let mut groups = if groups.is_empty() { USUAL.to_vec() } else { groups.to_vec() };
    if groups.contains(&Group::Test) {
        groups.push(Group::Kubernetes);
    }
    if check {
        let missing = missing(&groups)?;
        missing.announce();
        return Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    ensure(&groups)?;
    Ok(ExitCode::SUCCESS)
}

/// Installs what `groups` need and this machine has not.
///
/// # Errors
/// When something cannot be installed: no apt, no root, no such package, a failed build.
pub fn ensure(groups: &[Group]) -> Result<()> {
    let started = Instant::now();
    let mut found = missing(groups)?;
    if found.needs_apt() {
        // Which way leads to a toolchain depends on what the lists know.
        apt::refresh_if_stale()?;
        found = missing(groups)?;
    }
    found.announce();
    if found.is_empty() {
        return Ok(());
    }
    let mut wanted = found.packages;
    for _ in 0..STEPS {
        if !wanted.is_empty() {
            apt::install(&wanted)?;
            wanted.clear();
        }
        if !groups.contains(&Group::Build) {
            break;
        }
        match toolchain::next_step()? {
            Step::Ready => break,
            Step::Packages(packages) => wanted = packages,
            other => other.carry_out()?,
        }
    }
    if groups.contains(&Group::Build) && !matches!(toolchain::next_step()?, Step::Ready) {
        bail!(
            "the BPF toolchain is still incomplete; `cargo xtask setup build --check` says what is missing"
        );
    }
    for tool in found.tools {
        tool.install()?;
    }
    for part in found.parts {
        // A distribution without the source tests all the rest.
        part.install().unwrap_or_else(|error| kubernetes::do_without(part, &error));
    }
    anstream::eprintln!("setup: done in {}", terminal::seconds(started.elapsed()));
    Ok(())
}

/// The Debian packages that `groups` need, optional ones included.
pub fn package_names(groups: &[Group]) -> Vec<String> {
    groups.iter().flat_map(|group| packages::wanted(*group)).map(|package| package.name).collect()
}

/// What is not there yet, as far as it can be known before the first step.
struct Missing {
    packages: Vec<Package>,
    toolchain: Step,
    tools: Vec<&'static CargoTool>,
    parts: Vec<Part>,
}

fn missing(groups: &[Group]) -> Result<Missing> {
    let wanted: Vec<Package> = groups.iter().flat_map(|group| packages::wanted(*group)).collect();
    let mut packages = match packages::installed() {
        Ok(installed) => packages::missing(&wanted, &installed),
        Err(_) => {
            apt::require(&wanted)?;
            wanted
        }
    };
    // What the distribution does not carry is not missed again and again.
    let lists = apt::has_lists();
    packages.retain(|package| !package.optional || !lists || apt::knows_all(slice::from_ref(package)));
    let toolchain = if groups.contains(&Group::Build) { toolchain::next_step()? } else { Step::Ready };
    if let Step::Packages(more) = &toolchain {
        let new = more.iter().filter(|package| packages.iter().all(|other| other.name != package.name));
        packages.extend(new.cloned().collect::<Vec<_>>());
    }
    let tools = TOOLS.iter().filter(|tool| groups.contains(&tool.group) && !tool.is_here()).collect();
    let parts = if groups.contains(&Group::Kubernetes) { Part::missing() } else { Vec::new() };
    Ok(Missing { packages, toolchain, tools, parts })
}

impl Missing {
    fn is_empty(&self) -> bool {
        self.packages.is_empty()
            && self.tools.is_empty()
            && self.parts.is_empty()
            && matches!(self.toolchain, Step::Ready)
    }

    fn needs_apt(&self) -> bool {
        !self.packages.is_empty() || !matches!(self.toolchain, Step::Ready | Step::Linker(..))
    }

    fn announce(&self) {
        if self.is_empty() {
            anstream::eprintln!("setup: everything is here");
            return;
        }
        anstream::eprintln!("setup: missing");
        for package in &self.packages {
            anstream::eprintln!("  {:<16} {}", package.name, package.why);
        }
        if let Some(reason) = self.toolchain.reason() {
            anstream::eprintln!("  {reason}");
        }
        for tool in &self.tools {
            anstream::eprintln!("  {:<16} {} (built by cargo, {})", tool.name, tool.why, tool.takes);
        }
        for part in &self.parts {
            anstream::eprintln!("  {}", part.describe());
        }
    }
}

impl CargoTool {
    fn is_here(&self) -> bool {
        workspace::find_program(self.name).is_some()
    }

    /// # Errors
    /// When the build fails; the end of its output was printed then.
    fn install(&self) -> Result<()> {
        let mut command = workspace::cargo()?;
        command.args(["install", self.name, "--version", self.release, "--locked"]);
        terminal::run_quietly(&format!("{} {} ({})", self.name, self.release, self.takes), &mut command)
    }
}
