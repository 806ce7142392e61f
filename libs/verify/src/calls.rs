//! Do the calls that a turn recorded follow from its answer? A second reading, on purpose: the driver's own is what is
//! checked.
//!
//! It asks less than the driver's reading gives. Calls are between tags, in order; the names and values that were
//! recorded must be those in the text. An answer was taken for malformed only where one of its calls has a fault.

use grpo_records::TurnAction;
use serde_json::{Map, Value};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// What is wrong with the action of an answer, if anything. `format`: `Hermes` or `Qwen3Coder`. `words`: answers
/// without a call are read too, as command-line agents do.
pub fn wrong(format: &str, words: bool, answer: &str, action: &TurnAction) -> Option<String> {
    let opened = answer.trim_start().strip_prefix("<think>");
    let said = match (opened, answer.split_once("</think>")) {
        (Some(opened), _) => opened.split_once("</think>").map_or("", |(_, rest)| rest),
        // Behind a call it is a word of an argument.
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

/// Names and arguments, in order; an error says why one of the calls cannot be read.
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

/// Which type an argument has depends on the tools of its prompt, which the store does not have: texts are compared.
/// Which answers are malformed depends on them too.
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
    // An argument may spell a tag; behind the last one it is a call.
    (recorded.is_empty() || rest.contains(OPEN)).then(|| format!("it has more calls than {}", recorded.len()))
}

/// What follows a call with these arguments, if the text has it next.
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
