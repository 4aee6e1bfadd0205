//! The guest's programs. In: names of Debian packages installed here. Out: their files and those of all they depend
//! on, copied below a folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::workspace;

/// What a shell and the guest's script use. What the tests use is named by the group of tests.
const SYSTEM: [&str; 14] = [
    "base-files",
    "base-passwd",
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "grep",
    "kmod",
    "libc-bin",
    "mount",
    "netbase",
    "procps",
    "sed",
    "util-linux",
];
/// Files that no package lists.
const CONFIGURATION: [&str; 3] = ["/etc/passwd", "/etc/group", "/etc/nsswitch.conf"];
/// Read by people only.
const PROSE: [&str; 4] = ["/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/"];

/// Installed packages, their versions and what they need.
pub struct Packages {
    versions: BTreeMap<String, String>,
    /// Alternatives by need.
    needs: BTreeMap<String, Vec<Vec<String>>>,
    provided: BTreeMap<String, Vec<String>>,
}

impl Packages {
    /// What is installed here.
    ///
    /// # Errors
    /// When there is no dpkg or it fails.
    pub fn installed() -> Result<Self> {
        let format = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Pre-Depends}, ${Depends}\t${Provides}\n";
        let listing = workspace::output(Command::new("dpkg-query").args(["--show", "--showformat", format]))?;
        Ok(Self::parse(&listing))
    }

    fn parse(listing: &str) -> Self {
        let mut packages =
            Self { versions: BTreeMap::new(), needs: BTreeMap::new(), provided: BTreeMap::new() };
        for line in listing.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [status, name, version, needs, provides] = fields[..] else { continue };
            if !matches!(status.trim(), "ii" | "hi") {
                continue;
            }
            packages.versions.insert(name.to_owned(), version.to_owned());
            packages.needs.insert(
                name.to_owned(),
                needs.split(',').map(|need| need.split('|').filter_map(bare).collect()).collect(),
            );
            for provided in provides.split(',').filter_map(bare) {
                packages.provided.entry(provided).or_default().push(name.to_owned());
            }
        }
        packages
    }

    /// `wanted`, the system and all that they need, with versions. What is not installed is left out.
    pub fn closure(&self, wanted: impl IntoIterator<Item = String>) -> BTreeMap<String, String> {
        let mut open: Vec<String> = wanted.into_iter().chain(SYSTEM.map(str::to_owned)).collect();
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            open.extend(self.provided.get(&name).into_iter().flatten().cloned());
            for alternatives in self.needs.get(&name).into_iter().flatten() {
                open.extend(alternatives.iter().cloned());
            }
        }
        seen.into_iter().filter_map(|name| Some((name.clone(), self.versions.get(&name)?.clone()))).collect()
    }
}

/// The name in `libc6:any (>= 2.36)`.
fn bare(need: &str) -> Option<String> {
    let name = need.split_whitespace().next()?;
    Some(name.split(':').next().unwrap_or(name).to_owned())
}

/// Copies the packages' files below `stage`, and the few files that no package lists.
///
/// # Errors
/// When a file cannot be copied.
pub fn copy(packages: &BTreeMap<String, String>, stage: &Path) -> Result<()> {
    let listing = workspace::output(
        Command::new("dpkg-query").arg("--listfiles").args(packages.keys()).env("LC_ALL", "C"),
    )?;
    let files = listing.lines().filter(|file| file.starts_with('/')).chain(CONFIGURATION);
    for file in files.filter(|file| PROSE.iter().all(|prose| !file.starts_with(prose))) {
        place(Path::new(file), stage)?;
    }
    alternatives(stage)?;
    for folder in ["bin", "sbin", "lib", "lib64"] {
        // A distribution with merged folders lists `/bin/sh` and has it in /usr/bin.
        if fs::symlink_metadata(Path::new("/").join(folder)).is_ok_and(|about| about.is_symlink()) {
            fs::create_dir_all(stage.join("usr").join(folder))?;
            link(Path::new("usr").join(folder).as_path(), &stage.join(folder))?;
        }
    }
    for folder in ["proc", "sys", "dev", "run", "tmp", "root", "etc"] {
        fs::create_dir_all(stage.join(folder))?;
    }
    fs::write(stage.join("etc/hosts"), "127.0.0.1 localhost podwire-vm\n::1 localhost\n")?;
    // Wherever it says that the loader looks: without the cache it would not look in the architecture's folders.
    if Path::new("/etc/ld.so.conf").exists() {
        place(Path::new("/etc/ld.so.conf"), stage)?;
    }
    let ldconfig = workspace::find_program("ldconfig").context("no ldconfig here")?;
    workspace::run(Command::new(ldconfig).arg("-r").arg(stage), "ldconfig")
}

/// Copies a file or link to the same place below `stage`; folders come with what is in them.
fn place(file: &Path, stage: &Path) -> Result<()> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return Ok(()) };
    // What the maintainer's scripts have moved away is not there any more.
    let Ok(folder) = folder.canonicalize() else { return Ok(()) };
    let source = folder.join(name);
    let Ok(about) = fs::symlink_metadata(&source) else { return Ok(()) };
    let target = stage.join(source.strip_prefix("/").unwrap_or(&source));
    if about.is_dir() {
        return fs::create_dir_all(&target).with_context(|| format!("cannot make {}", target.display()));
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    if about.is_symlink() {
        return link(&fs::read_link(&source)?, &target);
    }
    if about.is_file() && fs::copy(&source, &target).is_err() {
        // A file that only root may read is of no use to a test.
        fs::File::open(&source).err().context(format!("cannot copy {}", source.display())).map(drop)?;
    }
    Ok(())
}

/// Debian's links between a general name and the program chosen for it, made by scripts, not by packages.
fn alternatives(stage: &Path) -> Result<()> {
    let folder = Path::new("/etc/alternatives");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(chosen) = fs::read_link(entry.path()) else { continue };
        let Ok(real) = chosen.canonicalize() else { continue };
        let there = stage.join(real.strip_prefix("/").unwrap_or(&real)).exists();
        let general = Path::new("/usr/bin").join(entry.file_name());
        if there && fs::read_link(&general).is_ok_and(|to| to == entry.path()) {
            place(&entry.path(), stage)?;
            place(&general, stage)?;
        }
    }
    Ok(())
}

fn link(to: &Path, at: &PathBuf) -> Result<()> {
    if fs::symlink_metadata(at).is_ok() {
        return Ok(());
    }
    symlink(to, at).with_context(|| format!("cannot link {}", at.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closure_follows_alternatives_and_what_others_provide() {
        let packages = Packages::parse(
            "ii \ttshark\t4\t, libc6 (>= 2.3), viewer | pager:any\t\n\
             ii \tlibc6\t2\t, \t\nii \tless\t1\t, libtinfo6\tpager (= 1)\n\
             ii \tlibtinfo6\t6\t, \t\nii \temacs\t28\t, \t\nrc \tviewer\t1\t, \t\n",
        );
        let closure = packages.closure(["tshark".to_owned(), "absent".to_owned()]);
        assert_eq!(closure.keys().collect::<Vec<_>>(), ["less", "libc6", "libtinfo6", "tshark"]);
    }
}
