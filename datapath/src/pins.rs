//! The bpffs folder. In: a path that may or may not be a bpffs. Out: where maps and links are pinned, and a
//! lock, so that two agents never drive one datapath.
//!
//! ```text
//!  DIR/v1/maps/CONFIG …            one file per map
//!  DIR/v1/links/12-ingress …       one per interface index and hook
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::statfs;
use podwire_core::abi::{ABI_VERSION, Direction};

use crate::error::{Context, Error, ErrorKind};

/// `BPF_FS_MAGIC` of the kernel's `magic.h`.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// The folders of one datapath, held exclusively.
pub(crate) struct Pins {
    root: PathBuf,
    _lock: Flock<File>,
}

impl Pins {
    pub(crate) fn open(root: &Path) -> Result<Self, Error> {
        ensure_bpffs(root)?;
        let version = root.join(format!("v{ABI_VERSION}"));
        for folder in [root.to_path_buf(), version.clone(), version.join("maps"), version.join("links")] {
            create(&folder)?;
        }
        let lock = File::open(&version).context(|| format!("opening {}", version.display()))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|(_, _)| {
            Error::new(ErrorKind::Busy, format!("{} is held by another agent", version.display()))
        })?;
        Ok(Self { root: version, _lock: lock })
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.root.join("maps").join(name)
    }

    /// Where the link of an interface's hook is pinned. By index: a name can move to another interface.
    pub(crate) fn link(&self, ifindex: u32, direction: Direction) -> PathBuf {
        let hook = match direction {
            Direction::Egress => "ingress",
            Direction::Ingress => "egress",
        };
        self.root.join("links").join(format!("{ifindex}-{hook}"))
    }

    /// The interfaces and directions that have a pinned link.
    pub(crate) fn links(&self) -> Result<Vec<(u32, Direction)>, Error> {
        let folder = self.root.join("links");
        let entries = fs::read_dir(&folder).context(|| format!("reading {}", folder.display()))?;
        let mut links = Vec::new();
        for entry in entries {
            let name = entry.context(|| format!("reading {}", folder.display()))?.file_name();
            if let Some(link) = name.to_str().and_then(parse_link) {
                links.push(link);
            }
        }
        links.sort_unstable();
        Ok(links)
    }

    /// Takes down what releases with other tables left: their programs would go on beside ours, and see packets twice. A
    /// folder that another process holds is left alone.
    pub(crate) fn clear_others(&self) -> Result<(), Error> {
        let Some(folder) = self.root.parent() else {
            return Ok(());
        };
        for entry in fs::read_dir(folder).context(|| format!("reading {}", folder.display()))? {
            let path = entry.context(|| format!("reading {}", folder.display()))?.path();
            if path == self.root || !is_version(&path) {
                continue;
            }
            let held = File::open(&path).context(|| format!("opening {}", path.display()))?;
            if let Ok(_lock) = Flock::lock(held, FlockArg::LockExclusiveNonblock) {
                fs::remove_dir_all(&path).context(|| format!("removing {}", path.display()))?;
                tracing::info!(folder = %path.display(), "what an earlier release left is taken down");
            }
        }
        Ok(())
    }

    /// Removes every pin of this version, and the folder when nothing else is in it.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        fs::remove_dir_all(&self.root).context(|| format!("removing {}", self.root.display()))?;
        if let Some(folder) = self.root.parent() {
            // Other versions' pins, or a mount point: then it stays.
            let _ = fs::remove_dir(folder);
        }
        Ok(())
    }
}

/// `v` and a number.
fn is_version(path: &Path) -> bool {
    let name = path.file_name().and_then(std::ffi::OsStr::to_str);
    name.and_then(|name| name.strip_prefix('v')).is_some_and(|number| number.parse::<u32>().is_ok())
}

fn parse_link(name: &str) -> Option<(u32, Direction)> {
    let (index, hook) = name.split_once('-')?;
    let direction = match hook {
        "ingress" => Direction::Egress,
        "egress" => Direction::Ingress,
        _ => return None,
    };
    Some((index.parse().ok()?, direction))
}

fn create(folder: &Path) -> Result<(), Error> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        result => result.context(|| format!("creating {}", folder.display())),
    }
}

/// Mounts a bpffs at the folder unless it lies in one.
fn ensure_bpffs(root: &Path) -> Result<(), Error> {
    let mut existing = root;
    while !existing.exists() {
        existing = existing.parent().unwrap_or(Path::new("/"));
    }
    if is_bpffs(existing)? {
        return Ok(());
    }
    // The usual place is mounted as a whole, so that other tools find it there.
    let usual = Path::new("/sys/fs/bpf");
    let place = if root.starts_with(usual) { usual } else { root };
    fs::create_dir_all(place).context(|| format!("creating {}", place.display()))?;
    mount(Some("bpf"), place, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
        .context(|| format!("mounting a bpffs at {}", place.display()))
}

fn is_bpffs(path: &Path) -> Result<bool, Error> {
    let stat = statfs(path).context(|| format!("looking at {}", path.display()))?;
    Ok(stat.filesystem_type().0 as i64 == BPF_FS_MAGIC)
}
