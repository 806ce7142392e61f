use super::*;

#[test]
fn a_broken_row_is_named_by_file_and_line() {
    let error = TaskRows::default()
        .take(Path::new("rows.jsonl"), "{\"instance_id\":\"a\"}\n{")
        .unwrap_err();
    assert!(error.to_string().starts_with("rows.jsonl, line 2: not JSON"), "{error}");
}
