//! An agent on its own port, and a source of weights that can be told to misbehave.

#[path = "../../../engine/tests/support/mod.rs"]
pub mod engine;
pub mod fake;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::StreamExt;
use grpo_auth::{AllowedAccount, LocalIssuer, ServiceAccount};
use grpo_contracts::access::Service;
use grpo_engine::model::Model;
use grpo_engine_agent::http::Limits;
use grpo_engine_agent::http::access::Grants;
use grpo_engine_agent::pull::sha256;
use grpo_engine_agent::worker::Pace;
use grpo_engine_agent::{AgentError, Kind, Options, new_instance, serve};
use grpo_engine_protocol::{
    AgentState, AgentStatus, ChatRequest, ChatResponse, CompletionRequest, CompletionResponse, ErrorBody, SleepOrder,
    WEIGHTS_HEADER, WeightsOrder,
};
use grpo_records::weights::{WeightsDelta, WeightsFile, WeightsManifest};
use grpo_weights_delta::Encoder;
use reqwest::Client;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub const MAX_REQUEST_BYTES: usize = 1 << 20;

/// The folder of a random model.
pub fn model_of(seed: u64) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    engine::write_model(dir.path(), seed);
    dir
}

/// The account that these tests' agents accept.
pub fn driver() -> ServiceAccount {
    ServiceAccount::new("team", "demo-driver")
}

/// The account of the agents themselves.
pub fn engines() -> ServiceAccount {
    ServiceAccount::new("team", "demo-engines")
}

/// The account of a client outside of runs.
pub fn notebook() -> ServiceAccount {
    ServiceAccount::new("eval", "notebook")
}

/// Concurrent requests of clients at an agent.
pub const CLIENT_PLACES: u32 = 2;

fn allowed(account: &ServiceAccount) -> AllowedAccount {
    format!("{}/{}", account.namespace, account.name).parse().unwrap()
}

/// A client that sends a token with every call.
pub fn bearing(token: &str) -> Client {
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
    Client::builder().default_headers(headers).no_proxy().build().unwrap()
}

pub const DRAIN_KEY: &str = "key of these tests";

#[derive(Clone)]
pub struct Agent {
    pub url: String,
    /// A client with a driver's token.
    pub client: Client,
    pub issuer: Arc<LocalIssuer>,
    /// Deadline of one wait.
    patience: Duration,
    cache: Arc<TempDir>,
    process: Arc<Mutex<Option<Process>>>,
}

/// An agent's signal to stop, and its end.
type Process = (oneshot::Sender<()>, JoinHandle<Result<(), AgentError>>);

impl Agent {
    /// An agent of the engine at `engine`.
    pub async fn before(engine: &str) -> Self {
        Self::with_places(engine, 16).await
    }

    /// An agent with `places` concurrent requests.
    pub async fn with_places(engine: &str, places: u32) -> Self {
        Self::guarding(Kind::Embedded, engine, None, places).await
    }

    /// An agent of an engine of this kind.
    pub async fn guarding(kind: Kind, engine: &str, api_key: Option<&str>, places: u32) -> Self {
        Self::patient(kind, engine, api_key, places, Duration::from_secs(30)).await
    }

    /// An agent with this deadline for its engine and for tests' waits.
    pub async fn patient(kind: Kind, engine: &str, api_key: Option<&str>, places: u32, patience: Duration) -> Self {
        let issuer = Arc::new(LocalIssuer::new().unwrap());
        Self::of_issuer(&issuer, kind, engine, api_key, places, patience).await
    }

    /// Agents of one pool, before the same engine: they accept each other's tokens.
    pub async fn of_one_pool(engine: &str, count: usize) -> Vec<Self> {
        Self::of_one_pool_before(&vec![engine; count]).await
    }

    /// Agents of one pool, each before an engine.
    pub async fn of_one_pool_before(engines: &[&str]) -> Vec<Self> {
        let issuer = Arc::new(LocalIssuer::new().unwrap());
        let mut agents = Vec::new();
        for engine in engines {
            let patience = Duration::from_secs(60);
            agents.push(Self::of_issuer(&issuer, Kind::Embedded, engine, None, 16, patience).await);
        }
        agents
    }

