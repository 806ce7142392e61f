use super::*;
use crate::event::JournalEntry;

#[test]
fn a_record_of_another_schema_is_refused_by_its_number() {
    for found in [SCHEMA - 1, SCHEMA + 1] {
        let json = format!("{{\"schema\":{found},\"writer\":{{\"role\":\"Driver\",\"attempt\":1}}}}");
        let refused = decode::<JournalEntry>(json.as_bytes());
        assert!(matches!(refused, Err(DecodeError::Schema { found: named }) if named == found));
    }
}

#[test]
fn a_record_that_was_cut_off_is_told_from_one_that_is_malformed() {
    let eof = |json: &str| match decode::<JournalEntry>(json.as_bytes()) {
        Err(DecodeError::Json(error)) => error.is_eof(),
        other => panic!("{other:?}"),
    };
    assert!(eof(&format!("{{\"schema\":{SCHEMA},\"wri")));
    assert!(!eof(&format!("{{\"schema\":{SCHEMA}}}")));
}
