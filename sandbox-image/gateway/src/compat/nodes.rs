//! The exec server's contract: containers on one node. Here the node is the whole pool.
//!
//! A container is a lease, and its id is the id of the lease. Lists show only the first twelve digits of the id. Calls
//! do not accept these short ids, because knowledge of a full id gives access to the container.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::{get, post};
use axum::{Json, Router};
use grpo_sandbox_protocol::ErrorCode;
use serde_json::{Map, Value, json};

use super::Compat;
use super::work::{self, Answer, Body, Failed, RUN, given, read, unknown};

/// Default wait in the queue for a new container.
const WAIT_SECONDS: u64 = 120;
const ID_DIGITS: usize = 64;
const SHORT_DIGITS: usize = 12;

type Shared = State<Compat>;

pub fn router() -> Router<Compat> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/images", get(images))
        .route("/status", get(status))
        .route("/container/create", post(create))
        .route("/container/exec", post(exec))
        .route("/container/diff", post(diff))
        .route("/container/evaluate", post(evaluate))
        .route("/container/destroy", post(destroy))
}

fn short(id: &str) -> &str {
    id.get(..SHORT_DIGITS).unwrap_or(id)
}

async fn healthz(State(compat): Shared) -> Answer {
    let leased = compat.own.core.look(|index| index.leases.len());
    Ok(Json(json!({"ok": true, "running_containers": leased.to_string()})))
}

/// Images of the existing sandboxes.
pub fn present(compat: &Compat) -> BTreeSet<String> {
    compat.own.core.look(|index| {
        let images = index.sandboxes.values().map(|sandbox| sandbox.image.clone());
        images.filter(|image| !image.is_empty()).collect()
    })
}

async fn images(State(compat): Shared) -> Answer {
    let images = present(&compat);
    Ok(Json(json!({"ok": true, "count": images.len(), "images": images})))
}

async fn status(State(compat): Shared) -> Answer {
    let containers: Map<String, Value> = compat.own.core.look(|index| {
        let ours = index.leases.values().filter(|held| held.granted);
        let ours = ours.filter(|held| is_container(&held.entry.lease));
        let shown = ours.map(|held| {
            let id = short(&held.entry.lease);
            let created = held.asked_at as f64 / 1000.0;
            let container = json!({"name": format!("swe-{id}"), "image": held.entry.image, "created_at": created});
            (id.to_owned(), container)
        });
        shown.collect()
    });
    Ok(Json(
        json!({"ok": true, "active_containers": containers.len(), "containers": containers}),
    ))
}

fn is_container(lease: &str) -> bool {
    lease.len() == ID_DIGITS && lease.bytes().all(|byte| byte.is_ascii_hexdigit())
}

async fn create(State(compat): Shared, headers: HeaderMap, body: Bytes) -> Answer {
    let body = read(&headers, body)?;
    let wait = Duration::from_secs(body.seconds(WAIT_SECONDS)?);
    let lease = work::lease(&compat, RUN, &body, wait, |random| random, ID_DIGITS).await?;
    let name = format!("swe-{}", short(&lease.id));
    Ok(Json(json!({"ok": true, "container_id": lease.id, "name": name})))
}

/// The lease's id, if the container exists.
async fn known(compat: &Compat, body: &Body, missing: &str) -> Result<String, Failed> {
    let id = given(body.container_id.clone(), missing)?;
    match compat.own.look(&id).await {
        Err(error) if error.code == ErrorCode::NoSuchLease => Err(unknown(error, "container", &id)),
        // If the sandbox is lost, the call itself reports the cause.
        _ => Ok(id),
    }
}

async fn exec(State(compat): Shared, headers: HeaderMap, body: Bytes) -> Answer {
    let body = read(&headers, body)?;
    let missing = "container_id and command are required";
    let command = given(body.command.clone(), missing)?;
    let container = known(&compat, &body, missing).await?;
    work::exec(&compat, &container, &body, &command).await
}

async fn diff(State(compat): Shared, headers: HeaderMap, body: Bytes) -> Answer {
    let body = read(&headers, body)?;
    let container = known(&compat, &body, "container_id is required").await?;
    work::diff(&compat, &container, &body).await
}

async fn evaluate(State(compat): Shared, headers: HeaderMap, body: Bytes) -> Answer {
    let body = read(&headers, body)?;
    let container = known(&compat, &body, "container_id is required").await?;
    work::evaluate(&compat, &container, &body).await
}

/// Destroying a container that does not exist succeeds.
async fn destroy(State(compat): Shared, headers: HeaderMap, body: Bytes) -> Answer {
    let body = read(&headers, body)?;
    let container = given(body.container_id, "container_id is required")?;
    compat.own.release(&container).await?;
    Ok(Json(json!({"ok": true})))
}
