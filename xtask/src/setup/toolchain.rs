//! The way from what is on the machine to a compiler of BPF programs with a linker that fits, one step at a time.

use std::process::Command;

use anyhow::{Result, bail};

use super::{
    apt,
    packages::{self, Package},
};
use crate::{
    ebpf::{
        compiler::{self, Compiler, Origin},
        linker::{self, Linker},
    },
    terminal, workspace,
};

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Nothing: a compiler and a linker that fits are here.
    Ready,
    /// Install these packages.
    Packages(Vec<Package>),
    /// Build bpf-linker for this compiler; the text says why.
    Linker(Box<Compiler>, String),
    /// Let rustup fetch a nightly compiler with its library source.
    Nightly,
}

impl Step {
    /// Why the step is needed, where it is more than packages.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Ready | Self::Packages(_) => None,
            Self::Linker(_, reason) => Some(format!("{:<16} {reason}", "bpf-linker")),
            Self::Nightly => Some(format!("{:<16} compiles the BPF programs", "nightly rust-src")),
        }
    }

    /// Does what needs no package.
    pub fn carry_out(self) -> Result<()> {
        match self {
            Self::Ready | Self::Packages(_) => Ok(()),
            Self::Linker(compiler, _) => linker::install(&compiler),
            Self::Nightly => {
                let mut rustup = Command::new("rustup");
                rustup.args([
                    "toolchain",
                    "install",
                    "nightly",
                    "--profile",
                    "minimal",
                    "--component",
                    "rust-src",
                ]);
                terminal::run_quietly("rustup toolchain install nightly with rust-src", &mut rustup)
            }
        }
    }
}

/// The next step from the state of this machine.
///
/// # Errors
/// When no way leads to a toolchain.
pub fn next_step() -> Result<Step> {
    let compilers = compiler::all();
    let linker = linker::find();
    if crate::ebpf::choose(&compilers, linker.as_ref()).is_some() {
        return Ok(Step::Ready);
    }
    for compiler in compilers.iter().filter(|compiler| compiler.require_recent().is_ok()) {
        if let Some(step) = towards_linker(compiler, linker.as_ref())? {
            return Ok(step);
        }
    }
    let debian = compiler::DEBIAN_PACKAGES.map(|(name, why)| Package::new(name, why));
    // Lists that were never fetched know nothing: fetching them comes first, and shows whether this way is open.
    if offers_recent(&debian) || !apt::has_lists() {
        return Ok(Step::Packages(debian.to_vec()));
    }
    let has_nightly = compilers.iter().any(|compiler| compiler.origin == Origin::Rustup);
    if !has_nightly && workspace::find_program("rustup").is_some() {
        return Ok(Step::Nightly);
    }
    bail!(
        "no way to compile BPF programs here: install a rustup nightly with rust-src and a bpf-linker \
         whose LLVM is not older than that nightly's"
    );
}

/// Whether apt would install Debian's compiler in a release that the workspace accepts.
fn offers_recent(debian: &[Package]) -> bool {
    let Ok(candidates) = apt::candidates(debian) else { return false };
    let recent = |package: &Package| {
        let release = compiler::release(candidates.get(&package.name)?)?;
        Some(release >= compiler::workspace_release().ok()?)
    };
    debian.iter().all(|package| recent(package) == Some(true))
}

/// What brings a linker for `compiler`, unless its LLVM is not to be had.
fn towards_linker(compiler: &Compiler, present: Option<&Linker>) -> Result<Option<Step>> {
    let major = compiler.version.llvm_major;
    let wanted: Vec<Package> = linker::packages(major).map(|(name, why)| Package::new(name, why)).to_vec();
    let missing = packages::missing(&wanted, &packages::installed().unwrap_or_default());
    if missing.is_empty() {
        let reason = match present.and_then(|linker| linker.llvm_major) {
            Some(old) => format!("links LLVM {old}, the compiler writes LLVM {major}: to be rebuilt"),
            None => format!("links the BPF programs; to be built for LLVM {major}"),
        };
        return Ok(Some(Step::Linker(Box::new(compiler.clone()), reason)));
    }
    Ok((apt::knows_all(&missing) || !apt::has_lists()).then_some(Step::Packages(missing)))
}
