//! A run's manifest as users write it: the GrpoRun of a file, and SandboxPools beside it.
//!
//! The API server is not asked: it refuses fields that only it can check when the run is applied.

use crate::arguments::run_name;
use grpo_crds::{GrpoRun, SandboxPool};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("reading {file}: {source}; give the file with the GrpoRun, or - for standard input")]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{file} is no YAML: {source}")]
    Yaml {
        file: PathBuf,
        source: serde_yaml_ng::Error,
    },
    #[error("{kind} {name} of {file}: {source}; `kubectl apply --dry-run=server -f {file}` names the field")]
    Object {
        kind: &'static str,
        name: String,
        file: PathBuf,
        source: serde_json::Error,
    },
    #[error("{file} has {count} GrpoRuns (grpo.dev), and exactly one is needed; give a file with one")]
    Count { file: PathBuf, count: usize },
    #[error("the GrpoRun of {file} has no usable metadata.name: {why}")]
    Name { file: PathBuf, why: String },
    #[error("GrpoRun {name} of {file} is for namespace {theirs}, and -n says {given}; leave one of them out")]
    Namespace {
        name: String,
        file: PathBuf,
        theirs: String,
        given: String,
    },
}

/// The content of a file.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub run: GrpoRun,
    /// SandboxPools in the same file.
    pub pools: Vec<SandboxPool>,
}

/// Reads a file, or standard input for `-`. `given` is the namespace of the command line.
pub fn read(file: &Path, given: Option<&str>) -> Result<Manifest, ManifestError> {
    let text = match file == Path::new("-") {
        true => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        false => std::fs::read_to_string(file),
    };
    let text = text.map_err(|source| ManifestError::Read {
        file: file.to_owned(),
        source,
    })?;
    parse(&text, file, given)
}

pub fn parse(text: &str, file: &Path, given: Option<&str>) -> Result<Manifest, ManifestError> {
    let documents: Result<Vec<Value>, _> = serde_yaml_ng::Deserializer::from_str(text)
        .map(Value::deserialize)
        .collect();
    let documents = documents.map_err(|source| ManifestError::Yaml {
        file: file.to_owned(),
        source,
    })?;
    let mut runs: Vec<GrpoRun> = of_kind(&documents, "GrpoRun", file)?;
    let count = runs.len();
    let (Some(mut run), 1) = (runs.pop(), count) else {
        return Err(ManifestError::Count {
            file: file.to_owned(),
            count,
        });
    };
    let name = run.metadata.name.clone().unwrap_or_default();
    run_name(&name).map_err(|why| ManifestError::Name {
        file: file.to_owned(),
        why,
    })?;
    match (&run.metadata.namespace, given) {
        (Some(theirs), Some(given)) if theirs != given => {
            return Err(ManifestError::Namespace {
                name,
                file: file.to_owned(),
                theirs: theirs.clone(),
                given: given.to_owned(),
            });
        }
        (None, Some(given)) => run.metadata.namespace = Some(given.to_owned()),
        _ => {}
    }
    let pools = of_kind(&documents, "SandboxPool", file)?;
    Ok(Manifest { run, pools })
}

fn of_kind<T: DeserializeOwned>(documents: &[Value], kind: &'static str, file: &Path) -> Result<Vec<T>, ManifestError> {
    let is_ours = |document: &&Value| {
        let group = document["apiVersion"]
            .as_str()
            .and_then(|version| version.split('/').next());
        document["kind"] == kind && group == Some(grpo_crds::GROUP)
    };
    let read = |document: &Value| {
        serde_json::from_value(document.clone()).map_err(|source| ManifestError::Object {
            kind,
            name: document["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            file: file.to_owned(),
            source,
        })
    };
    documents.iter().filter(is_ours).map(read).collect()
}

#[cfg(test)]
mod tests;
