//! What an answer says: its reasoning, its words and its calls of tools, each apart. Pure: text in, decisions out.
//!
//! A model writes calls in the form that its template taught it: [`hermes`], JSON between tags, or [`qwen3_coder`], a
//! tag for each argument. Peers disagree on what is wrong with a call (some repair it, some skip it, some run it to its
//! end of text). Here one rule holds for both forms: one call that cannot be read makes the whole answer text, so that
//! no half of an answer is carried out.

mod hermes;
mod qwen3_coder;

use grpo_crds::agent::CallFormat;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
pub const THINK: &str = "<think>";
pub const THOUGHT: &str = "</think>";

/// An answer, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedAnswer {
    /// Without its tags, trimmed.
    pub reasoning: Option<String>,
    /// What is said besides reasoning and calls. The whole answer where a call is malformed.
    pub content: String,
    /// In order; empty where one is malformed.
    pub calls: Vec<ParsedCall>,
    /// Why a call cannot be read.
    pub malformed: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedCall {
    /// Not empty. No tool of that name need exist.
    pub name: String,
    /// JSON text of an object, with the sampled spelling where the format is JSON.
    pub arguments: String,
}

/// Takes an answer apart. `tools`: those of its prompt, as JSON text; their schemas give the arguments of Qwen3-Coder
/// their types.
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

/// Words and calls of an answer.
#[derive(Debug)]
struct Read {
    content: String,
    calls: Vec<ParsedCall>,
}

/// Reads every call with `call`, which is given the text behind an opening tag and gives the call and the text behind
/// the closing tag. Words around calls are kept, without the blanks next to a call; an answer without a call is kept as
/// it is.
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

/// Reasoning and the rest. A template may have opened the reasoning in the prompt, so the opening tag may be missing;
/// then a closing tag behind a call is not one, because an argument may spell it. Reasoning without an end is the whole
/// answer.
fn reasoning_of(answer: &str) -> (Option<&str>, &str) {
    let opened = answer.trim_start().strip_prefix(THINK);
    let (reasoning, rest) = match (opened, answer.split_once(THOUGHT)) {
        (Some(opened), _) => opened.split_once(THOUGHT).unwrap_or((opened, "")),
        (None, Some((reasoning, rest))) if !reasoning.contains(OPEN) => (reasoning, rest),
        (None, _) => return (None, answer),
    };
    (Some(reasoning), rest.trim_start_matches('\n'))
}

#[cfg(test)]
mod tests;