    async fn of_issuer(
        issuer: &Arc<LocalIssuer>,
        kind: Kind,
        engine: &str,
        api_key: Option<&str>,
        places: u32,
        patience: Duration,
    ) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let options = Options {
            engine: engine.parse().unwrap(),
            kind,
            api_key: api_key.map(str::to_owned),
            cache_dir: cache.path().join("weights"),
            max_inflight: places,
            limits: Limits {
                request_bytes: MAX_REQUEST_BYTES,
                answer_bytes: 16 << 20,
            },
            request_deadline: 2 * patience,
            instance: new_instance("test"),
            pace: Pace {
                look: Duration::from_millis(20),
                first_pause: Duration::from_millis(100),
                longest_pause: Duration::from_millis(200),
                load_deadline: patience,
                empty_deadline: Duration::from_millis(300),
            },
            tokens: cache.path().join("tokens"),
            own_token: false,
            drain_key: Some(DRAIN_KEY.to_owned()),
            grants: Grants {
                everything: vec![allowed(&driver())],
                chunks: vec![allowed(&engines())],
                sampling: vec![allowed(&notebook())],
            },
            client_inflight: CLIENT_PLACES,
        };
        issuer
            .write_tokens(&cache.path().join("tokens"), &engines(), &[Service::EngineAgent])
            .unwrap();
        let guard = issuer.guard(Service::EngineAgent, &[driver(), engines(), notebook()]);
        let (stop, stopped) = oneshot::channel::<()>();
        let until_stopped = async {
            if stopped.await.is_err() {
                std::future::pending().await
            }
        };
        let ended = tokio::spawn(serve(listener, options, guard, until_stopped));
        Self {
            process: Arc::new(Mutex::new(Some((stop, ended)))),
            url,
            client: bearing(&issuer.token(&driver(), Service::EngineAgent).unwrap()),
            issuer: issuer.clone(),
            patience,
            cache: Arc::new(cache),
        }
    }

    pub async fn order(&self, order: &WeightsOrder) {
        self.put("weights", order).await;
    }

    pub async fn prefetch(&self, order: &WeightsOrder) {
        self.put("prefetch", order).await;
    }

    async fn put(&self, what: &str, order: &WeightsOrder) {
        let answer = self
            .client
            .put(format!("{}/agent/v1/{what}", self.url))
            .json(order)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 202);
    }

    /// Orders the engine to sleep, or to wake up; returns the status code and the refusal, if any.
    pub async fn try_sleep(&self, asleep: bool) -> (u16, Option<ErrorBody>) {
        let call = self.client.put(format!("{}/agent/v1/sleep", self.url));
        let answer = call.json(&SleepOrder { asleep }).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.ok())
    }

    pub async fn sleep(&self, asleep: bool) {
        assert_eq!(self.try_sleep(asleep).await.0, 202);
    }

    pub async fn wait_until_asleep(&self) -> AgentStatus {
        let status = self.wait_for(|status| status.state == AgentState::Asleep).await;
        assert_eq!((&status.serving, &status.loaded_sha256), (&None, &None));
        status
    }

    /// Ends the agent as its container would; its files stay.
    pub async fn stop(&self) {
        let process = self.process.lock().unwrap().take();
        let (stop, ended) = process.unwrap();
        stop.send(()).unwrap();
        ended.await.unwrap().unwrap();
    }

    pub async fn get(&self, path: &str) -> reqwest::Response {
        self.client.get(format!("{}{path}", self.url)).send().await.unwrap()
    }

    pub async fn status(&self) -> AgentStatus {
        self.get("/agent/v1/status").await.json().await.unwrap()
    }

    pub async fn wait_for(&self, holds: impl Fn(&AgentStatus) -> bool) -> AgentStatus {
        let mut last = None;
        let reached = timeout(self.patience, async {
            loop {
                let status = self.status().await;
                if holds(&status) {
                    return status;
                }
                last = Some(status);
                tokio::task::yield_now().await;
            }
        });
        match reached.await {
            Ok(status) => status,
            Err(_) => panic!("the agent stays at {last:?}"),
        }
    }

    pub async fn wait_until_serving(&self, version: &str) -> AgentStatus {
        self.wait_for(|status| status.serving.as_deref() == Some(version) && status.state == AgentState::Idle)
            .await
    }

    pub async fn complete(
        &self,
        request: &CompletionRequest,
        weights: Option<&str>,
    ) -> Result<CompletionResponse, ErrorBody> {
        let mut call = self.client.post(format!("{}/v1/completions", self.url)).json(request);
        if let Some(weights) = weights {
            call = call.header(WEIGHTS_HEADER, weights);
        }
        let answer = call.send().await.unwrap();
        match answer.status().is_success() {
            true => Ok(answer.json().await.unwrap()),
            false => Err(answer.json().await.unwrap()),
        }
    }

    pub async fn chat(&self, request: &ChatRequest) -> Result<ChatResponse, ErrorBody> {
        let call = self.client.post(format!("{}/v1/chat/completions", self.url));
        let answer = call.json(request).send().await.unwrap();
        match answer.status().as_u16() {
            200 => Ok(answer.json().await.unwrap()),
            status => {
                let error: ErrorBody = answer.json().await.unwrap();
                assert_eq!(error.status(), status);
                Err(error)
            }
        }
    }

    /// A file of a version in its cache.
    pub fn file(&self, version: &str, name: &str) -> std::path::PathBuf {
        self.cache.path().join("weights").join(version).join(name)
    }

    pub fn versions_on_disk(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.cache.path().join("weights")).unwrap();
        let mut versions: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        versions.sort();
        versions
    }
}

