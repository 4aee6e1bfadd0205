//! Printing: tables for eyes, JSON and YAML for scripts.

use std::io::Write;

use comfy_table::{Cell, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::Value;

use super::Format;
use crate::failure::Failure;

/// Prints a value as JSON or YAML.
pub fn print_value(value: &impl Serialize, format: Format) -> Result<(), Failure> {
    let text = match format {
        Format::Yaml => {
            serde_saphyr::to_string(value).map_err(|error| Failure::Run(format!("writing YAML: {error}")))?
        }
        _ => serde_json::to_string_pretty(value)
            .map_err(|error| Failure::Run(format!("writing JSON: {error}")))?,
    };
    Ok(writeln!(anstream::stdout().lock(), "{}", text.trim_end())?)
}

/// A table as `kubectl` prints it: no lines, columns by white space.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().map(Cell::new));
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    let text = table.to_string();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Text of a field, by path; `-` when it is not there.
pub fn text(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) if items.is_empty() => "-".into(),
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        Some(Value::Null) | None => "-".into(),
        Some(other) => other.to_string(),
    }
}
