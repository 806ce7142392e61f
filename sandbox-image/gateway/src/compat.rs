//! HTTP contracts of other systems: their clients work on a SandboxPool with a changed URL only.
//!
//! Each contract is a translation into the gateway's own API ([`own`]) and keeps no state: its leases are ordinary
//! leases in the ledger, the queue and the counts. [`pool`] and [`nodes`] are the two servers of a remote container
//! pool, with shared code in [`work`]; [`retries`] tells a repeated call from a new one. [`swerex`] is SWE-ReX's
//! server.

mod nodes;
mod own;
mod pool;
mod retries;
mod swerex;
mod work;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use grpo_sandbox_protocol::{MAX_JSON_BYTES, Room};

use crate::core::Core;
use own::Own;
use retries::Retries;

/// Maximum memory for the bodies of these calls, in files of the maximum size. It is separate from the room of the
/// gateway's own API, so callers of that API never wait for these bodies.
const FILES_IN_MEMORY: usize = 2;

/// Shared state of all calls to a compatible server.
#[derive(Clone)]
pub(crate) struct Compat {
    own: Own,
    retries: Retries,
}

/// The routes, in front of the gateway's own API.
pub fn router(core: Arc<Core>, api: Router) -> Router {
    let compat = Compat {
        own: Own::new(core, api),
        retries: Retries::default(),
    };
    Router::new()
        .nest("/compat/pool", pool::router().with_state(compat.clone()))
        .nest("/compat/exec", nodes::router().with_state(compat.clone()))
        .nest("/compat/swerex", swerex::router().with_state(compat))
        // The body limit is enforced in `read_body`.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(
            Room::of_files(FILES_IN_MEMORY),
            read_body,
        ))
}

/// Reads the body of a call once there is room for it.
async fn read_body(State(room): State<Room>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let limit = match head.uri.path().ends_with("/upload") {
        true => swerex::MAX_UPLOAD_BYTES,
        false => MAX_JSON_BYTES,
    };
    match crate::body::read(&room, body, limit).await {
        Ok(body) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err(error) => {
            let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (status, Json(error)).into_response()
        }
    }
}
