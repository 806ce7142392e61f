//! A model's text files: chat template and end tokens.

use super::error::TemplateError;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::Path;
use tokenizers::Tokenizer;

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

/// The template is a separate file; without one, a text in `tokenizer_config.json`, or the default of a list of named
/// templates there. The transformers library and engines use this order: a model may have both, and they may differ.
pub fn chat_template(model: &Path, config: &Value) -> Result<String, TemplateError> {
    let file = model.join("chat_template.jinja");
    match std::fs::read_to_string(&file) {
        Ok(template) => return Ok(template),
        Err(source) if source.kind() == ErrorKind::NotFound => {}
        Err(source) => return Err(TemplateError::Read { file, source }),
    }
    let named = |list: &Vec<Value>| {
        list.iter()
            .find(|one| one["name"] == "default")
            .and_then(|one| one["template"].as_str().map(str::to_owned))
    };
    let inline = match &config["chat_template"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => named(list),
        _ => None,
    };
    inline.ok_or_else(|| TemplateError::File {
        file: model.join("tokenizer_config.json"),
        what: "has no chat_template, and there is no chat_template.jinja beside it".into(),
    })
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
