//! `podwire get` and `podwire describe`.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::output::{print_value, table, text};
use super::{Format, Kind};
use crate::client::Client;
use crate::failure::Failure;

/// Time between two looks of `--watch`.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows objects.
pub fn get(
    client: &Client,
    kind: Kind,
    name: Option<&str>,
    format: Format,
    watch: bool,
) -> Result<(), Failure> {
    if !watch {
        return print(&fetch(client, kind, name)?, kind, format, name.is_some());
    }
    let terminal = std::io::stdout().is_terminal() && format == Format::Table;
    let mut shown = Value::Null;
    loop {
        let items = fetch(client, kind, name)?;
        if items != shown {
            if terminal {
                // Clears the screen and goes to its top.
                write!(anstream::stdout().lock(), "\x1b[H\x1b[2J")?;
            }
            print(&items, kind, format, name.is_some())?;
            anstream::stdout().lock().flush()?;
            shown = items;
        }
        std::thread::sleep(PERIOD);
    }
}

/// Shows one object, everything of it.
pub fn describe(client: &Client, kind: Kind, name: &str) -> Result<(), Failure> {
    let items = fetch(client, kind, Some(name))?;
    print_value(&items[0], Format::Yaml)
}

fn fetch(client: &Client, kind: Kind, name: Option<&str>) -> Result<Value, Failure> {
    let path = match kind {
        Kind::TrafficControls => "trafficcontrols",
        Kind::Endpoints => "endpoints",
        Kind::Sessions => "sessions",
    };
    let answer = client.get(&format!("/v1/{path}"))?;
    let items: Vec<Value> = answer["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|item| name.is_none_or(|name| item["metadata"]["name"] == name))
        .cloned()
        .collect();
    match name {
        Some(name) if items.is_empty() => Err(Failure::Run(format!("{path} \"{name}\" not found"))),
        _ => Ok(Value::Array(items)),
    }
}

fn print(items: &Value, kind: Kind, format: Format, single: bool) -> Result<(), Failure> {
    let list: Vec<Value> = items.as_array().cloned().unwrap_or_default();
    if format != Format::Table {
        let value = match list.as_slice() {
            [only] if single => only.clone(),
            _ => json!({"apiVersion": "v1", "kind": "List", "items": list}),
        };
        return print_value(&value, format);
    }
    let (header, fields): (&[&str], &[&str]) = match kind {
        Kind::TrafficControls => (
            &["NAME", "DIRECTION", "ACTION", "TARGET", "IN-FORCE", "ENDPOINTS", "MATCHED", "SENT", "LOST"],
            &[
                "/metadata/name",
                "/spec/direction",
                "/spec/action",
                "/status/target",
                "/status/inForce",
                "/status/endpointCount",
                "/status/copies/matched",
                "/status/copies/sent",
                "/status/copies/lostTotal",
            ],
        ),
        Kind::Endpoints => (
            &["NAMESPACE", "NAME", "INTERFACE", "IPS", "STATE", "RECEIVED", "PASSED", "DROPPED", "MIRRORED"],
            &[
                "/metadata/namespace",
                "/metadata/name",
                "/spec/interface",
                "/spec/ips",
                "/status/state",
                "/status/packets/received",
                "/status/packets/passed",
                "/status/packets/dropped",
                "/status/packets/mirrored",
            ],
        ),
        Kind::Sessions => (
            &["SESSION", "TARGET", "POLICIES", "STATE", "MATCHED", "SENT", "TRUNCATED", "QUEUED", "LOST"],
            &[
                "/metadata/name",
                "/status/target",
                "/status/policies",
                "/status/state",
                "/status/copies/matched",
                "/status/copies/sent",
                "/status/copies/truncated",
                "/status/copies/queued",
                "/status/copies/lostTotal",
            ],
        ),
    };
    if list.is_empty() {
        let _ = writeln!(anstream::stderr(), "No resources found.");
        return Ok(());
    }
    let rows = list.iter().map(|item| fields.iter().map(|field| text(item, field)).collect()).collect();
    Ok(write!(anstream::stdout().lock(), "{}", table(header, rows))?)
}
