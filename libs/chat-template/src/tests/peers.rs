//! Renders real templates and compares them byte by byte with Jinja2. `e2e/templates/check.sh` records the cases, and
//! checks more of them.

use super::*;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Template {
        template: String,
        text: String,
    },
    /// A set of tools, as JSON text.
    Tools {
        set: String,
    },
    Case {
        /// The index of the set.
        tools: Option<usize>,
        thinking: bool,
        messages: Vec<Said>,
        expected: BTreeMap<String, String>,
    },
}

#[derive(Deserialize)]
struct Said {
    role: Role,
    content: String,
    reasoning: Option<String>,
    #[serde(default)]
    tool_calls: Vec<Called>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct Called {
    id: String,
    name: String,
    arguments: String,
}

impl From<Said> for ChatMessage {
    fn from(said: Said) -> Self {
        let calls = said.tool_calls.into_iter().map(|call| ToolCall {
            id: call.id,
            name: call.name,
            arguments: call.arguments,
        });
        Self {
            role: said.role,
            content: said.content,
            reasoning: said.reasoning,
            tool_calls: calls.collect(),
            tool_call_id: said.tool_call_id,
        }
    }
}

fn recorded() -> String {
    match std::env::var("GRPO_TEMPLATE_CASES") {
        Ok(file) => std::fs::read_to_string(file).unwrap(),
        Err(_) => include_str!("peers.jsonl").to_owned(),
    }
}

/// The demo's tokenizer with another template.
pub fn with(text: String) -> ChatTemplate {
    let (demo, _) = demo();
    ChatTemplate {
        environment: python::environment(text, Vec::new()).unwrap(),
        ..demo
    }
}

/// A template of the recorded cases.
pub fn recorded_template(name: &str) -> ChatTemplate {
    let recorded = recorded();
    let lines = recorded.lines().map(|line| serde_json::from_str(line).unwrap());
    let text = lines.filter_map(|line| match line {
        Line::Template { template, text } if template == name => Some(text),
        _ => None,
    });
    with(text.take(1).next().unwrap())
}

fn text(template: &ChatTemplate, shape: &PromptShape, messages: &[ChatMessage]) -> Result<String, TemplateError> {
    let shown = template.shown(messages)?;
    let rendered = template.render(&template.tools(shape)?, shape.thinking, shown)?;
    Ok(template.literals.unmark(&rendered))
}

#[test]
fn prompts_are_those_of_jinja2_byte_by_byte() {
    let mut templates = BTreeMap::new();
    let mut sets = Vec::new();
    let mut renders = 0;
    for line in recorded().lines() {
        let (tools, thinking, messages, expected) = match serde_json::from_str(line).unwrap() {
            Line::Template { template, text } => {
                templates.insert(template, with(text));
                continue;
            }
            Line::Tools { set } => {
                sets.push(set);
                continue;
            }
            Line::Case {
                tools,
                thinking,
                messages,
                expected,
            } => (tools, thinking, messages, expected),
        };
        let tools = tools.map(|at| sets[at].clone()).unwrap_or_default();
        let shape = PromptShape { tools, thinking };
        let messages: Vec<ChatMessage> = messages.into_iter().map(ChatMessage::from).collect();
        for (name, expected) in expected {
            let ours = text(&templates[&name], &shape, &messages).unwrap();
            let digest = hex::encode(Sha256::digest(&ours));
            let same = ours == expected || digest == expected;
            assert!(
                same,
                "{name}\n{shape:?}\n{messages:?}\n--- Jinja2\n{expected}\n--- ours\n{ours}"
            );
            renders += 1;
        }
    }
    assert!(renders >= 1000, "{renders} renders");
}
