//! What the items of a flow mean together. In: items. Out: the flow; a word that is unknown, stands twice or
//! contradicts another one is an error.

use std::ops::RangeInclusive;

use podwire_datapath::compile::TcpFlags;
use podwire_datapath::object::{TCP_FLAGS, icmp_types, nearest, parse_flags};

use super::words::Item;
use super::{Flow, FlowError, Protocol};

/// Words without a value: what they say of the family, and of the protocol.
const WORDS: [(&str, Option<bool>, Option<Protocol>); 12] = [
    ("ip", Some(false), None),
    ("ipv6", Some(true), None),
    ("icmp", Some(false), Some(Protocol::Icmp)),
    ("icmpv6", Some(true), Some(Protocol::Icmpv6)),
    ("tcp", None, Some(Protocol::Tcp)),
    ("udp", None, Some(Protocol::Udp)),
    ("sctp", None, Some(Protocol::Sctp)),
    // Other names that ovs-ofctl has for them.
    ("ip6", Some(true), None),
    ("icmp6", Some(true), Some(Protocol::Icmpv6)),
    ("tcp6", Some(true), Some(Protocol::Tcp)),
    ("udp6", Some(true), Some(Protocol::Udp)),
    ("sctp6", Some(true), Some(Protocol::Sctp)),
];
/// Those that are told when one is wrong.
const TOLD_WORDS: usize = 7;

/// Words with a value.
const KEYS: [&str; 16] = [
    "tcp_src",
    "tcp_dst",
    "tcp_flags",
    "udp_src",
    "udp_dst",
    "sctp_src",
    "sctp_dst",
    "icmp_type",
    "icmp_code",
    "icmp_id",
    "icmp_seq",
    "icmpv6_type",
    "icmpv6_code",
    "icmpv6_id",
    "icmpv6_seq",
    "nw_ttl",
];

const PORT: RangeInclusive<u32> = 1..=65535;
const WORD: RangeInclusive<u32> = 0..=65535;
const BYTE: RangeInclusive<u32> = 0..=255;
const TTL: RangeInclusive<u32> = 1..=255;

pub fn settle(items: &[Item]) -> Result<Flow, FlowError> {
    let mut flow = Flow::default();
    for (number, item) in items.iter().enumerate() {
        if items.iter().take(number).any(|other| other.key == item.key) {
            return Err(item.wrong(format!("{} stands here twice", item.key)));
        }
    }
    let (keys, words): (Vec<&Item>, Vec<&Item>) = items.iter().partition(|item| KEYS.contains(&item.key));
    let mut said: Option<&Item> = None;
    for item in words {
        let (family, protocol) = word(item)?;
        if let (Some(one), Some(other), Some(said)) = (flow.protocol, protocol, said)
            && one != other
        {
            return Err(item.wrong(format!("{} beside {}; a packet has one protocol", item.key, said.key)));
        }
        check_family(item, flow.v6, family)?;
        flow.v6 = flow.v6.or(family);
        if protocol.is_some() {
            flow.protocol = protocol;
            said = Some(item);
        }
    }
    for item in &keys {
        belong(&mut flow, item)?;
    }
    for item in &keys {
        fill(&mut flow, item)?;
    }
    match keys.iter().find(|item| item.key.ends_with("_code")) {
        Some(item) if flow.icmp_type.is_none() => {
            Err(item.wrong(format!("{} needs {}", item.key, item.key.replace("_code", "_type"))))
        }
        _ => Ok(flow),
    }
}

fn word(item: &Item) -> Result<(Option<bool>, Option<Protocol>), FlowError> {
    let Some((_, family, protocol)) = WORDS.iter().find(|(word, ..)| *word == item.key) else {
        let known: Vec<&str> = WORDS.iter().take(TOLD_WORDS).map(|(word, ..)| *word).chain(KEYS).collect();
        let meant = nearest(item.key, &known);
        let sign = if meant.is_empty() { ";" } else { "" };
        let allowed: Vec<String> = known
            .iter()
            .map(|word| if KEYS.contains(word) { format!("{word}=") } else { (*word).to_owned() })
            .collect();
        return Err(item.wrong(format!(
            "unknown word \"{}\"{meant}{sign} allowed: {}",
            item.key.escape_debug(),
            allowed.join(", ")
        )));
    };
    match item.value {
        Some((column, _)) => Err(FlowError { column, problem: format!("{} has no value", item.key) }),
        None => Ok((*family, *protocol)),
    }
}

fn check_family(item: &Item, one: Option<bool>, other: Option<bool>) -> Result<(), FlowError> {
    let (Some(one), Some(other)) = (one, other) else {
        return Ok(());
    };
    if one == other {
        return Ok(());
    }
    let family = |v6| if v6 { "IPv6" } else { "IPv4" };
    let meant = match (item.key, one) {
        ("icmp", true) => "; did you mean \"icmpv6\"?",
        ("icmpv6" | "icmp6", false) => "; did you mean \"icmp\"?",
        _ => "",
    };
    let (of, flow) = (family(other), family(one));
    Err(item.wrong(format!("{} is {of}'s, and the flow is {flow}{meant}", item.key)))
}

