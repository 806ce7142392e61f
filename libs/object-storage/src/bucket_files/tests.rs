use super::*;
use crate::played::{ACCESS_KEY, PlayedBucket};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use grpo_hub::snapshot::Progress;
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use std::sync::Mutex;

const URL: &str = "s3://models/qwen/8b";
const LARGE: usize = 3 << 20;

fn weights(seed: u8) -> Vec<u8> {
    (0..LARGE).map(|at| seed.wrapping_add((at % 251) as u8)).collect()
}

/// A server that cuts answers, and whose objects change.
#[derive(Debug, Default)]
struct Bucket {
    objects: InMemory,
    /// The lengths, in bytes, after which the next answers with weights end.
    cuts: Mutex<Vec<usize>>,
    /// The weights after the next cut.
    replaced_by: Mutex<Option<Vec<u8>>>,
    /// Ignores conditions, as some servers do.
    is_careless: bool,
    /// First requested bytes of the weights.
    asked: Mutex<Vec<u64>>,
}

impl Bucket {
    async fn hold(&self, path: &str, bytes: impl Into<PutPayload>) {
        self.objects
            .put(&Location::parse(path).unwrap(), bytes.into())
            .await
            .unwrap();
    }

    /// A bucket with a model, and with extra objects that a folder may have.
    async fn with_model() -> Self {
        let bucket = Self::default();
        for (path, text) in [
            ("qwen/8b/config.json", "{}"),
            ("qwen/8b/tokenizer.json", "[]"),
            ("qwen/8b/code/model.py", "pass"),
            ("qwen/8b/pytorch_model.bin", "not taken"),
            ("qwen/8b-instruct/config.json", "of another model"),
        ] {
            bucket.hold(path, text).await;
        }
        bucket.hold("qwen/8b/model.safetensors", weights(1)).await;
        bucket
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, to: &Location, bytes: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.objects.put_opts(to, bytes, options).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Location,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(to, options).await
    }

