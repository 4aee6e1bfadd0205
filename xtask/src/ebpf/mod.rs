//! Builds the BPF programs. In: the crates podwire-ebpf and podwire-core. Out: `datapath/bpf/podwire.bpf.o` and
//! `datapath/bpf/xsk.bpf.o`, ELF objects with BTF and without DWARF, and their record with the hashes of sources and
//! objects.

pub mod compiler;
pub mod linker;
mod record;
mod sources;

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    setup::{self, Group},
    workspace,
};
use compiler::Compiler;
use linker::Linker;
use record::Record;

/// The objects and their record, from the workspace's root.
const OBJECT: &str = "datapath/bpf/podwire.bpf.o";
const XSK_OBJECT: &str = "datapath/bpf/xsk.bpf.o";
const RECORD: &str = "datapath/bpf/podwire.bpf.sha256";
const TARGET: &str = "bpfel-unknown-none";
/// Builds of the library for tests load the object that this variable names instead of their own.
pub const OBJECT_VARIABLE: &str = "PODWIRE_BPF_OBJECT";

/// `cargo xtask ebpf`.
#[derive(Args)]
pub struct Options {
    /// Build nothing: check that the object in the repository was built from these sources
    #[arg(long, conflicts_with = "log")]
    check: bool,
    /// With log lines from the programs, to target/bpf/podwire.log.bpf.o (PODWIRE_BPF_OBJECT makes podwire load it)
    #[arg(long)]
    log: bool,
}

/// Runs `cargo xtask ebpf`.
pub fn command(options: &Options, install: bool) -> Result<ExitCode> {
    let root = workspace::root()?;
    if options.check {
        check(&root)?;
        anstream::println!("{OBJECT} was built from these sources");
        return Ok(ExitCode::SUCCESS);
    }
    if install {
        setup::ensure(&[Group::Build])?;
    }
    let toolchain = Toolchain::find()?;
    if options.log {
        let object = workspace::target()?.join("bpf/podwire.log.bpf.o");
        toolchain.build(&root, true, &object)?;
        anstream::println!("{} ({} bytes)", object.display(), fs::metadata(&object)?.len());
        return Ok(ExitCode::SUCCESS);
    }
    let object = root.join(OBJECT);
    toolchain.build(&root, false, &object)?;
    let record = Record {
        sources: sources::hash(&root)?,
        object: sources::hash_file(&object)?,
        xsk_object: sources::hash_file(&root.join(XSK_OBJECT))?,
        toolchain: toolchain.identity(),
    };
    fs::write(root.join(RECORD), record.render()).with_context(|| format!("cannot write {RECORD}"))?;
    anstream::println!("{OBJECT} ({} bytes), by {}", fs::metadata(&object)?.len(), record.toolchain);
    Ok(ExitCode::SUCCESS)
}

/// Checks that the object in the repository is what its record says, built from the sources as they are.
///
/// # Errors
/// One line that says which of the two disagrees and what to do.
pub fn check(root: &Path) -> Result<Record> {
    let text = fs::read_to_string(root.join(RECORD))
        .with_context(|| format!("{RECORD} is missing: run `cargo xtask ebpf` and commit datapath/bpf"))?;
    let record = Record::parse(&text).with_context(|| RECORD.to_owned())?;
    if record.sources != sources::hash(root)? {
        bail!("{OBJECT} was built from other sources: run `cargo xtask ebpf` and commit datapath/bpf");
    }
    for (object, hash) in [(OBJECT, &record.object), (XSK_OBJECT, &record.xsk_object)] {
        if *hash != sources::hash_file(&root.join(object))? {
            bail!("{object} is not the object of its record: run `cargo xtask ebpf` and commit datapath/bpf");
        }
    }
    Ok(record)
}

/// Rebuilds the object from source, apart from the one in the repository, and gives its path.
///
/// # Errors
/// When the build fails, or when the same toolchain once gave the object in the repository and now gives other
/// bytes: then that object was not built from these sources.
pub fn rebuild(root: &Path, record: &Record) -> Result<PathBuf> {
    let object = build_aside(root)?;
    let identity = Toolchain::find()?.identity();
    if identity != record.toolchain {
        anstream::eprintln!("  the object in the repository was built by {}", record.toolchain);
        anstream::eprintln!("  this one by {identity}: their bytes may differ");
    } else {
        let built = [(OBJECT, &object, &record.object), (XSK_OBJECT, &beside(&object), &record.xsk_object)];
        for (name, built, hash) in built {
            if sources::hash_file(built)? != *hash {
                bail!(
                    "the same toolchain ({identity}) built other bytes than {name} has: \
                     run `cargo xtask ebpf` and commit datapath/bpf"
                );
            }
        }
    }
    Ok(object)
}

