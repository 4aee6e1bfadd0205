//! `podwire apply` and `podwire delete`.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

use crate::client::Client;
use crate::daemon::manifest_files;
use crate::failure::Failure;

/// Applies the objects of files, all of a file or none.
pub fn apply(client: &Client, names: &[PathBuf], dry_run: bool) -> Result<(), Failure> {
    for (name, text) in read(names)? {
        let answer = client.post(
            "/v1/apply",
            &[("file", &name), ("dryRun", if dry_run { "true" } else { "" })],
            text,
        )?;
        say(&answer, if dry_run { " (dry run)" } else { "" })?;
    }
    Ok(())
}

/// Deletes the objects of files, or one by name.
pub fn delete(
    client: &Client,
    names: &[PathBuf],
    named: Option<(String, String)>,
    namespace: &str,
) -> Result<(), Failure> {
    if let Some((kind, name)) = named {
        let query = [("kind", kind.as_str()), ("name", name.as_str()), ("namespace", namespace)];
        return say(&client.post("/v1/delete", &query, String::new())?, "");
    }
    for (name, text) in read(names)? {
        say(&client.post("/v1/delete", &[("file", &name)], text)?, "")?;
    }
    Ok(())
}

fn say(answer: &Value, suffix: &str) -> Result<(), Failure> {
    let mut stdout = anstream::stdout().lock();
    for line in answer["results"].as_array().into_iter().flatten() {
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        writeln!(stdout, "{} {}{suffix}", text("object"), text("result"))?;
        if let Some(note) = line["note"].as_str() {
            let _ = writeln!(anstream::stderr(), "warning: {}: {note}", text("object"));
        }
    }
    Ok(())
}

/// The texts of files, folders and standard input.
fn read(names: &[PathBuf]) -> Result<Vec<(String, String)>, Failure> {
    let mut texts = Vec::new();
    for name in names {
        if name == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("reading standard input")?;
            texts.push(("<stdin>".into(), text));
            continue;
        }
        for file in manifest_files(name)? {
            let text =
                std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            texts.push((file.display().to_string(), text));
        }
    }
    Ok(texts)
}
