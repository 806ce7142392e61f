//! The operator as a process beside a control plane without nodes, and waits, shared by its tests.

mod bad_input;
mod bench;
mod colocation;
mod nodes;
mod ownership;
mod refusals;
mod rest;
mod waits;

use std::time::{Duration, Instant};

use crate::support::Result;
use grpo_testing::ask::{Refusal, Verb, ask};
use grpo_testing::chart;
use grpo_testing::control_plane::{ControlPlane, OPERATORS, Part, free_port};
use kube::Client;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const START: Duration = Duration::from_secs(60);

/// A running operator with the rights that the chart gives it.
pub struct Operator {
    pub part: Part,
    port: u16,
}

impl Operator {
    /// Starts it, and waits until it reconciles.
    pub async fn start(plane: &ControlPlane, log: &str) -> Result<Self> {
        Self::start_with(plane, log, &[]).await
    }

    /// The same with more flags.
    pub async fn start_with(plane: &ControlPlane, log: &str, more: &[&str]) -> Result<Self> {
        let port = free_port()?;
        let mut flags = vec![
            format!("--listen=127.0.0.1:{port}"),
            format!("--lease-namespace={}", chart::SYSTEM),
            format!("--identity={}", OPERATORS[0]),
            format!("--log={log}"),
        ];
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let kubeconfig = plane.user(OPERATORS[0])?.kubeconfig.display().to_string();
        let environment = vec![("KUBECONFIG".to_owned(), kubeconfig)];
        let program = grpo_testing::program("grpo-operator").ok_or("grpo-operator is not built: make test-operator")?;
        let part = Part::start_with("grpo-operator", &program, flags, environment, plane.folder())?;
        let mut operator = Self { part, port };
        until(START, "the operator to reconcile", async || {
            let leads = operator.metric("grpo_operator_leader").await.unwrap_or_default();
            (leads == Some(1.0)).then_some(()).ok_or_else(|| operator.part.log())
        })
        .await?;
        operator.part.runs()?;
        Ok(operator)
    }

    /// The value of one of its metrics, by name and labels.
    pub async fn metric(&self, name: &str) -> Result<Option<f64>> {
        let text = self.metrics().await?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.and_then(|value| value.trim().parse().ok()))
    }

    pub async fn metrics(&self) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

/// Repeats a question until it has an answer; the error contains the last observation.
pub async fn until<T>(
    limit: Duration,
    what: &str,
    mut found: impl AsyncFnMut() -> std::result::Result<T, String>,
) -> Result<T> {
    let begun = Instant::now();
    loop {
        let there = match found().await {
            Ok(answer) => return Ok(answer),
            Err(there) => there,
        };
        if begun.elapsed() > limit {
            return Err(format!("waited {limit:?} in vain for {what}; there is: {there}").into());
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// The object with a manifest's name.
pub async fn get(client: &Client, manifest: &Value) -> std::result::Result<Value, Refusal> {
    ask(client, Verb::Get, manifest, false).await
}

/// A namespace for pods.
pub async fn namespace(client: &Client, name: &str, labels: Value) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    ask(client, Verb::Create, &namespace, false).await?;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}});
    until(START, "the namespace's service account", async || {
        get(client, &account)
            .await
            .map(drop)
            .map_err(|refusal| refusal.to_string())
    })
    .await
}

/// A run that trains, with pools of its own.
pub fn run_called(name: &str, namespace: &str) -> Value {
    let mut run = crate::manifests::bases()["train"].clone();
    run["metadata"] = json!({"name": name, "namespace": namespace});
    run
}

/// Waits until a condition of an object is not true for this reason, with a message that contains these words.
pub async fn told(
    client: &Client,
    manifest: &Value,
    condition: &str,
    reason: &str,
    limit: Duration,
    words: &[&str],
) -> Result<()> {
    until(limit, reason, async || {
        let there = get(client, manifest).await.map_err(|refusal| refusal.to_string())?;
        let conditions = there["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|one| one["type"] == condition);
        let found = found.ok_or_else(|| there["status"].to_string())?;
        let says = |word: &&str| found["message"].as_str().is_some_and(|message| message.contains(*word));
        let is_so = found["status"] != "True" && found["reason"] == reason && words.iter().all(says);
        if is_so { Ok(()) } else { Err(found.to_string()) }
    })
    .await
}
