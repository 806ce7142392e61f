//! A row as a parquet file: texts as columns, lists of texts or of objects as lists, objects as groups.

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::Value;
use std::path::Path;

pub fn write_parquet(file: &Path, row: &Value) {
    let fields = row.as_object().unwrap();
    let columns: String = fields.iter().map(|(name, value)| column(name, value)).collect();
    let schema = parse_message_type(&format!("message rows {{ {columns} }}")).unwrap();
    let file = std::fs::File::create(file).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.into(), Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut leaves = Vec::new();
    fields.values().for_each(|value| collect(value, &mut leaves));
    for leaf in &leaves {
        let list = leaf.as_array().map_or(std::slice::from_ref(leaf), Vec::as_slice);
        let values: Vec<ByteArray> = list.iter().map(|text| text.as_str().unwrap().into()).collect();
        // An empty list is one missing value.
        let defined = if values.is_empty() {
            vec![0]
        } else {
            vec![1; values.len()]
        };
        let repeated: Vec<i16> = (0..defined.len()).map(|at| i16::from(at > 0)).collect();
        let levels = leaf.is_array().then_some((&defined[..], &repeated[..]));
        let mut column = group.next_column().unwrap().unwrap();
        let (defined, repeated) = levels.unzip();
        column
            .typed::<ByteArrayType>()
            .write_batch(&values, defined, repeated)
            .unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

fn column(name: &str, value: &Value) -> String {
    match value {
        Value::String(_) => format!("REQUIRED BYTE_ARRAY {name} (STRING); "),
        Value::Array(list) => {
            let text = Value::String(String::new());
            let element = column("element", list.first().unwrap_or(&text));
            format!("REQUIRED GROUP {name} (LIST) {{ REPEATED GROUP list {{ {element} }} }} ")
        }
        Value::Object(fields) => {
            let columns: String = fields.iter().map(|(name, value)| column(name, value)).collect();
            format!("REQUIRED GROUP {name} {{ {columns} }} ")
        }
        other => panic!("{other} in {name}"),
    }
}

fn collect(value: &Value, leaves: &mut Vec<Value>) {
    match value {
        Value::Object(fields) => fields.values().for_each(|value| collect(value, leaves)),
        Value::Array(list) if list.first().is_some_and(Value::is_object) => {
            for name in list[0].as_object().unwrap().keys() {
                leaves.push(list.iter().map(|object| object[name].clone()).collect());
            }
        }
        leaf => leaves.push(leaf.clone()),
    }
}
