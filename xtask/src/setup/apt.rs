//! Debian's package tool: what it knows, what it shall install.

mod backports;
mod private;
pub mod source;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail};

use super::packages::Package;
use crate::{privilege, terminal, workspace};

/// Lists older than this name versions that mirrors no longer have.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// Fails with the list of packages where there is no apt.
///
/// # Errors
/// When `apt-get` is not on this machine.
pub fn require(missing: &[Package]) -> Result<()> {
    if workspace::find_program("apt-get").is_none() {
        bail!(
            "no apt on this machine: install what these Debian packages hold, then use --no-setup: {}",
            names(missing)
        );
    }
    Ok(())
}

/// Whether apt could install all of `packages` now, as far as it can be known without asking a mirror.
pub fn knows_all(packages: &[Package]) -> bool {
    let within_reach = |package: &Package| package.backports && backports::source().is_some();
    candidates(packages).is_ok_and(|known| {
        packages.iter().all(|package| known.contains_key(&package.name) || within_reach(package))
    })
}

/// Of `packages`, those that apt could install now, with the version that it would take.
pub fn candidates(packages: &[Package]) -> Result<BTreeMap<String, String>> {
    let policy = workspace::output(
        Command::new("apt-cache")
            .arg("policy")
            .args(packages.iter().map(|package| &package.name))
            .env("LC_ALL", "C"),
    )?;
    Ok(parse_policy(&policy))
}

/// Reads `apt-cache policy`: the names whose candidate is not `(none)`, and the candidates.
fn parse_policy(policy: &str) -> BTreeMap<String, String> {
    let mut candidates = BTreeMap::new();
    let mut package = "";
    for line in policy.lines() {
        if let Some(name) = line.strip_suffix(':')
            && !line.starts_with(' ')
        {
            package = name;
        } else if let Some(candidate) = line.trim().strip_prefix("Candidate: ")
            && candidate != "(none)"
        {
            candidates.insert(package.to_owned(), candidate.to_owned());
        }
    }
    candidates
}

/// Refreshes the lists when they are empty, old, or do not know one of `packages`.
///
/// # Errors
/// When the lists cannot be refreshed and what is there does not do.
fn refresh_if_needed(packages: &[Package]) -> Result<()> {
    let known = candidates(packages)?;
    let all_known = packages.iter().all(|package| package.optional || known.contains_key(&package.name));
    if all_known && lists_are_fresh() {
        return Ok(());
    }
    match update() {
        Err(error) if all_known => going_on(&error),
        outcome => outcome,
    }
}

/// Refreshes lists that are empty or old. With old lists, a failure is no reason to stop.
///
/// # Errors
/// When there are no lists and none can be fetched.
pub fn refresh_if_stale() -> Result<()> {
    match lists_are_fresh() {
        true => Ok(()),
        false => update().or_else(|error| if has_lists() { going_on(&error) } else { Err(error) }),
    }
}

fn going_on(error: &anyhow::Error) -> Result<()> {
    anstream::eprintln!("  {error:#}; going on with the lists that are there");
    Ok(())
}

/// `apt-get update`.
fn update() -> Result<()> {
    terminal::run_quietly("apt-get update", apt_get()?.arg("update"))
}

/// Whether apt has any list of packages.
pub fn has_lists() -> bool {
    newest_list().is_some()
}

fn lists_are_fresh() -> bool {
    newest_list().is_some_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age < STALE))
}

/// When the newest list was put in place; its modification time is the mirror's.
fn newest_list() -> Option<SystemTime> {
    let seconds = fs::read_dir("/var/lib/apt/lists")
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
        .filter_map(|entry| u64::try_from(entry.metadata().ok()?.ctime()).ok())
        .max()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Installs `packages` without a question and without recommended extras.
///
/// # Errors
/// When a package is unknown, or apt fails also with fresh lists.
pub fn install(packages: &[Package]) -> Result<()> {
    require(packages)?;
    apt_get().with_context(|| format!("apt-get install --no-install-recommends {}", names(packages)))?;
    refresh_if_needed(packages)?;
    let known = candidates(packages)?;
    // A backport needs other backports, also where the machine itself is configured to take some.
    let is_backport = |package: &&Package| {
        package.backports && known.get(&package.name).is_none_or(|version| version.contains("~bpo"))
    };
    let (backports, packages): (Vec<&Package>, Vec<&Package>) = packages.iter().partition(is_backport);
    let (here, unknown): (Vec<&Package>, Vec<&Package>) =
        packages.into_iter().partition(|package| known.contains_key(&package.name));
    for package in unknown {
        do_without(package, "is not in this distribution")?;
    }
    install_known(&here)?;
    for package in &backports {
        match backports::install(package) {
            Ok(()) => {}
            Err(error) => do_without(package, &format!("cannot be had: {error:#}"))?,
        }
    }
    switch_off_services(here.into_iter().chain(backports))
}

/// # Errors
/// When there is no doing without `package`.
fn do_without(package: &Package, problem: &str) -> Result<()> {
    let Package { name, why, .. } = package;
    if !package.optional {
        bail!("{name} ({why}) {problem}");
    }
    anstream::eprintln!("  {name} {problem}; going on without ({why})");
    Ok(())
}

fn install_known(packages: &[&Package]) -> Result<()> {
    let title = match packages {
        [] => return Ok(()),
        [only] => format!("apt-get install {}", only.name),
        several => format!("apt-get install ({} packages)", several.len()),
    };
    let mut command = apt_get()?;
    command
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages.iter().map(|package| &package.name));
    if terminal::run_quietly(&title, &mut command).is_err() {
        // A mirror drops a version as soon as it has the next one.
        update()?;
        terminal::run_quietly(&title, &mut command)?;
    }
    Ok(())
}

/// Some packages start a service as soon as they are installed and at each boot; a test wants the program only.
///
/// # Errors
/// Without root.
fn switch_off_services<'a>(packages: impl Iterator<Item = &'a Package>) -> Result<()> {
    for service in packages.filter_map(|package| package.service) {
        if !Path::new("/etc/init.d").join(service).exists() {
            continue;
        }
        for words in [["update-rc.d", service, "disable"], ["invoke-rc.d", service, "stop"]] {
            // Where services may not be stopped by policy, none was started.
            let _ = privilege::as_root("env", "switching a service off")?.args(words).output();
        }
    }
    Ok(())
}

/// `apt-get` as root, that asks nothing (tshark's debconf question would wait for ever) and waits for the lock.
fn apt_get() -> Result<Command> {
    let mut command = privilege::as_root("env", "installing packages")?;
    command.args([
        "DEBIAN_FRONTEND=noninteractive",
        "LC_ALL=C",
        "apt-get",
        "-q",
        "-o",
        "DPkg::Lock::Timeout=300",
    ]);
    Ok(command)
}

fn names(packages: &[Package]) -> String {
    packages.iter().map(|package| package.name.as_str()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_a_candidate_is_not_available() {
        let policy = "gcc:\n  Installed: (none)\n  Candidate: 4:12.2.0-3\n  Version table:\n     4:12.2.0-3 500\n\
                      bpftool:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n";
        let wanted = BTreeMap::from([("gcc".to_owned(), "4:12.2.0-3".to_owned())]);
        assert_eq!(parse_policy(policy), wanted);
    }
}
