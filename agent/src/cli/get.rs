//! `podwire get` and `podwire describe`.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::output::{print_value, table, text};
use super::{Format, Kind, traceflow};
use crate::client::Client;
use crate::failure::Failure;

/// Time between two looks of `--watch`.
const PERIOD: Duration = Duration::from_secs(1);

/// Which objects are looked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Their kind.
    pub kind: Kind,
    /// Only the one of this name.
    pub name: Option<String>,
    /// Only those of this namespace.
    pub namespace: Option<String>,
}

/// Shows objects.
pub fn get(client: &Client, wanted: &Wanted, format: Format, watch: bool) -> Result<(), Failure> {
    let (kind, single) = (wanted.kind, wanted.name.is_some());
    if !watch {
        return print(&fetch(client, wanted)?, kind, format, single);
    }
    let terminal = std::io::stdout().is_terminal() && matches!(format, Format::Table | Format::Wide);
    let mut shown = Value::Null;
    loop {
        let items = fetch(client, wanted)?;
        if items != shown && format == Format::Json {
            // A document a line, so that a reader knows where each ends.
            writeln!(anstream::stdout().lock(), "{}", document(&items, single))?;
            shown = items;
        } else if items != shown {
            if terminal {
                // Clears the screen and goes to its top.
                write!(anstream::stdout().lock(), "\x1b[H\x1b[2J")?;
            }
            if format == Format::Yaml {
                writeln!(anstream::stdout().lock(), "---")?;
            }
            print(&items, kind, format, single)?;
            anstream::stdout().lock().flush()?;
            shown = items;
        }
        std::thread::sleep(PERIOD);
    }
}

/// Shows one object, everything of it.
pub fn describe(client: &Client, wanted: &Wanted) -> Result<(), Failure> {
    let found = fetch(client, wanted)?;
    match (wanted.kind, found.get(0)) {
        (Kind::Traceflows, Some(object)) => traceflow::describe(object),
        _ => print(&found, wanted.kind, Format::Yaml, true),
    }
}

fn fetch(client: &Client, wanted: &Wanted) -> Result<Value, Failure> {
    let Wanted { kind, name, namespace } = wanted;
    let path = match kind {
        Kind::TrafficControls => "trafficcontrols",
        Kind::Egresses => "egresses",
        Kind::Endpoints => "endpoints",
        Kind::Nodes => "nodes",
        Kind::Sessions => "sessions",
        Kind::Traceflows => "traceflows",
        Kind::Captures => "captures",
        Kind::Events => "events",
        Kind::Status => return status(client),
    };
    let answer = client.get(&format!("/v1/{path}"))?;
    let items: Vec<Value> = answer["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|item| name.as_ref().is_none_or(|name| item["metadata"]["name"] == **name))
        .filter(|item| namespace.as_ref().is_none_or(|name| namespace_of(item) == name))
        .cloned()
        .collect();
    match name {
        Some(name) if items.is_empty() => Err(Failure::Run(format!("{path} \"{name}\" not found"))),
        _ => Ok(Value::Array(items)),
    }
}

/// The agent as a whole, in the form of an object.
fn status(client: &Client) -> Result<Value, Failure> {
    let status = client.get("/v1/status")?;
    let name = status["node"].clone();
    let api = podwire_datapath::object::API_VERSION;
    Ok(json!([{"apiVersion": api, "kind": "Status", "metadata": {"name": name}, "status": status}]))
}

/// Objects stand in `default` when they name no namespace.
fn namespace_of(item: &Value) -> &str {
    item["metadata"]["namespace"].as_str().unwrap_or("default")
}

/// One object alone when one was asked for by name, else a list.
fn document(items: &Value, single: bool) -> Value {
    match items.as_array().map(Vec::as_slice) {
        Some([only]) if single => only.clone(),
        _ => json!({"apiVersion": "v1", "kind": "List", "items": items}),
    }
}

fn print(items: &Value, kind: Kind, format: Format, single: bool) -> Result<(), Failure> {
    if matches!(format, Format::Json | Format::Yaml) {
        return print_value(&document(items, single), format);
    }
    let mut list: Vec<Value> = items.as_array().cloned().unwrap_or_default();
    if kind == Kind::Traceflows {
        list.iter_mut().for_each(traceflow::summarize);
    }
    let (header, fields) = columns(kind);
    let (mut header, mut fields) = (header.to_vec(), fields.to_vec());
    if format == Format::Wide {
        for (title, field) in wide(kind) {
            header.push(title);
            fields.push(field);
        }
    }
    if list.is_empty() {
        let _ = writeln!(anstream::stderr(), "No resources found.");
        return Ok(());
    }
    let cell = |item: &Value, field: &str| match field {
        "/metadata/namespace" => namespace_of(item).to_owned(),
        _ => text(item, field),
    };
    let rows = list.iter().map(|item| fields.iter().map(|field| cell(item, field)).collect()).collect();
    Ok(write!(anstream::stdout().lock(), "{}", table(&header, rows))?)
}

/// What `-o wide` shows besides: why something is not in force, and bytes.
fn wide(kind: Kind) -> &'static [(&'static str, &'static str)] {
    match kind {
        Kind::TrafficControls => &[
            ("MATCHED-BYTES", "/status/matched/bytes"),
            ("SENT-BYTES", "/status/copies/sentBytes"),
            ("RETURN", "/status/returnPort"),
            ("BYPASSED", "/status/redirect/bypassed"),
            ("REFUSED", "/status/redirect/refused"),
            ("ENGINE", "/status/engine"),
            ("SESSION", "/status/session"),
            ("REASON", "/status/reason"),
        ],
        Kind::Egresses => &[
            ("BYTES", "/status/bytes"),
            ("CONNECTIONS", "/status/connections"),
            ("OWN", "/status/own"),
            ("ID", "/status/id"),
            ("EXCEPT", "/spec/except"),
            ("REASON", "/status/reason"),
        ],
        Kind::Nodes => &[
            ("SENT", "/status/overlay/sent/packets"),
            ("RECEIVED", "/status/overlay/received/packets"),
            ("HELD", "/status/held"),
            ("UNMAPPED", "/status/unmapped"),
            ("EGRESSES", "/status/egresses"),
        ],
        Kind::Events => &[],
        Kind::Captures => &[("DIRECTION", "/spec/direction"), ("SNAPLEN", "/spec/snaplen")],
        Kind::Traceflows => &[("TAG", "/status/dataplaneTag"), ("REASON", "/status/reason")],
        Kind::Status => &[("MISSING", "/status/store/resources"), ("ERRORS", "/status/configurationErrors")],
        Kind::Endpoints => &[("IFINDEX", "/status/ifindex"), ("PROBLEM", "/status/problem")],
        Kind::Sessions => &[
            ("MATCHED-BYTES", "/status/copies/matchedBytes"),
            ("SENT-BYTES", "/status/copies/sentBytes"),
            ("PROBLEM", "/status/problem"),
        ],
    }
}

