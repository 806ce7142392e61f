//! Other systems' contracts over real sockets, with real sandboxd processes; only the cluster is simulated. A separate
//! binary, because `garbage` measures the memory of its own process.

#![allow(clippy::unwrap_used)]

#[path = "../played/mod.rs"]
mod played;

#[path = "../../../sandboxd/tests/sandboxd/dice.rs"]
mod dice;

mod clients;
mod defects;
mod garbage;
mod nodes;
mod openapi;
mod pool;

use std::sync::Arc;
use std::time::Duration;

use grpo_gateway::index::Bounds;
use played::sandboxes::Sandboxds;
use played::{Gateway, Server, bounds};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// Longer than any step here may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A pool, and a folder that its sandboxes see: here they are processes of this machine.
pub struct World {
    pub server: Server,
    pub gateway: Gateway,
    pub url: String,
    pub http: reqwest::Client,
    pub folder: tempfile::TempDir,
    spec: String,
    bounds: Bounds,
}

impl World {
    pub async fn of(bounds: Bounds) -> Self {
        Self::with(bounds, "allowUnenforced: true").await
    }

    pub async fn with(bounds: Bounds, spec: &str) -> Self {
        Self::on(Sandboxds::default(), bounds, spec).await
    }

    pub async fn on(sandboxds: Sandboxds, bounds: Bounds, spec: &str) -> Self {
        let server = Server::serve(Arc::new(sandboxds), bounds.max).await;
        let spec = format!("max: {}\n{spec}", bounds.max);
        let mut gateway = Gateway::begin(&server, bounds, &spec).await;
        let url = format!("http://{}", gateway.listen().await);
        Self {
            server,
            gateway,
            url,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            folder: tempfile::tempdir().unwrap(),
            spec,
            bounds,
        }
    }

    pub async fn small() -> Self {
        Self::of(bounds(2)).await
    }

    /// Ends the gateway and begins another.
    pub async fn restart(self) -> Self {
        self.gateway.end().await;
        let mut gateway = Gateway::begin(&self.server, self.bounds, &self.spec).await;
        let url = format!("http://{}", gateway.listen().await);
        Self { gateway, url, ..self }
    }

    pub fn request(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.http.post(format!("{}{path}", self.url)).json(body)
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        answer(self.request(path, &body)).await
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, body) = answer(self.http.get(format!("{}{path}", self.url))).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// A successful call to the pool server.
    pub async fn pool(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(&format!("/compat/pool{path}"), body).await;
        assert_eq!(
            (status.as_u16(), &answer["ok"]),
            (200, &json!(true)),
            "{path}: {answer}"
        );
        answer
    }

    pub async fn allocate(&self) -> String {
        let leased = self
            .pool("/allocate", json!({"image": "task:1", "instance_id": "a__b-1"}))
            .await;
        leased["lease_id"].as_str().unwrap().to_owned()
    }

    pub fn cwd(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    pub async fn exec(&self, lease: &str, command: &str) -> Value {
        let body = json!({"lease_id": lease, "command": command, "cwd": self.cwd(), "timeout": 30, "env": {}});
        self.pool("/exec", body).await
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    pub async fn leases(&self) -> u64 {
        self.get("/compat/pool/status").await["pool"]["total_leases"]
            .as_u64()
            .unwrap()
    }

    /// A repository with one file, committed.
    pub async fn repository(&self, lease: &str) {
        let make = "git init -q . && git config user.email a@b && git config user.name a && printf 'one\\ntwo\\n' > f && git add f && git commit -qm base";
        assert_eq!(self.exec(lease, make).await["returncode"], 0);
    }
}

pub async fn answer(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text}"));
    (status, body)
}

/// Waits for a state.
pub async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain: {what}");
}
