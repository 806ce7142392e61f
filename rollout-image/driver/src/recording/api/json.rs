//! Reading hostile JSON: bounded lists, fields in the client's order, faults that name their field.

use super::{BadRequest, MOST_PARTS, MOST_TOOLS};
use grpo_chat_template::Memo;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// Most fields of an object whose fields are read by name.
const MOST_FIELDS: usize = 512;
/// Longest value of a client's setting that is kept, in bytes.
const LONGEST_SETTING: usize = 1000;
/// Longest name of a tool, in bytes.
const LONGEST_NAME: usize = 256;

/// Reads a value; a fault names the field below `field`.
pub(super) fn read<'a, T: Deserialize<'a>>(field: &str, text: &'a str) -> Result<T, BadRequest> {
    // Tracking the path costs time, so only a failed read does it.
    serde_json::from_str(text).or_else(|_| {
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = serde_path_to_error::deserialize(&mut reader);
        let value = read.map_err(|error| BadRequest::new(below(field, error.path()), words(error.inner())))?;
        let end = reader.end().map_err(|error| BadRequest::new(field, words(&error)));
        end.map(|()| value)
    })
}

fn below(field: &str, path: &serde_path_to_error::Path) -> String {
    let path = path.to_string();
    match path.as_str() {
        "." => field.to_owned(),
        _ if field.is_empty() => path,
        _ if path.starts_with('[') => format!("{field}{path}"),
        _ => format!("{field}.{path}"),
    }
}

/// The error without its position, which counts from the field's start.
pub(super) fn words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(message, _)| message);
    message.to_owned()
}

/// An object's fields in the client's order.
pub(super) struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Fields<'a> {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// With names in lowerCamelCase: Google's JSON has two spellings.
    pub(super) fn in_camel_case(self) -> Self {
        let named = self.0.into_iter().map(|(name, value)| (camel(&name), value));
        Self(named.collect())
    }

    /// The last field of that name, unless it is null.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.0.iter().rev().find(|(found, _)| found == name)?.1;
        (found.get() != "null").then_some(found)
    }

    pub(super) fn read<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, BadRequest> {
        self.get(name).map(|value| read(name, value.get())).transpose()
    }

    pub(super) fn need<T: Deserialize<'a>>(&self, name: &str) -> Result<T, BadRequest> {
        self.read(name)?
            .ok_or_else(|| BadRequest::new(name, "this field is missing"))
    }

    /// Refuses a field that would change the model's input in an unsupported way.
    pub(super) fn refuse(&self, name: &str, why: &str) -> Result<(), BadRequest> {
        match self.get(name) {
            Some(value) if value.get() != "false" => Err(BadRequest::new(name, why)),
            _ => Ok(()),
        }
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, BadRequest> {
        Ok(self.read(name)?.unwrap_or_default())
    }

    /// A limit of tokens, at most `u32::MAX`.
    pub(super) fn tokens(&self, name: &str) -> Result<Option<u32>, BadRequest> {
        match self.read::<u64>(name)? {
            Some(0) => Err(BadRequest::new(name, "0 tokens are no answer: ask for at least 1")),
            limit => Ok(limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX))),
        }
    }

    /// The settings that the client gave, with their values. Each of `settings` has its neutral values beside it, which
    /// do not count.
    pub(super) fn overruled(&self, settings: &[(&str, &[&str])]) -> Vec<(String, String)> {
        let given = settings.iter().filter_map(|(name, nothing)| {
            let value = self.get(name)?;
            let is = |text: &&str| {
                let parsed = |text| serde_json::from_str::<Value>(text).ok();
                value.get().len() <= LONGEST_SETTING && parsed(value.get()) == parsed(*text)
            };
            (!nothing.iter().any(is)).then(|| setting(name, value))
        });
        given.collect()
    }
}

/// An underscore at the beginning stays.
fn camel(name: &str) -> String {
    let mut camel = String::with_capacity(name.len());
    let mut is_next = false;
    for letter in name.chars() {
        match letter {
            '_' if !camel.is_empty() => is_next = true,
            _ if std::mem::take(&mut is_next) => camel.push(letter.to_ascii_uppercase()),
            _ => camel.push(letter),
        }
    }
    camel
}

/// A setting and its value, as they are recorded.
pub(super) fn setting(name: &str, value: &RawValue) -> (String, String) {
    let text = value.get();
    let short = match text.len() {
        0..=LONGEST_SETTING => text.to_owned(),
        bytes => format!("\"{bytes} bytes\""),
    };
    (name.to_owned(), short)
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Fields<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    if fields.len() == MOST_FIELDS {
                        return Err(de::Error::custom(format!("more than {MOST_FIELDS} fields")));
                    }
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// A list of at most `MOST` entries.
pub(super) struct Many<T, const MOST: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Many<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T, const MOST: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Reader<T, MOST> {
            type Value = Many<T, MOST>;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = list.next_element()? {
                    if all.len() == MOST {
                        return Err(de::Error::custom(format!("more than {MOST} entries")));
                    }
                    all.push(one);
                }
                Ok(Many(all))
            }
        }
        deserializer.deserialize_seq(Reader(PhantomData))
    }
}