/// Builds the object from the sources as they are, apart from the one in the repository, and gives its path.
///
/// # Errors
/// When the build fails.
pub fn build_aside(root: &Path) -> Result<PathBuf> {
    let object = workspace::target()?.join("bpf/podwire.rebuilt.bpf.o");
    Toolchain::find()?.build(root, false, &object)?;
    Ok(object)
}

/// Where the second object lies: beside the first, under the name that the library looks for.
fn beside(object: &Path) -> PathBuf {
    let name = object.file_name().unwrap_or_default().to_string_lossy();
    object.with_file_name(name.replacen("podwire.", "xsk.", 1))
}

/// The preferred compiler that the workspace accepts and the linker fits.
pub fn choose<'a>(
    compilers: &'a [Compiler],
    linker: Option<&'a Linker>,
) -> Option<(&'a Compiler, &'a Linker)> {
    let linker = linker?;
    let compiler =
        compilers.iter().find(|compiler| compiler.require_recent().is_ok() && linker.fits(compiler))?;
    linker::strip_program(compiler.version.llvm_major)?;
    Some((compiler, linker))
}

/// A compiler, its linker, and the program that strips what they make.
struct Toolchain {
    compiler: Compiler,
    linker: Linker,
    strip: PathBuf,
}

impl Toolchain {
    fn find() -> Result<Self> {
        let compilers = compiler::all();
        let linker = linker::find();
        let (compiler, linker) = choose(&compilers, linker.as_ref()).context(
            "no compiler with library source and no bpf-linker that fits it: run `cargo xtask setup build`",
        )?;
        let strip = linker::strip_program(compiler.version.llvm_major).context("no llvm-strip")?;
        Ok(Self { compiler: compiler.clone(), linker: linker.clone(), strip })
    }

    /// What decides about the object's bytes besides the sources.
    fn identity(&self) -> String {
        let Compiler { version, .. } = &self.compiler;
        let linker = self.linker.identity();
        format!("{}, LLVM {}, {linker}, {}", version.line, version.llvm, version.host_arch())
    }

    /// Compiles, strips and puts the object at `to`, the second one beside it.
    fn build(&self, root: &Path, log: bool, to: &Path) -> Result<()> {
        // Its own target folder: the flags would make every host build start anew.
        let target_dir = workspace::target()?.join("bpf");
        let mut cargo = workspace::cargo()?;
        cargo
            .args(["build", "--package", "podwire-ebpf", "--release", "--target", TARGET, "-Zbuild-std=core"])
            .arg("--target-dir")
            .arg(&target_dir)
            .env("RUSTC", &self.compiler.rustc)
            // Lets a stable cargo and compiler take -Z.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags(root)?.join(&OsString::from("\x1f")))
            .env("PATH", path_with(&self.linker.path)?)
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTC_WORKSPACE_WRAPPER");
        if log {
            cargo.args(["--features", "log"]);
        }
        workspace::run(&mut cargo, "the build of the BPF programs")?;

        let built = target_dir.join(TARGET).join("release");
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        for (name, to) in [("podwire", to), ("podwire-xsk", &beside(to))] {
            // DWARF is nine tenths of the object; the loader wants BTF only, which this keeps.
            let mut strip = Command::new(&self.strip);
            strip.arg("--strip-debug").arg(built.join(name)).arg("-o").arg(to);
            workspace::run(&mut strip, "llvm-strip of the BPF object")?;
        }
        Ok(())
    }

    /// The compiler's flags; no path of this machine stays in the object, so that it is the same everywhere.
    fn flags(&self, root: &Path) -> Result<Vec<OsString>> {
        let arch = self.compiler.version.host_arch();
        let mut flags: Vec<OsString> = vec![
            format!("--cfg=bpf_target_arch=\"{arch}\"").into(),
            "-Cdebuginfo=2".into(),
            "-Clink-arg=--btf".into(),
        ];
        let mut remap = |from: &Path, to: &str| {
            let mut flag = OsString::from("--remap-path-prefix=");
            flag.push(from);
            flag.push("=");
            flag.push(to);
            flags.push(flag);
        };
        remap(root, "podwire");
        remap(&self.compiler.source, "rust");
        let registries = workspace::cargo_home().context("cargo has no home folder")?.join("registry/src");
        for registry in fs::read_dir(&registries).into_iter().flatten().flatten() {
            remap(&registry.path(), "crates");
            // Cargo's home may be a link; which of the two names a compiler sees is cargo's choice.
            remap(&registry.path().canonicalize()?, "crates");
        }
        Ok(flags)
    }
}

/// `PATH` with the linker's folder in front.
fn path_with(program: &Path) -> Result<OsString> {
    let folder = program.parent().context("a program has a folder")?.to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths([folder].into_iter().chain(env::split_paths(&path)))?)
}
