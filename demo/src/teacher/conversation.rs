//! A conversation between an agent and the recorded script: the messages that a request has, the task that they are
//! about, the shown function, and the script's next answer.

use crate::tasks::Repair;
use serde::Deserialize;
use serde_json::{Value, json};

const ASSISTANT: &str = "assistant";

/// A request, as OpenAI's chat completions have it.
#[derive(Clone, Debug, Deserialize)]
pub struct Asked {
    pub messages: Vec<Message>,
    /// The driver's own for each turn of each sample: samples of one task differ by it alone.
    #[serde(default)]
    pub seed: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Message {
    pub role: String,
    #[serde(default)]
    pub content: Option<String>,
    #[serde(default)]
    pub tool_calls: Option<Vec<Call>>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Call {
    pub function: CalledFunction,
}

#[derive(Clone, Debug, Deserialize)]
pub struct CalledFunction {
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

impl Message {
    pub fn text(&self) -> &str {
        self.content.as_deref().unwrap_or_default()
    }

    /// Whether this is the answer. An agent may write arguments and blanks otherwise than the script did.
    pub fn is(&self, answer: &Answer) -> bool {
        let calls = self.tool_calls.as_deref().unwrap_or_default();
        let same_calls = calls.len() == answer.calls.len()
            && calls.iter().zip(&answer.calls).all(|(call, (name, arguments))| {
                let given: Option<Value> = serde_json::from_str(&call.function.arguments).ok();
                call.function.name == *name && given.as_ref() == Some(arguments)
            });
        same_calls && self.text().trim() == answer.content.trim()
    }
}

/// An earlier answer, and the text that the agent showed after it.
#[derive(Clone, Debug)]
pub struct Turn<'a> {
    pub answer: &'a Message,
    pub shown: String,
}

/// The turns of a conversation so far.
pub fn turns(messages: &[Message]) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for message in messages {
        if message.role == ASSISTANT {
            turns.push(Turn {
                answer: message,
                shown: String::new(),
            });
        } else if let Some(turn) = turns.last_mut() {
            turn.shown += message.text();
            turn.shown.push('\n');
        }
    }
    turns
}

/// The task of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// From the repository's folder.
    pub file: String,
    pub repair: Repair,
}

impl Function {
    /// `None` if the row is not one of the demo's.
    pub fn of(row: &Value) -> Option<Self> {
        Some(Self {
            file: row["file"].as_str()?.to_owned(),
            repair: Repair::of(row)?,
        })
    }
}

/// The lines of a function, as the agent showed them before any edit.
#[derive(Clone, Debug)]
pub struct Excerpt<'a> {
    pub function: &'a Function,
    pub lines: Vec<&'a str>,
}

impl<'a> Excerpt<'a> {
    /// `code_of`: the code behind the number of a shown line, if the line has that number. `None` if a line of the
    /// function is missing.
    pub fn of(
        function: &'a Function,
        shown: &'a str,
        code_of: impl Fn(&'a str, u64) -> Option<&'a str>,
    ) -> Option<Self> {
        let numbered = |number: u64| shown.lines().find_map(|line| code_of(line, number));
        let lines: Option<Vec<&str>> = (function.repair.first..=function.repair.last).map(numbered).collect();
        lines.map(|lines| Self { function, lines })
    }
}

/// The script's answer: text, and calls by name and arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub content: String,
    pub calls: Vec<(&'static str, Value)>,
}

impl Answer {
    pub fn text(content: impl Into<String>) -> Self {
        Self {
            content: content.into(),
            calls: Vec::new(),
        }
    }

    /// Text with one bash block.
    pub fn block(word: &str, command: &str) -> Self {
        Self::text(format!("{word}\n```bash\n{command}\n```"))
    }

    pub fn calls(word: &str, calls: Vec<(&'static str, Value)>) -> Self {
        Self {
            calls,
            ..Self::text(word)
        }
    }

    /// The message of a chat completion.
    pub fn message(&self) -> Value {
        let mut message = json!({"role": ASSISTANT, "content": self.content});
        if !self.calls.is_empty() {
            let calls = self.calls.iter().enumerate().map(|(number, (name, arguments))| {
                let function = json!({"name": name, "arguments": arguments.to_string()});
                json!({"id": format!("call-{number}"), "type": "function", "function": function})
            });
            message["tool_calls"] = calls.collect();
        }
        message
    }
}