/// The protocol that a key belongs to: the flow's, or from now on the flow's.
fn belong(flow: &mut Flow, item: &Item) -> Result<(), FlowError> {
    let prefix = item.key.split('_').next().unwrap_or_default();
    let Some(mut owner) = Protocol::ALL.into_iter().find(|protocol| protocol.as_str() == prefix) else {
        return Ok(());
    };
    // ovs-ofctl calls the fields of both ICMPs by these names.
    if owner == Protocol::Icmp && (flow.v6 == Some(true) || flow.protocol == Some(Protocol::Icmpv6)) {
        owner = Protocol::Icmpv6;
    }
    match flow.protocol {
        Some(protocol) if protocol == owner => Ok(()),
        Some(protocol) => {
            let (owner, protocol) = (owner.as_str(), protocol.as_str());
            Err(item.wrong(format!("{} belongs to {owner}, and the flow is {protocol}", item.key)))
        }
        None => {
            let family = match owner {
                Protocol::Icmp => Some(false),
                Protocol::Icmpv6 => Some(true),
                _ => None,
            };
            check_family(item, flow.v6, family)?;
            flow.v6 = flow.v6.or(family);
            flow.protocol = Some(owner);
            Ok(())
        }
    }
}

fn fill(flow: &mut Flow, item: &Item) -> Result<(), FlowError> {
    let Some((column, value)) = item.value else {
        return Err(item.wrong(format!("{} needs a value: {}=VALUE", item.key, item.key)));
    };
    let number = |range| number(item.key, column, value, &range);
    match item.key.split_once('_').map_or("", |(_, field)| field) {
        "src" => flow.source_port = Some(number(PORT)? as u16),
        "dst" => flow.destination_port = Some(number(PORT)? as u16),
        "flags" => flow.tcp_flags = Some(flags(column, value)?),
        "type" => {
            let v6 = flow.protocol == Some(Protocol::Icmpv6);
            let named = icmp_types(v6).into_iter().find(|(name, _)| *name == value);
            flow.icmp_type = Some(match named {
                Some((_, number)) => number,
                None if read(value).is_some() => number(BYTE)? as u8,
                None => return Err(unknown_type(item.key, column, value, v6)),
            });
        }
        "code" => flow.icmp_code = Some(number(BYTE)? as u8),
        "id" => flow.icmp_id = Some(number(WORD)? as u16),
        "seq" => flow.icmp_seq = Some(number(WORD)? as u16),
        _ => flow.ttl = Some(number(TTL)? as u8),
    }
    Ok(())
}

fn unknown_type(key: &str, column: usize, value: &str, v6: bool) -> FlowError {
    let names: Vec<&str> = icmp_types(v6).into_iter().map(|(name, _)| name).collect();
    let meant = nearest(value, &names);
    let sign = if meant.is_empty() { ";" } else { "" };
    let value = value.escape_debug();
    let allowed = names.join(", ");
    FlowError {
        column,
        problem: format!("{key}: unknown type \"{value}\"{meant}{sign} allowed: 0 to 255, {allowed}"),
    }
}

/// Decimal, or with `0x` hexadecimal; no sign.
fn read(text: &str) -> Option<u32> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    let plain = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
    plain.then(|| u32::from_str_radix(digits, radix).unwrap_or(u32::MAX))
}

fn number(key: &str, column: usize, text: &str, range: &RangeInclusive<u32>) -> Result<u32, FlowError> {
    let allowed = format!("allowed: {} to {}", range.start(), range.end());
    let shown = text.escape_debug();
    match read(text) {
        Some(number) if range.contains(&number) => Ok(number),
        Some(_) => Err(FlowError { column, problem: format!("{key}: {shown} is out of range; {allowed}") }),
        None => Err(FlowError { column, problem: format!("{key}: \"{shown}\" is not a number; {allowed}") }),
    }
}

/// `18`, `0x12`, `0x02/0x12`, `syn|ack`, `+syn-ack`.
fn flags(column: usize, text: &str) -> Result<TcpFlags, FlowError> {
    let byte = |text: &str| read(text).and_then(|number| u8::try_from(number).ok());
    let named = || {
        text.split('|').try_fold(0u8, |value, name| {
            let bit = 1 << TCP_FLAGS.iter().position(|flag| flag.eq_ignore_ascii_case(name))?;
            (value & bit == 0).then_some(value | bit)
        })
    };
    let masked = || {
        let (value, mask) = text.split_once('/')?;
        let flags = TcpFlags { value: byte(value)?, mask: byte(mask)? };
        (flags.value & !flags.mask == 0 && flags.mask != 0).then_some(flags)
    };
    byte(text)
        .or_else(named)
        .map(|value| TcpFlags { value, mask: 255 })
        .or_else(masked)
        .or_else(|| parse_flags(text))
        .ok_or_else(|| FlowError {
            column,
            problem: format!(
                "tcp_flags: \"{}\" does not name TCP flags; allowed: 0 to 255, VALUE/MASK, or {} as syn|ack or +syn-ack, each once",
                text.escape_debug(),
                TCP_FLAGS.join(", ")
            ),
        })
}
