//! Buckets on a real server: the guarantees of every run's store, faults of the server, and a model's files.

use std::path::Path;
use std::time::{Duration, Instant};

use grpo_crds::sources::ObjectStoreSource;
use grpo_hub::snapshot::Progress;
use grpo_hub::{FileSource, HubError};
use grpo_object_storage::{BucketFiles, Content, read_store, run_store};
use grpo_records::RunStore;
use grpo_records::store::sha256_hex;
use grpo_testing::s3::{ACCESS_KEY, BUCKET, S3Server, SECRET_KEY};

use crate::support::Result;

/// A server, and a store in it.
struct Scene {
    server: S3Server,
    source: ObjectStoreSource,
    folder: tempfile::TempDir,
    store: RunStore,
}

impl Scene {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = S3Server::start("127.0.0.1", folder.path()).await.unwrap();
        let secret = folder.path().join("secret");
        std::fs::create_dir(&secret).unwrap();
        for (name, value) in [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)] {
            std::fs::write(secret.join(name), value).unwrap();
        }
        let source = ObjectStoreSource {
            url: format!("s3://{BUCKET}/experiments"),
            endpoint: Some(server.endpoint.clone()),
            region: None,
            credentials_secret_ref: None,
        };
        let store = run_store(&source, Some(&secret), "team/demo").await.unwrap();
        Self {
            server,
            source,
            folder,
            store,
        }
    }
}

macro_rules! in_a_bucket {
    ($($guarantee:ident),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "needs a server of S3: make test-api"]
        async fn $guarantee() {
            let scene = Scene::new().await;
            grpo_records::store::conformance::$guarantee(scene.store.clone()).await;
        })*
    };
}