/// Serves weights as a driver does, with ranges.
#[derive(Clone, Default)]
pub struct Source {
    url: String,
    content: Arc<Mutex<Content>>,
}

#[derive(Default)]
struct Content {
    files: BTreeMap<String, Vec<u8>>,
    break_after: BTreeMap<String, usize>,
    fetched: Vec<(String, Option<String>)>,
}

impl Source {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/weights", listener.local_addr().unwrap());
        let source = Self {
            url,
            content: Arc::default(),
        };
        let router = Router::new()
            .route("/weights/{*path}", get(serve_file))
            .with_state(source.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        source
    }

    /// Publishes a random model; returns the order for it and the checksum of its tensors.
    pub fn publish(&self, version: &str, seed: u64) -> (WeightsOrder, String) {
        let mut tensors = String::new();
        let order = self.publish_with(version, seed, |manifest| tensors = manifest.tensors_sha256.clone());
        (order, tensors)
    }

    pub fn publish_with(&self, version: &str, seed: u64, change: impl FnOnce(&mut WeightsManifest)) -> WeightsOrder {
        let dir = model_of(seed);
        let files =
            ["config.json", "model.safetensors"].map(|name| (name, std::fs::read(dir.path().join(name)).unwrap()));
        let tensors = Model::load(dir.path(), version, None).unwrap().sha256;
        self.publish_files(version, files.into(), &tensors, change)
    }

    /// Publishes an adapter with dummy content: the tests only need to see that it is an adapter.
    pub fn publish_adapter(&self, version: &str) -> WeightsOrder {
        let files = vec![
            ("adapter_config.json", b"{}".to_vec()),
            ("adapter_model.safetensors", version.as_bytes().to_vec()),
        ];
        self.publish_files(version, files, &sha256(version.as_bytes()), |_| {})
    }

