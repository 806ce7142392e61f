//! Hermes' format, used by Qwen3: `<tool_call>`, `{"name": …, "arguments": {…}}`, `</tool_call>`.
//!
//! Reads the JSON first, then the closing tag, so that an argument may spell the tag.

use super::{CLOSE, ParsedCall, Read, read_calls};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Deserializer, Map, Value};

#[derive(Deserialize)]
struct Written<'a> {
    name: Option<String>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

pub fn read(said: &str) -> Result<Read, String> {
    read_calls(said, call)
}

fn call(inside: &str) -> Result<(ParsedCall, &str), String> {
    // A list would be read too, by the order of the fields.
    if inside.trim_start().starts_with('[') {
        return Err("its JSON: a list, not an object".into());
    }
    let mut values = Deserializer::from_str(inside).into_iter::<Written>();
    let written = match values.next() {
        Some(Ok(written)) => written,
        Some(Err(error)) => return Err(format!("its JSON: {error}")),
        None => return Err("it is empty and not closed".into()),
    };
    let after = inside[values.byte_offset()..].trim_start();
    let after = after.strip_prefix(CLOSE);
    let after = after.ok_or_else(|| format!("no {CLOSE} behind its JSON"))?;
    let name = written.name.filter(|name| !name.is_empty());
    let name = name.ok_or("it has no name")?;
    let arguments = written.arguments.ok_or("it has no arguments")?.get();
    // Raw JSON may hold text that JSON readers reject, such as half of a surrogate pair.
    let object = serde_json::from_str::<Map<String, Value>>(arguments);
    object.map_err(|error| format!("its arguments are no JSON object: {error}"))?;
    let arguments = arguments.to_owned();
    Ok((ParsedCall { name, arguments }, after))
}

#[cfg(test)]
mod tests;
