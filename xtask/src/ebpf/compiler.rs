//! The compiler of the BPF programs: it needs its own `core` sources beside it.
//!
//! Two ways are known: a rustup nightly with the component rust-src, and Debian's `rustc-web` with `rust-web-src`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::workspace;

/// Debian's compiler and the source of its library.
pub const DEBIAN_PACKAGES: [(&str, &str); 2] = [
    ("rustc-web", "compiles the BPF programs (a Rust compiler whose library source is packaged too)"),
    ("rust-web-src", "the source of core, built for the BPF target"),
];

/// Where a compiler comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A rustup nightly toolchain.
    Rustup,
    /// Debian's package.
    Debian,
}

/// A compiler that can build `core` for BPF.
#[derive(Clone, Debug)]
pub struct Compiler {
    pub origin: Origin,
    pub rustc: PathBuf,
    /// The folder above its library source, as the compiler names it in debug information.
    pub source: PathBuf,
    pub version: Version,
}

/// What `rustc -vV` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its first line, with release and commit.
    pub line: String,
    /// (major, minor) of the Rust release.
    pub release: (u32, u32),
    pub host: String,
    /// The whole LLVM version.
    pub llvm: String,
    pub llvm_major: u32,
}

impl Version {
    /// Reads the output of `rustc -vV`.
    ///
    /// # Errors
    /// When a line is missing or no number.
    pub fn parse(text: &str) -> Result<Self> {
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.map(str::to_owned).with_context(|| format!("rustc -vV has no line `{name}`"))
        };
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
        let release = field("release")?;
        let release =
            self::release(&release).with_context(|| format!("rustc -vV: `{release}` is no release"))?;
        let llvm = field("LLVM version")?;
        let llvm_major = number(llvm.split('.').next())
            .with_context(|| format!("rustc -vV: `{llvm}` is no LLVM version"))?;
        let line = text.lines().next().unwrap_or_default().trim().to_owned();
        Ok(Self { line, release, host: field("host")?, llvm, llvm_major })
    }

    /// The processor of the host, as `bpf_target_arch` names it.
    pub fn host_arch(&self) -> &str {
        self.host.split('-').next().unwrap_or_default()
    }
}

/// The compilers that are on this machine, the preferred one first.
pub fn all() -> Vec<Compiler> {
    // A nightly changes by itself: the same sources would give other bytes tomorrow.
    [debian(), rustup_nightly()].into_iter().flatten().collect()
}

/// The rustup nightly, if it has the library source.
fn rustup_nightly() -> Option<Compiler> {
    let mut which = Command::new("rustup");
    // Without this, asking for a toolchain that is not there downloads it.
    which.args(["which", "--toolchain", "nightly", "rustc"]).env("RUSTUP_AUTO_INSTALL", "0");
    let rustc = PathBuf::from(workspace::output(&mut which).ok()?.trim());
    with_source(Origin::Rustup, &rustc)
}

fn debian() -> Option<Compiler> {
    let listing = workspace::output(Command::new("dpkg").args(["--listfiles", "rustc-web"])).ok()?;
    let rustc = listing.lines().find(|file| file.ends_with("/bin/rustc"))?;
    with_source(Origin::Debian, Path::new(rustc))
}

fn with_source(origin: Origin, rustc: &Path) -> Option<Compiler> {
    // Asked for, not derived: a toolchain may be a link to another folder, and debug information has the real one.
    let sysroot = workspace::output(Command::new(rustc).args(["--print", "sysroot"])).ok()?;
    let source = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    if !source.join("library/core/src/lib.rs").is_file() {
        return None;
    }
    let version = Version::parse(&workspace::output(Command::new(rustc).arg("-vV")).ok()?).ok()?;
    Some(Compiler { origin, rustc: rustc.to_owned(), source, version })
}

impl Compiler {
    /// Fails where the compiler is older than the workspace asks for.
    ///
    /// # Errors
    /// When it is too old.
    pub fn require_recent(&self) -> Result<()> {
        let wanted = workspace_release()?;
        if self.version.release < wanted {
            bail!(
                "{} is {}, the workspace needs Rust {}.{}: upgrade it, or install a rustup nightly with rust-src",
                self.rustc.display(),
                self.version.line,
                wanted.0,
                wanted.1,
            );
        }
        Ok(())
    }
}

/// The Rust release that the workspace asks for.
pub fn workspace_release() -> Result<(u32, u32)> {
    let text = env!("CARGO_PKG_RUST_VERSION");
    release(text).with_context(|| format!("rust-version `{text}` is no release"))
}

/// Major and minor number at the start of a version: of Rust's own or of a Debian package's, `1.96.0+dfsg1-1`.
pub fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map_while(|part| part.parse().ok());
    parts.next().zip(parts.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str = "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\nbinary: rustc\n\
                          commit-hash: ac68faa20c58\ncommit-date: 2026-05-25\nhost: x86_64-unknown-linux-gnu\n\
                          release: 1.96.0\nLLVM version: 22.1.8\n";

    #[test]
    fn llvm_comes_from_the_compiler() {
        let version = Version::parse(DEBIAN).unwrap();
        assert_eq!((version.llvm_major, version.llvm.as_str()), (22, "22.1.8"));
        assert_eq!(version.release, (1, 96));
        assert_eq!(version.host_arch(), "x86_64");
    }

    #[test]
    fn a_nightly_is_understood() {
        let nightly =
            DEBIAN.replace("release: 1.96.0", "release: 1.98.0-nightly").replace("22.1.8", "23.0.0");
        let version = Version::parse(&nightly).unwrap();
        assert_eq!((version.release, version.llvm_major), ((1, 98), 23));
    }

    #[test]
    fn a_compiler_without_an_llvm_line_is_refused() {
        let other = DEBIAN.replace("LLVM version: 22.1.8\n", "");
        assert!(Version::parse(&other).unwrap_err().to_string().contains("LLVM version"));
    }

    #[test]
    fn a_debian_version_begins_with_the_release() {
        assert_eq!(release("1.85.0+dfsg3-1~deb12u3"), Some((1, 85)));
        assert_eq!(release("1.95"), Some((1, 95)));
        assert_eq!(release("(none)"), None);
    }

    #[test]
    fn the_workspace_names_its_release() {
        assert!(workspace_release().unwrap() >= (1, 95));
    }
}
