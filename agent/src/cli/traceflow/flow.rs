//! The flow of `-f`: which packet, in the words of `ovs-ofctl`. In: text. Out: a [`Flow`], or what is wrong with
//! it and at which column.
//!
//! ```text
//!  flow = item { "," item }        commas or white space stand between items, white space also around "="
//!  item = WORD | KEY "=" VALUE
//! ```

mod settle;
#[cfg(test)]
mod tests;
mod words;

use std::fmt;
use std::str::FromStr;

use podwire_datapath::Filter;
use podwire_datapath::compile::TcpFlags;
use podwire_datapath::object::TCP_FLAGS;
use serde_json::{Map, Value, json};

/// What a flow says; `None` is what it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Whether it is IPv6.
    pub v6: Option<bool>,
    /// The protocol.
    pub protocol: Option<Protocol>,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
    /// TCP flags; a mask of 255 is all of them as they are.
    pub tcp_flags: Option<TcpFlags>,
    /// ICMP type.
    pub icmp_type: Option<u8>,
    /// ICMP code.
    pub icmp_code: Option<u8>,
    /// Identifier of an echo.
    pub icmp_id: Option<u16>,
    /// Sequence number of an echo.
    pub icmp_seq: Option<u16>,
    /// Time to live or hop limit.
    pub ttl: Option<u8>,
}

/// Protocols that a flow has words for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// IPv4's ICMP.
    Icmp,
    /// IPv6's ICMP.
    Icmpv6,
}

impl Protocol {
    const ALL: [Self; 5] = [Self::Tcp, Self::Udp, Self::Sctp, Self::Icmp, Self::Icmpv6];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
            Self::Icmp => "icmp",
            Self::Icmpv6 => "icmpv6",
        }
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
            Self::Icmp => 1,
            Self::Icmpv6 => 58,
        }
    }
}

/// What is wrong with a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowError {
    /// Of the first character that is wrong, from 1 on.
    column: usize,
    problem: String,
}

impl fmt::Display for FlowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.problem)
    }
}

impl std::error::Error for FlowError {}

impl FromStr for Flow {
    type Err = FlowError;

    fn from_str(text: &str) -> Result<Self, FlowError> {
        settle::settle(&words::split(text)?)
    }
}

impl Flow {
    /// Which packets it says.
    pub fn filter(&self) -> Filter {
        Filter {
            v6: self.v6,
            protocol: self.protocol.map(Protocol::number),
            source_port: self.source_port,
            destination_port: self.destination_port,
            icmp_type: self.icmp_type,
            icmp_code: self.icmp_code,
            tcp_flags: self.tcp_flags.map(|flags| (flags.value, flags.mask)),
            ttl: self.ttl,
            echo_id: self.icmp_id,
            echo_sequence: self.icmp_seq,
            ..Filter::default()
        }
    }

    /// `spec.packet` of a Traceflow.
    pub fn packet(&self) -> Value {
        let mut packet = Map::new();
        let header = |number: &str, ttl: &str| {
            present([
                (number, self.protocol.map(|protocol| protocol.number().into())),
                (ttl, self.ttl.map(Into::into)),
            ])
        };
        match self.v6 {
            Some(true) => packet.insert("ipv6Header".into(), header("nextHeader", "hopLimit")),
            // A TTL needs a header to stand in, and IPv4's is the one that is meant unless said otherwise.
            Some(false) => packet.insert("ipHeader".into(), header("protocol", "ttl")),
            None if self.ttl.is_some() => packet.insert("ipHeader".into(), header("protocol", "ttl")),
            None => None,
        };
        let ports = [
            ("srcPort", self.source_port.map(Value::from)),
            ("dstPort", self.destination_port.map(Value::from)),
        ];
        let transport = match self.protocol {
            Some(protocol @ Protocol::Tcp) => {
                let flags = self.tcp_flags.map(|flags| match flags.mask {
                    255 => json!(flags.value),
                    mask => json!({"value": flags.value, "mask": mask}),
                });
                Some((protocol.as_str(), present(ports.into_iter().chain([("flags", flags)]))))
            }
            Some(protocol @ (Protocol::Udp | Protocol::Sctp)) => Some((protocol.as_str(), present(ports))),
            Some(Protocol::Icmp | Protocol::Icmpv6) => Some((
                "icmp",
                present([
                    ("type", self.icmp_type.map(Value::from)),
                    ("code", self.icmp_code.map(Value::from)),
                    ("id", self.icmp_id.map(Value::from)),
                    ("sequence", self.icmp_seq.map(Value::from)),
                ]),
            )),
            None => None,
        };
        if let Some((name, header)) = transport {
            packet.insert("transportHeader".into(), json!({name: header}));
        }
        Value::Object(packet)
    }
}

fn present<'a>(fields: impl IntoIterator<Item = (&'a str, Option<Value>)>) -> Value {
    fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect::<Map<_, _>>()
        .into()
}

/// The text that reads as the same flow.
impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items = Vec::new();
        items.extend(self.v6.map(|v6| if v6 { "ipv6" } else { "ip" }.to_owned()));
        items.extend(self.protocol.map(|protocol| protocol.as_str().to_owned()));
        let name = self.protocol.map_or("", Protocol::as_str);
        let mut item = |key: &str, value: Option<String>| {
            items.extend(value.map(|value| format!("{key}={value}")));
        };
        item(&format!("{name}_src"), self.source_port.map(|port| port.to_string()));
        item(&format!("{name}_dst"), self.destination_port.map(|port| port.to_string()));
        item("tcp_flags", self.tcp_flags.map(print_flags));
        item(&format!("{name}_type"), self.icmp_type.map(|number| number.to_string()));
        item(&format!("{name}_code"), self.icmp_code.map(|number| number.to_string()));
        item(&format!("{name}_id"), self.icmp_id.map(|number| number.to_string()));
        item(&format!("{name}_seq"), self.icmp_seq.map(|number| number.to_string()));
        item("nw_ttl", self.ttl.map(|number| number.to_string()));
        f.write_str(&items.join(","))
    }
}

/// `syn|ack` for all flags as they are, `+syn-ack` for some.
fn print_flags(flags: TcpFlags) -> String {
    let named = TCP_FLAGS.iter().enumerate().map(|(bit, name)| (1u8 << bit, *name));
    if flags.mask != 255 {
        return named
            .filter(|(bit, _)| flags.mask & bit != 0)
            .map(|(bit, name)| format!("{}{name}", if flags.value & bit != 0 { '+' } else { '-' }))
            .collect();
    }
    let set: Vec<&str> = named.filter(|(bit, _)| flags.value & bit != 0).map(|(_, name)| name).collect();
    if set.is_empty() { "0".into() } else { set.join("|") }
}
