//! How agents and the trainer refuse orders of a driver that a later attempt has followed.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use grpo_contracts::driver_epoch::{DriverEpoch, Fence, HEADER, NEWER_HEADER};

/// The refusal of an order with these headers, if it is refused. Every order must name its driver.
pub fn refusal(fence: &Fence, headers: &HeaderMap) -> Option<Response> {
    let Some(from) = headers.get(HEADER) else {
        return Some((StatusCode::BAD_REQUEST, "the order names no driver").into_response());
    };
    let from = DriverEpoch::parse(from.as_bytes()).unwrap();
    let superseded = fence.admit(Some(from), || ()).err()?;
    let newer = [(NEWER_HEADER, superseded.newer.to_string())];
    Some((StatusCode::CONFLICT, newer, superseded.to_string()).into_response())
}

/// As if this attempt of the run's driver had given an order.
pub fn hears_of(fence: &Fence, attempt: u32) {
    let run = "uid-1".to_owned();
    fence.admit(Some(DriverEpoch { run, attempt }), || ()).unwrap();
}
