<<<<<<< HEAD
//! Do the recorded calls of tools follow from an answer? A second reading, on purpose: the driver's own is what is
//! checked. It compares what was recorded with what stands in the answer's tags, call by call.
//!
//! Which type an argument of Qwen3-Coder's form has depends on the tools of its prompt, which the store does not have:
//! of such an argument its text is compared, whatever its type.

use grpo_records::TurnAction;
use serde_json::Value;

const OPEN: &str = "<tool_call>";

/// What of an action does not follow from its answer, if anything. `format`: `Hermes` or `Qwen3Coder`.
pub fn differs(format: &str, answer: &str, action: &TurnAction) -> Option<String> {
    let said = behind_reasoning(answer);
    let blocks: Vec<&str> = said.split(OPEN).skip(1).collect();
    match action.kind.as_str() {
        TurnAction::ANSWER => (!blocks.is_empty()).then(|| "the answer has calls".to_owned()),
        // Why a call cannot be read is the driver's to say; that there is one can be seen.
        TurnAction::MALFORMED_CALL => (!answer.contains("<tool_call")).then(|| "the answer has no call".to_owned()),
        TurnAction::CALLS => {
            let calls = action.as_calls().unwrap_or_default();
            if calls.len() != blocks.len() {
                return Some(format!("the answer has {} calls", blocks.len()));
            }
            let mut pairs = calls.iter().zip(blocks);
            let unlike = pairs.find(|(call, block)| {
                let recorded: Option<Value> = serde_json::from_str(&call.arguments).ok();
                let agrees = match (format, recorded) {
                    ("Hermes", Some(arguments)) => is_hermes(block, &call.name, &arguments),
                    ("Qwen3Coder", Some(arguments)) => is_qwen3_coder(block, &call.name, &arguments),
                    _ => false,
                };
                !agrees
            });
            unlike.map(|(call, _)| format!("the call {} is not in the answer as it is recorded", call.id))
        }
        kind => Some(format!("{kind} is no action of this agent")),
    }
}

/// An answer whose reasoning has no end is reasoning alone.
fn behind_reasoning(answer: &str) -> &str {
    let thinks = answer.trim_start().starts_with("<think>");
    match answer.split_once("</think>") {
        Some((reasoning, said)) if thinks || !reasoning.contains(OPEN) => said,
        None if thinks => "",
        _ => answer,
    }
}

/// The first JSON value of a block is the call; arguments may be JSON within a text.
fn is_hermes(block: &str, name: &str, arguments: &Value) -> bool {
    let mut values = serde_json::Deserializer::from_str(block).into_iter::<Value>();
    let Some(Ok(said)) = values.next() else { return false };
    let given = match &said["arguments"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or(Value::Null),
        Value::Null => Value::Object(Default::default()),
        value => value.clone(),
    };
    said["name"] == name && given == *arguments
}

fn is_qwen3_coder(block: &str, name: &str, arguments: &Value) -> bool {
    let called = block
        .split_once("<function=")
        .and_then(|(_, rest)| rest.split_once('>'));
    let Some((said, body)) = called else { return false };
    let fields = arguments.as_object().into_iter().flatten();
    let mut fields = fields.map(|(field, value)| (field, value.as_str()));
    said.trim() == name
        && fields.all(|(field, text)| {
            let opened = format!("<parameter={field}>");
            match (body.split_once(&opened), text) {
                (Some((_, rest)), Some(text)) => {
                    rest.trim_start_matches('\n').starts_with(text.trim_start_matches('\n'))
                }
                (Some(_), None) => true,
                (None, _) => false,
            }
        })
=======
//! Do the calls that a turn recorded follow from its answer? A second reading, on purpose: the driver's own is what is
//! checked.
//!
//! It asks less than the driver's reading gives. Calls are between tags, in order; the names and values that were
//! recorded must be those in the text. An answer was taken for malformed only where one of its calls has a fault.

use grpo_records::TurnAction;
use serde_json::{Map, Value};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// What is wrong with the action of an answer in Hermes' form, if anything.
pub fn hermes(answer: &str, action: &TurnAction) -> Option<String> {
    let opened = answer.trim_start().strip_prefix("<think>");
    let said = match (opened, answer.split_once("</think>")) {
        (Some(opened), _) => opened.split_once("</think>").map_or("", |(_, rest)| rest),
        // Behind a call it is a word of an argument.
        (None, Some((thought, rest))) if !thought.contains(OPEN) => rest,
        _ => answer,
    };
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
>>>>>>> int
}

#[cfg(test)]
mod tests;
