//! From the text of a dataset to its rows: one JSON object a line.

use crate::fault::TerminalFault;
use grpo_records::store::sha256_hex;
use serde_json::{Map, Value};
use std::path::Path;

/// The longest row that is read, in bytes.
const MAX_ROW: usize = 16 << 20;

/// Where a row is, for faults.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    file: &'a Path,
    line: usize,
}

impl Place<'_> {
    /// A fault that names file, line and field.
    pub fn fault(&self, field: &str, what: impl std::fmt::Display) -> TerminalFault {
        TerminalFault::new(
            "TaskRowInvalid",
            format!("{} line {}, field {field}: {what}", self.file.display(), self.line),
        )
    }
}

/// One row, in any format.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    pub place: Place<'a>,
    pub fields: Map<String, Value>,
    /// Of the row's bytes.
    pub sha256: String,
}

/// The rows of JSON lines, each read when it is asked for.
pub fn rows<'a>(file: &'a Path, text: &'a str) -> impl Iterator<Item = Result<Row<'a>, TerminalFault>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(move |(number, line)| row(Place { file, line: number + 1 }, line))
}

fn row<'a>(place: Place<'a>, text: &str) -> Result<Row<'a>, TerminalFault> {
    if text.len() > MAX_ROW {
        return Err(place.fault("(row)", format!("longer than {MAX_ROW} bytes")));
    }
    let fields =
        serde_json::from_str(text).map_err(|error| place.fault("(row)", format!("not a JSON object: {error}")))?;
    Ok(Row {
        place,
        fields,
        sha256: sha256_hex(text.as_bytes()),
    })
}
