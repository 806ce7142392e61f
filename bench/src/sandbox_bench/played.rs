//! Simulated sandboxes: many pods share one address, and nothing runs there. Binds are checked as sandboxd checks them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use grpo_sandbox_protocol::{
    Bind, SANDBOXD_PORT, Signed, Verifier,
    signature::{EPOCH_HEADER, LEASE_HEADER, SIGNATURE_HEADER, TIME_HEADER},
};
use jiff::Timestamp;
use serde_json::json;
use tokio::{net::TcpListener, task::JoinHandle};

use super::SandboxBenchError;

/// Serves all addresses of a control plane until it is dropped.
pub struct Played {
    tasks: Vec<JoinHandle<()>>,
    binds: Arc<Binds>,
}

struct Binds {
    verifier: Verifier,
    taken: AtomicU64,
    refused: AtomicU64,
}

impl Played {
    pub async fn serve(at: &[Ipv4Addr], public_key: &str) -> Result<Self, SandboxBenchError> {
        let verifier =
            Verifier::from_base64(public_key).map_err(|error| SandboxBenchError::Wrong(error.to_string()))?;
        let binds = Arc::new(Binds {
            verifier,
            taken: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let mut tasks = Vec::new();
        for address in at {
            let listener = TcpListener::bind(SocketAddr::from((*address, SANDBOXD_PORT))).await?;
            let router = Router::new()
                .route("/healthz", get(async || "ok"))
                .route("/bind", post(bind))
                // Reports that nothing was reached, so the gateway does not probe again.
                .route(
                    "/probe",
                    post(async || Json(json!({"reached": [], "limits": {"userNamespace": true}}))),
                )
                // The next request finds a container that restarted at once.
                .route("/reset", post(async || StatusCode::NO_CONTENT))
                .with_state(binds.clone());
            tasks.push(tokio::spawn(async move {
                // Ends only when dropped.
                let _ = axum::serve(listener, router).await;
            }));
        }
        Ok(Self { tasks, binds })
    }

    /// The numbers of accepted and of rejected binds.
    pub fn binds(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.binds.taken), count(&self.binds.refused))
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn bind(State(binds): State<Arc<Binds>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    match is_right(&binds.verifier, &headers, &body) {
        Some(true) => {
            binds.taken.fetch_add(1, Ordering::Relaxed);
            StatusCode::NO_CONTENT
        }
        _ => {
            binds.refused.fetch_add(1, Ordering::Relaxed);
            StatusCode::UNAUTHORIZED
        }
    }
}

fn is_right(verifier: &Verifier, headers: &HeaderMap, body: &Bytes) -> Option<bool> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let lease = header(LEASE_HEADER)?;
    let signed = Signed {
        method: "POST",
        target: "/bind",
        lease,
        epoch: header(EPOCH_HEADER)?.parse().ok()?,
        unix_millis: header(TIME_HEADER)?.parse().ok()?,
        body,
    };
    let bind: Bind = serde_json::from_slice(body).ok()?;
    let now = Timestamp::now().as_millisecond();
    let is_believed = verifier.verify(&signed, header(SIGNATURE_HEADER)?, now).is_ok();
    Some(is_believed && bind.lease == lease && bind.epoch == signed.epoch)
}
