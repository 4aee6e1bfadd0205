//! `podwire check`.

use std::io::Write;

use podwire_datapath::probe;
use serde_json::{Value, json};

use super::Format;
use super::output::{print_value, table};
use crate::failure::Failure;

/// Shows what this kernel offers; fails when something is missing that podwire cannot do without.
pub fn check(format: Format) -> Result<(), Failure> {
    let features = probe::features();
    if matches!(format, Format::Table | Format::Wide) {
        let rows = features.iter().map(|feature| {
            let state = match (feature.present, feature.required) {
                (true, _) => "ok",
                (false, true) => "MISSING",
                (false, false) => "missing",
            };
            let cost = if feature.present { "" } else { feature.cost };
            vec![feature.name.into(), state.into(), cost.into()]
        });
        write!(anstream::stdout().lock(), "{}", table(&["FEATURE", "STATE", "COST"], rows.collect()))?;
    } else {
        print_value(&as_value(&features), format)?;
    }
    let missing: Vec<_> = features
        .iter()
        .filter(|feature| feature.required && !feature.present)
        .map(|feature| feature.name)
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(Failure::Run(format!("missing: {}", missing.join(", ")))) }
}

/// The same for the API.
pub fn features() -> Value {
    as_value(&probe::features())
}

fn as_value(features: &[probe::Feature]) -> Value {
    let items: Vec<_> = features
        .iter()
        .map(|f| json!({"name": f.name, "present": f.present, "required": f.required, "cost": f.cost}))
        .collect();
    json!({"features": items})
}
