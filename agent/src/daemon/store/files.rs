//! Files as the place where objects stand, and with them what came over the socket and is kept.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use podwire_datapath::object::{self, Located, Object, ObjectSet};
use serde_json::json;

use crate::daemon::files::{Stamp, manifest_files, stamp};

/// Name of the kept objects' file.
const KEPT: &str = "objects.json";

/// Objects by where they came from.
#[derive(Clone, Debug)]
pub struct FileStore {
    config: Vec<PathBuf>,
    state: PathBuf,
    files: Vec<Located>,
    stamp: Stamp,
    kept: BTreeMap<String, Located>,
}

impl FileStore {
    /// Reads what was kept. Files are read by [`FileStore::reload`].
    pub fn open(config: &[PathBuf], state: &Path) -> Result<Self> {
        let path = state.join(KEPT);
        let kept = match fs::read_to_string(&path) {
            Ok(text) => object::parse(&path.display().to_string(), &text)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let kept = kept.into_iter().map(|located| (located.identity(), located)).collect();
        Ok(Self {
            config: config.to_owned(),
            state: state.to_owned(),
            files: Vec::new(),
            stamp: Stamp::new(),
            kept,
        })
    }

    /// The store with the files as they are now.
    ///
    /// # Errors
    /// Every mistake of every file, a line each; nothing of the new state is usable then.
    pub fn reload(&self) -> Result<Self, Vec<String>> {
        // Taken first: a change while reading is seen as one later.
        let stamp = stamp(&self.config);
        let mut files = Vec::new();
        let mut errors = Vec::new();
        for path in &self.config {
            let names = match manifest_files(path) {
                Ok(names) => names,
                Err(error) => {
                    errors.push(format!("{error:#}"));
                    continue;
                }
            };
            for name in names {
                match fs::read_to_string(&name) {
                    Ok(text) => match object::parse(&name.display().to_string(), &text) {
                        Ok(objects) => {
                            errors.extend(objects.iter().filter_map(refused_in_files));
                            files.extend(objects);
                        }
                        Err(mistakes) => errors.extend(mistakes.iter().map(ToString::to_string)),
                    },
                    Err(error) => errors.push(format!("{}: {error}", name.display())),
                }
            }
        }
        if errors.is_empty() { Ok(Self { files, stamp, ..self.clone() }) } else { Err(errors) }
    }

    /// Whether the files are others than those that were read.
    pub fn stale(&self) -> bool {
        stamp(&self.config) != self.stamp
    }

    /// All objects as one set.
    pub fn set(&self) -> Result<ObjectSet, Vec<String>> {
        let all = self.files.iter().chain(self.kept.values()).cloned().collect();
        ObjectSet::build(all).map_err(|conflict| vec![conflict.to_string()])
    }

    /// Puts an object among the kept ones; says what that changed.
    pub fn keep(&mut self, located: Located) -> &'static str {
        let identity = located.identity();
        match self.kept.insert(identity, located.clone()) {
            None => "created",
            Some(old) if old.manifest == located.manifest => "unchanged",
            Some(_) => "configured",
        }
    }

    /// Takes an object out of the kept ones.
    pub fn forget(&mut self, identity: &str) -> Result<(), String> {
        if self.kept.remove(identity).is_some() {
            return Ok(());
        }
        match self.files.iter().find(|located| located.identity() == identity) {
            Some(located) => {
                Err(format!("{identity}: stands in the configuration at {}; delete it there", located.place))
            }
            None => Err(format!("{identity}: not found")),
        }
    }

    /// Writes the kept objects: a crash leaves the old file or the new one.
    pub fn save(&self) -> Result<()> {
        let items: Vec<_> = self.kept.values().map(|located| &located.manifest).collect();
        let text =
            serde_json::to_string_pretty(&json!({"apiVersion": "v1", "kind": "List", "items": items}))?;
        let (path, draft) = (self.state.join(KEPT), self.state.join(".objects.json.new"));
        let write = || -> std::io::Result<()> {
            let mut file = fs::File::create(&draft)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            fs::File::open(&self.state)?.sync_all()
        };
        write().with_context(|| format!("writing {}", path.display()))
    }
}

/// Traces are begun, not kept.
fn refused_in_files(located: &Located) -> Option<String> {
    let trace = matches!(located.object, Object::Traceflow(_));
    let line = || {
        format!(
            "{}: {}: a file is read again and again; begin a trace with podwire traceflow, or podwire apply -f",
            located.place,
            located.identity()
        )
    };
    trace.then(line)
}
