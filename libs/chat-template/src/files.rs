//! A model's text files: chat template and end tokens.

use super::error::TemplateError;
use super::python::{DEFAULT, TOOL_USE};
use serde_json::Value;
use std::io::ErrorKind;
use std::path::Path;
use tokenizers::Tokenizer;

/// The folder of templates with names.
const ADDITIONAL: &str = "additional_chat_templates";

pub fn read_json(file: &Path) -> Result<Value, TemplateError> {
    let bytes = std::fs::read(file).map_err(|source| TemplateError::Read {
        file: file.to_owned(),
        source,
    })?;
    serde_json::from_slice(&bytes).map_err(|error| TemplateError::File {
        file: file.to_owned(),
        what: error.to_string(),
    })
}

/// A model's templates, by the names that transformers gives them.
#[derive(Debug, PartialEq, Eq)]
pub struct Templates {
    pub default: String,
    /// Of prompts with tools. `None`: the default serves them too.
    pub tool_use: Option<String>,
}

/// Templates are separate files: the default `chat_template.jinja`, others by name in `additional_chat_templates`.
/// Without a default there, they are a text in `tokenizer_config.json` or a list of named ones. The transformers
/// library and engines use this order: a model may have both, and they may differ.
pub fn chat_templates(model: &Path, config: &Value) -> Result<Templates, TemplateError> {
    let named = |name: &str| read_text(&model.join(format!("{ADDITIONAL}/{name}.jinja")));
    let tool_use = named(TOOL_USE)?;
    let default = match named(DEFAULT)? {
        None => read_text(&model.join("chat_template.jinja"))?,
        some => some,
    };
    if let Some(default) = default {
        return Ok(Templates { default, tool_use });
    }
    let inline = |name: &str| match &config["chat_template"] {
        Value::String(text) => (name == DEFAULT).then(|| text.clone()),
        // As in Python's dictionaries, the last one of a name counts.
        Value::Array(list) => (list.iter().rev())
            .find(|one| one["name"] == name)
            .and_then(|one| one["template"].as_str().map(str::to_owned)),
        _ => None,
    };
    let default = inline(DEFAULT).ok_or_else(|| TemplateError::File {
        file: model.join("tokenizer_config.json"),
        what: "has no chat_template, or none named default, and there is no chat_template.jinja beside it".into(),
    })?;
    Ok(Templates {
        default,
        tool_use: tool_use.or_else(|| inline(TOOL_USE)),
    })
}

/// A file's text, if the file exists.
fn read_text(file: &Path) -> Result<Option<String>, TemplateError> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TemplateError::Read {
            file: file.to_owned(),
            source,
        }),
    }
}

/// A token is a text, or an object with its text in `content`.
pub fn token_text(value: &Value) -> Option<String> {
    let text = value.as_str().or_else(|| value["content"].as_str());
    text.map(str::to_owned)
}

pub fn stop_tokens(model: &Path, config: &Value, tokenizer: &Tokenizer) -> Result<Vec<(u32, String)>, TemplateError> {
    let mut ids: Vec<u32> = Vec::new();
    for file in ["generation_config.json", "config.json"] {
        let path = model.join(file);
        if ids.is_empty() && path.exists() {
            ids = match &read_json(&path)?["eos_token_id"] {
                Value::Array(list) => list.iter().filter_map(Value::as_u64).map(|id| id as u32).collect(),
                Value::Number(id) => id.as_u64().map(|id| id as u32).into_iter().collect(),
                _ => Vec::new(),
            };
        }
    }
    let named = token_text(&config["eos_token"]).and_then(|text| tokenizer.token_to_id(&text));
    if let Some(id) = named.filter(|id| !ids.contains(id)) {
        ids.push(id);
    }
    Ok(ids
        .into_iter()
        .filter_map(|id| tokenizer.id_to_token(id).map(|text| (id, text)))
        .collect())
}
