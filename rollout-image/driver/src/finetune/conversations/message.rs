//! One message of a dataset's row: from its JSON to a message of the chat template.
//!
//! Tools and the arguments of calls stay JSON text, because the model learns the order of their keys.

use grpo_chat_template::{ChatMessage, Role, ToolCall};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The columns of a row that hold JSON with an order of keys.
#[derive(Deserialize)]
pub struct Columns<'a> {
    #[serde(borrow)]
    pub messages: Option<&'a RawValue>,
    #[serde(borrow)]
    pub tools: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Calls<'a> {
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(default)]
    id: Value,
    #[serde(borrow)]
    function: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(default)]
    name: Value,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// Reads a message of a chat API, and whether it is learnt. A column that only other rows have is null in this one.
pub fn read(json: &RawValue) -> Result<(ChatMessage, bool), String> {
    let value: Value = serde_json::from_str(json.get()).map_err(|error| format!("cannot be read: {error}"))?;
    let role = value.get("role").cloned().unwrap_or_default();
    let role: Role = serde_json::from_value(role.clone())
        .map_err(|_| format!("has the role {role}: take system, user, assistant or tool"))?;
    let mut read = ChatMessage::new(role, text(&value, "content")?);
    if role == Role::Assistant {
        if value.get("function_call").is_some_and(|call| !call.is_null()) {
            return Err("has a function_call: write it as tool_calls".to_owned());
        }
        let mut reasoning = text(&value, "reasoning_content")?;
        if reasoning.is_empty() {
            // The other name that servers use.
            reasoning = text(&value, "reasoning")?;
        }
        read.reasoning = (!reasoning.is_empty()).then_some(reasoning);
        read.tool_calls = calls(json)?;
    }
    if role == Role::Tool {
        read.tool_call_id = value.get("tool_call_id").and_then(Value::as_str).map(str::to_owned);
    }
    Ok((read, is_learnt(&value)?))
}

/// The JSON of a column, which may be a text that holds it.
pub fn unquoted(json: &RawValue) -> Cow<'_, str> {
    match serde_json::from_str::<String>(json.get()) {
        Ok(text) => Cow::Owned(text),
        Err(_) => Cow::Borrowed(json.get()),
    }
}

/// True or false, also as 1 or 0; `None` if it is missing or null. Returns any other value as the error.
pub fn flag(value: Option<&Value>) -> Result<Option<bool>, &Value> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => match other.as_f64() {
            Some(0.0) => Ok(Some(false)),
            Some(1.0) => Ok(Some(true)),
            _ => Err(other),
        },
    }
}

/// Whether a message is learnt: `weight` is the field of OpenAI's fine-tuning, `trainable` that of verl.
fn is_learnt(message: &Value) -> Result<bool, String> {
    for (name, values) in [("weight", "0 or 1"), ("trainable", "true or false")] {
        let given = flag(message.get(name)).map_err(|other| format!("has the {name} {other}: take {values}"))?;
        if given == Some(false) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The text of a field; empty if it is missing or null.
fn text(message: &Value, field: &str) -> Result<String, String> {
    match message.get(field) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| {
                part["text"]
                    .as_str()
                    .ok_or_else(|| "has a part that is no text".to_owned())
            })
            .collect(),
        Some(_) => Err(format!("has a {field} that is no text")),
    }
}

fn calls(message: &RawValue) -> Result<Vec<ToolCall>, String> {
    let no_list = |error: serde_json::Error| format!("has tool_calls that are no list: {error}");
    let Calls { tool_calls } = serde_json::from_str(message.get()).map_err(no_list)?;
    let list = tool_calls.map(unquoted).unwrap_or_default();
    if list.trim().is_empty() {
        return Ok(Vec::new());
    }
    let list: Option<Vec<&RawValue>> = serde_json::from_str(&list).map_err(no_list)?;
    list.into_iter().flatten().enumerate().map(call).collect()
}

fn call((at, call): (usize, &RawValue)) -> Result<ToolCall, String> {
    let unreadable = |error: serde_json::Error| format!("has a call that cannot be read: {error}");
    let Call { id, function } = serde_json::from_str(call.get()).map_err(unreadable)?;
    let function = function.unwrap_or(call);
    let Function { name, arguments } = serde_json::from_str(function.get()).map_err(unreadable)?;
    let name = name.as_str().ok_or("has a call without function.name")?;
    let arguments = match arguments {
        None => "{}".to_owned(),
        Some(arguments) => unquoted(arguments).into_owned(),
    };
    Ok(ToolCall {
        id: id.as_str().map_or_else(|| format!("call_{at}"), str::to_owned),
        name: name.to_owned(),
        arguments,
    })
}
