//! bpf-linker: it reads the compiler's LLVM bitcode, so its LLVM must not be older than the compiler's.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::compiler::Compiler;
use crate::{terminal, workspace};

/// The release that setup builds.
const RELEASE: &str = "0.13.0";

/// An installed bpf-linker that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linker {
    pub path: PathBuf,
    /// As it names itself.
    pub version: String,
    /// Its LLVM's major version; none when LLVM is inside the program.
    pub llvm_major: Option<u32>,
}

/// The bpf-linker of this machine, if it starts.
pub fn find() -> Option<Linker> {
    let path = workspace::find_program("bpf-linker")?;
    let version = workspace::output(Command::new(&path).arg("--version")).ok()?;
    let libraries = workspace::output(Command::new("ldd").arg(&path)).unwrap_or_default();
    Some(Linker { llvm_major: linked_llvm(&libraries), version: version.trim().to_owned(), path })
}

impl Linker {
    /// Whether it can read what `compiler` writes.
    pub fn fits(&self, compiler: &Compiler) -> bool {
        // A program with LLVM inside was chosen by hand: it is believed.
        self.llvm_major.is_none_or(|major| major >= compiler.version.llvm_major)
    }

    /// Itself and the LLVM that it uses, as far as that can be seen.
    pub fn identity(&self) -> String {
        let llvm = self.llvm_major.and_then(|major| {
            let config = format!("/usr/lib/llvm-{major}/bin/llvm-config");
            workspace::output(Command::new(config).arg("--version")).ok()
        });
        match llvm {
            Some(llvm) => format!("{} on LLVM {}", self.version, llvm.trim()),
            None => self.version.clone(),
        }
    }
}

/// Reads the LLVM major version from the output of `ldd`: `libLLVM.so.22.1 => …` or `libLLVM-19.so.1 => …`.
fn linked_llvm(ldd: &str) -> Option<u32> {
    let name = ldd.split_whitespace().find_map(|word| word.strip_prefix("libLLVM"))?;
    let digits: String =
        name.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The Debian packages that a bpf-linker for LLVM `major` is built from.
pub fn packages(major: u32) -> [(String, &'static str); 4] {
    [
        (format!("llvm-{major}-dev"), "the LLVM of the BPF compiler: bpf-linker is built on it"),
        (format!("libpolly-{major}-dev"), "llvm-config names it among LLVM's libraries"),
        ("g++".to_owned(), "LLVM's C++ library"),
        ("zlib1g-dev".to_owned(), "llvm-config names it among LLVM's libraries"),
    ]
}

/// Builds bpf-linker for the compiler's LLVM.
///
/// # Errors
/// When the build fails; the end of its output was printed then.
pub fn install(compiler: &Compiler) -> Result<()> {
    let major = compiler.version.llvm_major;
    let prefix = format!("/usr/lib/llvm-{major}");
    let mut command = workspace::cargo()?;
    command
        .args(["install", "bpf-linker", "--version", RELEASE, "--locked", "--force", "--no-default-features"])
        .args(["--features", &format!("llvm-{major}")])
        .env("LLVM_PREFIX", &prefix)
        .env("CARGO_ENCODED_RUSTFLAGS", format!("-Lnative={prefix}/lib"));
    terminal::run_quietly(&format!("bpf-linker {RELEASE} for LLVM {major} (about a minute)"), &mut command)
}

/// A program that removes debug information from the object.
pub fn strip_program(llvm_major: u32) -> Option<PathBuf> {
    let beside_llvm = Path::new("/usr/lib").join(format!("llvm-{llvm_major}/bin/llvm-strip"));
    [beside_llvm].into_iter().find(|file| file.is_file()).or_else(|| workspace::find_program("llvm-strip"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linked_llvm_is_read_from_ldd() {
        let new = "\tlibLLVM.so.22.1 => /usr/lib/llvm-22/lib/libLLVM.so.22.1 (0x00007f2d71200000)\n";
        let old = "\tlibLLVM-19.so.1 => not found\n";
        let inside = "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f2d7101e000)\n";
        assert_eq!(linked_llvm(new), Some(22));
        assert_eq!(linked_llvm(old), Some(19));
        assert_eq!(linked_llvm(inside), None);
    }
}
