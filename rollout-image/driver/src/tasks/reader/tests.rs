use super::*;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

/// The second column is a list of structs with the fields z, b and a.
const SCHEMA: &str = "message rows { REQUIRED BYTE_ARRAY name (STRING); \
    REQUIRED GROUP calls (LIST) { REPEATED GROUP list { REQUIRED GROUP element { \
    REQUIRED BYTE_ARRAY z (STRING); OPTIONAL BYTE_ARRAY b (STRING); REQUIRED BYTE_ARRAY a (STRING); } } } }";

/// One row, of which the list has one element.
fn as_parquet(path: &Path, values: [Option<&str>; 4]) {
    let schema = parquet::schema::parser::parse_message_type(SCHEMA).unwrap();
    let file = File::create(path).unwrap();
    let properties = WriterProperties::builder().build();
    let mut writer = SerializedFileWriter::new(file, schema.into(), properties.into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let levels: [Option<&[i16]>; 2] = [Some(&[1]), Some(&[0])];
    for (value, [defined, repeated]) in values.into_iter().zip([[None, None], levels, levels, levels]) {
        let values: Vec<ByteArray> = value.into_iter().map(ByteArray::from).collect();
        let mut column = group.next_column().unwrap().unwrap();
        let written = column.typed::<ByteArrayType>().write_batch(&values, defined, repeated);
        written.unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn a_row_keeps_the_order_of_its_keys_without_null_columns_of_parquet_and_its_checksum_does_not_depend_on_it() {
    let written = r#"{"name":"n","calls":[{"z":"1","a":"2"}]}"#;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("rows.jsonl"), written).unwrap();
    std::fs::write(path("rows.json"), format!("[{written}]")).unwrap();
    as_parquet(&path("rows.parquet"), [Some("n"), Some("1"), None, Some("2")]);
    let sorted = sha256_hex(br#"{"calls":[{"a":"2","z":"1"}],"name":"n"}"#);
    let with_null = sha256_hex(br#"{"calls":[{"a":"2","b":null,"z":"1"}],"name":"n"}"#);
    for (name, sha256) in [
        ("rows.jsonl", sha256_hex(written.as_bytes())),
        ("rows.json", sorted),
        ("rows.parquet", with_null),
    ] {
        let file = path(name);
        let row = rows(&file).next().unwrap().unwrap();
        assert_eq!(String::from_utf8(row.json).unwrap(), written, "{name}");
        assert_eq!(row.sha256, sha256, "{name}");
    }
}
