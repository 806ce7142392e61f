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
}

#[cfg(test)]
mod tests;
