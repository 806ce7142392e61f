//! Checks that a turn's recorded calls follow from its answer. This is a second parser, on purpose: it checks the
//! driver's own.
//!
//! It is less strict than the driver's parser. Calls are between tags, in order; the recorded names and values must be
//! those in the text. An answer may be recorded as malformed only if one of its calls is defective.

use grpo_records::TurnAction;
use serde_json::{Map, Value};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Returns the defect of an answer's recorded action, if any. `format`: `Hermes` or `Qwen3Coder`. `words`: answers
/// without a call are accepted too, as command-line agents do.
pub fn wrong(format: &str, words: bool, answer: &str, action: &TurnAction) -> Option<String> {
    let opened = answer.trim_start().strip_prefix("<think>");
    let said = match (opened, answer.split_once("</think>")) {
        (Some(opened), _) => opened.split_once("</think>").map_or("", |(_, rest)| rest),
        // After a call it is part of an argument.
        (None, Some((thought, rest))) if !thought.contains(OPEN) => rest,
        _ => answer,
    };
    if words && action.kind == TurnAction::ANSWER {
        return said
            .contains(OPEN)
            .then(|| "it has calls, recorded as an answer without".to_owned());
    }
    match format {
        "Hermes" => hermes(said, action),
        "Qwen3Coder" => qwen3_coder(said, action),
        other => Some(format!("there is no format {other} of calls")),
    }
}

fn hermes(said: &str, action: &TurnAction) -> Option<String> {
    let read = read(said);
    let Some(recorded) = action.as_calls() else {
        return match (action.kind.as_str(), read) {
            (TurnAction::MALFORMED_CALL, Ok(calls)) if !calls.is_empty() => Some(format!(
                "it has {} calls that can be read, recorded as malformed",
                calls.len()
            )),
            (TurnAction::MALFORMED_CALL, _) => None,
            (kind, _) => Some(format!("an answer to an agent with tools is recorded as {kind}")),
        };
    };
    let read = match read {
        Ok(read) => read,
        Err(why) => return Some(format!("{why}, and calls are recorded")),
    };
    let named: Vec<(String, Option<Value>)> = recorded
        .into_iter()
        .map(|call| (call.name, serde_json::from_str(&call.arguments).ok()))
        .collect();
    let said: Vec<(String, Option<Value>)> = read.into_iter().map(|(name, it)| (name, Some(it))).collect();
    (named.is_empty() || named != said).then(|| format!("{said:?} is recorded as {named:?}"))
}

/// Names and arguments, in order; an error says why a call cannot be parsed.
fn read(said: &str) -> Result<Vec<(String, Value)>, String> {
    let mut calls = Vec::new();
    let mut rest = said;
    while let Some(at) = rest.find(OPEN) {
        let inside = &rest[at + OPEN.len()..];
        let mut values = serde_json::Deserializer::from_str(inside).into_iter::<Map<String, Value>>();
        let Some(Ok(mut call)) = values.next() else {
            return Err("a call is no JSON object".to_owned());
        };
        let behind = inside[values.byte_offset()..].trim_start();
        let closed = behind.strip_prefix(CLOSE).ok_or("a call is not closed")?;
        match (call.remove("name"), call.remove("arguments")) {
            (Some(Value::String(name)), Some(arguments @ Value::Object(_))) if !name.is_empty() => {
                calls.push((name, arguments));
            }
            _ => return Err("a call has no name or no arguments".to_owned()),
        }
        rest = closed;
    }
    Ok(calls)
}

/// The type of an argument depends on the tools of the prompt, which the store does not have, so texts are compared.
/// Whether an answer is malformed depends on them too.
fn qwen3_coder(said: &str, action: &TurnAction) -> Option<String> {
    let Some(recorded) = action.as_calls() else {
        let malformed = action.kind == TurnAction::MALFORMED_CALL;
        return (!malformed).then(|| format!("an answer to an agent with tools is recorded as {}", action.kind));
    };
    let mut rest = said;
    for call in &recorded {
        let arguments = serde_json::from_str(&call.arguments).ok();
        rest = match arguments.and_then(|arguments| behind(rest, &call.name, &arguments)) {
            Some(behind) => behind,
            None => return Some(format!("{rest:?} is recorded as {} of {}", call.arguments, call.name)),
        };
    }
    // An argument may contain a tag as text; after the last argument a tag is another call.
    (recorded.is_empty() || rest.contains(OPEN)).then(|| format!("it has more calls than {}", recorded.len()))
}

/// The text after a call with these arguments, if the call comes next.
fn behind<'a>(said: &'a str, name: &str, arguments: &Map<String, Value>) -> Option<&'a str> {
    let (_, inside) = said.split_once(OPEN)?;
    let (called, body) = inside.trim_start().strip_prefix("<function=")?.split_once('>')?;
    let mut end = 0;
    for (field, value) in arguments {
        let tag = format!("<parameter={field}>");
        let from = body.find(&tag)? + tag.len();
        let text = value.as_str().unwrap_or_default();
        let blanks = body[from..].len() - body[from..].trim_start_matches('\n').len();
        let text = text.trim_start_matches('\n');
        let at = from + blanks;
        if !body[at..].starts_with(text) {
            return None;
        }
        end = end.max(at + text.len());
    }
    (called.trim() == name).then(|| &body[end..])
}

#[cfg(test)]
mod tests;
