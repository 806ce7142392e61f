//! JSON as bytes, in a body and in server-sent events.

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};
use std::io;

/// Characters that some clients take for the end of a line, and so of an event.
const LINE_ENDS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

pub(super) fn body(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1024);
    write(value, &mut bytes);
    bytes
}

/// An event without a name, as in chat completions.
pub(super) fn data(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = b"data: ".to_vec();
    write(value, &mut bytes);
    bytes.extend(b"\n\n");
    bytes
}

pub(super) fn event(name: &str, value: &impl Serialize) -> Vec<u8> {
    let mut bytes = format!("event: {name}\ndata: ").into_bytes();
    write(value, &mut bytes);
    bytes.extend(b"\n\n");
    bytes
}

/// Cannot fail: writing to a vector and our own values do not.
fn write(value: &impl Serialize, bytes: &mut Vec<u8>) {
    let _ = value.serialize(&mut Serializer::with_formatter(bytes, OneLine(CompactFormatter)));
}

/// Compact JSON that is one line for every reader of lines.
struct OneLine(CompactFormatter);

impl Formatter for OneLine {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(LINE_ENDS) {
            let (before, from) = rest.split_at(at);
            self.0.write_string_fragment(writer, before)?;
            let mut chars = from.chars();
            if let Some(end) = chars.next() {
                write!(writer, "\\u{:04x}", u32::from(end))?;
            }
            rest = chars.as_str();
        }
        self.0.write_string_fragment(writer, rest)
    }
}