    async fn get_opts(&self, from: &Location, mut options: GetOptions) -> Result<GetResult> {
        if self.is_careless {
            options.if_match = None;
        }
        let found = self.objects.get_opts(from, options).await?;
        if !from.as_ref().ends_with("model.safetensors") {
            return Ok(found);
        }
        self.asked.lock().unwrap().push(found.range.start);
        let Some(most) = self.cuts.lock().unwrap().pop() else {
            return Ok(found);
        };
        let replaced_by = self.replaced_by.lock().unwrap().take();
        let (meta, range, attributes) = (found.meta.clone(), found.range.clone(), found.attributes.clone());
        let extensions = found.extensions.clone();
        let all = found.bytes().await?;
        if let Some(weights) = replaced_by {
            self.hold(from.as_ref(), weights).await;
        }
        let cut = object_store::Error::Generic {
            store: "test",
            source: "the connection was cut".into(),
        };
        let parts: [Result<Bytes>; 2] = [Ok(all.slice(..most)), Err(cut)];
        Ok(GetResult {
            payload: GetResultPayload::Stream(futures::stream::iter(parts).boxed()),
            meta,
            range,
            attributes,
            extensions,
        })
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Location>>) -> BoxStream<'static, Result<Location>> {
        self.objects.delete_stream(paths)
    }

    fn list(&self, below: Option<&Location>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(below)
    }

    async fn list_with_delimiter(&self, below: Option<&Location>) -> Result<ListResult> {
        self.objects.list_with_delimiter(below).await
    }

    async fn copy_opts(&self, from: &Location, to: &Location, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

fn source(url: &str) -> ObjectStoreSource {
    ObjectStoreSource {
        url: url.to_owned(),
        endpoint: None,
        region: None,
        credentials_secret_ref: None,
    }
}

fn files(bucket: &Arc<Bucket>, content: Content, url: &str) -> BucketFiles {
    let prefix = url.splitn(4, '/').nth(3).unwrap_or_default();
    let opened = Opened {
        objects: bucket.clone(),
        parts: None,
        prefix: prefix.to_owned(),
    };
    BucketFiles::of(content, &source(url), opened).unwrap()
}

fn read(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap()
}

#[tokio::test]
async fn the_files_of_a_model_arrive_with_their_bytes_and_a_second_download_asks_for_none() {
    let (bucket, cache) = (Arc::new(Bucket::with_model().await), tempfile::tempdir().unwrap());
    let model = files(&bucket, Content::Model, URL);
    let pin = model.pin().await.unwrap();
    let paths: Vec<&str> = pin.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(
        paths,
        ["code/model.py", "config.json", "model.safetensors", "tokenizer.json"]
    );
    for _ in 0..2 {
        let progress = Progress::default();
        let folder = pin.fetch(&model, cache.path(), &progress).await.unwrap();
        assert_eq!(read(&folder, "model.safetensors"), weights(1));
        assert_eq!(read(&folder, "code/model.py"), b"pass");
        let (arrived, all) = progress.bytes();
        assert_eq!(arrived, all);
    }
    assert_eq!(*bucket.asked.lock().unwrap(), [0]);
    assert_eq!(model.to_string(), "model s3://models/qwen/8b");
    let named = model.folder();
    assert!(named.starts_with("objects--models--") && named.len() == 33, "{named}");
}

#[tokio::test]
async fn a_pin_names_the_objects_versions_and_reads_back_as_json() {
    let bucket = Arc::new(Bucket::with_model().await);
    let model = files(&bucket, Content::Model, URL);
    let pin = model.pin().await.unwrap();
    assert_eq!(pin.commit.as_str().len(), 64);
    let written = serde_json::to_string(&pin).unwrap();
    assert!(written.contains(r#""digest":{"eTag":"#), "{written}");
    assert_eq!(serde_json::from_str::<Pin>(&written).unwrap(), pin);
    bucket.hold("qwen/8b/notes.bin", "not taken").await;
    assert_eq!(model.pin().await.unwrap(), pin, "an object that no model needs");
    bucket.hold("qwen/8b/tokenizer.json", "[]").await;
    assert_ne!(model.pin().await.unwrap().commit, pin.commit, "another version");
}

#[tokio::test]
async fn a_download_that_is_cut_continues_at_its_last_byte() {
    let (bucket, cache) = (Arc::new(Bucket::with_model().await), tempfile::tempdir().unwrap());
    *bucket.cuts.lock().unwrap() = vec![700_000, 1_000_000];
    let model = files(&bucket, Content::Model, URL);
    let pin = model.pin().await.unwrap();
    let folder = pin.fetch(&model, cache.path(), &Progress::default()).await.unwrap();
    assert_eq!(read(&folder, "model.safetensors"), weights(1));
    assert_eq!(*bucket.asked.lock().unwrap(), [0, 1_000_000, 1_700_000]);
}

#[tokio::test]
async fn an_object_that_is_replaced_during_the_download_is_refused_also_by_a_server_that_ignores_conditions() {
    for is_careless in [false, true] {
        let mut bucket = Bucket::with_model().await;
        bucket.is_careless = is_careless;
        *bucket.cuts.lock().unwrap() = vec![1_000_000];
        *bucket.replaced_by.lock().unwrap() = Some(weights(2));
        let (bucket, cache) = (Arc::new(bucket), tempfile::tempdir().unwrap());
        let model = files(&bucket, Content::Model, URL);
        let pin = model.pin().await.unwrap();
        let error = pin.fetch(&model, cache.path(), &Progress::default()).await.unwrap_err();
        assert!(!error.is_transient());
        let message = error.to_string();
        for words in [
            "model.objectStore: object model.safetensors",
            URL,
            "was replaced or deleted",
            "new run",
        ] {
            assert!(message.contains(words), "{message}");
        }
        let named = cache
            .path()
            .join(model.folder())
            .join("snapshots")
            .join(pin.commit.as_str());
        assert!(!named.join("model.safetensors").exists());
    }
}

#[tokio::test]
async fn a_folder_that_is_no_model_is_refused_with_its_url_and_the_next_step() {
    let bucket = Arc::new(Bucket::with_model().await);
    bucket.hold("empty/readme.md", "").await;
    bucket.hold("old/config.json", "{}").await;
    for (url, words) in [
        ("s3://models/none", "s3://models/none has no objects"),
        ("s3://models/empty/", "s3://models/empty has no config.json"),
        ("s3://models", "s3://models has no config.json"),
        ("s3://models/old", "s3://models/old has no weights in safetensors"),
    ] {
        let error = files(&bucket, Content::Model, url).pin().await.unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with("model.objectStore: ") && message.contains(words),
            "{message}"
        );
        assert!(!error.is_transient());
    }
}

#[tokio::test]
async fn an_object_whose_name_leaves_the_folder_is_refused() {
    let bucket = Arc::new(Bucket::with_model().await);
    bucket.hold("qwen/8b/..\\config.json", "{}").await;
    let model = files(&bucket, Content::Model, URL);
    let error = model.pin().await.unwrap_err();
    assert!(error.to_string().contains("name is not a path below it"), "{error}");
    let object = bucket
        .objects
        .head(&Location::from("qwen/8b/config.json"))
        .await
        .unwrap();
    for path in [
        "../a.json",
        "/a.json",
        "a//b.json",
        "a/../../b.json",
        "./a.json",
        "a\\b.json",
        "",
    ] {
        assert!(model.file(path, &object).is_err(), "{path}");
    }
    assert!(model.file("a/b.json", &object).is_ok());
}

#[tokio::test]
async fn a_folder_with_too_many_objects_is_refused() {
    let bucket = Arc::new(Bucket::with_model().await);
    for number in 0..=MOST_OBJECTS {
        bucket.hold(&format!("many/{number}.json"), "").await;
    }
    let error = files(&bucket, Content::Model, "s3://models/many")
        .pin()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("more than 10000 objects"), "{error}");
}

#[tokio::test]
async fn a_dataset_is_one_object() {
    let (bucket, cache) = (Arc::new(Bucket::default()), tempfile::tempdir().unwrap());
    bucket.hold("rows/train.jsonl", "{}\n").await;
    let dataset = files(&bucket, Content::Dataset, "s3://tasks/rows/train.jsonl");
    let pin = dataset.pin().await.unwrap();
    let folder = pin.fetch(&dataset, cache.path(), &Progress::default()).await.unwrap();
    assert_eq!(pin.files.len(), 1);
    assert_eq!(read(&folder, &pin.files[0].path), b"{}\n");
    let error = files(&bucket, Content::Dataset, "s3://tasks/rows")
        .pin()
        .await
        .unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("dataset.objectStore: s3://tasks/rows was not found"),
        "{message}"
    );
}

