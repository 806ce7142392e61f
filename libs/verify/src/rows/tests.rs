use super::*;

#[test]
fn a_broken_row_is_named_by_file_and_line() {
    let error = TaskRows::default()
        .take(Path::new("rows.jsonl"), "{\"instance_id\":\"a\"}\n{")
        .unwrap_err();
    assert!(error.to_string().starts_with("rows.jsonl, line 2: not JSON"), "{error}");
}

fn row(script: &str) -> Value {
    serde_json::json!({"instance_id": "a", "eval_script": script, "log_parser": "p"})
}

fn about(row: &Value) -> GradedTask {
    GradedTask {
        row_sha256: graded::row_sha256(row),
        image: "i:1".into(),
        timeout_seconds: 60,
    }
}

#[test]
fn two_tasks_of_one_id_are_told_apart_by_what_is_graded() {
    let mut tasks = TaskRows::default();
    let (train, held_out) = (row("pytest a"), row("pytest b"));
    for (file, row) in [
        ("train.jsonl", &train),
        ("heldout.jsonl", &held_out),
        ("copy.jsonl", &train),
    ] {
        tasks.take(Path::new(file), &row.to_string()).unwrap();
    }
    assert_eq!(tasks.iter().count(), 2);
    for row in [&train, &held_out] {
        assert_eq!(tasks.graded("a", Some(&about(row))), Ok(row));
    }
    let changed = tasks.graded("a", Some(&about(&row("true")))).unwrap_err();
    assert!(changed.to_string().contains("none of 2 rows for a"), "{changed}");
    let unknown = tasks.graded("b", Some(&about(&train))).unwrap_err();
    assert!(unknown.to_string().contains("no row for b"), "{unknown}");
}
