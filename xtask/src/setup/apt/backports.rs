//! Packages that a Debian release has only in its backports. In: the machine's own apt sources. Out: the packages
//! installed; what the machine is configured to install from stays as it is.
//!
//! The source is the one the machine has for its release, with the suite's name and `-backports`. It stands, next to
//! copies of the machine's sources, in a private folder with lists of its own, for the time of one installation.

use std::fs;

use anyhow::{Context as _, Result};

use super::private::{self, Form, Paragraph, Private};
use crate::{setup::packages::Package, terminal};

/// A source of backports, as it stands in a file for apt.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    text: String,
    /// The form of the text, by the end of its file's name.
    form: Form,
    /// The suite: what `--target-release` takes.
    suite: String,
}

/// The backports of this machine's release. None where it is not Debian, or its sources do not name the release.
pub fn source() -> Option<Source> {
    let release = codename(&fs::read_to_string("/etc/os-release").ok()?)?;
    private::sources().ok()?.iter().find_map(|(_, form, text)| derive(text, *form, &release))
}

/// The name of Debian's release, from os-release(5).
fn codename(os_release: &str) -> Option<String> {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(line.trim_matches('"').to_owned())
    };
    (value("ID")? == "debian").then(|| value("VERSION_CODENAME"))?
}

fn derive(text: &str, form: Form, release: &str) -> Option<Source> {
    let suite = format!("{release}-backports");
    let text = match form {
        Form::List => text.lines().find_map(|line| derive_line(line, release, &suite)),
        Form::Sources => {
            text.split("\n\n").find_map(|paragraph| derive_paragraph(paragraph, release, &suite))
        }
    }?;
    Some(Source { text, form, suite })
}

/// `deb [options] URI bookworm main contrib` becomes `deb [options] URI bookworm-backports main`.
fn derive_line(line: &str, release: &str, suite: &str) -> Option<String> {
    let rest = line.trim().strip_prefix("deb ")?.trim_start();
    let (options, rest) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((options, rest)) => (format!("[{options}] "), rest),
        None => (String::new(), rest),
    };
    let mut words = rest.split_whitespace();
    let (uri, named) = (words.next()?, words.next()?);
    let has_main = words.take_while(|word| !word.starts_with('#')).any(|word| word == "main");
    (named == release && has_main).then(|| format!("deb {options}{uri} {suite} main\n"))
}

/// The paragraph with another suite; its keys, its address and what else it says stay.
fn derive_paragraph(paragraph: &str, release: &str, suite: &str) -> Option<String> {
    let paragraph = Paragraph::read(paragraph);
    let wanted = [("Types", "deb"), ("Suites", release), ("Components", "main")];
    let fits = wanted.iter().all(|(field, word)| paragraph.says(field, word));
    (fits && !paragraph.says("Enabled", "no"))
        .then(|| paragraph.with(&[("types", "deb"), ("suites", suite), ("components", "main")]))
}

/// Installs `package` and what it needs, preferably from the backports of this machine's release.
///
/// # Errors
/// When there are no backports that can be reached, or they do not have the package.
pub fn install(package: &Package) -> Result<()> {
    let source = source().context("this release has no backports")?;
    let title = format!("apt-get install {} from {}", package.name, source.suite);
    let apt = Private::new()?;
    for (name, form, text) in private::sources()? {
        apt.add(&name, form, &text)?;
    }
    apt.add("podwire-backports", source.form, &source.text)?;
    let mut update = apt.as_root()?;
    terminal::run_quietly(&format!("apt-get update for {}", source.suite), update.arg("update"))?;
    let mut command = apt.as_root()?;
    command.args(["install", "--yes", "--no-install-recommends", "--target-release", &source.suite]);
    command.arg(&package.name);
    terminal::run_quietly(&title, &mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAGRAPHS: &str = "# A comment\nTypes: deb\nURIs: http://mirror.test/debian-security\nSuites: bookworm-security\n\
                              Components: main\n\nTypes: deb deb-src\nURIs: http://mirror.test/debian\n\
                              Suites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By:\n -----BEGIN\n .\n";

    #[test]
    fn a_paragraph_keeps_all_but_its_suites() {
        let source = derive(PARAGRAPHS, Form::Sources, "bookworm").expect("a source");
        assert_eq!(source.suite, "bookworm-backports");
        assert_eq!(
            source.text,
            "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm-backports\nComponents: main\n\
             Signed-By: \n -----BEGIN\n .\n"
        );
        assert_eq!(derive(PARAGRAPHS, Form::Sources, "trixie"), None, "another release");
        let disabled = PARAGRAPHS.replace("Components", "Enabled: no\nComponents");
        assert_eq!(derive(&disabled, Form::Sources, "bookworm"), None, "switched off");
    }

    #[test]
    fn a_line_keeps_its_options_and_address() {
        let lines = "# deb http://no.test/debian bookworm main\ndeb-src http://no.test/debian bookworm main\n\
                     deb http://no.test/debian bookworm-updates main\ndeb http://no.test/debian bookworm contrib # main\n\
                     deb [arch=amd64 signed-by=/k.asc] http://mirror.test/debian bookworm main contrib\n";
        let source = derive(lines, Form::List, "bookworm").expect("a source");
        assert_eq!(
            source.text,
            "deb [arch=amd64 signed-by=/k.asc] http://mirror.test/debian bookworm-backports main\n"
        );
        let plain =
            derive("deb http://mirror.test/debian bookworm main", Form::List, "bookworm").expect("a source");
        assert_eq!(plain.text, "deb http://mirror.test/debian bookworm-backports main\n");
    }

    #[test]
    fn only_debian_has_these_backports() {
        let os_release =
            |id: &str| format!("NAME=\"x\"\nVERSION_CODENAME=bookworm\nID={id}\nID_LIKE=debian\n");
        assert_eq!(codename(&os_release("debian")).as_deref(), Some("bookworm"));
        assert_eq!(codename(&os_release("ubuntu")), None);
        assert_eq!(codename("ID=debian\n"), None, "a release without a name");
    }
}
