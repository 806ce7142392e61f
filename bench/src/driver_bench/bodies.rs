//! A conversation's requests, as qwen-code sends them: a system prompt, ten tools, and in each body one more call with
//! its result. Conversations differ by a number in the problem and in each result, as those of different tasks do. So
//! an endpoint that keeps texts finds the system prompt, the tools and the answers again, but no problem and no result.
//! Each body is made once, and the numbers are written into a copy.
//!
//! The tools have qwen-code's names; passages of the book and of a program's source replace descriptions and results.

use bytes::Bytes;
use serde_json::{Value, json};

/// Requests of a conversation.
pub const TURNS: usize = 30;
const FIRST_BYTES: usize = 13_000;
const LAST_BYTES: usize = 64_000;
const DESCRIPTION_BYTES: usize = 600;
const BOOK: &str = include_str!("../../../docs/src/proven.md");
const SOURCE: &str = include_str!("../../../rollout-image/grader/rows.py");

/// The place of a conversation's number.
const NUMBER: &str = "0123456789";

/// A request of any conversation.
pub struct Body {
    bytes: Vec<u8>,
    /// Where the numbers begin.
    numbers: Vec<usize>,
}

impl Body {
    fn of(body: &Value) -> Self {
        let text = body.to_string();
        Self {
            numbers: text.match_indices(NUMBER).map(|(at, _)| at).collect(),
            bytes: text.into_bytes(),
        }
    }

    pub fn of_conversation(&self, number: u32) -> Bytes {
        let written = format!("{number:0width$}", width = NUMBER.len());
        let mut bytes = self.bytes.clone();
        for at in &self.numbers {
            bytes[*at..at + NUMBER.len()].copy_from_slice(written.as_bytes());
        }
        bytes.into()
    }
}

/// The content of the policy's answer, the same in every turn.
pub const CONTENT: &str = "I look at the next part of the file, because the error has to be in one of its functions.";
pub const TOOL: &str = "run_shell_command";
pub const ARGUMENTS: &str =
    r#"{"command":"sed -n '120,160p' lib/read.py","description":"Shows a part of lib/read.py","is_background":false}"#;

const TOOLS: [(&str, &[&str]); 10] = [
    (TOOL, &["command", "description", "directory"]),
    ("read_file", &["absolute_path", "offset", "limit"]),
    ("edit", &["file_path", "old_string", "new_string"]),
    ("write_file", &["file_path", "content"]),
    ("glob", &["pattern", "path"]),
    ("grep_search", &["pattern", "path", "glob"]),
    ("list_directory", &["path", "ignore"]),
    ("todo_write", &["todos"]),
    ("web_fetch", &["url", "prompt"]),
    ("save_memory", &["fact", "scope"]),
];

/// The sampled text: content and a call in the Hermes format.
pub fn answer() -> String {
    format!("{CONTENT}\n<tool_call>\n{{\"name\": \"{TOOL}\", \"arguments\": {ARGUMENTS}}}\n</tool_call>")
}

/// The bodies of conversations, in order. The endpoint names the call of turn n `call_n_0`; the other endpoints always
/// name it `call_0_0`, and ignore the difference.
pub fn conversation() -> Vec<Body> {
    let tools: Vec<Value> = TOOLS.iter().enumerate().map(tool).collect();
    let task = format!("Task {NUMBER}: fix parse() in lib/read.py.");
    let mut body = json!({
        "model": "policy",
        "messages": [
            {"role": "system", "content": ""},
            {"role": "user", "content": [{"type": "text", "text": task}]},
        ],
        "max_tokens": 4096,
        "stream": true,
        "stream_options": {"include_usage": true},
        "tools": tools,
    });
    let missing = FIRST_BYTES.saturating_sub(body.to_string().len());
    body["messages"][0]["content"] = passage(BOOK, 0, missing).into();
    let each = (LAST_BYTES - FIRST_BYTES) / (TURNS - 1);
    let mut bodies = Vec::with_capacity(TURNS);
    for turn in 0..TURNS {
        bodies.push(Body::of(&body));
        let id = format!("call_{turn}_0");
        let function = json!({"name": TOOL, "arguments": ARGUMENTS});
        let call = json!({
            "role": "assistant", "content": CONTENT,
            "tool_calls": [{"id": id, "type": "function", "function": function}],
        });
        let mut result = json!({
            "role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": ""}],
        });
        let room = each.saturating_sub(call.to_string().len() + result.to_string().len() + 2);
        let text = passage(SOURCE, turn * room, room.saturating_sub(NUMBER.len() + 1));
        result["content"][0]["text"] = format!("{NUMBER} {text}").into();
        if let Some(messages) = body["messages"].as_array_mut() {
            messages.extend([call, result]);
        }
    }
    bodies
}

fn tool((at, (name, parameters)): (usize, &(&str, &[&str]))) -> Value {
    let properties = parameters.iter().map(|parameter| {
        let said = json!({"type": "string", "description": passage(BOOK, at * 977 + parameter.len(), 80)});
        ((*parameter).to_owned(), said)
    });
    let properties: serde_json::Map<String, Value> = properties.collect();
    let parameters = json!({"type": "object", "properties": properties, "required": parameters[..1]});
    let description = passage(BOOK, at * DESCRIPTION_BYTES, DESCRIPTION_BYTES);
    json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
}

/// A passage of `bytes` bytes in JSON, from a text that is read in a circle.
fn passage(text: &str, from: usize, bytes: usize) -> String {
    let mut passage = String::new();
    let mut length = 0;
    for letter in text.chars().cycle().skip(from) {
        length += Value::from(letter.to_string()).to_string().len() - 2;
        if length > bytes {
            break;
        }
        passage.push(letter);
    }
    passage
}

/// The output of a command of the bash loop.
pub fn output() -> String {
    passage(SOURCE, 0, 1500)
}

#[cfg(test)]
mod tests;
