use super::*;
use crate::arguments::Part;
use grpo_records::{fixture, look};

fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn wanted(sample: u32) -> Export {
    Export {
        names: Vec::new(),
        part: Part {
            iteration: Some(1),
            ..Part::default()
        },
        sample,
        format: None,
        records: Default::default(),
    }
}

#[tokio::test]
async fn a_sample_of_each_task_is_exported() {
    let store = tempfile::tempdir().unwrap();
    let dest = tempfile::tempdir().unwrap();
    fixture::write_store(store.path());
    let mut source = Source::Folder(look::Records::open(store.path()).unwrap());
    let done = export(&mut source, &wanted(1), dest.path()).await.unwrap();
    assert_eq!((done.episodes, done.without_verdict), (1, 0));
    let predictions = read(&dest.path().join("preds.json"));
    assert_eq!(
        predictions,
        json!({ "psf__requests-1": {
            "model_name_or_path": "a-v0",
            "instance_id": "psf__requests-1",
            "model_patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        }})
    );
    let line = std::fs::read_to_string(dest.path().join("predictions.jsonl")).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&line).unwrap(),
        predictions["psf__requests-1"]
    );
    let chats = std::fs::read_to_string(dest.path().join("chat_completions/1.jsonl")).unwrap();
    // Two samples have a verdict.
    assert_eq!(chats.lines().count(), 2);
    let chat: Value = serde_json::from_str(chats.lines().next().unwrap()).unwrap();
    let roles: Vec<&Value> = chat
        .as_array()
        .unwrap()
        .iter()
        .map(|message| &message["role"])
        .collect();
    assert_eq!(roles[..3], ["system", "user", "assistant"]);
    let log = read(&dest.path().join("inspect.json"));
    assert_eq!(log["results"]["total_samples"], 2);
    assert_eq!(log["samples"][1]["epoch"], 2);
    let interchange = read(&dest.path().join("psf__requests-1/trajectory.json"));
    assert_eq!(interchange["extra"]["sample"], 1);
    assert!(interchange["steps"][2]["metrics"]["completion_token_ids"].is_array());
    let trajectory = read(&dest.path().join("psf__requests-1/psf__requests-1.traj.json"));
    assert_eq!(trajectory["info"]["index"], 1);
    assert_eq!(trajectory["messages"][1]["content"], "The loop is off by one.");
    assert_eq!(
        read(&dest.path().join("exit_statuses.yaml")),
        json!({ "instances_by_exit_status": { "Submitted": ["psf__requests-1"] } })
    );
}

#[tokio::test]
async fn a_void_episode_has_no_prediction() {
    let store = tempfile::tempdir().unwrap();
    let dest = tempfile::tempdir().unwrap();
    fixture::write_store(store.path());
    let mut source = Source::Folder(look::Records::open(store.path()).unwrap());
    let done = export(&mut source, &wanted(2), dest.path()).await.unwrap();
    assert_eq!((done.episodes, done.without_verdict), (0, 1));
    assert_eq!(read(&dest.path().join("preds.json")), json!({}));
    let words = done.in_words(&wanted(2), Path::new("out"));
    assert!(
        words.contains("1 episodes of this sample have no verdict and were left out\n"),
        "{words}"
    );
    assert!(words.contains("pass@1 "), "{words}");
    let summary = read(&dest.path().join("summary.json"));
    assert_eq!((&summary["total"], &summary["errors"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn files_that_follow_from_verdicts_are_there_although_an_episode_cannot_be_read() {
    let store = tempfile::tempdir().unwrap();
    let dest = tempfile::tempdir().unwrap();
    fixture::write_store(store.path());
    let trajectory = store.path().join(paths::trajectory(fixture::RESOLVED));
    std::fs::write(trajectory, "{").unwrap();
    let mut source = Source::Folder(look::Records::open(store.path()).unwrap());
    export(&mut source, &wanted(1), dest.path()).await.unwrap_err();
    let there = |file: &str| dest.path().join(file).is_file();
    for file in ["results.jsonl", "summary.json", "exit_statuses.yaml"] {
        assert!(there(file), "{file}");
    }
    // A file without all of its samples has another name.
    for file in ["inspect.json", "chat_completions/1.jsonl"] {
        assert!(!there(file) && there(&format!("{file}.part")), "{file}");
    }
}

#[tokio::test]
async fn conversations_and_samples_come_in_the_order_of_groups_and_samples() {
    let store = tempfile::tempdir().unwrap();
    let dest = tempfile::tempdir().unwrap();
    fixture::write_store(store.path());
    // By name, sample 10 would come before sample 2.
    for sample in [10, 2] {
        let mut meta = fixture::episode("psf__requests-1", sample, grpo_records::Outcome::Resolved).meta;
        meta.key.scope = grpo_records::EpisodeScope::Iteration { iteration: 1 };
        meta.key.group = 1;
        let turn = fixture::turn(0, &format!("echo {sample}"), "");
        fixture::write_ended(store.path(), &fixture::ended(&meta, &[turn]));
        let file = store.path().join(paths::meta(&meta.key.dir(1)));
        std::fs::write(file, serde_json::to_vec(&meta).unwrap()).unwrap();
    }
    let mut source = Source::Folder(look::Records::open(store.path()).unwrap());
    export(&mut source, &wanted(1), dest.path()).await.unwrap();
    let log = read(&dest.path().join("inspect.json"));
    let samples = log["samples"].as_array().unwrap().iter();
    let places: Vec<(u64, u64, u64)> = samples
        .map(|sample| {
            let number = |value: &Value| value.as_u64().unwrap();
            let of = &sample["metadata"];
            (number(&of["group"]), number(&of["sample"]), number(&sample["epoch"]))
        })
        .collect();
    assert_eq!(places, [(0, 0, 1), (0, 1, 2), (1, 2, 3), (1, 10, 4)]);
    let chats = std::fs::read_to_string(dest.path().join("chat_completions/1.jsonl")).unwrap();
    let lines: Vec<&str> = chats.lines().collect();
    assert!(lines[2].contains("echo 2") && lines[3].contains("echo 10"), "{chats}");
}
