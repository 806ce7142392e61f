//! Orders of the newest attempt of a run's driver only: the rules are in [`grpo_contracts::driver_epoch`].
//!
//! A new agent process remembers nothing until a driver calls it.

use super::refusal;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use grpo_contracts::driver_epoch::{DriverEpoch, Fence, HEADER, NEWER_HEADER};
use grpo_engine_protocol::{ErrorBody, ErrorCode};

/// Accepts an order and hands it over with `take`, or refuses it.
pub(super) fn admit(fence: &Fence, headers: &HeaderMap, take: impl FnOnce() -> bool) -> Response {
    let from = match DriverEpoch::of_header(headers.get(HEADER).map(HeaderValue::as_bytes)) {
        Ok(from) => from,
        Err(error) => return refusal(ErrorBody::new(ErrorCode::InvalidRequest, error.to_string())),
    };
    match fence.admit(from, take) {
        Ok(_) => StatusCode::ACCEPTED.into_response(),
        Err(superseded) => {
            tracing::warn!(%superseded, "order refused");
            let body = ErrorBody::new(ErrorCode::DriverSuperseded, superseded.to_string());
            ([(NEWER_HEADER, superseded.newer.to_string())], refusal(body)).into_response()
        }
    }
}
