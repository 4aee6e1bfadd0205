//! The record beside the built object: from which sources, by which toolchain, with which bytes.

use anyhow::{Context as _, Result};

const HEADER: &str =
    "# Written by `cargo xtask ebpf`, checked by `cargo xtask ebpf --check` and by the test run.\n";

/// What is known of a built object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Hash over the sources, as [`super::sources::hash`] gives it.
    pub sources: String,
    /// SHA-256 of the object.
    pub object: String,
    /// SHA-256 of the XDP program's object.
    pub xsk_object: String,
    /// Compiler, linker and host. The same toolchain gives the same bytes.
    pub toolchain: String,
}

impl Record {
    /// As it stands in the file.
    pub fn render(&self) -> String {
        let Self { sources, object, xsk_object, toolchain } = self;
        format!(
            "{HEADER}sources   {sources}\nobject    {object}\nxsk       {xsk_object}\ntoolchain {toolchain}\n"
        )
    }

    /// Reads the file.
    ///
    /// # Errors
    /// When a line is missing.
    pub fn parse(text: &str) -> Result<Self> {
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.map(|value| value.trim().to_owned()).with_context(|| format!("no line `{name}`"))
        };
        Ok(Self {
            sources: field("sources")?,
            object: field("object")?,
            xsk_object: field("xsk")?,
            toolchain: field("toolchain")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let record = Record {
            sources: "ab".repeat(32),
            object: "cd".repeat(32),
            xsk_object: "ef".repeat(32),
            toolchain: "rustc 1.96.0 (ac68faa20 2026-05-25), LLVM 22.1.8, bpf-linker 0.13.0, x86_64"
                .to_owned(),
        };
        assert_eq!(Record::parse(&record.render()).unwrap(), record);
    }

    #[test]
    fn a_missing_line_is_named() {
        assert!(
            Record::parse("sources 00\nobject 11\nxsk 22\n").unwrap_err().to_string().contains("toolchain")
        );
    }
}
