//! Which file is next. In: a name and bounds. Out: `mirror-00001.pcapng`, `mirror-00002.pcapng`, …, the oldest removed.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// When a file is full, and how many are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Bytes of a file, more or less what a chunk of the compressor holds back.
    pub bytes: Option<u64>,
    /// Nanoseconds between a file's first frame and the first one of the next.
    pub time: Option<u64>,
    /// Files that are kept; all of them without it.
    pub files: Option<u32>,
}

/// The names of files, one after the other.
#[derive(Clone, Debug)]
pub struct Files {
    path: PathBuf,
    rotation: Rotation,
    count: u64,
    kept: VecDeque<PathBuf>,
}

impl Files {
    /// Without bounds of size and time, `path` is the one file.
    pub fn new(path: impl Into<PathBuf>, rotation: Rotation) -> Self {
        Self { path: path.into(), rotation, count: 0, kept: VecDeque::new() }
    }

    fn rotates(&self) -> bool {
        self.rotation.bytes.is_some() || self.rotation.time.is_some()
    }

    pub(super) fn current(&self) -> PathBuf {
        if self.rotates() { self.numbered(self.count) } else { self.path.clone() }
    }

    /// The next name; removes the oldest file where there would be too many.
    pub(super) fn next(&mut self) -> PathBuf {
        self.count += 1;
        let path = self.current();
        if let (true, Some(most)) = (self.rotates(), self.rotation.files) {
            self.kept.push_back(path.clone());
            while self.kept.len() > most.max(1) as usize {
                if let Some(oldest) = self.kept.pop_front()
                    && let Err(error) = std::fs::remove_file(&oldest)
                {
                    tracing::debug!(file = %oldest.display(), %error, "an old file stays");
                }
            }
        }
        path
    }

    pub(super) fn is_over(&self, bytes: u64, time: u64) -> bool {
        self.rotation.bytes.is_some_and(|most| bytes > most)
            || self.rotation.time.is_some_and(|most| time >= most)
    }

    /// The number goes before the first dot of the name.
    fn numbered(&self, number: u64) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let (stem, end) = match name.char_indices().skip(1).find(|(_, letter)| *letter == '.') {
            Some((dot, _)) => name.split_at(dot),
            None => (&*name, ""),
        };
        self.path.parent().unwrap_or(Path::new("")).join(format!("{stem}-{number:05}{end}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Files, Rotation};

    #[test]
    fn numbers_stand_before_the_first_dot() {
        for (path, first) in [
            ("/tmp/mirror.pcapng", "/tmp/mirror-00001.pcapng"),
            ("mirror.pcapng.gz", "mirror-00001.pcapng.gz"),
            ("mirror", "mirror-00001"),
            (".hidden", ".hidden-00001"),
        ] {
            let rotation = Rotation { bytes: Some(1), ..Rotation::default() };
            assert_eq!(Files::new(path, rotation).next().to_string_lossy(), first);
            assert_eq!(Files::new(path, Rotation::default()).next().to_string_lossy(), path);
        }
    }
}
