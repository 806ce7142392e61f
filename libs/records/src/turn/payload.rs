//! The payload of an action: any JSON. A driver holds the turns of thousands of live episodes, and most of their
//! actions are commands. So a command is held as its text: a map with it would take over 600 bytes more.

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use std::fmt;

/// The only field of a command's payload.
const COMMAND: &str = "command";

/// JSON whose format depends on the kind of the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionPayload(Held);

/// Equal JSON has one form.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    /// `{command}`, where it is a text.
    Command(Box<str>),
    Other(Value),
}

impl ActionPayload {
    pub fn command(command: impl Into<String>) -> Self {
        Self(Held::Command(command.into().into_boxed_str()))
    }

    pub fn is_null(&self) -> bool {
        self.0 == Held::Other(Value::Null)
    }

    /// A field with any value but the text of a command, which only [`ActionPayload::text`] returns.
    pub fn get(&self, field: &str) -> Option<&Value> {
        match &self.0 {
            Held::Command(_) => None,
            Held::Other(value) => value.get(field),
        }
    }

    /// A field with a text.
    pub fn text(&self, field: &str) -> Option<&str> {
        match &self.0 {
            Held::Command(command) => (field == COMMAND).then_some(&**command),
            Held::Other(value) => value.get(field)?.as_str(),
        }
    }

    fn to_value(&self) -> Value {
        match &self.0 {
            Held::Command(command) => json!({ COMMAND: command }),
            Held::Other(value) => value.clone(),
        }
    }
}

impl Default for ActionPayload {
    fn default() -> Self {
        Self(Held::Other(Value::Null))
    }
}

impl From<Value> for ActionPayload {
    fn from(value: Value) -> Self {
        let fields = value.as_object().filter(|fields| fields.len() == 1);
        let command = fields.and_then(|fields| fields.get(COMMAND)?.as_str());
        match command {
            Some(command) => Self::command(command),
            None => Self(Held::Other(value)),
        }
    }
}

impl fmt::Display for ActionPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_value(), f)
    }
}

impl Serialize for ActionPayload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Held::Command(command) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry(COMMAND, command)?;
                map.end()
            }
            Held::Other(value) => value.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ActionPayload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests;
