//! From messages to token ids, exactly once.
//!
//! The model's own chat template and tokenizer render the first prompt. From then on an episode is its token list: what
//! the engine sampled is appended as it is, then the ids of the template's glue around the observation. Nothing that
//! was sampled is ever decoded and encoded again.

use minijinja::{Environment, ErrorKind, context};
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// Stands where an answer would stand; a code point for private use that no template contains.
const MARK: &str = "\u{F8FF}answer\u{F8FF}";

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("reading {file} of the model: {source}")]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{file} of the model: {what}")]
    File { file: PathBuf, what: String },
    #[error("rendering the model's chat template: {0}")]
    Render(#[from] minijinja::Error),
    #[error("tokenising with the model's tokenizer: {0}")]
    Tokenise(#[source] tokenizers::Error),
    #[error("the model's chat template {0}")]
    Shape(String),
}

/// A message as a template sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    pub role: &'static str,
    pub content: String,
}

impl ChatMessage {
    pub fn new(role: &'static str, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
        }
    }
}

/// A model's chat template and tokenizer.
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokenizer: Tokenizer,
    /// Takes the text of special tokens for ordinary text.
    literal: Tokenizer,
    specials: Vec<String>,
    stops: Vec<(u32, String)>,
}

impl ChatTemplate {
    /// Reads `tokenizer.json`, `tokenizer_config.json` and the end tokens of `generation_config.json` or `config.json`.
    pub fn load(model: &Path) -> Result<Self, TemplateError> {
        let config = read_json(&model.join("tokenizer_config.json"))?;
        let template = chat_template(model, &config)?;
        let tokenizer_file = model.join("tokenizer.json");
        let tokenizer = Tokenizer::from_file(&tokenizer_file).map_err(|error| TemplateError::File {
            file: tokenizer_file,
            what: error.to_string(),
        })?;
        let mut literal = tokenizer.clone();
        literal.set_encode_special_tokens(true);
        let mut specials: Vec<String> = tokenizer
            .get_added_tokens_decoder()
            .into_values()
            .filter(|token| token.special)
            .map(|token| token.content)
            .collect();
        specials.sort();
        let stops = stop_tokens(model, &config, &tokenizer)?;
        let this = Self {
            environment: environment(template, &config)?,
            tokenizer,
            literal,
            specials,
            stops,
        };
        this.check()?;
        Ok(this)
    }

    /// The tokens that end an answer.
    pub fn stop_ids(&self) -> Vec<u32> {
        self.stops.iter().map(|(id, _)| *id).collect()
    }

