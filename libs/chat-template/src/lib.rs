//! Converts messages to token ids, exactly once.
//!
//! The model's own chat template and tokenizer render the first prompt. From then on an episode is its token list:
//! sampled ids are appended unchanged, then the ids of the template's glue with the next messages. Sampled ids are
//! never decoded and encoded again.
//!
//! [`turnover`] has the ids for rebuilding a history with turns left out. [`message`] has the parts of a prompt.
//! [`python`] renders it as the transformers library does. [`literal`] keeps text that spells special tokens from
//! becoming such tokens. [`pieces`] keeps ids of prompts in parts. [`files`] reads the model's files. A [`Memo`] caches
//! results by text.

mod error;
mod files;
mod literal;
mod memo;
mod message;
mod pieces;
mod python;
mod turnover;

pub use self::error::TemplateError;
pub use self::memo::Memo;
pub use self::message::{ChatMessage, PromptShape, Role, ToolCall};
pub use self::turnover::Turnover;

use self::literal::{ANSWER, Literals};
use self::pieces::Pieces;
use self::python::{DEFAULT, TOOL_USE};
use minijinja::value::ValueKind;
use minijinja::{Environment, Value, context};
use std::path::Path;
use std::sync::Arc;
use tokenizers::Tokenizer;

/// A model's chat template and tokenizer.
pub struct ChatTemplate {
    environment: Environment<'static>,
    literals: Literals,
    pieces: Pieces,
    stops: Vec<(u32, String)>,
    /// Tools as the template sees them, by their text.
    tools: Memo<Value>,
    /// Tools that the template was checked to show, with thinking and without.
    shown: [Memo<()>; 2],
    /// The ids before answers, by tools, with thinking and without.
    turnovers: [Memo<Arc<Turnover>>; 2],
}

impl ChatTemplate {
    /// Reads `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` and `additional_chat_templates` if
    /// present, and the end tokens of `generation_config.json` or `config.json`.
    pub fn load(model: &Path) -> Result<Self, TemplateError> {
        let config = files::read_json(&model.join("tokenizer_config.json"))?;
        let templates = files::chat_templates(model, &config)?;
        let tokenizer_file = model.join("tokenizer.json");
        let unusable = |error: &dyn std::fmt::Display| TemplateError::File {
            file: tokenizer_file.clone(),
            what: error.to_string(),
        };
        let tokenizer = Tokenizer::from_file(&tokenizer_file).map_err(|error| unusable(&error))?;
        let stops = files::stop_tokens(model, &config, &tokenizer)?;
        let pieces = Pieces::of(&tokenizer).map_err(|error| unusable(&error))?;
        let tokens = ["bos_token", "eos_token", "pad_token"];
        let globals = tokens.map(|name| (name, files::token_text(&config[name]).unwrap_or_default()));
        let mut environment = python::environment(templates.default, globals.into())?;
        if let Some(text) = &templates.tool_use {
            python::set_template(&mut environment, TOOL_USE, text)?;
        }
        let this = Self {
            environment,
            literals: Literals::new(tokenizer).map_err(|error| unusable(&error))?,
            pieces,
            stops,
            tools: Memo::new(),
            shown: Default::default(),
            turnovers: Default::default(),
        };
        this.check()?;
        Ok(this)
    }

    /// The tokens that end an answer.
    pub fn stop_ids(&self) -> Vec<u32> {
        self.stops.iter().map(|(id, _)| *id).collect()
    }

    /// The ids of a whole prompt, up to the start of an answer.
    pub fn prompt(&self, shape: &PromptShape, messages: &[ChatMessage]) -> Result<Vec<u32>, TemplateError> {
        let tools = self.tools(shape)?;
        self.shown[usize::from(shape.thinking)].get(&shape.tools, || self.check_tools(&tools, shape.thinking))?;
        let shown = self.shown(messages)?;
        let rendered = self.render(&tools, shape.thinking, shown)?;
        self.pieces.encode(&rendered, |piece| self.literals.encode(piece))
    }

