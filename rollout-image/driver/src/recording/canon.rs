//! Checksums of a canonical form, equal for messages that say the same.
//!
//! A harness sends answers back, but not byte for byte: it rewrites arguments (other blanks, another order of keys, `1`
//! for `1.0`), adds flags that a call left out as `false`, trims reasoning or writes it before the content, ends the
//! content with a newline, and leaves fields out. None of this changes the canonical form; any other difference that a
//! model would read does. Every part goes into its checksum with its length, so that no text can pass for the boundary
//! between two parts.

use super::request::{ChatMessage, Request, Role};
use grpo_chat_template::Memo;
use grpo_records::chat::{THINK, THOUGHT};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::convert::Infallible;

/// A checksum, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 16]);

impl Key {
    /// The digits.
    pub fn hex(self) -> String {
        hex::encode(self.0)
    }

    /// A key from its digits; `None` if the text is not a key.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }
}

/// A request's checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pub tools: Key,
    /// `chain[n]` is the checksum of the first n messages.
    pub chain: Vec<Key>,
    /// The checksum of the whole request; a retry has the same.
    pub whole: Key,
}

impl Keys {
    pub fn of(request: &Request) -> Self {
        let tools = tools(&request.tools);
        let mut chain = Vec::with_capacity(request.messages.len() + 1);
        let mut last = Key::default();
        chain.push(last);
        for message in &request.messages {
            last = behind(last, message);
            chain.push(last);
        }
        let mut whole = Parts::new("request");
        whole.bytes(&tools.0);
        whole.bytes(&last.0);
        let most = request.max_tokens.map_or(u64::MAX, u64::from);
        whole.bytes(&most.to_le_bytes());
        Self {
            tools,
            chain,
            whole: whole.key(),
        }
    }

    /// The checksum of all messages.
    pub fn messages(&self) -> Key {
        self.chain.last().copied().unwrap_or_default()
    }
}

/// The checksum of a conversation with one more message.
pub fn behind(before: Key, message: &ChatMessage) -> Key {
    let mut parts = Parts::new("message");
    parts.bytes(&before.0);
    parts.text(message.role.word());
    let (reasoning, content) = said(message);
    parts.text(content);
    parts.text(reasoning);
    parts.text(message.tool_call_id.as_deref().unwrap_or_default());
    for call in &message.tool_calls {
        parts.text(&call.id);
        parts.text(&call.name);
        parts.arguments(&call.arguments);
    }
    parts.key()
}

/// Reasoning and content of a message. Answers are trimmed: their blanks are in the sampled ids.
pub fn said(message: &ChatMessage) -> (&str, &str) {
    if message.role != Role::Assistant {
        return ("", &message.content);
    }
    let content = message.content.trim();
    let within = || content.strip_prefix(THINK)?.split_once(THOUGHT);
    let (reasoning, content) = match &message.reasoning {
        Some(reasoning) => (&reasoning[..], content),
        None => within().unwrap_or(("", content)),
    };
    (reasoning.trim(), content.trim())
}

fn tools(text: &str) -> Key {
    static KEYS: Memo<Key> = Memo::new();
    let key = KEYS.get(text, || {
        let mut parts = Parts::new("tools");
        if !text.is_empty() {
            parts.json(text);
        }
        Ok::<_, Infallible>(parts.key())
    });
    match key {
        Ok(key) => key,
        Err(never) => match never {},
    }
}

/// The parts of a checksum.
struct Parts(Sha256);

impl Parts {
    fn new(kind: &str) -> Self {
        let mut parts = Self(Sha256::new());
        parts.text(kind);
        parts
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Adds a call's arguments without flags that are off. A harness may add a flag of its tool that was not sampled,
    /// such as an editor's `"replace_all": false`, which says as much as no flag. Two calls that differ only in such a
    /// flag have two ids.
    fn arguments(&mut self, text: &str) {
        match serde_json::from_str::<Value>(text) {
            Ok(mut given) => {
                if let Some(fields) = given.as_object_mut() {
                    fields.retain(|_, value| *value != Value::Bool(false));
                }
                self.value(&given);
            }
            Err(_) => self.no_json(text),
        }
    }

    fn json(&mut self, text: &str) {
        match serde_json::from_str(text) {
            Ok(value) => self.value(&value),
            Err(_) => self.no_json(text),
        }
    }

    /// Text that is not JSON is added as is.
    fn no_json(&mut self, text: &str) {
        self.text("text");
        self.text(text);
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.text("null"),
            Value::Bool(value) => self.text(if *value { "true" } else { "false" }),
            Value::Number(number) => {
                // As JavaScript reads it; -0 counts as 0.
                let number = number.as_f64().map_or(0.0, |number| number + 0.0);
                self.text("number");
                self.bytes(&number.to_bits().to_le_bytes());
            }
            Value::String(text) => {
                self.text("string");
                self.text(text);
            }
            Value::Array(values) => {
                self.text("array");
                self.bytes(&(values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| self.value(value));
            }
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                fields.sort_by_key(|(name, _)| name.as_str());
                self.text("object");
                self.bytes(&(fields.len() as u64).to_le_bytes());
                for (name, value) in fields {
                    self.text(name);
                    self.value(value);
                }
            }
        }
    }

    fn key(self) -> Key {
        let digest = self.0.finalize();
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        Key(key)
    }
}

#[cfg(test)]
mod tests;