grpo_records::store_guarantees!(in_a_bucket);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server of S3: make test-api"]
async fn the_probe_leaves_nothing_and_files_lie_below_the_prefix() -> Result<()> {
    let scene = Scene::new().await;
    assert_eq!(scene.store.list("").await?, []);
    scene.store.create_bytes("journal/1.json", "{}").await?;
    let file = scene.server.objects().join("experiments/team/demo/journal/1.json");
    assert_eq!(std::fs::read_to_string(file)?, "{}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server of S3: make test-api"]
async fn a_server_that_is_away_for_a_while_loses_and_doubles_nothing() -> Result<()> {
    let mut scene = Scene::new().await;
    let store = scene.store.clone();
    let writing = tokio::spawn(async move {
        for n in 0..40 {
            let created = store.create_bytes(&format!("journal/{n}"), format!("{n}")).await;
            let created = created.unwrap();
            assert_ne!(created, grpo_records::store::Created::Existed, "entry {n}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        scene.server.kill().await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        scene.server.again()?;
    }
    writing.await?;
    assert_eq!(scene.store.files_below("journal").await?.len(), 40);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server of S3: make test-api"]
async fn wrong_keys_and_buckets_are_refused_with_the_field_and_what_to_do() -> Result<()> {
    let scene = Scene::new().await;
    let secret = scene.folder.path().join("secret");
    let elsewhere = ObjectStoreSource {
        url: "s3://no-such-bucket/a".to_owned(),
        ..scene.source.clone()
    };
    let refused = run_store(&elsewhere, Some(&secret), "team/demo")
        .await
        .err()
        .ok_or("it was opened")?;
    assert!(refused.is_final(), "{refused}");
    std::fs::write(secret.join("AWS_SECRET_ACCESS_KEY"), "another")?;
    let refused = run_store(&scene.source, Some(&secret), "team/demo")
        .await
        .err()
        .ok_or("it was opened")?;
    assert!(refused.is_final(), "{refused}");
    for part in ["spec.store", "credentialsSecretRef"] {
        assert!(refused.to_string().contains(part), "{refused}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server of S3: make test-api"]
async fn a_thread_without_a_runtime_writes_and_reads() -> Result<()> {
    let scene = Scene::new().await;
    let store = scene.store.clone();
    let read = std::thread::spawn(move || {
        use grpo_records::store::wait;
        wait(store.create_bytes("a", "one")).unwrap();
        let mut upload = wait(store.upload("big")).unwrap();
        for _ in 0..3 {
            wait(upload.write(&vec![7; 9_000_000])).unwrap();
        }
        wait(upload.finish()).unwrap();
        (wait(store.bytes("a")).unwrap(), wait(store.length("big")).unwrap())
    });
    assert_eq!(read.join().unwrap(), ("one".into(), Some(27_000_000)));
    let reader = read_store(&scene.source, Some(&scene.folder.path().join("secret")), "team/demo").await?;
    assert_eq!(reader.bytes("a").await?, "one");
    Ok(())
}

/// The stored parts of unfinished uploads: files of 8 MiB below a folder in which no finished file is as large.
fn parts_below(folder: &Path) -> usize {
    // The server removes folders at the same time.
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let parts = entries.flatten().map(|entry| match entry.metadata() {
        Ok(of) if of.is_dir() => parts_below(&entry.path()),
        Ok(of) => usize::from(of.len() >= 8 << 20),
        Err(_) => 0,
    });
    parts.sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server of S3: make test-api"]
async fn a_dropped_upload_leaves_no_parts_on_the_server() -> Result<()> {
    /// Parts that are sent concurrently. The server may store them after the first abort.
    const UNDER_WAY: usize = 4;
    /// After the last of the repeated aborts.
    const LATEST: Duration = Duration::from_secs(22);
    let scene = Scene::new().await;
    let mut upload = scene.store.upload("big").await?;
    upload.write(&vec![7; 128 << 20]).await?;
    let arrived = parts_below(scene.folder.path());
    assert!(arrived >= 16 - UNDER_WAY, "{arrived} parts");
    drop(upload);
    let dropped = Instant::now();
    let gone = async {
        while dropped.elapsed() < LATEST || parts_below(scene.folder.path()) > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await?;
    assert_eq!(scene.store.list("").await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server of S3: make test-api"]
async fn a_model_arrives_as_it_was_listed_and_wrong_keys_and_buckets_are_named() -> Result<()> {
    let scene = Scene::new().await;
    let secret = scene.folder.path().join("secret");
    let weights = |seed: u8| -> Vec<u8> { (0..3 << 20).map(|at| seed.wrapping_add((at % 251) as u8)).collect() };
    scene.store.create_bytes("config.json", "{}").await?;
    scene.store.create_bytes("model.safetensors", weights(1)).await?;
    let at = |url: String| ObjectStoreSource {
        url,
        ..scene.source.clone()
    };
    let source = at(format!("{}/team/demo", scene.source.url));
    let model = BucketFiles::open(Content::Model, &source, Some(&secret)).await?;
    let pin = model.pin().await?;
    // As a killed download leaves it.
    let cache = tempfile::tempdir()?;
    let parts = cache.path().join(model.folder()).join("parts");
    std::fs::create_dir_all(&parts)?;
    let part = sha256_hex(format!("{}/model.safetensors", pin.commit).as_bytes());
    std::fs::write(parts.join(part), &weights(1)[..1_000_000])?;
    let folder = pin.fetch(&model, cache.path(), &Progress::default()).await?;
    assert!(std::fs::read(folder.join("model.safetensors"))? == weights(1));

    scene.store.replace("model.safetensors", weights(2).into()).await?;
    let elsewhere = tempfile::tempdir()?;
    let changed = pin.fetch(&model, elsewhere.path(), &Progress::default()).await;
    let changed = changed.err().ok_or("it was fetched")?;
    assert!(changed.to_string().contains("was replaced or deleted"), "{changed}");

    let failure = async |url: String| -> Result<HubError> {
        let files = BucketFiles::open(Content::Model, &at(url), Some(&secret)).await?;
        Ok(files.pin().await.err().ok_or("it was listed")?.into())
    };
    let missing = failure("s3://other/qwen/8b".to_owned()).await?;
    assert!(
        !missing.is_transient() && missing.to_string().contains("was not found"),
        "{missing}"
    );
    std::fs::write(secret.join("AWS_SECRET_ACCESS_KEY"), "wrong")?;
    let denied = failure(source.url.clone()).await?;
    assert!(
        !denied.is_transient() && denied.to_string().contains("access to s3://"),
        "{denied}"
    );
    Ok(())
}