    /// The ids of a whole prompt, ready for an answer.
    pub fn prompt(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, TemplateError> {
        let (shown, hostile) = self.disarmed(messages);
        self.encode(&self.render(&shown, true)?, &hostile)
    }

    /// The ids between an answer and the next one: the rest of the answer's turn, the observation, the opening of the
    /// next turn. `sampled_stop` says whether the answer ended with a stop token; if not (it was cut off), the glue
    /// closes the turn.
    pub fn observation(&self, sampled_stop: Option<u32>, content: &str) -> Result<Vec<u32>, TemplateError> {
        let messages = [
            ChatMessage::new("user", "-"),
            ChatMessage::new("assistant", MARK),
            ChatMessage::new("user", content),
        ];
        let (shown, hostile) = self.disarmed(&messages);
        let rendered = self.render(&shown, true)?;
        let mut glue = after_mark(&rendered)?;
        if let Some((_, text)) = sampled_stop.and_then(|id| self.stops.iter().find(|(stop, _)| *stop == id)) {
            // A model that stops with another of its end tokens has closed its turn all the same.
            glue = self.strip_stop(glue, text);
        }
        self.encode(glue, &hostile)
    }

    /// What ids say, without special tokens; for people and for finding an action, never to be encoded again.
    pub fn text(&self, ids: &[u32]) -> Result<String, TemplateError> {
        self.tokenizer.decode(ids, true).map_err(TemplateError::Tokenise)
    }

    fn strip_stop<'a>(&self, glue: &'a str, sampled: &str) -> &'a str {
        std::iter::once(sampled)
            .chain(self.stops.iter().map(|(_, text)| text.as_str()))
            .find_map(|stop| glue.strip_prefix(stop))
            .unwrap_or(glue)
    }

    /// Content that spells a special token would become that token, so that an observation could open a turn of its
    /// own. Such content is rendered as a mark and comes back beside the messages, to be encoded literally in the
    /// mark's place.
    fn disarmed<'a>(&self, messages: &'a [ChatMessage]) -> (Vec<ChatMessage>, Vec<(String, &'a str)>) {
        let mut hostile = Vec::new();
        let shown = messages.iter().enumerate().map(|(at, message)| {
            if !self
                .specials
                .iter()
                .any(|special| message.content.contains(special.as_str()))
            {
                return message.clone();
            }
            let mark = format!("\u{F8FF}content{at}\u{F8FF}");
            hostile.push((mark.clone(), message.content.as_str()));
            ChatMessage::new(message.role, mark)
        });
        let shown = shown.collect();
        (shown, hostile)
    }

    fn encode(&self, rendered: &str, hostile: &[(String, &str)]) -> Result<Vec<u32>, TemplateError> {
        let mut ids = Vec::new();
        let mut rest = rendered;
        for (mark, content) in hostile {
            let (before, after) = rest.split_once(mark.as_str()).ok_or_else(|| {
                TemplateError::Shape("leaves a message out that spells one of its special tokens".into())
            })?;
            ids.extend(encode_with(&self.tokenizer, before)?);
            ids.extend(encode_with(&self.literal, content)?);
            rest = after;
        }
        ids.extend(encode_with(&self.tokenizer, rest)?);
        Ok(ids)
    }

    fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, TemplateError> {
        let template = self.environment.get_template("chat")?;
        Ok(template.render(context! { messages, add_generation_prompt })?)
    }

    /// Refuses at start what would go wrong in every episode.
    fn check(&self) -> Result<(), TemplateError> {
        if self.stops.is_empty() {
            return Err(TemplateError::Shape(
                "has no end token: set eos_token_id in generation_config.json".into(),
            ));
        }
        let messages = [
            ChatMessage::new("user", "-"),
            ChatMessage::new("assistant", MARK),
            ChatMessage::new("user", "-"),
        ];
        let rendered = self.render(&messages, true)?;
        let glue = after_mark(&rendered)?;
        if self.stops.iter().any(|(_, stop)| glue.starts_with(stop.as_str())) {
            Ok(())
        } else {
            let shown: String = glue.chars().take(20).collect();
            Err(TemplateError::Shape(format!(
                "ends an answer with {shown:?}, which is none of the model's end tokens {:?}",
                self.stops.iter().map(|(_, text)| text).collect::<Vec<_>>()
            )))
        }
    }
}

fn encode_with(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, TemplateError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let encoding = tokenizer.encode_fast(text, false).map_err(TemplateError::Tokenise)?;
    Ok(encoding.get_ids().to_vec())
}

fn after_mark(rendered: &str) -> Result<&str, TemplateError> {
    // The first: what comes after the answer may spell the mark too.
    rendered
        .split_once(MARK)
        .map(|(_, after)| after)
        .ok_or_else(|| TemplateError::Shape("leaves an assistant's message out or changes it".into()))
}

fn read_json(file: &Path) -> Result<Value, TemplateError> {
    let bytes = std::fs::read(file).map_err(|source| TemplateError::Read {
        file: file.to_owned(),
        source,
    })?;
    serde_json::from_slice(&bytes).map_err(|error| TemplateError::File {
        file: file.to_owned(),
        what: error.to_string(),
    })
}

/// The template is a text in `tokenizer_config.json`, the default of a list of named ones there, or a file of its own.
fn chat_template(model: &Path, config: &Value) -> Result<String, TemplateError> {
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
    let file = model.join("chat_template.jinja");
    match inline {
        Some(template) => Ok(template),
        None => std::fs::read_to_string(&file).map_err(|_| TemplateError::File {
            file: model.join("tokenizer_config.json"),
            what: "has no chat_template, and there is no chat_template.jinja beside it".into(),
        }),
    }
}

fn environment(template: String, config: &Value) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    for name in ["bos_token", "eos_token", "pad_token"] {
        environment.add_global(name, token_text(&config[name]).unwrap_or_default());
    }
    environment.add_template_owned("chat", template)?;
    Ok(environment)
}

/// A token is a text, or an object with its text in `content`.
fn token_text(value: &Value) -> Option<String> {
    let text = value.as_str().or_else(|| value["content"].as_str());
    text.map(str::to_owned)
}

fn stop_tokens(model: &Path, config: &Value, tokenizer: &Tokenizer) -> Result<Vec<(u32, String)>, TemplateError> {
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

#[cfg(test)]
mod tests;
