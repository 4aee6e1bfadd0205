//! Debian's kernels. In: a series such as `6.1`. Out: its newest image, unpacked, with an initramfs.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::disk;
use crate::{terminal, workspace};

/// What the guest's disk hangs on. All else the guest's own modprobe loads when it is asked for.
const FOR_THE_DISK: [&str; 2] = ["virtio_pci", "virtio_blk"];

/// An unpacked kernel.
pub struct Kernel {
    /// What `uname -r` says there.
    pub release: String,
    /// The folder that holds `boot/` and `lib/modules/`.
    pub folder: PathBuf,
}

impl Kernel {
    /// The newest kernel of a series that apt knows, downloaded and unpacked once.
    ///
    /// # Errors
    /// When apt knows none, or it cannot be fetched.
    pub fn fetch(folder: &Path, series: &str) -> Result<Self> {
        let package = newest(series)?;
        let unpacked = folder.join(&package);
        if !unpacked.is_dir() {
            unpack(&package, folder, &unpacked)?;
        }
        let release = release(&unpacked)?;
        initramfs(&unpacked, &release)?;
        Ok(Self { release, folder: unpacked })
    }

    /// The kernel's image.
    pub fn image(&self) -> PathBuf {
        self.folder.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The initramfs that mounts the guest's disk.
    pub fn initramfs(&self) -> PathBuf {
        self.folder.join("initramfs")
    }

    /// The folder of its modules.
    pub fn modules(&self) -> PathBuf {
        modules(&self.folder).join(&self.release)
    }
}

/// The package with the highest version.
fn newest(series: &str) -> Result<String> {
    let pattern = format!(r"^linux-image-{}\.[0-9].*-cloud-amd64$", series.replace('.', r"\."));
    let found = workspace::output(Command::new("apt-cache").args(["search", "--names-only", &pattern]))?;
    found
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .max_by_key(|name| numbers(name))
        .map(str::to_owned)
        .with_context(|| {
            format!(
                "apt knows no linux-image-{series}.*-cloud-amd64: is bookworm-backports among its sources?"
            )
        })
}

/// The numbers in a package's name, by which versions are compared.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// The folder appears whole or not at all, so that a download cut short is begun again.
fn unpack(package: &str, parent: &Path, folder: &Path) -> Result<()> {
    let part = parent.join("kernel.part");
    if part.exists() {
        fs::remove_dir_all(&part).with_context(|| format!("cannot remove {}", part.display()))?;
    }
    fs::create_dir_all(&part).with_context(|| format!("cannot make {}", part.display()))?;
    terminal::run_quietly(
        &format!("apt-get download {package}"),
        Command::new("apt-get").args(["download", package]).current_dir(&part),
    )?;
    let archive = fs::read_dir(&part)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .with_context(|| format!("apt-get left no package in {}", part.display()))?;
    workspace::run(Command::new("dpkg").arg("-x").args([&archive, &part]), "unpacking the kernel")?;
    fs::remove_file(&archive).context("removing the kernel's package")?;
    workspace::run(program("depmod")?.arg("-b").arg(&part).arg(release(&part)?), "depmod")?;
    fs::rename(&part, folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Where Debian puts modules; newer releases under /usr.
fn modules(folder: &Path) -> PathBuf {
    let merged = folder.join("usr/lib/modules");
    if merged.is_dir() { merged } else { folder.join("lib/modules") }
}

/// The only folder of modules is named after the release.
fn release(folder: &Path) -> Result<String> {
    let modules = modules(folder);
    let entry = fs::read_dir(&modules)
        .with_context(|| format!("cannot read {}", modules.display()))?
        .flatten()
        .next()
        .context("a kernel without modules")?;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

/// Busybox, the script and the modules for the disk, as the kernel reads them.
fn initramfs(folder: &Path, release: &str) -> Result<()> {
    let stage = folder.join("initramfs.d");
    fs::create_dir_all(stage.join("bin"))?;
    fs::create_dir_all(stage.join("modules"))?;
    let busybox = workspace::find_program("busybox").context("no busybox here")?;
    fs::copy(busybox, stage.join("bin/busybox")).context("copying busybox")?;
    let script = fs::read(workspace::root()?.join("tests/vm/init")).context("reading tests/vm/init")?;
    disk::write_program(&stage.join("init"), &script)?;
    let mut order = String::new();
    for module in needed(folder, release)? {
        let name = module.file_name().context("a module without a name")?.to_string_lossy().into_owned();
        let plain = name.split_inclusive(".ko").next().unwrap_or(&name).to_owned();
        fs::write(stage.join("modules").join(&plain), unpacked(&module)?)?;
        order.push_str(&plain);
        order.push('\n');
    }
    fs::write(stage.join("modules/order"), order)?;
    let archive = fs::File::create(folder.join("initramfs.part"))?;
    let mut cpio = program("cpio")?
        .args(["--quiet", "--create", "--format=newc", "--owner=0:0"])
        .current_dir(&stage)
        .stdin(Stdio::piped())
        .stdout(archive)
        .spawn()
        .context("starting cpio")?;
    let names = workspace::output(Command::new("find").arg(".").current_dir(&stage))?;
    cpio.stdin.take().context("cpio has no input")?.write_all(names.as_bytes())?;
    if !cpio.wait()?.success() {
        bail!("cpio failed");
    }
    fs::rename(folder.join("initramfs.part"), folder.join("initramfs"))?;
    fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))
}

/// The files of the disk's modules and of those they need, each after what it needs.
fn needed(folder: &Path, release: &str) -> Result<Vec<PathBuf>> {
    let mut command = program("modprobe")?;
    command.arg("-d").arg(folder).args(["-S", release, "--show-depends", "-a"]).args(FOR_THE_DISK);
    let listing = workspace::output(&mut command)?;
    let mut files: Vec<PathBuf> = Vec::new();
    for file in listing.lines().filter_map(|line| line.strip_prefix("insmod ")) {
        let file = PathBuf::from(file.trim());
        if !files.contains(&file) {
            files.push(file);
        }
    }
    Ok(files)
}

/// A module as the kernel takes it without a decompressor of its own.
fn unpacked(module: &Path) -> Result<Vec<u8>> {
    let tool = match module.extension().and_then(|end| end.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(module).with_context(|| format!("cannot read {}", module.display())),
    };
    let output =
        program(tool)?.arg("-dc").arg(module).output().with_context(|| format!("starting {tool}"))?;
    if !output.status.success() {
        bail!("{tool} cannot unpack {}", module.display());
    }
    Ok(output.stdout)
}

fn program(name: &str) -> Result<Command> {
    let path = workspace::find_program(name)
        .with_context(|| format!("no {name} here: run `cargo xtask setup vm`"))?;
    Ok(Command::new(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let names = ["linux-image-6.12.95+deb12-cloud-amd64", "linux-image-6.12.117+deb12-cloud-amd64"];
        assert_eq!(names.into_iter().max_by_key(|name| numbers(name)), Some(names[1]));
    }
}
