//! The program as an init container: the driver's commit, complete files only, a killed download continued.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::{Router, routing::get};
use grpo_contracts::ModelDownload;
use grpo_contracts::access::Service;
use grpo_hub::played::{Content, Damage, PlayedHub};
use grpo_hub::{Hub, HubFiles, HubSettings, Pin, Repository};
use grpo_object_storage::played::{ACCESS_KEY, PlayedBucket};
use tempfile::TempDir;
use tokio::time::timeout;

const LARGE: usize = 4 << 20;
const STALLS_AT: usize = 1 << 20;

fn repository() -> Repository {
    Repository::model("owner/name")
}

fn weights(seed: u8) -> Vec<u8> {
    (0..LARGE).map(|at| seed.wrapping_add((at % 251) as u8)).collect()
}

fn push(played: &PlayedHub, seed: u8) {
    let files = [
        ("config.json", Content::Small("{}".into())),
        ("model.safetensors", Content::Large(weights(seed).into())),
    ];
    let files = files.map(|(path, content)| (path.to_owned(), content));
    played.push(&repository(), "main", files.into());
}

/// A pod's folders, and the arguments of its init container.
struct Pod {
    folder: TempDir,
    endpoint: String,
    pin: [String; 2],
}

impl Pod {
    fn new(played: &PlayedHub, flag: &str, value: &str) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            endpoint: played.endpoint.clone(),
            pin: [flag.to_owned(), value.to_owned()],
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self) -> Child {
        std::fs::write(self.path(Service::Driver.audience()), "pod-token").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_grpo-engine-agent"));
        command.args(["fetch-model", "--repo", "owner/name"]).args(&self.pin);
        command.arg("--cache").arg(self.path("cache"));
        command.arg("--link").arg(self.path("current"));
        command.arg("--tokens").arg(self.folder.path());
        command.env("HF_ENDPOINT", &self.endpoint).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    fn finishes(&self) -> bool {
        self.start().wait().unwrap().success()
    }

    fn linked(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path("current").join(name)).unwrap()
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            folder if folder.is_dir() => found.extend(files_below(&folder)),
            file => found.push(file),
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_download_shows_no_partial_file_and_the_next_one_continues_it() {
    let played = PlayedHub::start().await.unwrap();
    push(&played, 1);
    let pod = Pod::new(&played, "--pin-name", "pool");
    // The small file comes whole, the large one stalls; their order is not known.
    played.spoil_files([Damage::Stall(STALLS_AT), Damage::Stall(STALLS_AT)]);
    let mut killed = pod.start();
    let repository = pod.path("cache/models--owner--name");
    let stalled = async {
        let at_stall = |part: &PathBuf| part.metadata().is_ok_and(|part| part.len() == STALLS_AT as u64);
        let has = |folder: &str, is_so: &dyn Fn(&PathBuf) -> bool| {
            let files = files_below(&repository.join(folder));
            files.iter().any(is_so)
        };
        while !(has("parts", &at_stall) && has("snapshots", &|file| file.ends_with("config.json"))) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), stalled).await.unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    let named = files_below(&repository.join("snapshots"));
    assert!(named.iter().all(|file| file.ends_with("config.json")), "{named:?}");
    assert!(!pod.path("current").exists());
    // It keeps the first commit, although the branch has moved.
    push(&played, 2);
    assert!(pod.finishes());
    assert_eq!(pod.linked("model.safetensors"), weights(1));
    let last = played.requests().pop().unwrap();
    assert_eq!(last.range, Some(format!("bytes={STALLS_AT}-")));
    let asked = played.requests().len();
    assert!(pod.finishes());
    assert_eq!(played.requests().len(), asked);
}

type Told = Arc<Mutex<(Vec<Option<String>>, Option<Pin>)>>;