/// Titles and fields of a table.
fn columns(kind: Kind) -> (&'static [&'static str], &'static [&'static str]) {
    match kind {
        Kind::TrafficControls => (
            &[
                "NAME",
                "DIRECTION",
                "ACTION",
                "TARGET",
                "STATE",
                "ENDPOINTS",
                "MATCHED",
                "SENT",
                "LOST",
                "REDIRECTED",
                "RETURNED",
            ],
            &[
                "/metadata/name",
                "/spec/direction",
                "/spec/action",
                "/status/target",
                "/status/state",
                "/status/endpointCount",
                "/status/matched/packets",
                "/status/copies/sent",
                "/status/copies/lostTotal",
                "/status/redirect/redirected/packets",
                "/status/redirect/returned/packets",
            ],
        ),
        Kind::Egresses => (
            &["NAME", "EGRESSIPS", "NODE", "STATE", "ENDPOINTS", "PACKETS", "DROPPED"],
            &[
                "/metadata/name",
                "/status/egressIPs",
                "/status/egressNode",
                "/status/state",
                "/status/endpointCount",
                "/status/packets",
                "/status/droppedTotal",
            ],
        ),
        Kind::Status => (
            &["NODE", "STORE", "FORWARDING", "GENERATION", "PROBLEMS"],
            &[
                "/metadata/name",
                "/status/store/summary",
                "/status/forwarding",
                "/status/generation",
                "/status/networkProblems",
            ],
        ),
        Kind::Nodes => (
            &["NAME", "ROLE", "ADDRESSES", "PODCIDRS", "FORWARDING", "STATE", "PROBLEMS"],
            &[
                "/metadata/name",
                "/status/role",
                "/spec/addresses",
                "/spec/podCIDRs",
                "/status/forwarding",
                "/status/state",
                "/status/networkProblems",
            ],
        ),
        Kind::Traceflows => (
            &["NAME", "PHASE", "SOURCE", "DESTINATION", "VERDICT", "AGE"],
            &[
                "/metadata/name",
                "/status/phase",
                "/summary/source",
                "/summary/destination",
                "/summary/verdict",
                "/summary/age",
            ],
        ),
        Kind::Events => (
            &["TIME", "TYPE", "REASON", "OBJECT", "MESSAGE"],
            &["/time", "/type", "/reason", "/object", "/message"],
        ),
        Kind::Captures => (
            &["NAME", "PODS", "FLOW", "STATE", "MATCHED", "LOST", "SINCE"],
            &[
                "/metadata/name",
                "/status/podNames",
                "/spec/flow",
                "/status/state",
                "/status/matched",
                "/status/lost",
                "/status/since",
            ],
        ),
        Kind::Endpoints => (
            &[
                "NAMESPACE",
                "NAME",
                "INTERFACE",
                "IPS",
                "STATE",
                "MODE",
                "RECEIVED",
                "PASSED",
                "REDIRECTED",
                "DROPPED",
                "SPOOFED",
                "MIRRORED",
            ],
            &[
                "/metadata/namespace",
                "/metadata/name",
                "/spec/interface",
                "/spec/ips",
                "/status/state",
                "/status/guard/mode",
                "/status/packets/received",
                "/status/packets/passed",
                "/status/packets/redirected",
                "/status/packets/dropped",
                "/status/guard/spoofed",
                "/status/packets/mirrored",
            ],
        ),
        Kind::Sessions => (
            &[
                "SESSION",
                "TARGET",
                "ENGINE",
                "POLICIES",
                "STATE",
                "MATCHED",
                "SENT",
                "TRUNCATED",
                "QUEUED",
                "LOST",
            ],
            &[
                "/metadata/name",
                "/status/target",
                "/status/engine",
                "/status/policies",
                "/status/state",
                "/status/copies/matched",
                "/status/copies/sent",
                "/status/copies/truncated",
                "/status/copies/queued",
                "/status/copies/lostTotal",
            ],
        ),
    }
}
