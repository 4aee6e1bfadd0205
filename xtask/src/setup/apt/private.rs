//! An apt of its own, for a time. In: the machine's sources, as they are or changed. Out: commands that see those
//! sources and lists of their own; what the machine is configured to install from stays as it is.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::apt_get;

/// apt's own places for sources.
const SOURCES: [&str; 2] = ["/etc/apt/sources.list", "/etc/apt/sources.list.d"];

/// How a file of sources is written, by the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `deb URI SUITE COMPONENT…`, a line each: sources.list(5), one-line style.
    List,
    /// Paragraphs of fields: sources.list(5), deb822 style.
    Sources,
}

impl Form {
    fn of(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()? {
            "list" => Some(Self::List),
            "sources" => Some(Self::Sources),
            _ => None,
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Sources => "sources",
        }
    }
}

/// The machine's own files of sources: name, form, text.
///
/// # Errors
/// When one cannot be read.
pub fn sources() -> Result<Vec<(String, Form, String)>> {
    let [single, folder] = SOURCES.map(Path::new);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.chain([single.to_owned()]).filter(|file| file.is_file()).collect();
    files.sort();
    let read =
        |file: &PathBuf| {
            let form = Form::of(file)?;
            let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()));
            Some(text.map(|text| {
                (file.file_stem().unwrap_or_default().to_string_lossy().into_owned(), form, text)
            }))
        };
    files.iter().filter_map(read).collect()
}

/// A paragraph of fields, in deb822 style.
pub struct Paragraph<'a>(Vec<(&'a str, String)>);

impl<'a> Paragraph<'a> {
    /// Reads a paragraph; comments are left out.
    pub fn read(text: &'a str) -> Self {
        let mut fields: Vec<(&str, String)> = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if line.starts_with([' ', '\t']) {
                // A value goes on, as a key that stands in the file itself does.
                if let Some((_, value)) = fields.last_mut() {
                    *value += &format!("\n{line}");
                }
            } else if let Some((name, value)) = line.split_once(':') {
                fields.push((name.trim(), value.trim().to_owned()));
            }
        }
        Self(fields)
    }

    /// Whether a field has this word.
    pub fn says(&self, name: &str, word: &str) -> bool {
        let field = self.0.iter().find(|(field, _)| field.eq_ignore_ascii_case(name));
        field.is_some_and(|(_, value)| value.split_whitespace().any(|other| other == word))
    }

    /// The paragraph's text with other values for some fields; names in lower case.
    pub fn with(&self, values: &[(&str, &str)]) -> String {
        self.0.iter().fold(String::new(), |text, (name, value)| {
            let other = values.iter().find(|(other, _)| name.eq_ignore_ascii_case(other));
            text + name + ": " + other.map_or(value.as_str(), |(_, value)| value) + "\n"
        })
    }
}

/// Folders for sources and lists; they go on drop.
pub struct Private {
    folder: TempDir,
}

impl Private {
    /// Without any source yet.
    ///
    /// # Errors
    /// When the folders cannot be made.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // apt fetches as a user of its own.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let private = Self { folder };
        fs::create_dir(private.parts())?;
        fs::create_dir_all(private.lists().join("partial"))?;
        Ok(private)
    }

    fn parts(&self) -> PathBuf {
        self.folder.path().join("sources.list.d")
    }

    fn lists(&self) -> PathBuf {
        self.folder.path().join("lists")
    }

    /// Adds a file of sources.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&self, name: &str, form: Form, text: &str) -> Result<()> {
        Ok(fs::write(self.parts().join(format!("{name}.{}", form.extension())), text)?)
    }

    /// `apt-get` as root, for what installs.
    ///
    /// # Errors
    /// When root's rights are not to be had.
    pub fn as_root(&self) -> Result<Command> {
        let mut command = apt_get()?;
        self.options(&mut command);
        Ok(command)
    }

    /// `apt-get` as whoever runs this, for what only fetches.
    pub fn as_user(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.arg("-q").env("LC_ALL", "C");
        self.options(&mut command);
        command
    }

    fn options(&self, command: &mut Command) {
        for (key, value) in [("Dir::Etc::sourceparts", self.parts()), ("Dir::State::lists", self.lists())] {
            command.arg("-o").arg(format!("{key}={}", value.display()));
        }
        // The machine's cache is of the machine's lists.
        let own = ["Dir::Etc::sourcelist=/dev/null", "Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache="];
        command.args(own.iter().flat_map(|option| ["-o", option]));
    }
}