/// A value that APIs take as a text or as a list.
pub(super) enum TextOr<T, const MOST: usize = MOST_PARTS> {
    Text(String),
    List(Vec<T>),
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for TextOr<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T, const MOST: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Reader<T, MOST> {
            type Value = TextOr<T, MOST>;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a text or a list")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOr::Text(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                let list = Many::<T, MOST>::deserialize(de::value::SeqAccessDeserializer::new(list))?;
                Ok(TextOr::List(list.0))
            }
        }
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

/// A text part of a message, in any API.
#[derive(serde::Deserialize)]
#[serde(try_from = "Part")]
pub(super) struct TextPart(pub String);

#[derive(serde::Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl TryFrom<Part> for TextPart {
    type Error = String;

    fn try_from(part: Part) -> Result<Self, String> {
        match part.kind.as_str() {
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" => part
                .text
                .map(Self)
                .ok_or_else(|| format!("a part of type {:?} without its text", part.kind)),
            other => Err(not_text(other)),
        }
    }
}

/// A part of a tool's result. The policy chooses the file that a tool of Claude Code or Codex reads. Refusing a picture
/// would end the agent at this request and every later one, so its kind stands in its place.
#[derive(serde::Deserialize)]
#[serde(try_from = "Part")]
pub(super) struct ResultPart(TextPart);

impl TryFrom<Part> for ResultPart {
    type Error = String;

    fn try_from(part: Part) -> Result<Self, String> {
        match part.kind.as_str() {
            kind @ ("image" | "image_url" | "input_image" | "document" | "file" | "input_file") => {
                Ok(Self(TextPart(left_out(kind))))
            }
            _ => TextPart::try_from(part).map(Self),
        }
    }
}

/// The text of a tool's result.
pub(super) fn result(content: Option<TextOr<ResultPart>>) -> String {
    let content = content.map(|content| match content {
        TextOr::Text(text) => TextOr::Text(text),
        TextOr::List(parts) => TextOr::List(parts.into_iter().map(|part| part.0).collect()),
    });
    joined(content, "\n")
}

/// The note in place of a picture or document.
pub(super) fn left_out(kind: &str) -> String {
    format!("[{kind} left out: the model reads text only]")
}

/// The error for a part that is not text.
pub(super) fn not_text(kind: &str) -> String {
    let kind: String = kind.chars().take(LONGEST_NAME).collect();
    format!("the model reads text only, and this is of type {kind:?}: send text")
}

/// The text, or its joined parts; "" for null.
pub(super) fn joined(content: Option<TextOr<TextPart>>, between: &str) -> String {
    match content {
        None => String::new(),
        Some(TextOr::Text(text)) => text,
        Some(TextOr::List(mut parts)) if parts.len() == 1 => parts.pop().map(|part| part.0).unwrap_or_default(),
        Some(TextOr::List(parts)) => {
            let texts: Vec<String> = parts.into_iter().map(|part| part.0).collect();
            texts.join(between)
        }
    }
}

/// A call's arguments: JSON text of an object, as it was sent. Clients write "" for no arguments.
pub(super) fn arguments(field: &str, text: &str) -> Result<String, BadRequest> {
    let text = text.trim_matches([' ', '\t', '\r', '\n']);
    match text {
        "" => Ok("{}".to_owned()),
        _ if text.starts_with('{') => Ok(readable(field, text)?.into_owned()),
        _ => Err(BadRequest::new(field, "arguments are the JSON text of an object")),
    }
}

/// The tools of a request as one JSON text. `function` turns a tool into OpenAI's function form, or returns `None` if
/// it is not a function: such a tool would run on a server, and is overruled. `known`: the cache of this API.
pub(super) fn tools(
    fields: &Fields,
    overruled: &mut Vec<(String, String)>,
    known: &Memo<Tools>,
    function: impl Fn(&str, &RawValue) -> Result<Option<String>, BadRequest>,
) -> Result<String, BadRequest> {
    tools_of_many(fields, overruled, known, |field, tool| {
        let found = function(field, tool)?;
        let is_whole = found.is_some();
        Ok((found.into_iter().collect(), is_whole))
    })
}

/// The same for tools that hold several functions. `functions`: those of a tool, and whether that is all of it.
pub(super) fn tools_of_many(
    fields: &Fields,
    overruled: &mut Vec<(String, String)>,
    known: &Memo<Tools>,
    functions: impl Fn(&str, &RawValue) -> Result<(Vec<String>, bool), BadRequest>,
) -> Result<String, BadRequest> {
    let Some(sent) = fields.get("tools") else {
        return Ok(String::new());
    };
    let tools = known.get(sent.get(), || read_tools(sent.get(), functions))?;
    overruled.extend(tools.overruled);
    Ok(tools.text)
}

/// The parsed tools of a request.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    text: String,
    overruled: Vec<(String, String)>,
}