    /// The ids between an answer and the next one: the rest of the answer's turn, the `new` messages, the opening of
    /// the next turn. `sampled_stop`: the stop token that ended the answer; without it (the answer was cut off) the
    /// glue closes the turn.
    ///
    /// The messages are rendered together, after a stub of a conversation: templates put adjacent messages, such as the
    /// results of several calls, into one turn.
    pub fn glue(
        &self,
        shape: &PromptShape,
        sampled_stop: Option<u32>,
        new: &[ChatMessage],
    ) -> Result<Vec<u32>, TemplateError> {
        let mut shown = stub();
        shown.extend(self.shown(new)?);
        let rendered = self.render(&self.tools(shape)?, shape.thinking, shown)?;
        let mut glue = after_answer(&rendered)?;
        if let Some((_, text)) = sampled_stop.and_then(|id| self.stops.iter().find(|(stop, _)| *stop == id)) {
            // A model that stops with another of its end tokens has also closed its turn.
            glue = self.strip_stop(glue, text);
        }
        self.literals.encode(glue)
    }

    /// The ids of an assistant's message as if it were sampled: reasoning, text and calls as the template writes them,
    /// and the token that ends the turn.
    pub fn answer(&self, shape: &PromptShape, message: &ChatMessage) -> Result<Vec<u32>, TemplateError> {
        let tools = self.tools(shape)?;
        let mut messages = vec![context! { role => "user", content => "-" }];
        let asked = self.render(&tools, shape.thinking, messages.clone())?;
        messages.push(self.shown_message(message)?);
        let whole = self.render_before(&tools, shape.thinking, messages, false)?;
        let answer = whole.strip_prefix(asked.as_str()).ok_or_else(|| {
            TemplateError::Shape(
                "asks for an answer in another way than it shows this one: where the answer has reasoning, it must not \
                 be switched off"
                    .into(),
            )
        })?;
        let ends = self
            .stops
            .iter()
            .filter_map(|(_, stop)| Some(answer.find(stop.as_str())? + stop.len()));
        let end = ends
            .min()
            .ok_or_else(|| TemplateError::Shape("shows an answer without an end token behind it".into()))?;
        self.literals.encode(&answer[..end])
    }

    /// The text of ids, without the tokens that open and end turns. Tags of reasoning and of tool calls stay, also if
    /// the tokenizer calls them special. Use it for display and to find an action; never encode it again.
    pub fn text(&self, ids: &[u32]) -> Result<String, TemplateError> {
        self.literals.decode(ids)
    }

