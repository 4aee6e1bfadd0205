//! `podwire observe`: what stages did with packets that somebody traces, and with packets that they dropped.

use std::io::Write;

use clap::Args;
use serde_json::Value;

use super::Format;
use super::output::text;
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
    /// Only those with this reason, as `podwire observe` prints it.
    #[arg(long, value_name = "WORD", value_parser = reason)]
    reason: Option<String>,
    /// Only those of the trace with this number.
    #[arg(long, value_name = "NUMBER")]
    trace: Option<u32>,
    /// table, or json: an object a line.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The reason's word as it is written, however it was typed.
fn reason(word: &str) -> Result<String, String> {
    use podwire_datapath::core::abi::Reason;
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

impl Wanted {
    fn accepts(&self, seen: &Value) -> bool {
        let is = |field: &str, wanted: &str| {
            seen[field].as_str().is_some_and(|word| word.eq_ignore_ascii_case(wanted))
        };
        let pod = self.pod.as_ref().map(|pod| match pod.contains('/') {
            true => pod.clone(),
            false => format!("default/{pod}"),
        });
        pod.is_none_or(|pod| seen["pod"] == *pod)
            && self.component.as_ref().is_none_or(|wanted| is("component", wanted))
            && self.reason.as_ref().is_none_or(|wanted| is("reason", wanted))
            && self.trace.is_none_or(|number| seen["trace"] == number)
    }
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
