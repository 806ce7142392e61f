//! The simulated sandbox gateway: it grants every lease, ends every command at once with the same output, and returns
//! empty patches. A command-line agent's command lasts as long as the [`Session`] of its conversation.

use super::DriverBenchError;
use super::engine::serve;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use grpo_sandbox_protocol::{ExecRequest, ExecResult, Lease, LeaseRequest, PoolState, RelayRequest};
use serde_json::json;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// The id of a command-line agent's command.
const AGENT: &str = "agent";
/// First letter of the ids of the policy's commands.
const OF_A_TURN: char = 't';

/// An episode whose agent is this process.
pub struct Session {
    pub lease: String,
    /// URL of the recording endpoint for this episode.
    pub url: String,
    /// Dropping it ends the agent.
    _running: oneshot::Sender<()>,
}

struct Shared {
    output: String,
    relays: Mutex<HashMap<String, String>>,
    sessions: mpsc::UnboundedSender<Session>,
    /// While closed, the policy's commands do not end.
    commands: watch::Sender<bool>,
    running: AtomicUsize,
    /// Leases that were granted so far.
    leased: AtomicUsize,
}

/// Serves until it is dropped.
pub struct PlayedGateway {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl PlayedGateway {
    /// `output` is the output of every command of the policy.
    pub async fn start(output: &str) -> Result<(Self, mpsc::UnboundedReceiver<Session>), DriverBenchError> {
        let (sessions, begun) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            output: output.to_owned(),
            relays: Mutex::default(),
            sessions,
            commands: watch::channel(true).0,
            running: AtomicUsize::new(0),
            leased: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route("/v1/leases", post(lease))
            .route("/v1/leases/{id}", get(renew).delete(release))
            .route("/v1/leases/{id}/renew", post(renew))
            .route("/v1/leases/{id}/relay", put(relay))
            .route("/v1/leases/{id}/exec", post(exec))
            .route("/v1/leases/{id}/exec/kill", post(async || Json(json!({"id": AGENT}))))
            .route(
                "/v1/leases/{id}/files",
                get(async || Bytes::new()).put(async || StatusCode::NO_CONTENT),
            )
            .route("/v1/demand", put(async || StatusCode::NO_CONTENT))
            .route("/v1/pool", get(pool))
            .with_state(shared.clone());
        let (address, serving) = serve(router).await?;
        let this = Self {
            address,
            shared,
            serving,
        };
        Ok((this, begun))
    }

    /// Sets whether the policy's commands end.
    pub fn end_commands(&self, end: bool) {
        self.shared.commands.send_replace(end);
    }

    /// The number of unended commands of the policy.
    pub fn running(&self) -> usize {
        self.shared.running.load(Ordering::Relaxed)
    }

    /// The number of leases that were granted so far.
    pub fn leased(&self) -> usize {
        self.shared.leased.load(Ordering::Relaxed)
    }
}

impl Drop for PlayedGateway {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn lease(State(shared): State<Arc<Shared>>, Json(request): Json<LeaseRequest>) -> Json<Lease> {
    shared.leased.fetch_add(1, Ordering::Relaxed);
    Json(granted(request.id, request.image))
}

async fn renew(Path(id): Path<String>) -> Json<Lease> {
    Json(granted(id, "image".into()))
}

async fn release(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> StatusCode {
    shared.relays().remove(&id);
    StatusCode::NO_CONTENT
}

async fn relay(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Json(relay): Json<RelayRequest>,
) -> StatusCode {
    shared.relays().insert(id, relay.to);
    StatusCode::NO_CONTENT
}

async fn pool() -> Json<PoolState> {
    Json(PoolState {
        max: 100_000,
        ..PoolState::default()
    })
}

async fn exec(
    State(shared): State<Arc<Shared>>,
    Path(lease): Path<String>,
    Json(request): Json<ExecRequest>,
) -> Json<ExecResult> {
    let mut output = String::new();
    if request.id == AGENT {
        let url = shared.relays().get(&lease).cloned().unwrap_or_default();
        let (running, ended) = oneshot::channel();
        let _ = shared.sessions.send(Session {
            lease,
            url,
            _running: running,
        });
        let _ = ended.await;
    } else if request.id.starts_with(OF_A_TURN) {
        let mut commands = shared.commands.subscribe();
        if !*commands.borrow_and_update() {
            shared.running.fetch_add(1, Ordering::Relaxed);
            let _ = commands.wait_for(|end| *end).await;
            shared.running.fetch_sub(1, Ordering::Relaxed);
        }
        output.clone_from(&shared.output);
    }
    Json(ExecResult {
        id: request.id,
        exit_code: Some(0),
        signal: None,
        timed_out: false,
        output,
        omitted_bytes: 0,
        duration_millis: 0,
        killed: None,
    })
}

impl Shared {
    fn relays(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn granted(id: String, image: String) -> Lease {
    Lease {
        sandbox: format!("pod-{id}"),
        id,
        epoch: 1,
        image,
        node: "played".into(),
        expires_at: i64::MAX,
    }
}
