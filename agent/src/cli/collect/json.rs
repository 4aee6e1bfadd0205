//! What was counted, as JSON: an object each interval, and one at the end.

use std::time::{Duration, UNIX_EPOCH};

use podwire_datapath::collect::{Account, Losses, Pair, Report, SessionReport, Talker};
use serde_json::{Map, Value, json};

/// What is told besides the report.
pub(super) struct Moment<'a> {
    pub(super) last: bool,
    /// Since the beginning.
    pub(super) elapsed: Duration,
    pub(super) source: &'a str,
    pub(super) source_losses: &'a Losses,
    pub(super) sink_losses: &'a Losses,
}

pub(super) fn object(report: &Report, moment: &Moment<'_>) -> Value {
    let (totals, parts) = (&report.totals, &report.fragments);
    json!({
        "kind": if moment.last { "Summary" } else { "Interval" },
        "seconds": (moment.elapsed.as_secs_f64() * 1000.0).round() / 1000.0,
        "source": moment.source,
        "packets": totals.packets,
        "bytes": totals.bytes,
        "frames": totals.frames,
        "delivered": totals.delivered,
        "notTunnels": totals.not_tunnels,
        "unwanted": totals.unwanted,
        "undecodable": report.undecodable,
        "fragments": {
            "received": parts.received,
            "used": parts.used,
            "packets": parts.packets,
            "duplicates": parts.duplicates,
            "overlaps": parts.overlaps,
            "malformed": parts.malformed,
            "expired": parts.expired,
            "evicted": parts.evicted,
            "waiting": parts.waiting,
        },
        "lost": {"source": losses(moment.source_losses), "sink": losses(moment.sink_losses)},
        "sessionsBegun": totals.sessions,
        "sessionsEvicted": totals.evicted,
        "sessions": report.sessions.iter().map(session).collect::<Vec<_>>(),
    })
}

fn losses(losses: &Losses) -> Value {
    Value::Object(losses.0.iter().map(|(what, count)| ((*what).to_owned(), json!(count))).collect())
}

fn session(one: &SessionReport) -> Value {
    let (key, account) = (&one.session.key, &one.account);
    let mut object = json!({
        "session": one.session.number,
        "kind": key.kind.as_str(),
        "source": key.source.to_string(),
        "destination": key.destination.to_string(),
        "frames": account.frames,
        "bytes": account.bytes,
        "delivered": account.delivered,
        "truncated": account.truncated,
        "first": time(account.first),
        "last": time(account.last),
    });
    let Some(fields) = object.as_object_mut() else { return object };
    if let Some(id) = key.id {
        fields.insert(key.kind.identifier().to_owned(), json!(id));
    }
    numbers(fields, account);
    if let Some(way) = account.latency {
        let mut latency = json!({"frames": way.measured, "ahead": way.ahead});
        if let (Some(latency), true) = (latency.as_object_mut(), way.measured != 0) {
            for (name, value) in
                [("minNs", way.least), ("p50Ns", way.p50), ("p99Ns", way.p99), ("maxNs", way.most)]
            {
                latency.insert(name.into(), json!(value));
            }
        }
        fields.insert("latency".into(), latency);
    }
    if !one.talkers.is_empty() {
        fields.insert("talkers".into(), one.talkers.iter().map(talker).collect());
    }
    object
}

fn numbers(fields: &mut Map<String, Value>, account: &Account) {
    if !account.numbered {
        return;
    }
    let books = &account.numbers;
    fields.insert(
        "numbers".into(),
        json!({
            "received": books.received,
            "released": books.released,
            "duplicates": books.duplicates,
            "late": books.late,
            "waiting": books.waiting,
            "lost": books.lost,
            "reordered": books.reordered,
            "restarts": books.restarts,
        }),
    );
}

fn talker(talker: &Talker) -> Value {
    let (source, destination) = ends(&talker.pair);
    json!({
        "source": source,
        "destination": destination,
        "frames": talker.frames,
        "bytes": talker.bytes,
        "error": talker.error,
    })
}

/// Both addresses of a pair as text.
pub(super) fn ends(pair: &Pair) -> (String, String) {
    let mac = |mac: &[u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    match pair {
        Pair::Ip(source, destination) => (source.to_string(), destination.to_string()),
        Pair::Mac(source, destination) => (mac(source), mac(destination)),
    }
}

fn time(nanoseconds: u64) -> String {
    humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(nanoseconds)).to_string()
}
