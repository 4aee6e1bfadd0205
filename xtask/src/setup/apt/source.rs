//! A Debian source package. In: its name and a folder. Out: its files in that folder, checked by apt.

use std::path::Path;

use anyhow::Result;

use super::private::{self, Form, Paragraph, Private};
use crate::terminal;

/// Fetches the files of a source package into `folder`, from where this machine has its binary packages from.
///
/// # Errors
/// When this distribution has no such source package, or it cannot be fetched.
pub fn fetch(package: &str, folder: &Path) -> Result<()> {
    let apt = Private::new()?;
    for (name, form, text) in private::sources()? {
        apt.add(&name, form, &sources_of(form, &text))?;
    }
    terminal::run_quietly("apt-get update for source packages", apt.as_user().arg("update"))?;
    let mut command = apt.as_user();
    command.args(["source", "--download-only", package]).current_dir(folder);
    terminal::run_quietly(&format!("apt-get source {package}"), &mut command)
}

/// The same places, asked for sources.
fn sources_of(form: Form, text: &str) -> String {
    match form {
        Form::List => text
            .lines()
            .filter_map(|line| Some(format!("deb-src {}\n", line.trim().strip_prefix("deb ")?)))
            .collect(),
        Form::Sources => text
            .split("\n\n")
            .map(Paragraph::read)
            .filter(|paragraph| paragraph.says("Types", "deb"))
            .map(|paragraph| paragraph.with(&[("types", "deb-src")]) + "\n")
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_places_are_asked_for_sources() {
        let lines = "# deb http://no.test/debian bookworm main\ndeb-src http://mirror.test/debian bookworm main\n\
                     deb [arch=amd64] http://mirror.test/debian bookworm main\n";
        assert_eq!(
            sources_of(Form::List, lines),
            "deb-src [arch=amd64] http://mirror.test/debian bookworm main\n"
        );
        let paragraphs = "Types: deb\n# a comment\nURIs: http://mirror.test/debian\nSuites: bookworm\n\n\
                          Types: deb-src\nURIs: http://mirror.test/debian\nSuites: bookworm\n";
        assert_eq!(
            sources_of(Form::Sources, paragraphs),
            "Types: deb-src\nURIs: http://mirror.test/debian\nSuites: bookworm\n\n"
        );
    }
}
