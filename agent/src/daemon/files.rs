//! Configuration files: which there are, and when they change.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::SystemTime;

use anyhow::{Context, Result};
use notify::{RecursiveMode, Watcher};

use super::worker::Message;

/// The manifests that a path names: itself, or the *.yaml, *.yml and *.json right inside a folder, by name.
/// Hidden files are somebody's drafts.
pub fn manifest_files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).with_context(|| format!("reading {}", path.display()))? {
        let file = entry.with_context(|| format!("reading {}", path.display()))?.path();
        let hidden = file.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        let manifest =
            file.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known));
        if manifest && !hidden && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// What tells one state of the files from another without reading them: name, size and time of change.
pub type Stamp = Vec<(PathBuf, u64, Option<SystemTime>)>;

/// The files' state now. What cannot be looked at is left out, and seen as a change when it comes back.
pub fn stamp(paths: &[PathBuf]) -> Stamp {
    let files = paths.iter().filter_map(|path| manifest_files(path).ok()).flatten();
    files
        .filter_map(|file| {
            let metadata = std::fs::metadata(&file).ok()?;
            Some((file, metadata.len(), metadata.modified().ok()))
        })
        .collect()
}

/// Tells of changes for as long as it lives. Without inotify the period finds them.
pub fn watch(paths: &[PathBuf], sender: mpsc::Sender<Message>) -> Option<notify::RecommendedWatcher> {
    let told = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            let _ = sender.send(Message::Reload);
        }
    };
    let mut watcher = notify::recommended_watcher(told)
        .inspect_err(|error| tracing::warn!(%error, "files are looked at by the period only"))
        .ok()?;
    for path in paths {
        // A file that is replaced by renaming is seen in its folder only.
        let folder = match path.parent() {
            _ if path.is_dir() => path,
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
            tracing::warn!(path = %folder.display(), %error, "this folder is looked at by the period only");
        }
    }
    Some(watcher)
}