/// A driver's answer: 503 until it knows, then its pin.
async fn pinned(State(told): State<Told>, headers: HeaderMap) -> Response {
    let mut told = told.lock().unwrap();
    let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    told.0.push(token.map(str::to_owned));
    match &told.1 {
        Some(pin) if told.0.len() > 1 => Json(pin.clone()).into_response(),
        _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_waits_for_the_driver_and_takes_the_commit_that_it_says() {
    let played = PlayedHub::start().await.unwrap();
    push(&played, 1);
    let settings = HubSettings {
        endpoint: Some(played.endpoint.clone()),
        ..HubSettings::default()
    };
    let hub = Hub::new(&settings).unwrap();
    let pin = Pin::of_model(
        HubFiles {
            hub: &hub,
            repository: &repository(),
        },
        None,
    )
    .await
    .unwrap();
    push(&played, 2);
    let told: Told = Arc::new(Mutex::new((Vec::new(), Some(pin))));
    let router = Router::new()
        .route(ModelDownload::PIN_ROUTE, get(pinned))
        .with_state(told.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{}", listener.local_addr().unwrap(), ModelDownload::PIN_ROUTE);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let pod = Pod::new(&played, "--pin-url", &url);
    assert!(pod.finishes());
    assert_eq!(pod.linked("model.safetensors"), weights(1));
    let tokens = told.lock().unwrap().0.clone();
    assert_eq!(tokens, vec![Some("Bearer pod-token".to_owned()); 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_does_not_exist_ends_the_program() {
    let played = PlayedHub::start().await.unwrap();
    let pod = Pod::new(&played, "--pin-name", "pool");
    assert!(!pod.finishes());
}

/// A pod that downloads from a bucket with this access key.
fn of_bucket(folder: &Path, bucket: &PlayedBucket, key: &str) -> Command {
    let keys = folder.join("keys");
    std::fs::create_dir_all(&keys).unwrap();
    std::fs::write(keys.join("AWS_ACCESS_KEY_ID"), key).unwrap();
    std::fs::write(keys.join("AWS_SECRET_ACCESS_KEY"), "secret").unwrap();
    let source = bucket.source("models/small");
    let mut command = Command::new(env!("CARGO_BIN_EXE_grpo-engine-agent"));
    command.args(["fetch-model", "--object-store", &source.url, "--pin-name", "pool"]);
    command.args([
        "--object-store-endpoint",
        &bucket.endpoint,
        "--object-store-region",
        "eu-1",
    ]);
    command.arg("--credentials").arg(keys);
    command.arg("--cache").arg(folder.join("cache"));
    command.arg("--link").arg(folder.join("current"));
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_of_a_bucket_comes_with_the_keys_of_a_folder_and_replicas_of_a_pool_take_the_same_objects() {
    let (bucket, folder) = (
        PlayedBucket::start("bucket").await.unwrap(),
        tempfile::tempdir().unwrap(),
    );
    bucket.put("models/small/config.json", "{}");
    bucket.put("models/small/model.safetensors", weights(1));
    let run = |key: &str| of_bucket(folder.path(), &bucket, key).output().unwrap();
    assert!(run(ACCESS_KEY).status.success());
    let linked = |name: &str| std::fs::read(folder.path().join("current").join(name)).unwrap();
    assert_eq!(linked("model.safetensors"), weights(1));
    // The next replica takes the same files from the cache.
    bucket.put("models/small/model.safetensors", weights(2));
    let asked = bucket.requests().len();
    assert!(run(ACCESS_KEY).status.success());
    assert_eq!(
        (linked("model.safetensors"), bucket.requests().len()),
        (weights(1), asked)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_refuses_the_keys_ends_the_program_and_its_message_names_the_next_step() {
    let (bucket, folder) = (
        PlayedBucket::start("bucket").await.unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let ended = of_bucket(folder.path(), &bucket, "other").output().unwrap();
    let message = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success());
    for words in [
        "model.objectStore: access to s3://bucket/models/small was denied",
        "credentialsSecretRef",
    ] {
        assert!(message.contains(words), "{message}");
    }
}
