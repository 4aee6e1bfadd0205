//! An API server drops what it has no schema for: what is written here stands there, and the other way round.

use std::collections::BTreeSet;

use podwire_datapath::core::abi::Reason;
use podwire_datapath::traceflow::{Packet, Transport};
use serde_json::Value;

use super::*;
use crate::daemon::trace::state::State;

/// A packet that every stage has something to say of.
fn seen(component: Component, time_ns: u64, reply: bool) -> Observation {
    Observation {
        time_ns,
        trace: Some(1),
        component,
        action: Action::Forwarded,
        reason: Some(Reason::ALL[0]),
        kernel_reason: None,
        endpoint: Some("default/web-0".into()),
        ifindex: 1,
        policy: Some("foobar".into()),
        egress_node: Some("node-2".into()),
        egress_ip: Some([203, 0, 113, 7].into()),
        tunnel_destination: Some([192, 0, 2, 2].into()),
        source: Some([10, 0, 0, 1].into()),
        destination: Some([10, 0, 0, 2].into()),
        protocol: 6,
        source_port: 1,
        destination_port: 2,
        destination_mac: [2; 6],
        ttl: 64,
        tag: 1,
        length: 60,
        cpu: 0,
        sequence: 0,
        lost_before: 0,
        identity: 1,
        reply,
        last: false,
    }
}

/// Statuses of traces about which everything is known, each with another packet.
fn statuses() -> Vec<Value> {
    let mut story = Story::default();
    for reply in [false, true] {
        for (time, component) in Component::ALL.into_iter().enumerate() {
            story.add(seen(component, time as u64, reply));
        }
    }
    let flow = Flow {
        source: [10, 9, 9, 1].into(),
        destination: [10, 9, 9, 2].into(),
        protocol: 6,
        source_port: 1,
        destination_port: 2,
    };
    let mut state = State::new().failed("why".into());
    state.tag = 1;
    state.results.extend(result("node-1", "sender", &story, Some(flow), true));
    let transports = [
        Transport::Tcp { source: 1, destination: 2, flags: 2, sequence: 3 },
        Transport::Udp { source: 1, destination: 2 },
        Transport::Icmp { kind: None, code: 0, id: 1, sequence: 2 },
    ];
    let frames = transports.into_iter().flat_map(|transport| [frame(V4, transport), frame(V6, transport)]);
    frames
        .map(|frame| {
            let packet = captured(&frame, 16).expect("a packet");
            State { captured: vec![packet.clone(), packet], ..state.clone() }.status()
        })
        .collect()
}

fn frame(address: IpAddr, transport: Transport) -> Vec<u8> {
    let packet = Packet {
        source_mac: [2; 6],
        destination_mac: [2; 6],
        source: address,
        destination: address,
        ttl: 64,
        dont_fragment: true,
        identification: 1,
        transport,
        payload: 8,
    };
    packet.frame(1).expect("a frame")
}

const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));

fn schema() -> Value {
    let all = crate::kubernetes::crd::all();
    let crd = all.iter().find(|crd| crd.spec.names.kind == "Traceflow").expect("the kind");
    let crd = serde_json::to_value(crd).expect("JSON");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"].clone()
}

/// Fields by their paths, of a value; a list's items are as one.
fn written(value: &Value, path: &str, found: &mut BTreeSet<(String, String)>) {
    let kind = match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| written(value, &format!("{path}.{name}"), found));
            "object"
        }
        Value::Array(items) => {
            items.iter().for_each(|item| written(item, &format!("{path}[]"), found));
            "array"
        }
        Value::String(_) => "string",
        Value::Number(number) if !number.is_f64() => "integer",
        other => panic!("{path}: {other}"),
    };
    found.insert((path.to_owned(), kind.to_owned()));
}

/// The same of a schema.
fn known(schema: &Value, path: &str, found: &mut BTreeSet<(String, String)>) {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        known(schema, &format!("{path}.{name}"), found);
    }
    if schema["items"].is_object() {
        known(&schema["items"], &format!("{path}[]"), found);
    }
    found.insert((path.to_owned(), schema["type"].as_str().expect("a type").to_owned()));
}

#[test]
fn what_is_written_is_what_the_schema_has() {
    let (mut fields, mut schema_fields) = (BTreeSet::new(), BTreeSet::new());
    statuses().iter().for_each(|status| written(status, "status", &mut fields));
    known(&schema(), "status", &mut schema_fields);
    let dropped: Vec<_> = fields.difference(&schema_fields).collect();
    // The flow is in the schema before any agent writes it.
    let never = schema_fields.difference(&fields).filter(|(path, _)| !path.starts_with("status.flow"));
    let never: Vec<_> = never.collect();
    assert!(
        dropped.is_empty() && never.is_empty(),
        "dropped by a server: {dropped:?}; never written: {never:?}"
    );
}
