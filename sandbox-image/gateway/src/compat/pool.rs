//! The pool server's contract: leases and the work in them, at one address for all nodes.
//!
//! The base URL of an unmodified client is `http://<pool>-gateway:8080/compat/pool`, or `/compat/pool/<run>`: the queue
//! is fair between runs.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;

use super::Compat;
use super::work::{self, Answer, Body, Failed, RUN, TTL, given, read, unknown};

/// How long an allocation waits in the queue. The client has no limit of its own, and retries.
const WAIT: Duration = Duration::from_secs(600);

type Run = Option<Path<String>>;
type Shared = State<Compat>;

pub fn router() -> Router<Compat> {
    calls().nest("/{run}", calls())
}

fn calls() -> Router<Compat> {
    Router::new()
        .route("/healthz", get(|| async { Json(json!({"ok": true})) }))
        .route("/status", get(status))
        .route("/images", get(images))
        .route("/allocate", post(allocate))
        .route("/heartbeat", post(heartbeat))
        .route("/exec", post(exec))
        .route("/diff", post(diff))
        .route("/evaluate", post(evaluate))
        .route("/close", post(close))
}

/// The URL of the exec server's contract, as the caller reaches it.
fn node_url(headers: &HeaderMap) -> String {
    let host = headers.get("host").and_then(|host| host.to_str().ok());
    format!("http://{}/compat/exec", host.unwrap_or("localhost"))
}

/// Reports one node. The number of nodes behind it is up to the cluster.
async fn status(State(compat): Shared, headers: HeaderMap) -> Answer {
    let core = &compat.own.core;
    let state = core.look(|index| index.state());
    let node = json!({
        "url": node_url(&headers),
        "active_containers": state.leased,
        "max_containers": state.max,
        "healthy": core.is_ready(),
    });
    Ok(Json(
        json!({"ok": true, "pool": {"total_leases": state.leased, "nodes": [node]}}),
    ))
}

async fn images(State(compat): Shared, headers: HeaderMap) -> Answer {
    let images = super::nodes::present(&compat);
    let node = json!({"url": node_url(&headers), "ok": true, "count": images.len(), "images": images});
    Ok(Json(json!({"ok": true, "nodes": [node]})))
}

async fn allocate(State(compat): Shared, run: Run, headers: HeaderMap, body: Bytes) -> Answer {
    let body = read(&headers, body)?;
    let run = run.map_or(RUN.to_owned(), |Path(run)| run);
    let id = |random: String| format!("swe-lease-{random}");
    let lease = work::lease(&compat, &run, &body, WAIT, id, 16).await?;
    // The exec server uses the same name for the lease, so a client of the node finds the sandbox there.
    Ok(Json(json!({
        "ok": true,
        "lease_id": lease.id,
        "container_id": lease.id,
        "node_url": node_url(&headers),
    })))
}

async fn heartbeat(State(compat): Shared, headers: HeaderMap, body: Bytes) -> Answer {
    let body = read(&headers, body)?;
    let lease = given(body.lease_id, "lease_id required")?;
    match compat.own.renew(&lease, TTL).await {
        Ok(_) => Ok(Json(json!({"ok": true}))),
        Err(error) => Err(unknown(error, "lease_id", &lease)),
    }
}

/// The lease's id, if the lease exists.
async fn known(compat: &Compat, body: &Body, error: &str) -> Result<String, Failed> {
    let lease = given(body.lease_id.clone(), error)?;
    match compat.own.look(&lease).await {
        Err(error) if error.code == grpo_sandbox_protocol::ErrorCode::NoSuchLease => {
            Err(unknown(error, "lease_id", &lease))
        }
        // If the sandbox is lost, the call itself reports the cause.
        _ => Ok(lease),
    }
}

async fn exec(State(compat): Shared, headers: HeaderMap, body: Bytes) -> Answer {
    let body = read(&headers, body)?;
    let missing = "lease_id and command required";
    let command = given(body.command.clone(), missing)?;
    let lease = known(&compat, &body, missing).await?;
    work::exec(&compat, &lease, &body, &command).await
}

async fn diff(State(compat): Shared, headers: HeaderMap, body: Bytes) -> Answer {
    let body = read(&headers, body)?;
    let lease = known(&compat, &body, "lease_id required").await?;
    work::diff(&compat, &lease, &body).await
}

async fn evaluate(State(compat): Shared, headers: HeaderMap, body: Bytes) -> Answer {
    let body = read(&headers, body)?;
    let lease = known(&compat, &body, "lease_id required").await?;
    work::evaluate(&compat, &lease, &body).await
}

/// Closing a lease that does not exist succeeds.
async fn close(State(compat): Shared, headers: HeaderMap, body: Bytes) -> Answer {
    let body = read(&headers, body)?;
    let lease = given(body.lease_id, "lease_id required")?;
    compat.own.release(&lease).await?;
    Ok(Json(json!({"ok": true})))
}
