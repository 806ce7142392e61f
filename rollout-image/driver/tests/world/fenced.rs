//! How agents and the trainer refuse orders of a driver that a later attempt has followed.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use grpo_contracts::driver_epoch::{DriverEpoch, Fence, HEADER, NEWER_HEADER};
use std::sync::Arc;

/// `router` behind the fence. Every order is a PUT, and no other request is.
pub fn behind(fence: Arc<Fence>, router: Router) -> Router {
    router.layer(middleware::from_fn_with_state(fence, refuse_superseded))
}

async fn refuse_superseded(State(fence): State<Arc<Fence>>, request: Request, next: Next) -> Response {
    let refused = match *request.method() {
        Method::PUT => refusal(&fence, request.headers()),
        _ => None,
    };
    match refused {
        Some(refusal) => refusal,
        None => next.run(request).await,
    }
}

/// The refusal of an order with these headers, if it is refused. Every order must name its driver.
fn refusal(fence: &Fence, headers: &HeaderMap) -> Option<Response> {
    let from = DriverEpoch::of_header(headers.get(HEADER).map(HeaderValue::as_bytes)).unwrap();
    if from.is_none() {
        return Some((StatusCode::BAD_REQUEST, "the order names no driver").into_response());
    }
    let superseded = fence.admit(from, || ()).err()?;
    let newer = [(NEWER_HEADER, superseded.newer.to_string())];
    Some((StatusCode::CONFLICT, newer, superseded.to_string()).into_response())
}

/// As if this attempt of the run's driver had given an order.
pub fn hears_of(fence: &Fence, attempt: u32) {
    let run = "uid-1".to_owned();
    fence.admit(Some(DriverEpoch { run, attempt }), || ()).unwrap();
}
