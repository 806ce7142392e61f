//! Reads the documents of files, folders and standard input.

use super::error::PlanError;
use serde::Deserialize;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A larger file is not a manifest. Lists of nodes and pods of large clusters are smaller.
const LARGEST: u64 = 256 << 20;

/// One document.
#[derive(Clone, Debug)]
pub struct Document {
    pub file: PathBuf,
    pub value: Value,
}

impl Document {
    pub fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Whether its API group is ours.
    pub fn is_ours(&self) -> bool {
        let group = self.value["apiVersion"]
            .as_str()
            .and_then(|version| version.split('/').next());
        group == Some(grpo_crds::GROUP)
    }
}

/// All documents of these files; a folder's files in the order of their names. Items of lists are documents.
pub fn read(files: &[PathBuf]) -> Result<Vec<Document>, PlanError> {
    let mut documents = Vec::new();
    for given in files {
        for file in files_of(given)? {
            documents.extend(parse(&text(&file)?, &file)?);
        }
    }
    Ok(documents)
}

pub fn parse(text: &str, file: &Path) -> Result<Vec<Document>, PlanError> {
    let mut documents = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let value = Value::deserialize(document).map_err(|source| PlanError::Yaml {
            file: file.to_owned(),
            source,
        })?;
        unfold(value, file, &mut documents);
    }
    Ok(documents)
}

/// A list becomes its items; an empty document is dropped.
fn unfold(mut value: Value, file: &Path, documents: &mut Vec<Document>) {
    let is_list = value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    if value.is_null() {
        return;
    }
    let document = |value| Document {
        file: file.to_owned(),
        value,
    };
    if is_list && let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) {
        documents.extend(items.drain(..).map(document));
        return;
    }
    documents.push(document(value));
}

fn files_of(given: &Path) -> Result<Vec<PathBuf>, PlanError> {
    if !given.is_dir() {
        return Ok(vec![given.to_owned()]);
    }
    let failed = |source| PlanError::Read {
        file: given.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(given).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str());
        if matches!(ending, Some("yaml" | "yml" | "json")) && file.is_file() {
            files.push(file);
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn text(file: &Path) -> Result<String, PlanError> {
    let failed = |source| PlanError::Read {
        file: file.to_owned(),
        source,
    };
    let mut text = String::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().lock().take(LARGEST + 1).read_to_string(&mut text),
        false => {
            let opened = std::fs::File::open(file).map_err(failed)?;
            opened.take(LARGEST + 1).read_to_string(&mut text)
        }
    };
    match read.map_err(failed)? as u64 > LARGEST {
        true => Err(PlanError::TooLarge {
            file: file.to_owned(),
            limit: LARGEST >> 20,
        }),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests;
