//! Python texts: code points, including lone surrogates for bytes of an argument that are not UTF-8.
//!
//! A text is stored as UTF-8, extended with three-byte surrogates. So bytes are found, counted and split as in UTF-8,
//! and only positions and printing use code points.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// The first code point for a byte that is not UTF-8.
const ESCAPED: u32 = 0xDC00;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(pub Vec<u8>);

impl Text {
    /// From an argument or a name of the system. Bytes that are not UTF-8 become surrogates.
    pub fn of(given: &OsStr) -> Self {
        let mut bytes = Vec::with_capacity(given.len());
        for chunk in given.as_bytes().utf8_chunks() {
            bytes.extend_from_slice(chunk.valid().as_bytes());
            chunk
                .invalid()
                .iter()
                .for_each(|byte| push(&mut bytes, ESCAPED + u32::from(*byte)));
        }
        Self(bytes)
    }

    /// The original bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len());
        for (at, point) in self.points() {
            match surrogate_of_byte(point) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(&self.0[at..at + length(self.0[at])]),
            }
        }
        bytes
    }

    pub fn name(&self) -> OsString {
        OsString::from_vec(self.bytes())
    }

    /// The text for stderr: surrogates as `\udcff`.
    pub fn shown(&self) -> Vec<u8> {
        let mut shown = Vec::with_capacity(self.0.len());
        for (at, point) in self.points() {
            match is_surrogate(point) {
                true => shown.extend_from_slice(format!("\\u{point:04x}").as_bytes()),
                false => shown.extend_from_slice(&self.0[at..at + length(self.0[at])]),
            }
        }
        shown
    }

    /// Each code point with its first byte's position.
    pub fn points(&self) -> impl Iterator<Item = (usize, u32)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = *self.0.get(at)?;
            let (from, bytes) = (at, length(first));
            at += bytes;
            let head = match bytes {
                1 => first,
                2 => first & 0x1F,
                3 => first & 0x0F,
                _ => first & 0x07,
            };
            let rest = self.0.get(from + 1..from + bytes)?.iter();
            Some((
                from,
                rest.fold(u32::from(head), |point, byte| point << 6 | u32::from(byte & 0x3F)),
            ))
        })
    }

    /// The text in the form of Python's `repr`.
    pub fn repr(&self) -> String {
        let quote = match self.0.contains(&b'\'') && !self.0.contains(&b'"') {
            true => '"',
            false => '\'',
        };
        let mut out = String::from(quote);
        for (_, point) in self.points() {
            match char::from_u32(point) {
                Some(it) if it == quote || it == '\\' => out.extend(['\\', it]),
                Some('\n') => out.push_str("\\n"),
                Some('\r') => out.push_str("\\r"),
                Some('\t') => out.push_str("\\t"),
                Some(it) if is_printable(point) => out.push(it),
                _ => out.push_str(&escape(point)),
            }
        }
        out.push(quote);
        out
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

/// A code point as `\xe9`, `\u20ac` or `\U0001f600`.
pub fn escape(point: u32) -> String {
    let mut out = String::new();
    let _ = match point {
        0..=0xFF => write!(out, "\\x{point:02x}"),
        0x100..=0xFFFF => write!(out, "\\u{point:04x}"),
        _ => write!(out, "\\U{point:08x}"),
    };
    out
}

pub fn is_surrogate(point: u32) -> bool {
    (0xD800..=0xDFFF).contains(&point)
}

/// Appends a code point.
pub fn push(bytes: &mut Vec<u8>, point: u32) {
    match char::from_u32(point) {
        Some(it) => bytes.extend_from_slice(it.encode_utf8(&mut [0; 4]).as_bytes()),
        None => bytes.extend([
            0xE0 | (point >> 12 & 0x0F) as u8,
            0x80 | (point >> 6 & 0x3F) as u8,
            0x80 | (point & 0x3F) as u8,
        ]),
    }
}

/// The length in bytes of a code point, from its first byte.
fn length(first: u8) -> usize {
    match first {
        0..=0x7F => 1,
        0x80..=0xDF => 2,
        0xE0..=0xEF => 3,
        _ => 4,
    }
}

fn surrogate_of_byte(point: u32) -> Option<u8> {
    (ESCAPED + 0x80..=ESCAPED + 0xFF)
        .contains(&point)
        .then(|| (point - ESCAPED) as u8)
}

/// False for control and format characters, separators other than the space, surrogates and private use. Code points
/// that no version of Unicode has assigned count as printable here.
fn is_printable(point: u32) -> bool {
    !matches!(
        point,
        0..=0x1F | 0x7F..=0xA0 | 0xAD | 0x600..=0x605 | 0x61C | 0x6DD | 0x70F | 0x1680 | 0x180E | 0x2000..=0x200F
            | 0x2028..=0x202F | 0x205F..=0x206F | 0x3000 | 0xD800..=0xF8FF | 0xFEFF | 0xFFF0..=0xFFFB
            | 0xFFFE..=0xFFFF | 0xE0000..
    )
}

/// A path as Python normalizes it: without single dots and doubled slashes.
pub fn path(given: &Text) -> Text {
    let slashes = given.0.iter().take_while(|byte| **byte == b'/').count();
    let root: &[u8] = match slashes {
        0 => b"",
        2 => b"//",
        _ => b"/",
    };
    let parts: Vec<&[u8]> = (given.0.split(|byte| *byte == b'/'))
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    let path = [root, &parts.join(&b'/')].concat();
    match path.is_empty() {
        true => Text::from("."),
        false => Text(path),
    }
}
