//! podwire's objects as the API server has to know them. In: types. Out: CustomResourceDefinitions.
//!
//! The schemas keep out what can be told field by field; what reads objects, there and in files alike, is
//! `podwire_datapath::object`, and a test holds both to the same fields.

mod egress;
mod endpoint;
mod selector;
mod status;
mod traffic_control;
mod value;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// All of podwire's.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![traffic_control::TrafficControl::crd(), egress::Egress::crd(), endpoint::Endpoint::crd()]
}

/// Name and content of each one's file.
pub fn files() -> Result<Vec<(String, String)>> {
    let file = |crd: CustomResourceDefinition| {
        let name = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
        let text = serde_saphyr::to_string(&serde_json::to_value(&crd)?).context("writing YAML")?;
        Ok((name, format!("# Written by `podwire crds`.\n{}\n", text.trim_end())))
    };
    all().into_iter().map(file).collect()
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