    /// Publishes these files as a version with the tensors' checksum `tensors` in its manifest.
    pub fn publish_files(
        &self,
        version: &str,
        files: Vec<(&str, Vec<u8>)>,
        tensors: &str,
        change: impl FnOnce(&mut WeightsManifest),
    ) -> WeightsOrder {
        let mut content = self.content.lock().unwrap();
        let files = files.into_iter().map(|(name, bytes)| {
            let file = WeightsFile {
                name: name.to_owned(),
                bytes: bytes.len() as u64,
                sha256: sha256(&bytes),
            };
            content.files.insert(format!("{version}/{name}"), bytes);
            file
        });
        let mut manifest = WeightsManifest {
            version: version.to_owned(),
            lineage: "a".to_owned(),
            step: 1,
            parent: None,
            files: files.collect(),
            deltas: Vec::new(),
            tensors_sha256: tensors.to_owned(),
            canary: None,
        };
        change(&mut manifest);
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let manifest_sha256 = sha256(&bytes);
        content.files.insert(format!("{version}/manifest.json"), bytes);
        WeightsOrder {
            version: version.to_owned(),
            source: format!("{}/{version}", self.url),
            manifest_sha256,
            relay: None,
        }
    }

    /// Publishes a version whose tensors differ from those of `base` in a few values, with a delta; returns the order
    /// and the checksum of its tensors.
    pub fn publish_step(&self, version: &str, base: &str) -> (WeightsOrder, String) {
        let of = |name: &str| self.file(&format!("{base}/{name}"));
        let (config, mut model) = (of("config.json"), of("model.safetensors"));
        let values = 8 + u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
        for low in model[values..].iter_mut().step_by(400) {
            *low ^= 3;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), &config).unwrap();
        std::fs::write(dir.path().join("model.safetensors"), &model).unwrap();
        let tensors = Model::load(dir.path(), version, None).unwrap().sha256;
        let files = vec![("config.json", config), ("model.safetensors", model)];
        let order = self.publish_files(version, files, &tensors, |_| {});
        (self.add_delta(&order, base, "model.safetensors"), tensors)
    }

    /// Publishes two versions with a model and a large file, a third of which is new in the second one, with its delta;
    /// returns their orders and that file.
    pub fn publish_large_steps(&self, bytes: usize) -> (WeightsOrder, WeightsOrder, Vec<u8>) {
        let old: Vec<u8> = (0..bytes as u64)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        let mut new = old.clone();
        new[..bytes / 3].reverse();
        let publish = |version: &str, seed: u64, large: Vec<u8>| {
            let dir = model_of(seed);
            let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
            let tensors = Model::load(dir.path(), version, None).unwrap().sha256;
            let files = vec![
                ("config.json", read("config.json")),
                ("model.safetensors", read("model.safetensors")),
                ("large.bin", large),
            ];
            self.publish_files(version, files, &tensors, |_| {})
        };
        let first = publish("a-v1", 2, old);
        let next = publish("a-v2", 3, new.clone());
        (first, self.add_delta(&next, "a-v1", "large.bin"), new)
    }

    /// Adds the delta of a file from that of `base` to a version; returns its order.
    pub fn add_delta(&self, order: &WeightsOrder, base: &str, name: &str) -> WeightsOrder {
        let (old, new) = (
            self.file(&format!("{base}/{name}")),
            self.file(&format!("{}/{name}", order.version)),
        );
        let (mut encoder, mut delta) = (Encoder::new().unwrap(), Vec::new());
        encoder.begin(&mut delta);
        encoder.add(&old, &new, &mut delta).unwrap();
        encoder.end(&mut delta);
        let file = WeightsFile {
            name: WeightsDelta::name_of(name),
            bytes: delta.len() as u64,
            sha256: sha256(&delta),
        };
        let path = format!("{}/{}", order.version, file.name);
        self.content.lock().unwrap().files.insert(path, delta);
        self.change_manifest(order, |manifest| {
            manifest.deltas.push(WeightsDelta {
                of: name.to_owned(),
                base: base.to_owned(),
                base_sha256: sha256(&old),
                file,
            });
        })
    }

    /// Publishes a version again with another manifest; returns its order.
    pub fn change_manifest(&self, order: &WeightsOrder, change: impl FnOnce(&mut WeightsManifest)) -> WeightsOrder {
        let path = format!("{}/manifest.json", order.version);
        let mut manifest: WeightsManifest = serde_json::from_slice(&self.file(&path)).unwrap();
        change(&mut manifest);
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let manifest_sha256 = sha256(&bytes);
        self.content.lock().unwrap().files.insert(path, bytes);
        WeightsOrder {
            manifest_sha256,
            ..order.clone()
        }
    }

    /// The bytes of a file.
    pub fn file(&self, path: &str) -> Vec<u8> {
        self.content.lock().unwrap().files[path].clone()
    }

    pub fn remove(&self, path: &str) {
        self.content.lock().unwrap().files.remove(path).unwrap();
    }

    /// Serves the folder of a version that a trainer published, with its manifest.
    pub fn serve_version(&self, folder: &std::path::Path) -> WeightsOrder {
        let manifest = std::fs::read(folder.join("manifest.json")).unwrap();
        let manifest_sha256 = sha256(&manifest);
        let version = serde_json::from_slice::<WeightsManifest>(&manifest).unwrap().version;
        for file in std::fs::read_dir(folder).unwrap() {
            let file = file.unwrap();
            let name = format!("{version}/{}", file.file_name().to_string_lossy());
            let bytes = std::fs::read(file.path()).unwrap();
            self.content.lock().unwrap().files.insert(name, bytes);
        }
        WeightsOrder {
            source: format!("{}/{version}", self.url),
            version,
            manifest_sha256,
            relay: None,
        }
    }

    /// Inverts one byte of a file; a second call restores it.
    pub fn corrupt(&self, path: &str) {
        let mut content = self.content.lock().unwrap();
        let bytes = content.files.get_mut(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }

    /// Has the files of this version only.
    pub fn keep_only(&self, version: &str) {
        let folder = format!("{version}/");
        self.content
            .lock()
            .unwrap()
            .files
            .retain(|path, _| path.starts_with(&folder));
    }

    /// Cuts the next transfer of a file short.
    pub fn break_after(&self, path: &str, bytes: usize) {
        self.content.lock().unwrap().break_after.insert(path.to_owned(), bytes);
    }

    /// Bytes of a file that were requested.
    pub fn sent(&self, path: &str) -> u64 {
        let content = self.content.lock().unwrap();
        let whole = content.files[path].len() as u64;
        let of = |range: &Option<String>| match range.as_deref().and_then(|range| range.strip_prefix("bytes=")) {
            None => whole,
            Some(range) => {
                let (from, last) = range.split_once('-').unwrap();
                last.parse::<u64>().map_or(whole, |last| last + 1) - from.parse::<u64>().unwrap()
            }
        };
        let fetched = content.fetched.iter().filter(|(name, _)| name == path);
        fetched.map(|(_, range)| of(range)).sum()
    }

    /// Requested paths, with ranges.
    pub fn fetched(&self) -> Vec<(String, Option<String>)> {
        self.content.lock().unwrap().fetched.clone()
    }
}

async fn serve_file(State(source): State<Source>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    let mut content = source.content.lock().unwrap();
    let range = headers
        .get(header::RANGE)
        .map(|range| range.to_str().unwrap().to_owned());
    content.fetched.push((path.clone(), range.clone()));
    let Some(bytes) = content.files.get(&path) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let total = bytes.len();
    let (from, end) = range.as_ref().map_or((0, total), |range| {
        let (from, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let last = last.parse::<usize>().map_or(total, |last| last + 1);
        (from.parse::<usize>().unwrap(), last)
    });
    let rest = bytes[from..end].to_vec();
    let body = match content.break_after.remove(&path) {
        None => Body::from(rest),
        Some(cut) => {
            let start = futures::stream::iter([Ok(rest[..cut.min(rest.len())].to_vec())]);
            // Sent data is flushed while the stream is pending.
            let end = futures::stream::once(async {
                tokio::task::yield_now().await;
                Err(std::io::Error::other("the line is cut"))
            });
            Body::from_stream(start.chain(end))
        }
    };
    match (from, end) {
        (0, all) if all == total => body.into_response(),
        _ => {
            let range = format!("bytes {from}-{}/{total}", end - 1);
            (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, range)], body).into_response()
        }
    }
}
