//! podwire's objects as the API server has to know them. In: types. Out: CustomResourceDefinitions.
//!
//! The schemas keep out what can be told field by field; what reads objects, there and in files alike, is
//! `podwire_datapath::object`, and a test holds both to the same fields.

mod egress;
mod endpoint;
mod selector;
mod status;
mod traceflow;
mod traffic_control;
mod value;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

/// All of podwire's.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        traffic_control::TrafficControl::crd(),
        egress::Egress::crd(),
        endpoint::Endpoint::crd(),
        traceflow::Traceflow::crd(),
    ]
}

/// Name and content of each one's file.
pub fn files() -> Result<Vec<(String, String)>> {
    let file = |crd: CustomResourceDefinition| {
        let name = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
        let mut value = serde_json::to_value(&crd)?;
        without_null(&mut value);
        let text = serde_saphyr::to_string(&value).context("writing YAML")?;
        Ok((name, format!("# Written by `podwire crds`.\n{}\n", text.trim_end())))
    };
    all().into_iter().map(file).collect()
}

/// A field without a value is left out. Where null is allowed as well, servers do not know a list's keys any more when
/// several nodes write into it, and older ones cannot read it among allowed values.
fn without_null(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| name != "nullable" || !value.is_boolean());
            if let Some(Value::Array(words)) = fields.get_mut("enum") {
                words.retain(|word| !word.is_null());
            }
            fields.values_mut().for_each(without_null);
        }
        Value::Array(items) => items.iter_mut().for_each(without_null),
        _ => {}
    }
}

/// Writes them into a folder.
pub fn write(folder: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let write = |(name, text): (String, String)| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    };
    files()?.into_iter().map(write).collect()
}

#[cfg(test)]
mod tests;
