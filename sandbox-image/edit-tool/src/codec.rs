//! The encodings of files, by Python's names.

use crate::text::{Text, escape, is_surrogate, push};

/// Why a text cannot be read or written.
#[derive(Debug, PartialEq, Eq)]
pub enum CodecError {
    /// The file's bytes are not in this encoding.
    Decode,
    /// Any other error, in Python's words: a code point that the encoding lacks, or an unknown encoding.
    Said(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Utf8,
    /// With a byte order mark at the beginning of the file.
    Utf8Sig,
    Ascii,
    Latin1,
    /// In the byte order of the mark; the mark is written.
    Utf16,
    Utf16Le,
    Utf16Be,
}

impl Codec {
    /// The encoding for any of Python's names for it.
    pub fn named(name: &str) -> Result<Self, CodecError> {
        let plain: String = name
            .chars()
            .map(|it| match it.is_ascii_alphanumeric() || it == '.' {
                true => it.to_ascii_lowercase(),
                false => '_',
            })
            .collect();
        let plain = plain
            .split('_')
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("_");
        Ok(match plain.as_str() {
            "utf_8" | "utf8" | "u8" | "utf" | "utf8_ucs2" | "utf8_ucs4" | "cp65001" => Self::Utf8,
            "utf_8_sig" => Self::Utf8Sig,
            "ascii" | "us_ascii" | "us" | "646" | "ansi_x3.4_1968" | "ansi_x3.4_1986" | "iso646_us" | "cp367"
            | "ibm367" | "iso_ir_6" | "iso_646.irv_1991" | "csascii" => Self::Ascii,
            "latin_1" | "latin1" | "latin" | "l1" | "iso8859_1" | "iso_8859_1" | "iso8859" | "8859" | "cp819"
            | "ibm819" | "iso_8859_1_1987" | "iso_ir_100" | "csisolatin1" => Self::Latin1,
            "utf_16" | "utf16" | "u16" => Self::Utf16,
            "utf_16_le" | "utf_16le" | "unicodelittleunmarked" => Self::Utf16Le,
            "utf_16_be" | "utf_16be" | "unicodebigunmarked" => Self::Utf16Be,
            _ => return Err(CodecError::Said(format!("unknown encoding: {name}"))),
        })
    }

    pub fn decode(self, bytes: &[u8]) -> Result<Text, CodecError> {
        let utf8 = |bytes: &[u8]| std::str::from_utf8(bytes).map(Text::from);
        match self {
            Self::Utf8 => utf8(bytes).map_err(|_| CodecError::Decode),
            Self::Utf8Sig => {
                let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
                utf8(bytes).map_err(|_| CodecError::Decode)
            }
            Self::Ascii if !bytes.is_ascii() => Err(CodecError::Decode),
            Self::Ascii => Ok(Text(bytes.to_vec())),
            Self::Latin1 => {
                let mut text = Vec::with_capacity(bytes.len());
                bytes.iter().for_each(|byte| push(&mut text, u32::from(*byte)));
                Ok(Text(text))
            }
            Self::Utf16 => match bytes {
                [0xFF, 0xFE, rest @ ..] => utf16(rest, u16::from_le_bytes),
                [0xFE, 0xFF, rest @ ..] => utf16(rest, u16::from_be_bytes),
                rest => match utf16(rest, u16::from_le_bytes)? {
                    text if text.0.is_empty() => Ok(text),
                    _ => Err(CodecError::Said("UTF-16 stream does not start with BOM".into())),
                },
            },
            Self::Utf16Le => utf16(bytes, u16::from_le_bytes),
            Self::Utf16Be => utf16(bytes, u16::from_be_bytes),
        }
    }

    pub fn encode(self, text: &Text) -> Result<Vec<u8>, CodecError> {
        let refused = |name: &str, refuses: fn(u32) -> bool, why: &str| match refused(text, refuses) {
            Some(which) => Err(CodecError::Said(format!("'{name}' codec can't encode {which}: {why}"))),
            None => Ok(()),
        };
        match self {
            Self::Utf8 | Self::Utf8Sig => refused("utf-8", is_surrogate, "surrogates not allowed")?,
            Self::Ascii => refused("ascii", |point| point > 0x7F, "ordinal not in range(128)")?,
            Self::Latin1 => refused("latin-1", |point| point > 0xFF, "ordinal not in range(256)")?,
            Self::Utf16 => refused("utf-16", is_surrogate, "surrogates not allowed")?,
            Self::Utf16Le => refused("utf-16-le", is_surrogate, "surrogates not allowed")?,
            Self::Utf16Be => refused("utf-16-be", is_surrogate, "surrogates not allowed")?,
        }
        let units = |mark: &[u8], of: fn(u16) -> [u8; 2]| {
            let mut bytes = mark.to_vec();
            let mut pair = [0; 2];
            for (_, point) in text.points() {
                let it = char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER);
                it.encode_utf16(&mut pair)
                    .iter()
                    .for_each(|unit| bytes.extend(of(*unit)));
            }
            bytes
        };
        Ok(match self {
            Self::Utf8 | Self::Ascii => text.0.clone(),
            Self::Utf8Sig => [b"\xEF\xBB\xBF", text.0.as_slice()].concat(),
            Self::Latin1 => text.points().map(|(_, point)| point as u8).collect(),
            Self::Utf16 => units(b"\xFF\xFE", u16::to_le_bytes),
            Self::Utf16Le => units(b"", u16::to_le_bytes),
            Self::Utf16Be => units(b"", u16::to_be_bytes),
        })
    }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<Text, CodecError> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(CodecError::Decode);
    }
    let decoded: Result<String, _> = char::decode_utf16(pairs.iter().map(|pair| unit(*pair))).collect();
    decoded
        .map(|text| Text::from(text.as_str()))
        .map_err(|_| CodecError::Decode)
}

/// The first run of code points that an encoding lacks, in Python's words.
fn refused(text: &Text, refuses: fn(u32) -> bool) -> Option<String> {
    let points = || text.points().map(|(_, point)| point).enumerate();
    let (first, point) = points().find(|(_, point)| refuses(*point))?;
    let more = points().skip(first).take_while(|(_, point)| refuses(*point)).count();
    Some(match more {
        1 => format!("character '{}' in position {first}", escape(point)),
        more => format!("characters in position {first}-{}", first + more - 1),
    })
}
