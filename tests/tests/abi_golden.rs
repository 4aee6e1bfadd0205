//! The layout of every row, as a text that diffs.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::fmt::Write;
use std::path::PathBuf;

use podwire_core::abi::{ABI_VERSION, Reason, layout, limits};

fn text() -> String {
    let mut text = format!("abi version {ABI_VERSION}, layout hash {:08x}\n", layout::HASH);
    for row in layout::TYPES {
        writeln!(text, "\n{}: {} bytes, aligned to {}", row.name, row.size, row.align)
            .expect("a string grows");
        for field in row.fields {
            writeln!(text, "  {:>5} {:>5} {}", field.offset, field.size, field.name).expect("a string grows");
        }
    }
    writeln!(text, "\nreasons").expect("a string grows");
    for reason in Reason::ALL {
        writeln!(text, "  {:>5} {}", reason.index(), reason.as_str()).expect("a string grows");
    }
    let sizes = [
        ("ENDPOINTS", limits::ENDPOINTS),
        ("TRACES", limits::TRACES),
        ("OBSERVATION_RING", limits::OBSERVATION_RING),
        ("DIRECT_INTERFACES", limits::DIRECT_INTERFACES),
        ("RULESETS", limits::RULESETS),
        ("NODES", limits::NODES),
        ("PREFIXES", limits::PREFIXES),
        ("CHUNKS", limits::CHUNKS),
        ("SPANS", limits::SPANS),
        ("SESSIONS", limits::SESSIONS),
        ("RULESET_CHUNKS", limits::RULESET_CHUNKS),
    ];
    writeln!(text, "\nlimits").expect("a string grows");
    for (name, size) in sizes {
        writeln!(text, "  {size:>5} {name}").expect("a string grows");
    }
    text
}

/// With `PODWIRE_BLESS=1` the text is written instead; a layout that was released keeps its file for ever.
#[test]
fn the_layout_is_the_golden_one() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/abi-v{ABI_VERSION}.txt"));
    if std::env::var_os("PODWIRE_BLESS").is_some() {
        std::fs::write(&path, text()).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text(), golden, "the layout differs from {}: raise ABI_VERSION, then bless", path.display());
}

#[test]
fn reasons_fit_their_counters_and_have_distinct_numbers() {
    for (position, reason) in Reason::ALL.iter().enumerate() {
        assert_eq!(reason.index(), position);
    }
    assert!(Reason::ALL.len() <= Reason::COUNT);
}
