use super::*;
use grpo_records::look::Records;
use serde_json::json;
use std::fs;

fn run(mode: &str) -> GrpoRun {
    let dataset = json!({"image": {"reference": "t", "path": "p"}});
    serde_json::from_value(json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun",
        "metadata": {"name": "check", "namespace": "team"},
        "spec": {
            "mode": mode, "model": {"image": {"reference": "m"}}, "sandboxes": {"poolRef": {"name": "p"}},
            "tasks": {"train": {"dataset": dataset}, "evaluate": [{"name": "heldout", "dataset": dataset}]},
            "store": {"persistentVolumeClaim": {"claimName": "runs"}},
        },
    }))
    .unwrap()
}

fn store(lists: &[(&str, &str)]) -> (tempfile::TempDir, Source) {
    let dir = tempfile::tempdir().unwrap();
    for folder in [paths::JOURNAL.to_owned(), format!("{}/train", paths::VALIDATION)] {
        fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    fs::write(dir.path().join(paths::validation("train", "a")), "{}").unwrap();
    for (set, text) in lists {
        fs::write(dir.path().join(paths::validated_ids(set)), text).unwrap();
    }
    let source = Source::Folder(Records::open(dir.path()).unwrap());
    (dir, source)
}

#[test]
fn a_run_of_another_mode_has_no_list_and_is_told_what_has() {
    for mode in ["Train", "Evaluate"] {
        let error = set_of_run(&run(mode), Some("train")).unwrap_err().to_string();
        assert!(
            error.contains(&format!("GrpoRun check has mode {mode}")) && error.contains("tasks check -o ids"),
            "{error}"
        );
    }
}

#[test]
fn of_several_sets_one_is_named_and_an_unknown_one_names_those_that_are_there() {
    let of = |set: Option<&str>| set_of_run(&run("Validate"), set).map_err(|error| error.to_string());
    assert_eq!(of(Some("train")), Ok("train".to_owned()));
    assert_eq!(of(Some("evaluate.heldout")), Ok("evaluate.heldout".to_owned()));
    let error = of(None).unwrap_err();
    assert!(
        error.contains("--set with one of them: train, evaluate.heldout"),
        "{error}"
    );
    let error = of(Some("evaluate.other")).unwrap_err();
    assert!(
        error.contains("no set evaluate.other; it has: train, evaluate.heldout"),
        "{error}"
    );
    let mut one = run("Validate");
    one.spec.tasks.evaluate.clear();
    assert_eq!(set_of_run(&one, None).unwrap(), "train");
}

#[tokio::test]
async fn a_list_is_printed_as_the_store_has_it_and_commands_no_terminal() {
    let text = "# 1 of 2 tasks of train are fit.\na\n# b: its sandbox cannot be prepared: \u{1b}[2J\n";
    let (_dir, mut source) = store(&[("train", text)]);
    let shown = list(&mut source, "check", "train").await.unwrap();
    assert_eq!(shown, text.replace('\u{1b}', "\u{241b}"));
}

#[tokio::test]
async fn a_set_that_is_not_done_has_no_list_yet() {
    let (_dir, mut source) = store(&[]);
    let error = list(&mut source, "check", "train").await.unwrap_err().to_string();
    assert!(
        error.contains("has not validated all tasks of tasks.train yet") && error.contains("status check"),
        "{error}"
    );
}

#[tokio::test]
async fn a_copied_store_tells_which_lists_it_has() {
    let (_dir, mut source) = store(&[]);
    let error = list_of_copy(&mut source, None).await.unwrap_err().to_string();
    assert!(error.contains("copy RUN DEST --rows"), "{error}");
    let (_dir, mut source) = store(&[("train", "a\n")]);
    assert_eq!(list_of_copy(&mut source, None).await.unwrap(), "a\n");
    assert_eq!(list_of_copy(&mut source, Some("train")).await.unwrap(), "a\n");
    let error = list_of_copy(&mut source, Some("evaluate.b")).await.unwrap_err();
    assert!(
        error.to_string().contains("of set evaluate.b; it has those of: train"),
        "{error}"
    );
    let (_dir, mut source) = store(&[("train", "a\n"), ("evaluate.b", "b\n")]);
    let error = list_of_copy(&mut source, None).await.unwrap_err().to_string();
    assert!(
        error.contains("the store has several sets") && error.contains("evaluate.b, train"),
        "{error}"
    );
    assert_eq!(list_of_copy(&mut source, Some("evaluate.b")).await.unwrap(), "b\n");
}
