//! Refused orders: their body, and the refusal of an order of a driver that a later attempt has followed. Those rules
//! are in [`grpo_contracts::driver_epoch`].

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use grpo_contracts::driver_epoch::{DriverEpoch, Fence, HEADER, NEWER_HEADER, SUPERSEDED};

pub(super) fn refusal(status: StatusCode, code: &str, message: &str, fault: &str) -> Response {
    (
        status,
        Json(serde_json::json!({"code": code, "message": message, "fault": fault})),
    )
        .into_response()
}

/// Answers an order by `take`, which hands it over, or refuses it.
pub(super) fn admit(fence: &Fence, headers: &HeaderMap, take: impl FnOnce() -> Response) -> Response {
    let from = match DriverEpoch::of_header(headers.get(HEADER).map(HeaderValue::as_bytes)) {
        Ok(from) => from,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, "BadRequest", &error.to_string(), "Client"),
    };
    fence.admit(from, take).unwrap_or_else(|superseded| {
        tracing::warn!(%superseded, "order refused");
        let message = superseded.to_string();
        let body = refusal(StatusCode::CONFLICT, SUPERSEDED, &message, "Infrastructure");
        ([(NEWER_HEADER, superseded.newer.to_string())], body).into_response()
    })
}
