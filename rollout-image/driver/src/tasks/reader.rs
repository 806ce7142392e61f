//! Reads the rows of a dataset's file: JSON lines, a JSON array, or parquet, told apart by the file's name and first
//! character. Rows are read one by one, except those of an array.

use crate::fault::TerminalFault;
use grpo_contracts::reason::Reason;
use grpo_records::store::sha256_hex;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

/// The longest row that is read, in bytes.
const MAX_ROW: usize = 16 << 20;
/// The longest file that is one JSON array, in bytes: it is read whole.
const MAX_ARRAY: u64 = 256 << 20;

/// The byte order mark of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// The place of a row, for faults.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    file: &'a Path,
    /// `line` or `row`.
    unit: &'static str,
    number: usize,
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.file.file_name().unwrap_or(self.file.as_os_str());
        write!(f, "{} {} {}", name.display(), self.unit, self.number)
    }
}

impl Place<'_> {
    /// A fault that names file, line and field.
    pub fn fault(&self, field: &str, what: impl std::fmt::Display) -> TerminalFault {
        let Self { file, unit, number } = self;
        TerminalFault::new(
            Reason::TaskRowInvalid,
            format!("{} {unit} {number}, field {field}: {what}", file.display()),
        )
    }
}

/// One row, in any format.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    pub place: Place<'a>,
    pub fields: Map<String, Value>,
    /// Its JSON, with keys in the order of the file, and of parquet without null columns; `fields` has sorted keys.
    pub json: Vec<u8>,
    /// The checksum of the row's bytes; of a row of an array or of parquet, of its JSON with sorted keys.
    pub sha256: String,
}

type Rows<'a> = Box<dyn Iterator<Item = Result<Row<'a>, TerminalFault>> + Send + 'a>;

/// The rows of a file.
pub fn rows(file: &Path) -> Rows<'_> {
    let opened = match file.extension().and_then(|extension| extension.to_str()) {
        Some("parquet") => parquet(file),
        _ => json(file),
    };
    opened.unwrap_or_else(|fault| Box::new(std::iter::once(Err(fault))))
}

fn unreadable<E: std::fmt::Display>(file: &Path) -> impl Fn(E) -> TerminalFault + '_ {
    move |error| {
        let file = file.display();
        let message = format!("reading the dataset {file}: {error}; is the path right, and the file whole?");
        TerminalFault::new(Reason::DatasetUnreadable, message)
    }
}

fn json(file: &Path) -> Result<Rows<'_>, TerminalFault> {
    let mut input = BufReader::new(File::open(file).map_err(unreadable(file))?);
    // Editors of Windows put a mark of the encoding before the text.
    let is_marked = input.fill_buf().map_err(unreadable(file))?.starts_with(MARK);
    input.consume(if is_marked { MARK.len() } else { 0 });
    let begin = input.fill_buf().map_err(unreadable(file))?;
    let is_array = begin.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    match is_array {
        true => array(file, input),
        false => Ok(Box::new(lines(file, input))),
    }
}

fn lines(file: &Path, mut input: BufReader<File>) -> impl Iterator<Item = Result<Row<'_>, TerminalFault>> {
    let mut number = 0;
    let mut over = false;
    std::iter::from_fn(move || {
        while !over {
            number += 1;
            let (place, mut line) = (line_at(file, number), Vec::new());
            // One byte more than the longest row, and the newline.
            let read = input.by_ref().take(MAX_ROW as u64 + 2).read_until(b'\n', &mut line);
            match read {
                Ok(0) => return None,
                Ok(_) if line.trim_ascii().is_empty() => {}
                Ok(_) => {
                    let row = of_bytes(place, line.trim_ascii());
                    over = row.is_err();
                    return Some(row);
                }
                Err(error) => {
                    over = true;
                    return Some(Err(unreadable(file)(error)));
                }
            }
        }
        None
    })
}

fn line_at(file: &Path, number: usize) -> Place<'_> {
    let unit = "line";
    Place { file, unit, number }
}

fn row_at(file: &Path, index: usize) -> Place<'_> {
    let (unit, number) = ("row", index + 1);
    Place { file, unit, number }
}

fn of_bytes<'a>(place: Place<'a>, bytes: &[u8]) -> Result<Row<'a>, TerminalFault> {
    if bytes.len() > MAX_ROW {
        return Err(place.fault("(row)", format!("longer than {MAX_ROW} bytes")));
    }
    let fields =
        serde_json::from_slice(bytes).map_err(|error| place.fault("(row)", format!("not a JSON object: {error}")))?;
    Ok(Row {
        place,
        fields,
        json: bytes.to_vec(),
        sha256: sha256_hex(bytes),
    })
}

fn array(file: &Path, input: BufReader<File>) -> Result<Rows<'_>, TerminalFault> {
    let mut text = String::new();
    let read = input
        .take(MAX_ARRAY + 1)
        .read_to_string(&mut text)
        .map_err(unreadable(file))?;
    if read as u64 > MAX_ARRAY {
        let too_long = io::Error::other(format!(
            "one JSON array of more than {MAX_ARRAY} bytes; write it as JSON lines"
        ));
        return Err(unreadable(file)(too_long));
    }
    let rows: Vec<Box<RawValue>> = serde_json::from_str(&text).map_err(unreadable(file))?;
    let rows = rows.into_iter().enumerate();
    Ok(Box::new(rows.map(move |(index, json)| {
        let place = row_at(file, index);
        let value: Value = serde_json::from_str(json.get()).map_err(|error| place.fault("(row)", error))?;
        of_value(place, &value, json.get().as_bytes().to_vec())
    })))
}

/// `json`: the value with keys in the order of the file.
fn of_value<'a>(place: Place<'a>, value: &Value, json: Vec<u8>) -> Result<Row<'a>, TerminalFault> {
    let row = of_bytes(place, value.to_string().as_bytes())?;
    Ok(Row { json, ..row })
}

fn parquet(file: &Path) -> Result<Rows<'_>, TerminalFault> {
    let opened = File::open(file).map_err(unreadable(file))?;
    let reader = SerializedFileReader::new(opened).map_err(unreadable(file))?;
    if reader.metadata().file_metadata().num_rows() == 0 {
        return Ok(Box::new(std::iter::empty()));
    }
    let rows = reader.into_iter().enumerate();
    Ok(Box::new(rows.map(move |(index, row)| {
        let row = Field::Group(row.map_err(unreadable(file))?);
        let json = serde_json::to_vec(&InOrder(&row)).map_err(unreadable(file))?;
        of_value(row_at(file, index), &row.to_json_value(), json)
    })))
}

/// A value of parquet as JSON, with its columns in the order of the file. A null column is left out, because a struct
/// has the keys of all rows.
struct InOrder<'a>(&'a Field);

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Field::Group(row) => {
                let columns = row.get_column_iter();
                let columns = columns.filter(|(_, field)| !matches!(field, Field::Null));
                serializer.collect_map(columns.map(|(name, field)| (name, InOrder(field))))
            }
            Field::ListInternal(list) => serializer.collect_seq(list.elements().iter().map(InOrder)),
            // Each row of a map has keys of its own.
            Field::MapInternal(map) => {
                let entries = map.entries().iter();
                serializer.collect_map(entries.map(|(key, field)| (InOrder(key), InOrder(field))))
            }
            other => other.to_json_value().serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests;