fn read_tools(
    sent: &str,
    functions: impl Fn(&str, &RawValue) -> Result<(Vec<String>, bool), BadRequest>,
) -> Result<Tools, BadRequest> {
    let Many(tools) = read::<Many<&RawValue, MOST_TOOLS>>("tools", sent)?;
    let mut overruled = Vec::new();
    let mut texts = Vec::with_capacity(tools.len());
    for (at, tool) in tools.into_iter().enumerate() {
        let field = format!("tools[{at}]");
        let (found, is_whole) = functions(&field, tool)?;
        texts.extend(found);
        if !is_whole {
            overruled.push(setting(&field, tool));
        }
        if texts.len() > MOST_TOOLS {
            return Err(BadRequest::new("tools", format!("more than {MOST_TOOLS} entries")));
        }
    }
    if texts.is_empty() {
        let text = String::new();
        return Ok(Tools { text, overruled });
    }
    let text = format!("[{}]", texts.join(","));
    let text = match readable("tools", &text)? {
        Cow::Borrowed(_) => text,
        Cow::Owned(mended) => mended,
    };
    Ok(Tools { text, overruled })
}

/// A flat tool in OpenAI's function form, in the client's order. `parameters`: the API's name for that field.
pub(super) fn flat_function(field: &str, tool: &Fields, parameters: &str) -> Result<String, BadRequest> {
    flat_function_with(field, tool, parameters, |schema| Ok(Cow::Borrowed(schema)))
}

/// The same with another text of its schema.
pub(super) fn flat_function_with(
    field: &str,
    tool: &Fields,
    parameters: &str,
    schema: impl Fn(&str) -> Result<Cow<'_, str>, BadRequest>,
) -> Result<String, BadRequest> {
    tool_name(field, tool.get("name"))?;
    let mut function = String::new();
    for (name, value) in tool.iter() {
        let name = match name {
            "name" | "description" | "strict" => name,
            _ if name == parameters => "parameters",
            _ => continue,
        };
        if value.get() != "null" {
            let comma = if function.is_empty() { "" } else { "," };
            let text = match name {
                "parameters" => schema(value.get())?,
                _ => Cow::Borrowed(value.get()),
            };
            function.push_str(&format!("{comma}\"{name}\":{text}"));
        }
    }
    Ok(format!("{{\"type\":\"function\",\"function\":{{{function}}}}}"))
}

pub(super) fn tool_name(field: &str, name: Option<&RawValue>) -> Result<(), BadRequest> {
    let field = format!("{field}.name");
    let name: String = match name {
        Some(name) => read(&field, name.get())?,
        None => String::new(),
    };
    match name.len() {
        1..=LONGEST_NAME => Ok(()),
        _ => Err(BadRequest::new(
            field,
            format!("a tool has a name of 1 to {LONGEST_NAME} bytes"),
        )),
    }
}

/// The text, mended if needed, as every JSON reader takes it: no number beyond a double, no lone surrogate, at most 127
/// levels.
fn readable<'a>(field: &str, text: &'a str) -> Result<Cow<'a, str>, BadRequest> {
    let Err(error) = serde_json::from_str::<Walked>(text) else {
        return Ok(Cow::Borrowed(text));
    };
    mended(text)
        .filter(|mended| serde_json::from_str::<Walked>(mended).is_ok())
        .map(Cow::Owned)
        .ok_or_else(|| BadRequest::new(field, words(&error)))
}

/// The text with U+FFFD in place of each escaped lone surrogate; `None` if it has none.
pub(super) fn mended(text: &str) -> Option<String> {
    let mut mended = String::new();
    let mut kept = 0;
    let mut at = 0;
    while let Some(found) = text[at..].find('\\') {
        at += found;
        match (unit(text, at), unit(text, at + 6)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => at += 12,
            (Some(0xD800..=0xDFFF), _) => {
                mended.push_str(&text[kept..at]);
                mended.push_str("\\ufffd");
                at += 6;
                kept = at;
            }
            (Some(_), _) => at += 6,
            // The escaped character may be a backslash, or, in text that is not JSON, have several bytes.
            (None, _) => at += 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
        }
    }
    (kept > 0).then(|| mended + &text[kept..])
}

/// The UTF-16 code unit that is escaped at this byte.
fn unit(text: &str, at: usize) -> Option<u16> {
    let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
    u16::from_str_radix(digits, 16).ok()
}

/// Any JSON, read to its end like a `Value`, and discarded.
struct Walked;

impl<'de> Deserialize<'de> for Walked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Walked;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("any JSON")
            }
            fn visit_bool<E>(self, _: bool) -> Result<Walked, E> {
                Ok(Walked)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Walked, E> {
                Ok(Walked)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Walked, E> {
                Ok(Walked)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Walked, E> {
                Ok(Walked)
            }
            fn visit_str<E>(self, _: &str) -> Result<Walked, E> {
                Ok(Walked)
            }
            fn visit_unit<E>(self) -> Result<Walked, E> {
                Ok(Walked)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Walked, A::Error> {
                while list.next_element::<Walked>()?.is_some() {}
                Ok(Walked)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Walked, A::Error> {
                while map.next_entry::<Walked, Walked>()?.is_some() {}
                Ok(Walked)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests;
