use super::Statements;
use crate::tasks::format::Candidate;
use crate::tasks::reader;
use grpo_crds::grpo_run::RowFormat;
use std::path::PathBuf;

fn written(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let file = folder.path().join(name);
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn a_statement_takes_the_place_of_the_rows_own_and_changes_its_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let rows = written(
        &folder,
        "rows.jsonl",
        "{\"instance_id\": \"a\", \"problem_statement\": \"old\", \"log_parser\": \"p\"}\n\
         {\"instance_id\": \"b\", \"problem_statement\": \"kept\", \"log_parser\": \"p\"}\n",
    );
    for text in [
        r#"{"a": "new", "c": "of no row"}"#,
        "{\"instance_id\": \"a\", \"problem_statement\": \"new\"}\n{\"instance_id\": \"c\", \"problem_statement\": \"x\"}\n",
        r#"[{"instance_id": "a", "problem_statement": "new", "more": 1}, {"instance_id": "c", "problem_statement": "x"}]"#,
    ] {
        let mut statements = Statements::default();
        statements.read(&written(&folder, "text", text)).unwrap();
        assert_eq!(statements.len(), 2, "{text}");
        let mut seen = Vec::new();
        for row in reader::rows(&rows) {
            let mut row = Candidate::of(RowFormat::Compiled, row.unwrap()).unwrap();
            let before = row.sha256.clone();
            let applied = statements.apply(&mut row);
            assert_eq!(applied, row.sha256 != before);
            seen.push((applied, row.fields["problem_statement"].clone()));
        }
        assert_eq!(seen, [(true, "new".into()), (false, "kept".into())], "{text}");
    }
}

#[test]
fn statements_that_cannot_be_read_are_a_fault_that_names_place_and_cause() {
    let folder = tempfile::tempdir().unwrap();
    for (text, words) in [
        (r#"{"a": 1}"#, "the problem_statement of a is not a text"),
        (
            r#"{"instance_id": "a", "problem_statement": null}"#,
            "line 1 of promptOverrides: the problem_statement of a",
        ),
        (
            "{\"problem_statement\": \"x\"}\n",
            "field instance_id is not the name of an instance",
        ),
        (
            "{\"instance_id\": \"a\", \"problem_statement\": \"x\"}\n{\"instance_id\": \"a\", \"problem_statement\": \"y\"}\n",
            "line 2 of promptOverrides: a has two statements",
        ),
        ("words", "not a JSON object"),
    ] {
        let error = Statements::default().read(&written(&folder, "text", text)).unwrap_err();
        assert!(error.message.contains(words), "{text}: {}", error.message);
    }
}
