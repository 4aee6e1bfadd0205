//! `podwire observe`: what stages did with packets that somebody traces, and with packets that they dropped.

use std::io::Write;

use clap::Args;
use serde_json::Value;

use super::Format;
use super::output::text;
use super::traceflow::flow::Flow;
use crate::client::Client;
use crate::failure::Failure;

/// Which observations are shown, and how.
#[derive(Debug, Args)]
pub struct Wanted {
    /// Go on with those to come.
    #[arg(short, long)]
    follow: bool,
    /// Only those of this pod: namespace/name, or a name in namespace default.
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    /// Only those of this component: SpoofGuard, TrafficControl, Egress or Forwarding.
    #[arg(long, value_name = "NAME", value_parser = ["SpoofGuard", "TrafficControl", "Egress", "Forwarding"], ignore_case = true)]
    component: Option<String>,
    /// Only those with this reason, as `podwire observe` prints it; the kernel's own have "kernel: " before them.
    #[arg(long, value_name = "WORD", value_parser = reason)]
    reason: Option<String>,
    /// Only packets like this: the words of podwire traceflow --flow that say protocol and ports.
    #[arg(long, value_name = "FLOW")]
    flow: Option<Flow>,
    /// Only those of the trace with this number.
    #[arg(long, value_name = "NUMBER")]
    trace: Option<u32>,
    /// table, or json: an object a line.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The reason's word as it is written, however it was typed. The kernel's are known to the agent alone.
fn reason(word: &str) -> Result<String, String> {
    use podwire_datapath::core::abi::Reason;
    if word.starts_with("kernel: ") {
        return Ok(word.to_owned());
    }
    let known = Reason::ALL.iter().map(|reason| reason.as_str());
    let found = known.clone().find(|known| known.eq_ignore_ascii_case(word));
    found.map(str::to_owned).ok_or_else(|| format!("allowed: {}", known.collect::<Vec<_>>().join(", ")))
}

/// Prints observations as they come.
pub fn observe(client: &Client, wanted: &Wanted) -> Result<(), Failure> {
    let table = matches!(wanted.output, Format::Table | Format::Wide);
    if table {
        let head = ["TIME", "COMPONENT", "ACTION", "POD", "PACKET", "ABOUT"].map(str::to_owned);
        print(&line(&head))?;
    }
    let path = format!("/v1/observe?follow={}", wanted.follow);
    client.lines(&path, |seen| {
        if seen["kind"] == "Account" {
            return tell_losses(&seen);
        }
        if !wanted.accepts(&seen) {
            return Ok(());
        }
        match wanted.output {
            Format::Table | Format::Wide => print(&row(&seen)),
            Format::Json => print(&seen.to_string()),
            Format::Yaml => {
                print("---")?;
                super::output::print_value(&seen, Format::Yaml)
            }
        }
    })
}

/// A pod's name with its namespace.
fn full(pod: &str) -> String {
    if pod.contains('/') { pod.to_owned() } else { format!("default/{pod}") }
}

impl Wanted {
    fn accepts(&self, seen: &Value) -> bool {
        // A change of an object is about no packet.
        if seen["kind"] == "Event" {
            let about_packets = self.component.is_some() || self.trace.is_some() || self.flow.is_some();
            let pod = self.pod.as_ref().map(|pod| format!("Endpoint/{}", full(pod)));
            return !about_packets && self.reason.is_none() && pod.is_none_or(|pod| seen["object"] == *pod);
        }
        let is = |field: &str, wanted: &str| {
            seen[field].as_str().is_some_and(|word| word.eq_ignore_ascii_case(wanted))
        };
        let pod = self.pod.as_ref().map(|pod| full(pod));
        pod.is_none_or(|pod| seen["pod"] == *pod)
            && self.component.as_ref().is_none_or(|wanted| is("component", wanted))
            && self.reason.as_ref().is_none_or(|wanted| is("reason", wanted))
            && self.trace.is_none_or(|number| seen["trace"] == number)
            && self.flow.as_ref().is_none_or(|flow| is_of(seen, flow))
    }
}

/// Of a flow's words, those that an observation tells.
fn is_of(seen: &Value, flow: &Flow) -> bool {
    let v6 = seen["srcIP"].as_str().map(|ip| ip.contains(':'));
    let number = |field: &str, wanted: Option<u64>| wanted.is_none_or(|wanted| seen[field] == wanted);
    v6.is_some_and(|v6| flow.v6.is_none_or(|wanted| wanted == v6))
        && number("protocol", flow.protocol.map(|protocol| u64::from(protocol.number())))
        && number("srcPort", flow.source_port.map(u64::from))
        && number("dstPort", flow.destination_port.map(u64::from))
        && number("ttl", flow.ttl.map(u64::from))
}

/// On standard error, and only when something was lost: a script reads standard output.
fn tell_losses(account: &Value) -> Result<(), Failure> {
    let mut causes = Vec::new();
    for (class, account) in account["classes"].as_object().into_iter().flatten() {
        for (cause, count) in account["lost"].as_object().into_iter().flatten() {
            if count.as_u64().is_some_and(|count| count != 0) {
                causes.push(format!("{class} {cause} {count}"));
            }
        }
    }
    match account["listenerSlow"].as_u64() {
        Some(count) if count != 0 => causes.push(format!("this listener was slow {count}")),
        _ => {}
    }
    if causes.is_empty() {
        return Ok(());
    }
    Ok(writeln!(anstream::stderr().lock(), "not shown since the agent began: {}", causes.join(", "))?)
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    Ok(out.flush()?)
}

fn line(columns: &[String; 6]) -> String {
    let [time, component, action, pod, packet, about] = columns;
    format!("{time:<31} {component:<15} {action:<22} {pod:<24} {packet:<60} {about}")
}

fn row(seen: &Value) -> String {
    let field = |name: &str| text(seen, &format!("/{name}"));
    if seen["kind"] == "Event" {
        let columns =
            [field("time"), "Policy".into(), field("reason"), "-".into(), field("object"), field("message")];
        return line(&columns);
    }
    let end = |address: &str, port: &str| match seen[port].as_u64() {
        Some(port) if field(address).contains(':') => format!("[{}]:{port}", field(address)),
        Some(port) => format!("{}:{port}", field(address)),
        None => field(address),
    };
    let packet = match seen["srcIP"].as_str() {
        Some(_) => {
            let protocol = protocol(seen["protocol"].as_u64().unwrap_or_default());
            format!("{protocol} {} > {}", end("srcIP", "srcPort"), end("dstIP", "dstPort"))
        }
        None => {
            format!("ethertype {:#06x} to {}", seen["protocol"].as_u64().unwrap_or_default(), field("dstMAC"))
        }
    };
    let about = ["reason", "policy", "egress", "egressIP", "egressNode", "tunnelDstIP", "trace"];
    let about = about.into_iter().filter(|name| !seen[*name].is_null());
    let about: Vec<String> = about.map(|name| format!("{name}={}", field(name))).collect();
    line(&[field("time"), field("component"), field("action"), field("pod"), packet, about.join(" ")])
}

fn protocol(number: u64) -> String {
    match number {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmpv6".into(),
        132 => "sctp".into(),
        other => format!("protocol {other}"),
    }
}
