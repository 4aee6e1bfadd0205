//! Traces on disk. In: those that there are. Out: a file, from which the next agent knows what was asked for and what
//! became of it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

/// Between two looks at whether there is something to write.
pub const PAUSE: Duration = Duration::from_millis(100);
/// Name of the file.
const FILE: &str = "traces.json";

/// A trace that was written down.
pub struct Left {
    /// Its name.
    pub name: String,
    /// What was asked for.
    pub manifest: Value,
    /// What became of it.
    pub status: Value,
    /// How long it is kept.
    pub ttl: Duration,
}

/// The file.
pub struct Keep {
    path: PathBuf,
    due: AtomicBool,
}

impl Keep {
    pub fn new(folder: &Path) -> Self {
        Self { path: folder.join(FILE), due: AtomicBool::new(false) }
    }

    /// There is something to write.
    pub fn changed(&self) {
        self.due.store(true, Ordering::Relaxed);
    }

    /// Whether there is, once.
    pub fn is_due(&self) -> bool {
        self.due.swap(false, Ordering::Relaxed)
    }

    /// What an earlier run left. What was running then has failed.
    pub fn read(&self) -> Vec<Left> {
        let Ok(text) = fs::read_to_string(&self.path) else {
            return Vec::new();
        };
        let Ok(Value::Array(all)) = serde_json::from_str(&text) else {
            tracing::warn!(path = %self.path.display(), "traces of an earlier run cannot be read");
            return Vec::new();
        };
        all.into_iter().filter_map(left).collect()
    }

    /// Writes all of them: a crash leaves the old file or the new one.
    pub fn write(&self, all: &[Left]) -> std::io::Result<()> {
        let rows: Vec<Value> = all
            .iter()
            .map(|left| {
                json!({
                    "name": left.name,
                    "manifest": left.manifest,
                    "status": left.status,
                    "ttlSeconds": left.ttl.as_secs(),
                })
            })
            .collect();
        let draft = self.path.with_extension("draft");
        let mut file = fs::File::create(&draft)?;
        file.write_all(Value::from(rows).to_string().as_bytes())?;
        fs::rename(&draft, &self.path)
    }
}

fn left(mut row: Value) -> Option<Left> {
    let mut status = row["status"].take();
    if status["phase"] == "Running" {
        status["phase"] = "Failed".into();
        status["reason"] = "the agent ended while the trace ran".into();
    }
    Some(Left {
        name: row["name"].as_str()?.to_owned(),
        manifest: row["manifest"].take(),
        status,
        ttl: Duration::from_secs(row["ttlSeconds"].as_u64()?),
    })
}
