//! What the BPF object depends on, as one hash.
//!
//! In: the Rust files and manifests of podwire-ebpf and podwire-core without their tests, the locked versions of the
//! crates they use, and the release profile. Out: SHA-256 in hexadecimal.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

/// Folders whose Rust files and manifest count.
const CRATES: [&str; 2] = ["ebpf", "datapath/core"];
/// Folders that never reach the BPF compiler.
const TEST_FOLDERS: [&str; 4] = ["tests", "benches", "examples", "target"];
/// A file that only tests include.
const TEST_FILE: &str = "tests.rs";

/// The hash over all sources below `root`, the workspace.
///
/// # Errors
/// When a file cannot be read.
pub fn hash(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    for folder in CRATES {
        collect(&root.join(folder), &mut files)?;
    }
    let mut parts = Vec::new();
    for file in files {
        let name = file.strip_prefix(root)?.to_string_lossy().into_owned();
        parts.push((name, read(&file)?));
    }
    let lock = String::from_utf8(read(&root.join("Cargo.lock"))?).context("Cargo.lock is no UTF-8")?;
    parts.push(("locked versions".to_owned(), locked_versions(&lock).into_bytes()));
    let manifest = String::from_utf8(read(&root.join("Cargo.toml"))?).context("Cargo.toml is no UTF-8")?;
    parts.push(("release profile".to_owned(), release_profile(&manifest).into_bytes()));
    Ok(digest(parts))
}

/// SHA-256 of one file.
///
/// # Errors
/// When it cannot be read.
pub fn hash_file(path: &Path) -> Result<String> {
    Ok(hexadecimal(&Sha256::digest(read(path)?)))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The Rust files and manifests below `folder`, without those of tests.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !TEST_FOLDERS.contains(&name.as_str()) {
                collect(&path, files)?;
            }
        } else if name == "Cargo.toml" || (name.ends_with(".rs") && name != TEST_FILE) {
            files.push(path);
        }
    }
    Ok(())
}

/// One digest over named contents, whatever order they come in.
fn digest(mut parts: Vec<(String, Vec<u8>)>) -> String {
    parts.sort();
    let mut hasher = Sha256::new();
    for (name, content) in parts {
        // The lengths keep a byte from moving from one part to the next unseen.
        hasher.update(name.len().to_le_bytes());
        hasher.update(name);
        hasher.update(content.len().to_le_bytes());
        hasher.update(content);
    }
    hexadecimal(&hasher.finalize())
}

/// `name version` of every crate of the aya-ebpf family in a Cargo.lock.
fn locked_versions(lock: &str) -> String {
    let mut versions = String::new();
    for package in lock.split("[[package]]") {
        let field = |key: &str| package.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        let name = field("name = ").trim_matches('"');
        if name.starts_with("aya-ebpf") {
            versions += name;
            versions += " ";
            versions += field("version = ").trim_matches('"');
            versions += "\n";
        }
    }
    versions
}

/// The sections of the workspace's manifest that set how a release is compiled.
fn release_profile(manifest: &str) -> String {
    let mut inside = false;
    let mut profile = String::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line.starts_with("[profile.release");
        }
        if inside && !line.is_empty() && !line.starts_with('#') {
            profile += line;
            profile += "\n";
        }
    }
    profile
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(list: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
        list.iter().map(|(name, content)| ((*name).to_owned(), content.as_bytes().to_vec())).collect()
    }

    #[test]
    fn the_order_of_files_does_not_matter_but_names_and_bytes_do() {
        let hash = digest(parts(&[("a", "1"), ("b", "2")]));
        assert_eq!(hash, digest(parts(&[("b", "2"), ("a", "1")])));
        assert_ne!(hash, digest(parts(&[("a", "1"), ("c", "2")])));
        assert_ne!(hash, digest(parts(&[("a", "1"), ("b", "3")])));
        assert_ne!(digest(parts(&[("a", "bc")])), digest(parts(&[("ab", "c")])));
    }

    #[test]
    fn only_the_kernel_sides_crates_are_locked() {
        let lock = "version = 4\n\n[[package]]\nname = \"aya\"\nversion = \"0.14.0\"\n\n[[package]]\n\
                    name = \"aya-ebpf\"\nversion = \"0.2.1\"\ndependencies = [\n \"aya-ebpf-cty\",\n]\n\n[[package]]\n\
                    name = \"aya-ebpf-cty\"\nversion = \"0.3.0\"\n";
        assert_eq!(locked_versions(lock), "aya-ebpf 0.2.1\naya-ebpf-cty 0.3.0\n");
    }

    #[test]
    fn the_release_profile_is_part_of_it_and_nothing_else() {
        let manifest = "[package]\nname = \"x\"\n\n[profile.dev]\ndebug = 1\n\n[profile.release]\n# why\ndebug = 2\n\n\
                        [profile.release.package.y]\nopt-level = 3\n[lints]\na = 1\n";
        let profile = "[profile.release]\ndebug = 2\n[profile.release.package.y]\nopt-level = 3\n";
        assert_eq!(release_profile(manifest), profile);
    }

    #[test]
    fn tests_are_left_out() {
        let folder = std::env::temp_dir().join(format!("xtask-sources-{}", std::process::id()));
        for file in
            ["src/lib.rs", "src/wire/tests.rs", "tests/golden.rs", "src/wire/gre.rs", "Cargo.toml", "README"]
        {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let mut files = Vec::new();
        collect(&folder, &mut files).unwrap();
        files.sort();
        let names: Vec<_> =
            files.iter().map(|file| file.strip_prefix(&folder).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["Cargo.toml", "src/lib.rs", "src/wire/gre.rs"]);
        fs::remove_dir_all(folder).unwrap();
    }
}
