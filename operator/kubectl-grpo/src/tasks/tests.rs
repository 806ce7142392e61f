use super::*;
use crate::records::Source;
use grpo_records::look::Records;
use grpo_records::paths;
use serde_json::{Value, json};

fn run(status: Value) -> GrpoRun {
    let hub = |revision: Option<&str>| json!({"hub": {"repo": "a/b", "revision": revision}});
    serde_json::from_value(json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun",
        "metadata": {"name": "demo", "namespace": "team", "uid": "uid-1"},
        "spec": {
            "model": {"image": {"reference": "m"}}, "agent": {"bash": {}},
            "tasks": {"train": {"dataset": hub(None)}, "evaluate": [{"name": "heldout", "dataset": hub(Some("main"))}]},
            "inference": {"poolRef": {"name": "p"}}, "sandboxes": {"poolRef": {"name": "p"}},
            "store": {"persistentVolumeClaim": {"claimName": "runs"}},
        },
        "status": {"progress": {"revisions": status}},
    }))
    .unwrap()
}

#[test]
fn sets_are_wanted_by_name_and_an_unknown_one_names_those_that_are_there() {
    let run = run(json!([]));
    assert_eq!(wanted_sets(&run, &[]).unwrap(), ["train", "evaluate.heldout"]);
    assert_eq!(
        wanted_sets(&run, &["evaluate.heldout".into()]).unwrap(),
        ["evaluate.heldout"]
    );
    let error = wanted_sets(&run, &["evaluate.other".into()]).unwrap_err().to_string();
    assert!(
        error.contains("evaluate.other; it has: train, evaluate.heldout"),
        "{error}"
    );
}

#[test]
fn rows_are_read_again_at_the_commits_that_the_run_reads() {
    let commits = |revisions: Value| {
        let tasks = at_the_runs_commits(&run(revisions)).spec.tasks;
        let of = |dataset: &grpo_crds::grpo_run::Dataset| dataset.hub.as_ref().unwrap().revision.clone();
        (of(&tasks.train.unwrap().dataset), of(&tasks.evaluate[0].dataset))
    };
    let at = |commit: &str| json!({"repo": "a/b", "commit": commit});
    let main = Some("main".to_owned());
    assert_eq!(commits(json!([])), (None, main.clone()));
    assert_eq!(commits(json!([{"repo": "m/m", "commit": "2"}])), (None, main.clone()));
    assert_eq!(commits(json!([at("1")])), (Some("1".into()), Some("1".into())));
    assert_eq!(commits(json!([at("1"), at("2")])), (None, main));
}

#[tokio::test]
async fn a_store_has_reports_and_the_rows_that_were_completed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("journal")).unwrap();
    std::fs::create_dir_all(dir.path().join(paths::TASKS)).unwrap();
    let write = |path: String, text: String| std::fs::write(dir.path().join(path), text).unwrap();
    let report = |set: &str| json!({"set": set, "format": "Auto", "rows": {"SweBench": 2}, "tasks": 2, "skipped": []});
    write(paths::task_report("train"), report("train").to_string());
    write(
        paths::task_rows("train"),
        "{\"instance_id\":\"a\"}\n{\"instance_id\":\"b\"}\n".into(),
    );
    write(
        paths::task_report("evaluate.heldout"),
        report("evaluate.heldout").to_string(),
    );
    let mut source = Source::Folder(Records::open(dir.path()).unwrap());
    let names = ["train".to_owned(), "evaluate.heldout".to_owned()];
    let stored = read_stored(&mut source, "demo", &names, true).await.unwrap();
    assert_eq!(stored.without_rows, ["evaluate.heldout"]);
    assert_eq!(stored.sets[0].rows.as_ref().unwrap()[1], json!({"instance_id": "b"}));
    let missing = read_stored(&mut source, "demo", &["evaluate.none".into()], true).await;
    let error = missing.unwrap_err().to_string();
    assert!(
        error.contains("has not read the rows of tasks.evaluate.none yet"),
        "{error}"
    );
}
