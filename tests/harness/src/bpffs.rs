//! A folder with a bpffs in it, for one test.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A folder under `/run` with a private bpffs; both go on drop.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// Makes the folder and mounts the bpffs.
    ///
    /// # Errors
    /// Without the right to mount.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("podwire-test-").tempdir_in("/run")?.keep();
        let scratch = Self { folder };
        let bpf = scratch.bpf();
        std::fs::create_dir(&bpf)?;
        mount(Some("bpf"), &bpf, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
            .context("mounting a bpffs")?;
        Ok(scratch)
    }

    /// The bpffs.
    pub fn bpf(&self) -> PathBuf {
        self.folder.join("bpf")
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = umount2(&self.bpf(), MntFlags::MNT_DETACH);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
