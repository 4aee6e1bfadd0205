//! The guest's two disks. In: installed packages, a kernel, the suite. Out: ext4 images, the first one kept from run
//! to run.
//!
//! The first is a small Debian with the kernel's modules. The second holds the workspace and the built tests, and the guest
//! shows it at the workspace's own path, which tests have compiled in.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use super::{kernel::Kernel, suite::Suite, userland};
use crate::{
    setup::{self, Group},
    terminal, workspace,
};

/// What of the workspace no test reads.
const LEFT_OUT: [&str; 2] = ["target", ".git"];
/// Free room on the first disk; what tests write goes to memory.
const SPARE: u64 = 256 << 20;

/// What the guest is told about the run.
pub struct Settings<'a> {
    pub seconds_per_test: u32,
    /// Words before each test's program.
    pub prefix: &'a str,
    /// Words after each test's name.
    pub arguments: &'a [String],
}

/// Builds the disk with the guest's programs, unless the one that is there holds just these.
///
/// # Errors
/// When files cannot be copied or the image cannot be made.
pub fn userland(folder: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let wanted = setup::package_names(&[Group::Test, Group::Vm]);
    let packages = userland::Packages::installed()?.closure(wanted);
    let script = fs::read(workspace::root()?.join("tests/vm/guest")).context("reading tests/vm/guest")?;
    let mut hash = Sha256::new();
    for (name, version) in &packages {
        hash.update(format!("{name} {version}\n"));
    }
    hash.update(&script);
    let digest: String = hash.finalize().iter().take(8).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let prefix = format!("root-{}-", kernel.release);
    let image = folder.join(format!("{prefix}{digest}.ext4"));
    if image.is_file() {
        return Ok(image);
    }
    let stage = fresh(&folder.join(format!("root-{}.d", std::process::id())))?;
    userland::copy(&packages, &stage)?;
    let modules = stage.join("usr/lib/modules").join(&kernel.release);
    copy_tree(&kernel.modules(), &modules, &["build", "source"])?;
    write_program(&stage.join("usr/sbin/podwire-guest"), &script)?;
    for old in fs::read_dir(folder)?.flatten().map(|entry| entry.path()) {
        let name = old.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(&prefix) && name.ends_with(".ext4") {
            fs::remove_file(&old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    make(&format!("programs and modules of {}", kernel.release), &stage, &image)?;
    Ok(image)
}

/// Builds the disk with the workspace and the tests.
///
/// # Errors
/// When files cannot be copied or the image cannot be made.
pub fn tests(folder: &Path, suite: &Suite, settings: &Settings<'_>) -> Result<PathBuf> {
    let stage = fresh(&folder.join(format!("tests-{}.d", std::process::id())))?;
    let (root, target) = (workspace::root()?, workspace::target()?);
    let target = target.canonicalize().context("cargo's target folder")?;
    let there = stage.join("workspace");
    copy_tree(&root, &there, &LEFT_OUT)?;
    let mut programs: Vec<&PathBuf> = suite.tests.iter().map(|test| &test.program).collect();
    programs.extend(&suite.programs);
    programs.sort();
    programs.dedup();
    for program in programs {
        let target = there.join("target").join(inside(program, &target)?);
        fs::create_dir_all(target.parent().context("a folder")?)?;
        fs::copy(program, &target).with_context(|| format!("cannot copy {}", program.display()))?;
    }
    let mut plan = String::new();
    for test in &suite.tests {
        let program = root.join("target").join(inside(&test.program, &target)?);
        writeln!(plan, "{}\t{}", program.display(), test.name)?;
    }
    fs::create_dir_all(stage.join("podwire"))?;
    fs::write(stage.join("podwire/plan"), plan)?;
    fs::write(stage.join("podwire/settings"), settings.render(&root))?;
    let image = folder.join(format!("tests-{}.ext4", std::process::id()));
    make("the tests", &stage, &image)?;
    Ok(image)
}

impl Settings<'_> {
    /// Assignments for the guest's shell.
    fn render(&self, root: &Path) -> String {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        format!(
            "WORKSPACE={}\nSECONDS_PER_TEST={}\nPREFIX={}\nARGUMENTS={}\n",
            quoted(&root.to_string_lossy()),
            self.seconds_per_test,
            quoted(self.prefix),
            quoted(&self.arguments.join(" "))
        )
    }
}

/// A program's path below cargo's target folder.
fn inside<'a>(program: &'a Path, target: &Path) -> Result<&'a Path> {
    program
        .strip_prefix(target)
        .with_context(|| format!("{} is not in {}", program.display(), target.display()))
}

fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder.to_owned())
}

/// Copies a folder; entries of the top named in `without` stay.
fn copy_tree(from: &Path, to: &Path, without: &[&str]) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let mut command = Command::new("cp");
    command.args(["--archive", "--no-preserve=ownership", "--reflink=auto", "--target-directory"]).arg(to);
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?.flatten() {
        if !without.iter().any(|name| entry.file_name() == *name) {
            command.arg(entry.path());
        }
    }
    workspace::run(&mut command, &format!("copying {}", from.display()))
}

/// Writes a file that can be executed, whatever the workspace's file says.
pub fn write_program(path: &Path, content: &[u8]) -> Result<()> {
    fs::create_dir_all(path.parent().context("a folder")?)?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))?;
    workspace::run(Command::new("chmod").arg("0755").arg(path), "chmod")
}

/// Makes an ext4 image of a folder, and removes the folder.
fn make(what: &str, stage: &Path, image: &Path) -> Result<()> {
    let usage = workspace::output(Command::new("du").args(["-s", "--block-size=1"]).arg(stage))?;
    let bytes: u64 =
        usage.split_whitespace().next().and_then(|word| word.parse().ok()).context("du says nothing")?;
    let part = image.with_extension("part");
    let _ = fs::remove_file(&part);
    let size = (bytes + bytes / 8 + SPARE) >> 20;
    let mke2fs = workspace::find_program("mke2fs").context("no mke2fs here: run `cargo xtask setup vm`")?;
    let mut command = Command::new(mke2fs);
    command
        .args(["-q", "-t", "ext4", "-E", "root_owner=0:0", "-O", "^has_journal", "-d"])
        .arg(stage)
        .arg(&part);
    command.arg(format!("{size}M"));
    terminal::run_quietly(&format!("disk with {what}, {} MB", bytes >> 20), &mut command)?;
    if !part.is_file() {
        bail!("mke2fs left no {}", part.display());
    }
    fs::rename(&part, image)?;
    fs::remove_dir_all(stage).with_context(|| format!("cannot remove {}", stage.display()))
}

#[cfg(test)]
mod tests_of_this {
    use super::*;

    #[test]
    fn settings_survive_the_shell() {
        let arguments = ["--skip".to_owned(), "it's".to_owned()];
        let settings = Settings { seconds_per_test: 60, prefix: "setpriv -x", arguments: &arguments };
        let text = settings.render(Path::new("/a b"));
        let script = format!("{text}printf '%s|%s|%s' \"$WORKSPACE\" \"$PREFIX\" \"$ARGUMENTS\"");
        let output = workspace::output(Command::new("sh").args(["-c", &script])).unwrap();
        assert_eq!(output, "/a b|setpriv -x|--skip it's");
    }
}
