//! The CRDs as YAML, made from the types: what `grpo-crdgen` writes into the chart.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{GrpoRun, InferencePool, SandboxPool};

/// All CRDs.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![GrpoRun::crd(), InferencePool::crd(), SandboxPool::crd()]
}

/// The schema of a CRD's objects, as the chart has it.
pub fn schema(crd: &CustomResourceDefinition) -> Result<serde_json::Value, CrdError> {
    let mut value = serde_json::to_value(crd).map_err(|source| CrdError::Json {
        name: crd.metadata.name.clone().unwrap_or_default(),
        source,
    })?;
    without_rust_formats(&mut value);
    Ok(value["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take())
}

/// A CRD could not be written as YAML.
#[derive(Debug, thiserror::Error)]
pub enum CrdError {
    #[error("failed to write the CRD {name} as JSON: {source}")]
    Json { name: String, source: serde_json::Error },
    #[error("failed to write the CRD {name} as YAML: {source}")]
    Yaml { name: String, source: serde_yaml_ng::Error },
}

/// File name and content of every CRD.
pub fn documents() -> Result<Vec<(String, String)>, CrdError> {
    all()
        .into_iter()
        .map(|crd| {
            let name = crd.metadata.name.clone().unwrap_or_default();
            let mut value = serde_json::to_value(&crd).map_err(|source| CrdError::Json {
                name: name.clone(),
                source,
            })?;
            without_rust_formats(&mut value);
            let yaml = serde_yaml_ng::to_string(&value)
                .map(quoted)
                .map_err(|source| CrdError::Yaml {
                    name: name.clone(),
                    source,
                })?;
            let file = format!("{}.yaml", name.split('.').next().unwrap_or(&name));
            Ok((
                file,
                // `helm show crds` of Helm 3 prints the files without a separator, and kubectl would read only one.
                format!("---\n# Written by grpo-crdgen from the types in crds/; do not edit.\n{yaml}"),
            ))
        })
        .collect()
}

/// kubectl reads YAML 1.1, where an `Off` without quotes is `false`: a value of an enum of ours would be another one.
fn quoted(yaml: String) -> String {
    const WORDS: [&str; 7] = ["y", "n", "yes", "no", "on", "off", "~"];
    let one = |line: &str| match line.split_once("- ") {
        Some((indent, word)) if indent.trim().is_empty() && WORDS.contains(&word.to_lowercase().as_str()) => {
            format!("{indent}- '{word}'\n")
        }
        _ => format!("{line}\n"),
    };
    yaml.lines().map(one).collect()
}

/// `uint32` and `uint64` are no formats of the API server's, which warns about them on every apply. What no `u32` holds
/// is refused: an object that holds it could not be read.
fn without_rust_formats(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            if fields
                .get("format")
                .and_then(|format| format.as_str())
                .is_some_and(|format| format.starts_with("uint"))
                && fields.remove("format").is_some_and(|format| format == "uint32")
            {
                fields.entry("maximum").or_insert(u32::MAX.into());
            }
            fields.values_mut().for_each(without_rust_formats);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(without_rust_formats),
        _ => {}
    }
}
