//! `kube-apiserver` from Debian's source package, which carries all that the build wants. In: the packages of the
//! group. Out: one program.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::cache;
use crate::{setup::apt::source, terminal, workspace};

/// What Debian's package called `kubernetes` really holds.
pub const RELEASE: &str = "1.20.2";
/// How long all of it takes on two cores.
pub const TAKES: &str = "10 to 15 minutes";

const COMPILER: (&str, &str) = ("golang-1.19-go", "/bin/go");
const REFLECT: (&str, &str) = ("golang-github-modern-go-reflect2-dev", "/modern-go/reflect2");

/// Where the built program is kept.
///
/// # Errors
/// When there is no cache folder.
pub fn path() -> Result<PathBuf> {
    Ok(cache()?.join(format!("kube-apiserver-{RELEASE}")).join("kube-apiserver"))
}

/// Builds it.
///
/// # Errors
/// When a package, the source or the build fails.
pub fn build() -> Result<()> {
    let (go, reflect) = (file_of(COMPILER)?, file_of(REFLECT)?);
    let path = path()?;
    let folder = path.parent().context("a program stands in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    // In the same file system, so that the program is there as a whole or not at all; several gigabytes for a time.
    let work = tempfile::Builder::new().prefix("build-").tempdir_in(folder)?;
    let tree = work.path().join("kubernetes");
    fs::create_dir(&tree)?;
    source::fetch("kubernetes", work.path())?;
    unpack(&archive(work.path())?, &tree)?;
    replace_reflect(&tree, &reflect)?;
    compile(work.path(), &tree, &go)?;
    Ok(fs::rename(tree.join("_output/bin/kube-apiserver"), path)?)
}

/// The file of an installed package whose path ends so.
fn file_of((package, end): (&str, &str)) -> Result<PathBuf> {
    let files = workspace::output(Command::new("dpkg").args(["-L", package]))?;
    let found = files.lines().find(|line| line.ends_with(end));
    found.map(PathBuf::from).with_context(|| format!("{package} has no file …{end}"))
}

/// The source's archive, of the release that is known to work.
fn archive(folder: &Path) -> Result<PathBuf> {
    let names = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let mut archives = names.filter(|path| path.to_string_lossy().contains(".orig.tar."));
    let archive = archives.next().context("the source package has no archive")?;
    if !archive.to_string_lossy().contains(RELEASE) {
        bail!("{} is not release {RELEASE}, whose build is known", archive.display());
    }
    Ok(archive)
}

fn unpack(archive: &Path, tree: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--strip-components=1", "--no-same-owner", "-xf"]).arg(archive).arg("-C").arg(tree);
    terminal::run_quietly("unpacking Kubernetes", &mut tar)
}

/// reflect2 1.0.1 reads Go's own structures, which are others since Go 1.18: the server would die at the first
/// custom resource.
fn replace_reflect(tree: &Path, reflect: &Path) -> Result<()> {
    let vendored = tree.join("vendor/github.com/modern-go");
    fs::remove_dir_all(vendored.join("reflect2"))?;
    let mut copy = Command::new("cp");
    workspace::run(copy.arg("-rL").arg(reflect).arg(&vendored), "copying reflect2")
}

fn compile(work: &Path, tree: &Path, go: &Path) -> Result<()> {
    // The build wants to find its tree under its own import path.
    let workspace = tree.join(".go");
    fs::create_dir_all(workspace.join("src/k8s.io"))?;
    std::os::unix::fs::symlink("../../..", workspace.join("src/k8s.io/kubernetes"))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = go.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    let mut make = Command::new("make");
    make.args(["WHAT=cmd/kube-apiserver", "GOLDFLAGS=-s -w"])
        .current_dir(tree)
        .env("PATH", std::env::join_paths(folders)?)
        .env("GOPATH", &workspace)
        .env("GOCACHE", work.join("cache"))
        .env("CGO_ENABLED", "0")
        .env("GOPROXY", "off");
    terminal::run_quietly(&format!("kube-apiserver {RELEASE} ({TAKES})"), &mut make)
}
