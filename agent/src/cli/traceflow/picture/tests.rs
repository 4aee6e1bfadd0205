//! Pictures of names that try to break out of them.

use proptest::prelude::*;
use serde_json::json;

use super::{dot, mermaid, svg};
use crate::cli::traceflow::result::Trace;

fn trace(name: &str) -> Trace {
    let value = json!({
        "name": name, "phase": "Succeeded", "source": name, "destination": name,
        "results": [{"node": name, "observations": [
            {"component": name, "action": name, "pod": name, "tunnelDstIP": name},
            {"component": "SpoofGuard", "action": "Dropped", "reason": name},
        ]}],
    });
    Trace::read(&value).unwrap_or_else(|error| panic!("{error}"))
}

/// Every quoted string ends, and what stands outside is what dot's grammar has.
fn is_dot(text: &str) -> bool {
    let (mut quoted, mut escaped, mut depth) = (false, false, 0i32);
    for c in text.chars() {
        match (quoted, c) {
            (true, _) if escaped => escaped = false,
            (true, '\\') => escaped = true,
            (true, '"') => quoted = false,
            (true, '\n') => return false,
            (false, '"') => quoted = true,
            (false, '{') => depth += 1,
            (false, '}') => depth -= 1,
            (false, c) if !(c.is_ascii_alphanumeric() || " \n_-=,;>[]#.".contains(c)) => return false,
            _ => {}
        }
        if depth < 0 {
            return false;
        }
    }
    !quoted && depth == 0
}

/// Every tag closes, in order, and no attribute or text has what XML forbids there.
fn is_xml(text: &str) -> bool {
    let (mut open, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find('<') {
        let (before, tag) = rest.split_at(at);
        if before.contains("&")
            && before.split('&').skip(1).any(|part| {
                !part
                    .split(';')
                    .next()
                    .is_some_and(|name| ["amp", "lt", "gt", "quot", "#39", "#10"].contains(&name))
            })
        {
            return false;
        }
        let Some(end) = tag.find('>') else { return false };
        let inner = &tag[1..end];
        match (inner.strip_prefix('/'), inner.ends_with('/')) {
            (Some(name), _) if open.pop() != Some(name.to_owned()) => return false,
            (Some(_), _) | (None, true) => {}
            (None, false) => open.push(inner.split(' ').next().unwrap_or_default().to_owned()),
        }
        if !inner.matches('"').count().is_multiple_of(2) {
            return false;
        }
        rest = &tag[end + 1..];
    }
    open.is_empty() && !text.chars().any(|c| c.is_control() && c != '\n')
}

proptest! {
    #[test]
    fn no_name_breaks_out(name in "[ -~\n\t\u{0}\u{1b}\u{202e}é<>&\"'\\\\#;%`|{}\\[\\]]{0,24}") {
        let trace = trace(&name);
        let (dot, svg, mermaid) = (dot(&trace), svg(&trace), mermaid(&trace));
        prop_assert!(is_dot(&dot), "{}", dot);
        prop_assert!(is_xml(&svg), "{}", svg);
        let lines = mermaid.lines().count();
        prop_assert_eq!(lines, super::mermaid(&self::trace("x")).lines().count(), "{}", mermaid);
        let quotes = |line: &str| line.starts_with("  acc") || line.matches('"').count().is_multiple_of(2);
        prop_assert!(mermaid.lines().all(quotes), "{}", mermaid);
    }
}

#[test]
fn what_is_no_dot_or_xml_is_found_out() {
    assert!(is_dot("digraph \"a\" {\n  s1 [label=\"a\\\"b\"];\n}\n"));
    for wrong in ["digraph {", "digraph { s [label=\"a\n\"] }", "digraph { s [label=<b>] }", "}{"] {
        assert!(!is_dot(wrong), "{wrong}");
    }
    assert!(is_xml("<a x=\"1\"><b/>&amp;</a>"));
    for wrong in ["<a>", "<a></b>", "<a>&</a>", "<a x=\"></a>"] {
        assert!(!is_xml(wrong), "{wrong}");
    }
}