#[tokio::test]
async fn a_secret_with_keys_of_other_names_is_refused_with_the_names_that_are_read() {
    let keys = tempfile::tempdir().unwrap();
    std::fs::write(keys.path().join("accesskey"), "key").unwrap();
    std::fs::write(keys.path().join("AWS_ACCESS_KEY_ID"), "key").unwrap();
    for (url, prefix) in [("gs://models/qwen", "GOOGLE_"), ("az://models/qwen", "AZURE_")] {
        let error = BucketFiles::open(Content::Model, &source(url), Some(keys.path())).await;
        let error = error.map(drop).unwrap_err();
        assert!(!error.is_transient());
        let message = error.to_string();
        assert!(message.contains(url) && message.ends_with(prefix), "{message}");
    }
}

#[tokio::test]
async fn a_listing_of_a_server_that_names_a_path_outside_of_the_folder_is_refused() {
    let (bucket, keys) = (
        PlayedBucket::start("models").await.unwrap(),
        tempfile::tempdir().unwrap(),
    );
    std::fs::write(keys.path().join("AWS_ACCESS_KEY_ID"), ACCESS_KEY).unwrap();
    std::fs::write(keys.path().join("AWS_SECRET_ACCESS_KEY"), "secret").unwrap();
    let source = bucket.source("qwen/8b");
    let model = BucketFiles::open(Content::Model, &source, Some(keys.path()))
        .await
        .unwrap();
    bucket.put("qwen/8b/config.json", "{}");
    bucket.put("qwen/8b/model.safetensors", weights(1));
    let cache = tempfile::tempdir().unwrap();
    let pin = model.pin().await.unwrap();
    let folder = pin.fetch(&model, cache.path(), &Progress::default()).await.unwrap();
    assert_eq!(read(&folder, "model.safetensors"), weights(1));
    for key in ["qwen/8b/../../evil.json", "qwen/8b//evil.json"] {
        bucket.put(key, "{}");
        let error = model.pin().await.unwrap_err();
        assert!(!error.is_transient(), "{error}");
        assert!(error.to_string().contains("name is not a path below it"), "{error}");
    }
}
