//! An end of a trace. In: the word after `-S` or `-D`. Out: an address, or a name in a namespace; whether the name
//! is a pod's or a Service's only the agent knows.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Where a packet comes from, or goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// An address.
    Ip(IpAddr),
    /// A pod, or as a destination perhaps a Service.
    Named {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl FromStr for End {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ip) = text.parse() {
            return Ok(Self::Ip(ip));
        }
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        if !is_name(namespace) || !is_name(name) {
            return Err("allowed: NAMESPACE/NAME or NAME, of lower-case letters, digits, '-' and '.', or an IP address".into());
        }
        Ok(Self::Named { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

fn is_name(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&text.len())
        && text.chars().all(|c| alphanumeric(c) || matches!(c, '-' | '.'))
        && text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Named { namespace, name } => write!(f, "{namespace}/{name}"),
        }
    }
}

impl End {
    /// Its part of the trace's name.
    fn part(&self) -> String {
        let text = match self {
            Self::Ip(ip) => ip.to_string(),
            Self::Named { namespace, name } => format!("{namespace}-{name}"),
        };
        text.chars().take(MAX_PART).collect()
    }
}

/// Characters of an end in a name: both, and the rest, fit the 253 that an object's name may have.
const MAX_PART: usize = 110;
/// What a name ends with.
const RANDOM: usize = 8;

/// `<source>-to-<destination>-<8 random characters>`.
pub fn trace_name(source: Option<&End>, destination: Option<&End>) -> String {
    let part = |end: Option<&End>| end.map_or_else(|| "any".to_owned(), End::part);
    let random =
        std::iter::repeat_with(|| if fastrand::bool() { fastrand::lowercase() } else { fastrand::digit(10) });
    let random: String = random.take(RANDOM).collect();
    valid(&format!("{}-to-{}-{random}", part(source), part(destination)))
}

/// Colons of addresses become dashes; each part between dots begins and ends with a letter or a digit.
fn valid(name: &str) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    let parts = plain.split('.').map(|part| part.trim_matches('-')).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(".").to_lowercase()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{End, is_name, trace_name};

    fn end(text: &str) -> End {
        text.parse().unwrap_or_else(|problem| panic!("{text}: {problem}"))
    }

    #[test]
    fn ends_are_names_or_addresses() {
        for (text, shown) in [
            ("nginx", "default/nginx"),
            ("shop/web-0", "shop/web-0"),
            ("10.0.0.1", "10.0.0.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("10.0.0.256", "default/10.0.0.256"),
        ] {
            assert_eq!(end(text).to_string(), shown);
        }
        for wrong in ["", "/", "a/", "/a", "a/b/c", "A", "a_b", "-a", "10.0.0.0/8:", "fe80::1%eth0", "a b"] {
            assert!(wrong.parse::<End>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_say_both_ends() {
        let name = trace_name(Some(&end("shop/web-0")), Some(&end("2001:db8::1")));
        assert!(name.starts_with("shop-web-0-to-2001-db8--1-"), "{name}");
        assert_eq!(name.len(), "shop-web-0-to-2001-db8--1-".len() + 8);
        assert!(trace_name(None, Some(&end("web"))).starts_with("any-to-default-web-"));
        let names: Vec<String> = (0..100).map(|_| trace_name(None, None)).collect();
        assert!(names.iter().all(|name| names.iter().filter(|other| *other == name).count() == 1));
    }

    proptest! {
        #[test]
        fn names_are_valid_for_objects(source in "[a-z0-9][a-z0-9.-]{0,120}[a-z0-9]", destination in any::<std::net::Ipv6Addr>()) {
            let source: Result<End, _> = source.parse();
            let name = trace_name(source.as_ref().ok(), Some(&End::Ip(destination.into())));
            prop_assert!(name.split('.').all(is_name) && name.len() <= 253, "{}", name);
        }
    }
}
