//! Qwen3-Coder's format: a tag for the function, one for each argument, values as plain text.
//!
//! A value ends at the first closing tag before another argument or the end of the function, so that a value may spell
//! the tag. The schema gives its type, by the rule of vLLM and verl: see [`typed`].

use super::{CLOSE, OPEN, ParsedCall, Read, read_calls};
use serde_json::{Map, Number, Value};

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

pub fn read(said: &str, tools: &str) -> Result<Read, String> {
    let stray = said.lines().any(|line| line.trim_start().starts_with(FUNCTION));
    if stray && !said.contains(OPEN) {
        return Err(format!("{FUNCTION}…> stands outside {OPEN}"));
    }
    let tools: Value = serde_json::from_str(tools).unwrap_or_default();
    read_calls(said, |inside| call(inside, &tools))
}

fn call<'a>(inside: &'a str, tools: &Value) -> Result<(ParsedCall, &'a str), String> {
    let (name, mut rest) = tag(inside, FUNCTION)?.ok_or_else(|| format!("no {FUNCTION}…> behind {OPEN}"))?;
    let schemas = parameters_of(tools, name);
    let mut written: Vec<(&str, String)> = Vec::new();
    while let Some((key, value)) = tag(rest, PARAMETER)? {
        let (value, after) = value_of(value).ok_or_else(|| format!("no {PARAMETER_END} for {key}"))?;
        if written.iter().any(|(earlier, _)| *earlier == key) {
            return Err(format!("it has {key} twice"));
        }
        written.push((key, typed(value, schemas.and_then(|all| all.get(key))).to_string()));
        rest = after;
    }
    let rest = rest.trim_start().strip_prefix(FUNCTION_END);
    let rest = rest.ok_or_else(|| format!("no {FUNCTION_END} behind its arguments"))?;
    let rest = rest.trim_start().strip_prefix(CLOSE);
    let rest = rest.ok_or_else(|| format!("no {CLOSE} behind {FUNCTION_END}"))?;
    let pairs = written
        .iter()
        .map(|(key, value)| format!("{}: {value}", Value::from(*key)));
    let call = ParsedCall {
        name: name.to_owned(),
        arguments: format!("{{{}}}", pairs.collect::<Vec<_>>().join(", ")),
    };
    Ok((call, rest))
}

/// The name in a tag and the text after it; `None` if other text comes first.
fn tag<'a>(text: &'a str, open: &str) -> Result<Option<(&'a str, &'a str)>, String> {
    let Some(rest) = text.trim_start().strip_prefix(open) else {
        return Ok(None);
    };
    let named = rest.split_once('>').map(|(name, rest)| (name.trim(), rest));
    match named.filter(|(name, _)| !name.is_empty() && !name.contains(['<', '\n'])) {
        Some(named) => Ok(Some(named)),
        None => Err(format!("no name in {open}…>")),
    }
}

/// A value without the line breaks of its tags, and the text after its closing tag.
fn value_of(text: &str) -> Option<(&str, &str)> {
    let mut ends = text.match_indices(PARAMETER_END);
    ends.find_map(|(at, _)| {
        let after = &text[at + PARAMETER_END.len()..];
        let next = after.trim_start();
        let ends = next.starts_with(PARAMETER) || next.starts_with(FUNCTION_END);
        let value = &text[..at];
        let value = value.strip_prefix('\n').unwrap_or(value);
        ends.then(|| (value.strip_suffix('\n').unwrap_or(value), after))
    })
}

/// The schemas of a function's parameters, by name.
fn parameters_of<'a>(tools: &'a Value, name: &str) -> Option<&'a Map<String, Value>> {
    let functions = tools.as_array()?.iter().map(|tool| &tool["function"]);
    let mut named = functions.filter(|function| function["name"] == name);
    named.next()?["parameters"]["properties"].as_object()
}

/// Converts a value to the type of its schema: `null` or `None` if allowed, a whole number if the number is whole,
/// `false` for every boolean except `true`, containers from JSON. A value that does not fit stays text, as does a value
/// without a schema: the tool then tells the policy.
fn typed(text: &str, schema: Option<&Value>) -> Value {
    let types = schema.map(types_of).unwrap_or_default();
    let has = |name: &str| types.contains(&name);
    let textual = types.is_empty() || has("string");
    let is_null = text.eq_ignore_ascii_case("null") && (has("null") || !textual);
    // The descriptions of SWE-PDB's tools say None, and require every argument.
    let is_none = text.trim() == "None" && has("null");
    if is_null || is_none {
        return Value::Null;
    }
    if textual {
        return Value::from(text);
    }
    if has("integer") || has("number") {
        let number = number(text.trim(), has("number"));
        return number.map_or_else(|| Value::from(text), Value::Number);
    }
    if has("boolean") {
        return Value::from(text.trim().eq_ignore_ascii_case("true"));
    }
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

/// The names in `type`, or those of the alternatives in `anyOf` or `oneOf`.
fn types_of(schema: &Value) -> Vec<&str> {
    let alternatives = ["anyOf", "oneOf"]
        .iter()
        .filter_map(|key| schema[key].as_array())
        .flatten();
    let schemas = std::iter::once(schema).chain(alternatives);
    let names = schemas.flat_map(|schema| match &schema["type"] {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    });
    names.collect()
}

fn number(text: &str, float: bool) -> Option<Number> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    if let Ok(whole) = text.parse::<u64>() {
        return Some(whole.into());
    }
    let number = text.parse::<f64>().ok().filter(|_| float)?;
    match number.fract() == 0.0 && number.abs() < i64::MAX as f64 {
        true => Some((number as i64).into()),
        false => Number::from_f64(number),
    }
}

#[cfg(test)]
mod tests;
