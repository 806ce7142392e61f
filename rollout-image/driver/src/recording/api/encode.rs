//! JSON as bytes, in a body and in server-sent events.

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};
use serde_json::value::RawValue;
use std::io;

/// Characters that some clients take for the end of a line, and so of an event.
const LINE_ENDS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

/// A call's arguments: an object's text in the sampled order. Text that is not JSON stays text, which a client reports
/// as bad input of its tool: nothing runs that was not sampled.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Arguments<'a> {
    Object(&'a RawValue),
    Text(&'a str),
}

impl<'a> Arguments<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        match serde_json::from_str(text) {
            Ok(object) => Self::Object(object),
            Err(_) => Self::Text(text),
        }
    }
}

pub(super) fn body(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1024);
    write(value, &mut bytes, false);
    bytes
}

/// An event without a name, as in chat completions.
pub(super) fn data(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = b"data: ".to_vec();
    write(value, &mut bytes, true);
    bytes.extend(b"\n\n");
    bytes
}

pub(super) fn event(name: &str, value: &impl Serialize) -> Vec<u8> {
    let mut bytes = format!("event: {name}\ndata: ").into_bytes();
    write(value, &mut bytes, true);
    bytes.extend(b"\n\n");
    bytes
}

/// Cannot fail: writing to a vector and our own values do not.
fn write(value: &impl Serialize, bytes: &mut Vec<u8>, is_event: bool) {
    let formatter = OneLine {
        plain: CompactFormatter,
        is_event,
    };
    let _ = value.serialize(&mut Serializer::with_formatter(bytes, formatter));
}

/// Compact JSON that is one line for every reader of lines, except sampled JSON in a body.
struct OneLine {
    plain: CompactFormatter,
    is_event: bool,
}

impl Formatter for OneLine {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(LINE_ENDS) {
            let (before, from) = rest.split_at(at);
            self.plain.write_string_fragment(writer, before)?;
            let mut chars = from.chars();
            if let Some(end) = chars.next() {
                write!(writer, "\\u{:04x}", u32::from(end))?;
            }
            rest = chars.as_str();
        }
        self.plain.write_string_fragment(writer, rest)
    }

    /// Arguments as they were sampled. A model writes line ends between their tokens, where a blank says the same.
    fn write_raw_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        match self.is_event {
            true => self.write_string_fragment(writer, &fragment.replace(['\n', '\r'], " ")),
            false => self.plain.write_raw_fragment(writer, fragment),
        }
    }
}
