//! Model and rows from a bucket: pinned when the run begins; a changed object is refused, and the message names the
//! field.

use crate::process::{self, Driver};
use crate::world::{self, World};
use grpo_auth::LocalIssuer;
use grpo_crds::sources::ObjectStoreSource;
use grpo_driver::config::Settings;
use grpo_driver::fault::{DriverError, TerminalFault};
use grpo_driver::tasks::source::{BucketFile, Source};
use grpo_object_storage::played::{ACCESS_KEY, PlayedBucket};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const KEYS: [(&str, &str); 2] = [
    ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
    ("AWS_SECRET_ACCESS_KEY", "topsecret"),
];

/// The run's rows and a model.
async fn bucket(world: &World) -> PlayedBucket {
    let bucket = PlayedBucket::start("team").await.unwrap();
    bucket.put("tasks/train.jsonl", std::fs::read(&world.tasks).unwrap());
    for entry in std::fs::read_dir(world::model()).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        bucket.put(&format!("model/{name}"), std::fs::read(entry.path()).unwrap());
    }
    bucket.put("model/model.safetensors", "weights");
    bucket
}

/// The folder of a Secret.
fn keys(world: &World, access_key: &str) -> PathBuf {
    let folder = world.mount.path().join(format!("keys-{access_key}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("AWS_ACCESS_KEY_ID"), access_key).unwrap();
    std::fs::write(folder.join("AWS_SECRET_ACCESS_KEY"), "topsecret").unwrap();
    folder
}

/// A run that trains on a file and evaluates on it.
fn on_rows(world: &World, file: ObjectStoreSource, access_key: &str) -> Settings {
    let mut settings = world.settings();
    let train = settings.train.as_mut().unwrap();
    train.tasks.source = Source::Bucket(BucketFile {
        file,
        credentials: Some(keys(world, access_key)),
    });
    settings.evaluate[0].tasks = train.tasks.clone();
    settings
}

async fn fault(world: &World, settings: Settings, attempt: u32) -> (String, String) {
    match world.start(settings, attempt).await.map(drop) {
        Err(DriverError::Terminal(TerminalFault { reason, message })) => (reason.into(), message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_run_reads_the_rows_it_began_with_though_the_object_was_replaced() {
    let world = World::new(3).await;
    let bucket = bucket(&world).await;
    let settings = on_rows(&world, bucket.source("tasks/train.jsonl"), ACCESS_KEY);
    let names = |run: &grpo_driver::iterate::Run| {
        let tasks = run.train_tasks.iter().chain(run.evaluation_tasks.iter().flatten());
        tasks.map(|task| task.instance.clone()).collect::<Vec<_>>()
    };
    let run = world.start(settings.clone(), 1).await.unwrap();
    let began_with = names(&run);
    assert_eq!(began_with.len(), 6);
    bucket.put("tasks/train.jsonl", "{}");
    let run = world.start(settings.clone(), 2).await.unwrap();
    assert_eq!(names(&run), began_with);
    // Without its cache it fails: the objects of the pin are gone.
    let cache = world.mount.path().join("ns/run/hub");
    std::fs::remove_dir_all(cache).unwrap();
    let (reason, message) = fault(&world, settings, 3).await;
    assert_eq!(reason, "DatasetUnavailable");
    for words in [
        "dataset.objectStore: object train.jsonl",
        "was replaced or deleted",
        "new run",
    ] {
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_not_there_or_denied_end_the_run_with_field_and_next_step_and_without_the_keys() {
    let world = World::new(1).await;
    let bucket = bucket(&world).await;
    let missing = on_rows(&world, bucket.source("tasks/none.jsonl"), ACCESS_KEY);
    let denied = on_rows(&world, bucket.source("tasks/train.jsonl"), "AKIAOTHER");
    for (settings, words) in [(missing, "was not found"), (denied, "credentialsSecretRef")] {
        let (reason, message) = fault(&world, settings, 1).await;
        assert_eq!(reason, "DatasetUnavailable");
        assert!(
            message.contains("dataset.objectStore: ") && message.contains(words),
            "{message}"
        );
        assert!(
            !message.contains("topsecret") && !message.contains("AKIAOTHER"),
            "{message}"
        );
    }
}

/// The configuration of a run with model and rows from the bucket.
fn config(world: &World, bucket: &PlayedBucket) -> PathBuf {
    let path = process::config(world, 1);
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let (model, rows) = (bucket.source("model"), bucket.source("tasks/train.jsonl"));
    let below = |name: &str| world.mount.path().join(name);
    config["modelPath"] = json!(below("current"));
    config["modelDownload"] = json!({"objectStore": model, "cache": below("cache"), "weights": false});
    config["datasets"] = json!([{"path": "/datasets/0", "objectStore": rows}]);
    let spec = &mut config["spec"];
    spec["model"] = json!({"objectStore": model});
    spec["tasks"]["train"]["dataset"] = json!({"objectStore": rows});
    spec["tasks"]["evaluate"][0]["dataset"] = json!({"objectStore": rows});
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// With the pod's own identity: no Secret is named.
async fn ended(world: &World, config: &PathBuf, attempt: u32) -> Option<i32> {
    let issuer = LocalIssuer::new().unwrap();
    let mut driver = Driver::start_with(world, config, attempt, ("127.0.0.1:0", &issuer), &KEYS);
    driver.ended().await
}

fn records(folder: &Path) -> Vec<Value> {
    let files = std::fs::read_dir(folder).unwrap().flatten();
    let read = |file: std::fs::DirEntry| serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    files.map(read).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_with_model_and_rows_of_a_bucket_comes_to_its_end_and_its_store_names_the_objects() {
    let world = World::new(2).await;
    let bucket = bucket(&world).await;
    assert_eq!(ended(&world, &config(&world, &bucket), 1).await, Some(0));
    let store = world.mount.path().join("ns/run");
    let model = records(&store.join("models"));
    assert_eq!(model[0]["url"], "s3://team/model");
    assert_eq!(model[0]["commit"].as_str().unwrap().len(), 64);
    let rows = records(&store.join("datasets"));
    assert_eq!(
        (rows.len(), &rows[0]["url"]),
        (1, &json!("s3://team/tasks/train.jsonl"))
    );
    assert!(world.mount.path().join("current/config.json").exists());
    assert!(
        !world.mount.path().join("current/model.safetensors").exists(),
        "no other process shares the cache"
    );
    let requests = bucket.requests();
    assert!(
        !requests.iter().any(|request| request.ends_with("model.safetensors")),
        "{requests:?}"
    );
    world.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_whose_folder_is_not_there_ends_the_run_and_names_the_field() {
    let world = World::new(1).await;
    let bucket = PlayedBucket::start("team").await.unwrap();
    assert_eq!(ended(&world, &config(&world, &bucket), 1).await, Some(42));
    let last = std::fs::read_to_string(world.mount.path().join("termination.json")).unwrap();
    for words in ["ModelUnavailable", "model.objectStore: s3://team/model has no objects"] {
        assert!(last.contains(words), "{last}");
    }
}
