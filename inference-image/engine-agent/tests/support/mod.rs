//! An agent on its own port. Its engines are in [`engine`] and [`fake`], its weights come from a [`source`].

#[path = "../../../engine/tests/support/mod.rs"]
pub mod engine;
pub mod fake;
pub mod source;

use axum::http::{HeaderMap, header};
use grpo_auth::{AllowedAccount, LocalIssuer, ServiceAccount};
use grpo_contracts::access::Service;
use grpo_engine_agent::http::Limits;
use grpo_engine_agent::http::access::Grants;
use grpo_engine_agent::worker::Pace;
use grpo_engine_agent::{AgentError, Kind, Options, new_instance, serve};
use grpo_engine_protocol::{
    AgentState, AgentStatus, ChatRequest, ChatResponse, CompletionRequest, CompletionResponse, ErrorBody, SleepOrder,
    WEIGHTS_HEADER, WeightsOrder,
};
use grpo_free_port::free_port;
use reqwest::Client;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use source::Source;

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

/// The account of the operator, which may read the report.
pub fn operator() -> ServiceAccount {
    ServiceAccount::new("grpo-system", "operator")
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

/// A listener at a port that no other test gets while its server is away.
pub async fn at_own_port() -> TcpListener {
    TcpListener::bind(("127.0.0.1", free_port().unwrap())).await.unwrap()
}

/// The pause before a failed order is tried again.
const PAUSE: Duration = Duration::from_millis(100);

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
        Self::of_issuer(&issuer, kind, engine, api_key, places, patience, PAUSE).await
    }

    /// An agent that shows a failure for this long before it tries again.
    pub async fn pausing(engine: &str, pause: Duration) -> Self {
        let (issuer, patience) = (Arc::new(LocalIssuer::new().unwrap()), Duration::from_secs(30));
        Self::of_issuer(&issuer, Kind::Embedded, engine, None, 16, patience, pause).await
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
            agents.push(Self::of_issuer(&issuer, Kind::Embedded, engine, None, 16, patience, PAUSE).await);
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
        pause: Duration,
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
                first_pause: pause,
                longest_pause: 2 * pause,
                load_deadline: patience,
                empty_deadline: Duration::from_millis(300),
                client_grace: Duration::from_millis(200),
            },
            tokens: cache.path().join("tokens"),
            own_token: false,
            drain_key: Some(DRAIN_KEY.to_owned()),
            grants: Grants {
                everything: vec![allowed(&driver())],
                chunks: vec![allowed(&engines())],
                status: vec![allowed(&operator())],
                sampling: vec![allowed(&notebook())],
            },
            client_inflight: CLIENT_PLACES,
        };
        issuer
            .write_tokens(&cache.path().join("tokens"), &engines(), &[Service::EngineAgent])
            .unwrap();
        let guard = issuer.guard(Service::EngineAgent, &[driver(), engines(), operator(), notebook()]);
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
