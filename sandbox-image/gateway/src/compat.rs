//! Other systems' HTTP contracts, so that their clients work on a SandboxPool unchanged but for the URL.
//!
//! Each is a translation into the gateway's own API ([`own`]) and keeps no books: a lease of theirs is a lease like any
//! other, in the ledger, in the queue, in the counts. [`pool`] and [`nodes`] are the two servers of a remote container
//! pool, which share their work ([`work`]); [`retries`] tells a call that is made again from a new one. [`swerex`] is
//! SWE-ReX's server.

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

/// Bodies of calls may take as much memory together as so many of the largest files. What they wait for is room of
/// their own: callers of the gateway's own API never wait for them.
const FILES_IN_MEMORY: usize = 2;

/// What every call of a compatible server needs.
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
        // Bodies are bounded before.
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
