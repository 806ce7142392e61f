use super::*;

fn row() -> Value {
    json!({
        "instance_id": "a", "repo": "r/r", "version": "1", "base_commit": "00", "setup": "true",
        "eval_script": "pytest", "log_parser": "p", "eval_type": "t", "FAIL_TO_PASS": ["x"], "PASS_TO_PASS": [],
        "problem_statement": "Mend it.", "patch": "+a",
    })
}

#[test]
fn every_column_that_grading_reads_has_a_say() {
    let before = row_sha256(&row());
    for column in COLUMNS.iter().chain(&TESTS).chain(&OPTIONAL) {
        let mut changed = row();
        changed[column] = json!(["other"]);
        assert_ne!(row_sha256(&changed), before, "{column}");
    }
}

#[test]
fn a_missing_folder_and_a_null_one_are_the_same() {
    let mut null = row();
    null["workdir"] = Value::Null;
    assert_eq!(row_sha256(&null), row_sha256(&row()));
}

#[test]
fn a_verdict_of_a_driver_that_did_not_read_what_is_hidden_is_of_the_same_row() {
    let mut hides = row();
    hides["hide"] = json!(["/testbed/tests"]);
    let graded = |row: &Value| GradedTask {
        row_sha256: row_sha256(row),
        image: "i:1".into(),
        timeout_seconds: 60,
    };
    let mut other = hides.clone();
    other["hide"] = json!(["/testbed/src"]);
    assert!(graded(&hides).is_of(&hides) && graded(&row()).is_of(&hides));
    assert!(!graded(&hides).is_of(&row()) && !graded(&hides).is_of(&other));
    let mut folder = row();
    folder["workdir"] = json!("/code");
    assert!(!graded(&row()).is_of(&folder));
}

#[test]
fn what_a_prompt_shows_and_how_lists_are_written_have_none() {
    let before = row_sha256(&row());
    for (column, value) in [
        ("problem_statement", json!("Mend it, please.")),
        ("hints_text", json!("Look at x.")),
        ("FAIL_TO_PASS", json!("[\"x\"]")),
    ] {
        let mut changed = row();
        changed[column] = value;
        assert_eq!(row_sha256(&changed), before, "{column}");
    }
}

#[test]
fn an_image_and_a_limit_make_another_task_of_the_same_row() {
    let task = |image: &str, timeout_seconds| GradedTask {
        row_sha256: row_sha256(&row()),
        image: image.into(),
        timeout_seconds,
    };
    let all = [task("i:1", 60), task("i:2", 60), task("i:1", 61)];
    let digests: std::collections::BTreeSet<String> = all.iter().map(GradedTask::sha256).collect();
    assert_eq!(digests.len(), all.len());
}