    fn strip_stop<'a>(&self, glue: &'a str, sampled: &str) -> &'a str {
        std::iter::once(sampled)
            .chain(self.stops.iter().map(|(_, text)| text.as_str()))
            .find_map(|stop| glue.strip_prefix(stop))
            .unwrap_or(glue)
    }

    /// A prompt's tools as the template sees them; `none` without tools.
    fn tools(&self, shape: &PromptShape) -> Result<Value, TemplateError> {
        if shape.tools.is_empty() {
            return Ok(Value::from(()));
        }
        self.tools.get(&shape.tools, || {
            let tools = json(&shape.tools, ValueKind::Seq, || "the tools of a prompt".into())?;
            Ok(match tools.len() {
                Some(0) => Value::from(()),
                _ => self.literals.mark_json(&tools),
            })
        })
    }

    /// Messages as the template sees them, in the transformers library's form.
    fn shown(&self, messages: &[ChatMessage]) -> Result<Vec<Value>, TemplateError> {
        messages.iter().map(|message| self.shown_message(message)).collect()
    }

    fn shown_message(&self, message: &ChatMessage) -> Result<Value, TemplateError> {
        let mark = |text: &str| Value::from(self.literals.mark(text));
        let mut fields = vec![
            ("role", Value::from(message.role.word())),
            ("content", mark(&message.content)),
        ];
        if let Some(reasoning) = &message.reasoning {
            fields.push(("reasoning_content", mark(reasoning)));
        }
        if !message.tool_calls.is_empty() {
            let calls = message.tool_calls.iter().map(|call| {
                let what = || format!("the arguments of the call of {}", call.name);
                let arguments = self.literals.mark_json(&json(&call.arguments, ValueKind::Map, what)?);
                let function = context! { name => mark(&call.name), arguments };
                Ok(context! { id => mark(&call.id), type => "function", function })
            });
            let calls: Result<Vec<Value>, TemplateError> = calls.collect();
            fields.push(("tool_calls", Value::from(calls?)));
        }
        if let Some(id) = &message.tool_call_id {
            fields.push(("tool_call_id", mark(id)));
        }
        Ok(fields.into_iter().collect())
    }

    fn render(&self, tools: &Value, thinking: bool, messages: Vec<Value>) -> Result<String, TemplateError> {
        self.render_before(tools, thinking, messages, true)
    }

    /// `add_generation_prompt`: includes the opening of an answer.
    fn render_before(
        &self,
        tools: &Value,
        thinking: bool,
        messages: Vec<Value>,
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let name = if tools.is_none() { DEFAULT } else { TOOL_USE };
        let template = self.environment.get_template(name)?;
        let context = context! { messages, tools, add_generation_prompt };
        Ok(match thinking {
            true => template.render(context)?,
            false => template.render(context! { enable_thinking => false, ..context })?,
        })
    }

    /// Refuses tools that the template would not show to the policy.
    fn check_tools(&self, tools: &Value, thinking: bool) -> Result<(), TemplateError> {
        if tools.is_none() {
            return Ok(());
        }
        let rendered = self.render(tools, thinking, stub())?;
        for tool in tools.try_iter()? {
            let name = tool.get_attr("function").and_then(|function| function.get_attr("name"));
            let name = name.unwrap_or_default();
            match name.as_str().filter(|name| !name.is_empty()) {
                None => {
                    return Err(TemplateError::Json {
                        what: "the tools of a prompt".into(),
                        why: "a tool has no function.name".into(),
                    });
                }
                Some(name) if !rendered.contains(name) => {
                    return Err(TemplateError::Shape(format!(
                        "does not show the tool {name}: take a model whose template has tools"
                    )));
                }
                Some(_) => {}
            }
        }
        self.check_end(tools, thinking)
    }

    /// Refuses a template that ignores `enable_thinking=false`: the model would continue to reason.
    pub fn check_thinking_switch(&self) -> Result<(), TemplateError> {
        let prompt = |thinking| {
            let messages = vec![context! { role => "user", content => "-" }];
            self.render(&Value::from(()), thinking, messages)
        };
        match prompt(true)? == prompt(false)? {
            false => Ok(()),
            true => Err(TemplateError::Shape(
                "renders the same prompt with enable_thinking=false: set agent.context.thinking: Keep, or take a model \
                 whose template has the switch"
                    .into(),
            )),
        }
    }

    /// Refuses at start a template that would fail in every episode.
    fn check(&self) -> Result<(), TemplateError> {
        if self.stops.is_empty() {
            return Err(TemplateError::Shape(
                "has no end token: set eos_token_id in generation_config.json".into(),
            ));
        }
        self.check_end(&Value::from(()), true)
    }

    /// Refuses a template that ends an answer by none of the model's end tokens.
    fn check_end(&self, tools: &Value, thinking: bool) -> Result<(), TemplateError> {
        let mut messages = stub();
        messages.push(context! { role => "user", content => "-" });
        let rendered = self.render(tools, thinking, messages)?;
        let glue = after_answer(&rendered)?;
        if self.stops.iter().any(|(_, stop)| glue.starts_with(stop.as_str())) {
            Ok(())
        } else {
            let shown: String = glue.chars().take(20).collect();
            Err(TemplateError::Shape(format!(
                "ends an answer with {shown:?}, which is not one of the model's end tokens {:?}",
                self.stops.iter().map(|(_, text)| text).collect::<Vec<_>>()
            )))
        }
    }
}

/// A conversation up to an answer.
fn stub() -> Vec<Value> {
    vec![
        context! { role => "user", content => "-" },
        context! { role => "assistant", content => ANSWER },
    ]
}

fn after_answer(rendered: &str) -> Result<&str, TemplateError> {
    rendered
        .split_once(ANSWER)
        .map(|(_, after)| after)
        .ok_or_else(|| TemplateError::Shape("leaves an assistant's message out or changes it".into()))
}

/// JSON text as a value that keeps its key order.
fn json(text: &str, kind: ValueKind, what: impl Fn() -> String) -> Result<Value, TemplateError> {
    let wrong = |why: String| TemplateError::Json { what: what(), why };
    let value: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    match value.kind() == kind {
        true => Ok(value),
        false => Err(wrong(format!("is a {}, not a {kind}", value.kind()))),
    }
}

#[cfg(test)]
mod tests;
