//! Parses an answer into reasoning, content and tool calls. Pure: text in, decisions out.
//!
//! A model writes calls in the format of its chat template: [`hermes`] (JSON between tags) or [`qwen3_coder`] (a tag
//! for each argument). Other projects treat malformed calls differently: some repair them, some skip them, some let an
//! unclosed call end with the text. Here one rule holds for both formats: one malformed call makes the whole answer
//! text, so that no answer is executed in part.

mod hermes;
mod qwen3_coder;

use grpo_crds::agent::CallFormat;
use grpo_records::chat::{CALL as OPEN, reasoning_of};

const CLOSE: &str = "</tool_call>";

/// A parsed answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedAnswer {
    /// Without its tags, trimmed.
    pub reasoning: Option<String>,
    /// Text outside of reasoning and calls; the whole answer if a call is malformed.
    pub content: String,
    /// In order; empty if one is malformed.
    pub calls: Vec<ParsedCall>,
    /// Why a call is malformed.
    pub malformed: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedCall {
    /// Not empty; may name a tool that does not exist.
    pub name: String,
    /// JSON text of an object; in Hermes' format exactly as sampled.
    pub arguments: String,
}

/// Parses an answer. `tools`: the tools of its prompt as JSON text; Qwen3-Coder's arguments take their types from these
/// schemas.
pub fn parse(format: CallFormat, answer: &str, tools: &str) -> ParsedAnswer {
    let (reasoning, said) = reasoning_of(answer);
    let read = match format {
        CallFormat::Hermes => hermes::read(said),
        CallFormat::Qwen3Coder => qwen3_coder::read(said, tools),
    };
    match read {
        Ok(Read { content, calls }) => ParsedAnswer {
            reasoning: reasoning.map(|text| text.trim().to_owned()),
            content,
            calls,
            malformed: None,
        },
        Err(why) => ParsedAnswer {
            content: answer.to_owned(),
            malformed: Some(why),
            ..ParsedAnswer::default()
        },
    }
}

/// Content and calls of an answer.
#[derive(Debug)]
struct Read {
    content: String,
    calls: Vec<ParsedCall>,
}

/// Reads every call with `call`, which gets the text after an opening tag and returns the call and the text after the
/// closing tag. Keeps the text around calls, without blanks next to a call. An answer without calls stays unchanged.
fn read_calls<'a>(
    said: &'a str,
    call: impl Fn(&'a str) -> Result<(ParsedCall, &'a str), String>,
) -> Result<Read, String> {
    let mut calls = Vec::new();
    let mut words = Vec::new();
    let mut rest = said;
    while let Some((before, inside)) = rest.split_once(OPEN) {
        words.push(before);
        let (read, after) = call(inside).map_err(|why| format!("call {}: {why}", calls.len() + 1))?;
        calls.push(read);
        rest = after;
    }
    if calls.is_empty() {
        let content = said.to_owned();
        return Ok(Read { content, calls });
    }
    words.push(rest);
    let words: Vec<&str> = words
        .into_iter()
        .map(str::trim)
        .filter(|words| !words.is_empty())
        .collect();
    let content = words.join("\n\n");
    Ok(Read { content, calls })
}

#[cfg(test)]
mod tests;
