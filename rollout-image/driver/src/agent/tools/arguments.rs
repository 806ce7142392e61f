//! The arguments of a call, and the errors for arguments that a tool cannot take.
//!
//! A tool of the original is a Python method: a missing or unknown argument is answered in Python's words. Errors that
//! Python would find in the middle of the work (a line number that is a text) are answered before it.

use serde_json::{Map, Value};

/// The required and optional arguments of a tool, and its class in Python's messages.
pub struct Signature {
    pub class: &'static str,
    pub required: &'static [&'static str],
    pub optional: &'static [&'static str],
}

/// Arguments of one call.
#[derive(Debug)]
pub struct Arguments<'a> {
    tool: &'a str,
    text: &'a str,
    values: Map<String, Value>,
}

impl<'a> Arguments<'a> {
    /// Reads JSON text; an error is the answer to the policy.
    pub fn read(tool: &'a str, text: &'a str, signature: &Signature) -> Result<Self, String> {
        let values = match serde_json::from_str(text) {
            Ok(Value::Object(values)) => values,
            Ok(other) => {
                return Err(format!("Tool arguments must be a dict, got {}", python_type(&other)));
            }
            Err(_) => return Err(format!("Failed to parse tool arguments as JSON: {text}")),
        };
        let is_known = |name: &str| signature.required.contains(&name) || signature.optional.contains(&name);
        let class = signature.class;
        if let Some(unknown) = values.keys().find(|name| !is_known(name)) {
            return Err(format!("{class}.use() got an unexpected keyword argument '{unknown}'"));
        }
        if let Some(missing) = signature.required.iter().find(|name| !values.contains_key(**name)) {
            return Err(format!(
                "{class}.use() missing 1 required positional argument: '{missing}'"
            ));
        }
        Ok(Self { tool, text, values })
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, wanted: &str) -> String {
        format!(
            "Error while using tool {} with action: {}.\nArgument `{name}` must be {wanted}.",
            self.tool, self.text
        )
    }

    pub fn text(&self, name: &str) -> Result<Option<&str>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| self.wrong(name, "a string")),
        }
    }

    /// A text that the call must have.
    pub fn required(&self, name: &str) -> Result<&str, String> {
        self.text(name)?.ok_or_else(|| self.wrong(name, "a string"))
    }

    /// A whole number; `3.0` is one.
    pub fn number(&self, name: &str) -> Result<Option<i64>, String> {
        // Far more lines than any file has; sums of such numbers do not overflow.
        const MOST: i64 = 1 << 40;
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let whole = value
            .as_f64()
            .filter(|number| number.fract() == 0.0)
            .map(|number| number as i64);
        let number = value.as_i64().or(whole).map(|number| number.clamp(-MOST, MOST));
        number.map(Some).ok_or_else(|| self.wrong(name, "a whole number"))
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => value.as_bool().map(Some).ok_or_else(|| self.wrong(name, "a boolean")),
        }
    }
}

/// Python's name for the type of a JSON value.
fn python_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

#[cfg(test)]
mod tests;
