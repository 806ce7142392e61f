//! A gateway with one lease, whose sandbox is a real sandboxd, for tests of a holder's work.

use std::sync::Arc;

use axum::Router;
use grpo_gateway::core::{Core, now};
use grpo_gateway::index::{ActiveLease, Bounds, Found, Index};
use grpo_gateway::ledger;
use grpo_gateway::pod::Template;
use grpo_gateway::sandbox::{Holder, Sandboxes};
use grpo_sandbox_protocol::{LedgerEntry, Priority, Signer};
use kube::api::Api;
use reqwest::StatusCode;
use serde_json::Value;

use crate::played::sandboxes::Sandboxds;
use crate::played::{Nodes as _, SEED};

/// The one sandbox of a pool.
pub const SANDBOX: &str = "s";

/// A gateway with one lease, and a sandboxd in its sandbox.
pub struct Leased {
    pub core: Arc<Core>,
    pub sandboxds: Sandboxds,
    pub url: String,
    pub http: reqwest::Client,
}

impl Leased {
    pub async fn begin() -> Self {
        let (sandboxds, signer) = (Sandboxds::default(), Signer::from_seed(&SEED));
        let ip = sandboxds.start(SANDBOX);
        let bounds = Bounds {
            max: 2,
            reserved: 0,
            warm_max: 2,
            orders: 2,
            waiting: 100,
            per_node: None,
            max_ttl_millis: 100_000,
            idle_millis: 100_000,
        };
        let template = Template {
            pool: "p".into(),
            pool_uid: "u".into(),
            namespace: "n".into(),
            sandboxd_image: "sandboxd:1".into(),
            public_key: "key".into(),
            spec: serde_yaml_ng::from_str("max: 2").unwrap(),
            term: 1,
        };
        let no_server = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let pods = Api::namespaced(kube::Client::try_from(no_server).unwrap(), "n");
        let (changes, mut receiver) = ledger::channel();
        tokio::spawn(async move { while receiver.recv().await.is_some() {} });
        let (index, sandboxes) = (Index::new(bounds), Sandboxes::new(signer));
        let core = Core::new(index, pods, changes, sandboxes, template, Default::default());
        let entry = LedgerEntry {
            lease: "l/1".into(),
            run: "r".into(),
            sandbox: SANDBOX.into(),
            pod_uid: "u".into(),
            restarts: 0,
            image: "x".into(),
            epoch: 7,
            expires_at: now() + 100_000,
            ttl_millis: 100_000,
            priority: Priority::Agent,
        };
        let found = Found { ip, ..Found::default() };
        let held = ActiveLease::restored(entry, found, now());
        core.sandboxes.bind(Holder::of(&held), 100).await.unwrap();
        core.look(|index| index.leases.insert("l/1".into(), held));
        let url = serve(grpo_gateway::http::router(core.clone())).await;
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self {
            core,
            sandboxds,
            url,
            http,
        }
    }

    pub fn at(&self, path: &str) -> String {
        format!("{}/v1/leases/l%2F1/{path}", self.url)
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        told(self.http.post(self.at(path)).json(&body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> (StatusCode, Value) {
        told(self.http.put(self.at(path)).json(&body)).await
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        told(self.http.get(self.at(path))).await
    }

    pub fn running(&self) -> u32 {
        self.core.look(|index| index.leases["l/1"].running)
    }
}

pub async fn told(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Serves the routes and returns their URL.
pub async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}
