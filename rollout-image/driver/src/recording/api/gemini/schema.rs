//! Schemas of tools: OpenAPI's form in, JSON Schema's form out, in the client's order.
//!
//! They differ in the names of types, which Google's libraries write in upper case (`STRING`). A model knows the names
//! of JSON Schema. Only names of types change: values, examples and defaults stay as they were sent.

use super::super::BadRequest;
use super::super::json::words;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::fmt;

/// Fields of a schema that hold schemas, and those that hold schemas under names.
const SCHEMAS: [&str; 7] = [
    "items",
    "prefixItems",
    "additionalProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
];
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "defs", "definitions"];
const TYPES: [&str; 7] = ["STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"];

/// `text`: one JSON value.
pub(super) fn as_json_schema(field: &str, text: &str) -> Result<String, BadRequest> {
    let mut written = String::with_capacity(text.len());
    let schema = Writer {
        to: &mut written,
        place: Place::Schema,
    };
    let read = schema.deserialize(&mut serde_json::Deserializer::from_str(text));
    read.map_err(|error| BadRequest::new(field, words(&error)))?;
    Ok(written)
}

/// What a value means.
#[derive(Clone, Copy)]
enum Place {
    Schema,
    /// An object with a schema under each of its names.
    Named,
    Type,
}

impl Place {
    /// The meaning of a field; `None`: it stays as it is.
    fn of_field(self, name: &str) -> Option<Self> {
        match (self, name) {
            (Self::Named, _) => Some(Self::Schema),
            (Self::Schema, "type") => Some(Self::Type),
            (Self::Schema, name) if NAMED.contains(&name) => Some(Self::Named),
            (Self::Schema, name) if SCHEMAS.contains(&name) => Some(Self::Schema),
            _ => None,
        }
    }
}

/// Writes the value that it reads. The reader bounds the depth.
struct Writer<'a> {
    to: &'a mut String,
    place: Place,
}

impl Writer<'_> {
    fn put(self, value: Value) {
        self.to.push_str(&value.to_string());
    }
}

impl<'de> DeserializeSeed<'de> for Writer<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Writer<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a schema")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { to, place } = self;
        to.push('{');
        let mut comma = "";
        while let Some(name) = map.next_key::<String>()? {
            to.push_str(comma);
            comma = ",";
            to.push_str(&json!(name).to_string());
            to.push(':');
            match place.of_field(&name) {
                Some(place) => map.next_value_seed(Writer { to: &mut *to, place })?,
                None => to.push_str(map.next_value::<&RawValue>()?.get()),
            }
        }
        to.push('}');
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { to, place } = self;
        to.push('[');
        let start = to.len();
        loop {
            let end = to.len();
            if end > start {
                to.push(',');
            }
            if list.next_element_seed(Writer { to: &mut *to, place })?.is_none() {
                to.truncate(end);
                break;
            }
        }
        to.push(']');
        Ok(())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        let is_type = matches!(self.place, Place::Type) && TYPES.contains(&text);
        self.put(match is_type {
            true => json!(text.to_lowercase()),
            false => json!(text),
        });
        Ok(())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.put(json!(value));
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        self.put(json!(value));
        Ok(())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        self.put(json!(value));
        Ok(())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        self.put(json!(value));
        Ok(())
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.put(Value::Null);
        Ok(())
    }
}
